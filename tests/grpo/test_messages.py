"""A message is trained and asked as its template writes it, with calls and thoughts, or left out and counted."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from making import TEMPLATE, cases, make_tokenizer, refused, write_rows

from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.conversations import make_examples
from grpo.data.count import RowCount
from grpo.data.prompts import ChatEncoder
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.data.registry import find_sources

QWEN = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'assistant' and message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}
{%- if message.role == 'tool' %}<tool_response>
{{ message.content }}
</tool_response>{% else %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA = """
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{%- if (message.tool_calls or []) | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    made = {}
    for name, template in (("qwen", QWEN), ("llama", LLAMA), ("plain", TEMPLATE)):
        tokenizer = make_tokenizer(["What is the weather in Oslo?"], tmp_path_factory.mktemp(name))
        tokenizer.chat_template = template
        made[name] = ChatEncoder(tokenizer)
    return made


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def look(city):
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"city": city}}}


ASKED, RESULT = user("Weather?"), {"role": "tool", "tool_call_id": "c1", "content": "rain"}
CALLING = assistant(None, tool_calls=[look("Oslo")])
THINKING = assistant("4", reasoning_content="2 and 2")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
SMALL = [ASKED, assistant("Sun.")]
ROWS = {  # what a message may hold beside role and content, once each, and the column tools in each form
    "tool_calls": {"messages": [ASKED, CALLING]},
    "tool": {"messages": [ASKED, RESULT, assistant("Rain.")]},
    "reasoning_content": {"messages": [ASKED, THINKING]},
    "thinking": {"messages": [ASKED, assistant("4", thinking="2 and 2")]},
    "two calls": {"messages": [ASKED, assistant("", tool_calls=[look("Oslo"), look("Bergen")])]},
    "tools as objects": {"messages": SMALL, "tools": TOOLS},
    "tools as text": {"messages": SMALL, "tools": json.dumps(TOOLS)},
    "tools as texts": {"messages": SMALL, "tools": [json.dumps(TOOLS[0])]},
}
WRITTEN = {
    "qwen": {"tool_calls", "tool", "reasoning_content", "thinking", "two calls", "tools"},
    "llama": {"tool_calls"},
    "plain": {"tool"},
}


def examples_of(encoder, *records, max_length=1000, system_prompt=None):
    """Return the text of each prompt with its answer, as the tokens spell them, and the rows that are left out.

    A list is a record of these messages.
    """
    count, records = RowCount("d.jsonl"), [{"messages": one} if isinstance(one, list) else one for one in records]
    groups = make_examples(records, Path("d.jsonl"), encoder, system_prompt, max_length, count)
    decode = encoder.tokenizer.decode
    return [(decode(g.prompt.ids), decode(g.completions[0].ids)) for g in groups], count


def asked_of(encoder, tmp_path, *records):
    """Return the prompts of stage 2, and the rows that are left out."""
    data = write_rows(tmp_path / "q.jsonl", [{"answer": "4", **record} for record in records])
    keys = [f"dataset_id_or_path={data}", "model_name_or_path=m", "output_dir=o", "reward_funcs=exact"]
    config, _ = load_config(None, keys)
    model = SimpleNamespace(config=SimpleNamespace(max_positions=2000))
    policy = SimpleNamespace(model=model, tokenizer=encoder.tokenizer)
    loaded = load_prompts(QuestionData(config), policy, Questions.to_train(config))
    return [encoder.tokenizer.decode(prompt.ids) for prompt in loaded.prompts], loaded.count


def rendered(encoder, messages, tools):
    """Return a conversation as its template writes it, `thinking` under the name that this one knows."""
    messages = [{"reasoning_content": message.get("thinking"), **message} for message in messages]
    return encoder.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False).rstrip("\n")


@pytest.mark.parametrize("template", WRITTEN)
@pytest.mark.parametrize("part", ROWS)
def test_a_row_is_rendered_whole_or_left_out_and_counted(encoders, tmp_path, template, part):
    encoder, row = encoders[template], ROWS[part]
    messages, column = row["messages"], {name: row[name] for name in row if name == "tools"}
    is_written = part.partition(" as ")[0] in WRITTEN[template]
    whole = is_written and rendered(encoder, messages, TOOLS if column else None)
    examples, count = examples_of(encoder, row, SMALL)
    assert [prompt + answer for prompt, answer in examples[:-1]] == ([whole] if whole else [])
    assert count.left_out.total() == (not whole)
    asked, count = asked_of(encoder, tmp_path, {"prompt": [*messages, ASKED], **column}, {"prompt": [ASKED]})
    assert len(asked) == 1 + bool(whole) and count.left_out.total() == (not whole)
    assert not whole or asked[0].startswith(whole)


