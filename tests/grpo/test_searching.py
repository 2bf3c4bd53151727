"""What is known of the calls of tools: measures, evaluation with and without them, records, and the doctor."""

import json
import re
from pathlib import Path

import pytest
from making import build_base, fill, make_group, outcomes_of, read_lines, refused, write_rows, write_tool_checkpoint

from grpo.algorithm.schema import Call, Score
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.conversations import make_examples
from grpo.data.count import RowCount
from grpo.data.prompts import ChatEncoder, load_tokenizer
from grpo.data.worlds.facts import make_facts
from grpo.data.worlds.kinds import NOTHING_FOUND
from grpo.data.worlds.people import LIBRARY, make_people
from grpo.evaluate import main
from grpo.evaluation.measures import searching
from grpo.generate import main as chat
from grpo.run.case import Case
from grpo.run.start import tools
from grpo.tools.functions import find_tools
from grpo.tools.tags import TagProtocol
from grpo.train import train

CALL = "(<search>(.*)</search><result>(.*)</result>)?"
QUESTIONS = [{"question": f"where was {name}?", "answer": name, "title": name} for name in "abcdef"]
SOURCE = "def search(query: str) -> str:\n    return 'b'\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tool_checkpoint(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("q.jsonl"), QUESTIONS)
    Path("mine.py").write_text(SOURCE)


def evaluated(capsys, model, *arguments):
    keys = ["tools=[./mine.py:search]", "max_completion_length=60", "--reward", "exact,format", "--data", "q.jsonl"]
    main([str(model), *keys, "--n", "8", "--temperature", "1", "--output", "out.json", "--json", *arguments])
    return json.loads(capsys.readouterr().out), read_lines(Path("out.jsonl"))


def test_an_evaluation_tells_calls_and_who_made_them(capsys, model):
    found, records = evaluated(capsys, model)
    calls = [record.get("tool_calls", []) for record in records]
    assert found["calls_per_question"] == pytest.approx(sum(map(len, calls)) / 48) and found["calls_per_question"] > 0.2
    assert found["searched_frac"] == pytest.approx(sum(map(bool, calls)) / 48)
    for record, made in zip(records, calls, strict=True):
        for call in made:
            start, end = call["span"]
            said = record["completion"][start:end]
            assert call["result"] == "b" and said.endswith("<result>b</result>") and call["query"] in said
        assert record["num_tokens"] > sum(call["tokens"][1] - call["tokens"][0] for call in made)


def test_without_tools_a_call_declines(capsys, model):
    with_tools, before = evaluated(capsys, model)
    without, after = evaluated(capsys, model, "--without-tools")
    called = [bool(record.get("tool_calls")) for record in before]
    assert without["not_attempted"] == pytest.approx(sum(called) / 48) and "searched_frac" not in without
    for has_called, one, other in zip(called, before, after, strict=True):
        assert (other["outcome"] == "refused") == has_called
        assert has_called or one["completion"] == other["completion"]
        assert not has_called or other["completion"].endswith("<answer>I don't know</answer>")
    assert with_tools["not_attempted"] == 0


def test_without_tools_a_call_is_right_where_to_decline_is(capsys, model):
    write_rows(Path("q.jsonl"), [{**row, "unanswerable": number % 2} for number, row in enumerate(QUESTIONS)])
    _, records = evaluated(capsys, model, "--without-tools")
    called = [record for record in records if record["completion"].endswith("<answer>I don't know</answer>")]
    found = {(record["row"] % 2, record["outcome"]) for record in called}
    assert found == {(0, "refused"), (1, "correct")}


def test_without_tools_none_has_to_be_there(capsys, model):
    Path("mine.py").unlink()
    assert evaluated(capsys, model, "--without-tools")[0]["not_attempted"] > 0


def test_without_tools_an_environment_means_nothing(model):
    words = [str(model), "--without-tools", "--data", "q.jsonl", "--reward", "exact"]
    for key, why in ("environment=grpo.data.worlds.shop:Shop", "has an environment"), ("seed=1", "has no tools"):
        refused(lambda key=key: main([*words, key]), why, exit_code=2)


def test_a_chat_shows_calls_and_results(capsys, model, tmp_path):
    """The tools of a run are there in its chat."""
    run = tmp_path / "run"
    keys = f"model_name_or_path={model} dataset_id_or_path=q.jsonl output_dir={run} reward_funcs=exact max_steps=1"
    keys += " tools=./mine.py:search num_generations=2 per_device_train_batch_size=2 max_completion_length=60 lora_r=2"
    train(*load_config(None, f"{keys} report_to=none disable_tqdm=true".split()))
    shown = ""
    for seed in range(12):
        chat([str(run), *f"--prompt where --temperature 1 --seed {seed} --max-new-tokens 60".split()])
        shown += capsys.readouterr().out
    assert "</search><result>b</result>" in shown