def test_a_column_tools_that_describes_no_tools_is_a_column_like_others(encoders, tmp_path):
    for column in ("hammer, saw", ["hammer"], [{"kind": "saw"}], {"saw": 1}, [], None, 3):
        assert examples_of(encoders["plain"], {"messages": SMALL, "tools": column})[1].left_out.total() == 0
        assert asked_of(encoders["plain"], tmp_path, {"question": "a", "tools": column})[1].left_out.total() == 0


@pytest.mark.parametrize(("given", "whose"), cases(__file__, "calls"))
def test_all_ways_to_write_a_call_are_one(encoders, given, whose):
    usual = examples_of(encoders["qwen"], [ASKED, CALLING])
    assert examples_of(encoders["qwen"], [ASKED, assistant(None) | json.loads(given)]) == usual


def test_answers_of_weight_0_and_empty_ones_are_no_targets(encoders):
    """They stay in the prompts of the answers after them."""
    for off in ({"weight": 0}, {"weight": 0.0}, {"weight": False}, {"train": False}):
        turns = [ASKED, assistant("bad", **off), ASKED, assistant(""), ASKED, assistant("good", weight=1)]
        ((prompt, answer),), count = examples_of(encoders["plain"], turns)
        assert "bad" in prompt and answer == "good<|im_end|>" and not count.left_out
        examples, count = examples_of(encoders["plain"], turns[:4], SMALL)
        assert len(examples) == 1 and count.left_out.total() == 1


@pytest.mark.parametrize("more", [more for (more,) in cases(__file__, "impossible")])
def test_what_no_template_could_write_is_said(encoders, more):
    answer = assistant("x", **json.loads(more))
    refused(lambda: examples_of(encoders["qwen"], [ASKED, answer]), "row 1")


def test_a_call_that_spells_special_tokens_is_left_out(encoders):
    hostile = assistant("", tool_calls=[look("<|im_end|>")])
    examples, count = examples_of(encoders["qwen"], [ASKED, hostile], SMALL)
    assert len(examples) == 1 and count.left_out.total() == 1


def test_an_answer_that_the_template_does_not_write_after_its_own_header_is_left_out(tmp_path):
    tokenizer = make_tokenizer(["a"], tmp_path)
    tokenizer.chat_template = QWEN.replace(
        "<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\nHm.{% endif"
    )
    examples, count = examples_of(ChatEncoder(tokenizer), [ASKED, THINKING], SMALL)
    assert len(examples) == 1 and count.notes.total() == 1


def test_a_turn_with_calls_is_cut_at_the_length(encoders):
    (whole,), _ = examples_of(encoders["qwen"], [ASKED, CALLING])
    num_tokens = len(encoders["qwen"].tokenizer.encode("".join(whole), add_special_tokens=False))
    ((_, cut),), count = examples_of(encoders["qwen"], [ASKED, CALLING], max_length=num_tokens - 1)
    assert cut == whole[1].removesuffix("<|im_end|>") and count.notes.total() == 1


def test_a_registered_file_keeps_calls_and_tools(encoders, tmp_path):
    """LLaMA-Factory's: the columns' names and the tags stand in dataset_info.json."""
    turns = [
        {"speaker": "me", "said": "Weather?"},
        {"speaker": "it", "said": None, "tool_calls": CALLING["tool_calls"]},
    ]
    write_rows(tmp_path / "calls.jsonl", [{"talk": turns, "functions": json.dumps(TOOLS)}])
    tags = {"role_tag": "speaker", "content_tag": "said", "user_tag": "me", "assistant_tag": "it"}
    entry = {"file_name": "calls.jsonl", "formatting": "sharegpt", "tags": tags}
    entry["columns"] = {"messages": "talk", "tools": "functions"}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"calls": entry}))
    (source,) = find_sources(SftConfig(dataset_id_or_path="calls", dataset_dir=str(tmp_path)))
    usual = examples_of(encoders["qwen"], {"messages": [ASKED, CALLING], "tools": TOOLS})
    assert examples_of(encoders["qwen"], *source.read({})) == usual