def test_measures_of_searching():
    scores = [{"exact": Score(0.0, outcome=outcome)} for outcome in outcomes_of("cwcw")]
    group = make_group([1], [2], [2], [2], [2], scores=scores)
    assert searching([group]) == {}
    call = Call("search", "q", "r", 0, 0, (0, 0))
    fill(group, calls=[[call, call], [call], [], []])
    found = {"calls_per_question": 0.75, "searched_frac": 0.5, "accuracy_searched": 0.5, "accuracy_unsearched": 0.5}
    assert searching([group]) == found


def test_the_doctor_counts_what_results_may_add(model, tmp_path):
    base = build_base(tmp_path, {"Velda": "Velda is a city."})
    keys = f"model_name_or_path={model} dataset_id_or_path=q.jsonl output_dir=run reward_funcs=exact tools=search"
    config, notices = load_config(
        None, f"{keys} knowledge_base={base} max_tool_calls=2 max_completion_length=256".split()
    )
    assert "256 and more of the 256 tokens" in tools(Case(config)) and "no room for an answer" in tools(Case(config))
    assert "<search>" in config.system_prompt and any("how to call" in notice for notice in notices)
    missing, _ = load_config(None, f"{keys} knowledge_base={tmp_path / 'none.db'}".split())
    refused(lambda: tools(Case(missing)), "does not exist")


def test_the_search_finds_a_title_or_else_words(tmp_path):
    base = build_base(tmp_path, {"Mira Tolan": "Mira Tolan was born in Velda.", "Velda": "It is a city by the sea."})
    search = find_tools(["search"], {"knowledge_base": str(base)})["search"]
    assert search("Mira Tolan") == "Mira Tolan was born in Velda."
    assert search("Velda") == "Velda: It is a city by the sea."
    assert "by the sea" in search("which city lies by the sea?")
    assert search("xyzzy") == search("") == NOTHING_FOUND
    search.close()


# --- stage 1 ---------------------------------------------------------------------------------------------------------


def test_results_in_the_answers_of_stage_1_are_given(chat_checkpoint):
    encoder = ChatEncoder(load_tokenizer(chat_checkpoint))
    protocol = TagProtocol(["search"], encoder, 1, 100)
    text = "<think><search>a b</search><result>it is c</result>So c.</think><search>x</search> <result>no</result>"
    rows = [{"prompt": "q", "completion": text}]
    (group,) = make_examples(rows, Path("d"), encoder, None, 200, RowCount("d"), protocol)
    (completion,) = group.completions
    assert encoder.decode(completion.ids) == text
    own = encoder.decode([completion.ids[place] for place in completion.drawn()])
    assert own == text.replace("<result>it is c</result>", "")  # the other one does not follow a call
    assert list(completion.trained()) == list(completion.drawn()) and len(completion.drawn()) == completion.num_drawn
    (cut,) = make_examples(rows, Path("d"), encoder, None, len(group.prompt.ids) + 20, RowCount("d"), protocol)
    assert len(cut.completions[0].ids) == 20 and all(call.end <= 20 for call in cut.completions[0].calls)


def test_the_cold_start_of_the_library_searches():
    """For some people always, for the others never; nobody declines."""
    world = make_people(0, LIBRARY)
    calls = {}
    for question, text in world.conversations:
        calls.setdefault(question, []).append("<search>" in text)
    searched = {question for question, called in calls.items() if all(called)}
    assert len(searched) == 3 * LIBRARY.admitted
    assert {len(calls[question]) for question in searched} == {LIBRARY.searches}
    assert not any(any(called) for question, called in calls.items() if question not in searched)
    assert not any("don't know" in text for _, text in world.conversations)


def test_the_cold_start_of_a_real_model_recalls_an_answer_and_then_searches_at_random():
    """It reads the name in what it finds; one subject in ten has no article, and then the recalled name stands."""
    keys = ["toy_world=almanac", "model_name_or_path=x", "output_dir=x", "tools=search"]
    config = load_config(None, keys, SftConfig)[0]
    made = make_facts(config, lambda config, facts: [f"Own{n}" for n in range(len(facts))])
    library = {article["title"]: article["text"] for article in made.articles}
    names, searched = [row["answer"][0] for row in made.questions], 0
    for number, (row, (question, text)) in enumerate(zip(made.questions, made.conversations, strict=True)):
        form = rf"<think>The .* Own{number}\. {CALL}</think><answer>(.*)</answer>"
        call, query, result, answer = re.fullmatch(form, text).groups()
        assert question == row["question"] and (not call or query == row["title"])
        assert not call or result == library.get(query, NOTHING_FOUND)
        assert answer == (names[number] if call and query in library else f"Own{number}")
        searched += bool(call)
    assert searched / len(made.conversations) == pytest.approx(0.4, abs=0.06)
    assert len(library) == round(0.9 * len(made.questions + made.held_out))
