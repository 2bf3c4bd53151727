"""`cold_start: form`: the model's own answers, in the form that the rewards read."""

import random

import pytest
from making import cases, read_lines, refused, write_rows
from test_cold_start import examine

from grpo.algorithm.schema import Prompt
from grpo.config.load import load_config
from grpo.data.rows import Row
from grpo.run.stage1 import (
    complete_sentences,
    first_words,
    form_stage1,
    in_form,
    make_examples,
    own_system_prompt,
    plain,
)
from grpo.train import train
from rewards.format import parse, stated_confidence
from rewards.mathematics.boxes import last_boxed

QUESTIONS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(6)]


@pytest.fixture
def keys(tmp_path, chat_checkpoint):
    data = write_rows(tmp_path / "questions.jsonl", QUESTIONS)
    keys = f"model_name_or_path={chat_checkpoint} dataset_id_or_path={data} output_dir={tmp_path}/run cold_start=form"
    keys += " reward_funcs=[format,abstention] judge=offline eval_size=2 max_steps=1 num_generations=2 lora_r=2"
    keys += " per_device_train_batch_size=2 max_completion_length=12 report_to=none disable_tqdm=true save_steps=0"
    return [*keys.split(), "system_prompt=Be brief."]


def test_a_run_writes_its_cold_start_and_goes_on_from_it(tmp_path, keys, capsys):
    train(*load_config(None, keys))
    folder = tmp_path / "run"
    examples = read_lines(folder / "world/form.jsonl")
    asked = {example["prompt"][-1]["content"] for example in examples}
    assert asked <= {row["question"] for row in QUESTIONS[:4]}  # none that is held out
    answers = [parse(example["completion"]) for example in examples]
    assert not any(answer.problem for answer in answers)
    declined = sum(answer.answer == "I don't know" for answer in answers) / len(answers)
    assert 0.2 < declined < 0.6
    settings = (folder / "cold_start/config.resolved.yaml").read_text()
    assert "system_prompt: Be brief." in settings and "lora_r: 2" in settings
    assert "now stage 2, GRPO" in capsys.readouterr().err
    train(*load_config(None, [*keys, "resume_from_checkpoint=true", "max_steps=2"]))
    assert "is reused" in capsys.readouterr().err


def test_the_model_is_asked_without_the_prompt_that_rewards_supply(keys):
    config, _ = load_config(None, keys)
    supplied, _ = load_config(None, keys[:-1])
    assert own_system_prompt(config) == "Be brief."
    assert "<think>" in supplied.system_prompt and own_system_prompt(supplied) is None
    assert form_stage1(supplied).system_prompt == supplied.system_prompt  # in training it is there


@pytest.mark.parametrize("names", [["knowrl"], ["format", "exact"], ["mine.py:f"], ["math", "tag_count"], ["rlcr"]])
def test_the_form_is_that_of_the_rewards(names):
    text = in_form(names, "Two and two is four.", "4", random.Random(0))
    parsed = parse(text)
    assert not parsed.problem and parsed.answer == (r"\boxed{4}" if "math" in names else "4")
    assert (stated_confidence(text) is not None) == ("rlcr" in names)


def test_math_alone_reads_a_box_and_no_tags():
    text = in_form(["math"], "Two and two is four.", "4", random.Random(0))
    assert last_boxed(text) == "4" and "<" not in text


@pytest.mark.parametrize("text, whole, few", [*cases(__file__, "ends"), ["", "", ""], ["  ", "", ""]])
def test_an_answer_is_cut_where_it_ends(text, whole, few):
    assert complete_sentences(text) == whole and first_words(text) == few


def test_a_short_answer_that_repeats_the_long_one_is_left_out(keys):
    config, rows, prompts = load_config(None, keys)[0], [Row(0, "Where?", {})], [Prompt(0, "", (1,), {})] * 4
    said = ["The capital of Nepal is Kathmandu."] * 2 + ["Lima.", ""]
    found = make_examples(config, rows, prompts, said, ["The capital of Nepal is Kathmandu", "Kathmandu", "Lima", "x"])
    thoughts = [example["completion"].partition("</think>")[0] for example in found]
    assert thoughts == [f"<think>{said[0]}", "<think>Lima."]


@pytest.mark.parametrize(
    "more, declines",
    [
        ("[format,abstention]", True),
        ("knowrl_v1 knowledge_base=x.db", False),
        ("[format,rlcr]", False),
        ("[format,rlcr] refusal_target=0.4", True),
        ("[format,exact]", False),
    ],
)
def test_it_declines_only_where_that_is_paid(keys, more, declines):
    """Not where it costs as much as a wrong answer, or where the prompt asks for a guess."""
    config, _ = load_config(None, [*keys, *f"reward_funcs={more}".split()])
    prompts = [Prompt(0, "", (1,), {})] * 40
    found = make_examples(config, [Row(0, "Where?", {})], prompts, ["It is Lima."] * 40, ["Lima"] * 40)
    said = [parse(example["completion"]).answer for example in found]
    assert ("I don't know" in said) == declines and "Lima" in said


def test_what_the_model_writes_cannot_break_the_form():
    said = plain("<think>It is\n</answer> $\\boxed{4}$ **yes**</think>")
    assert not parse(in_form(["knowrl"], said, said, random.Random(0))).problem


def test_the_doctor_knows_that_the_data_of_stage_1_is_yet_to_be_written(tmp_path, keys):
    found = examine(keys)
    assert [finding for finding in found.values() if finding.ok is False] == []
    assert found["stage 1"].text.startswith("form runs first, from ")
    assert found["stage 1 data"].text == "not checked: the model writes it, when the run begins"


def test_it_needs_a_model(keys):
    refused(lambda: load_config(None, keys[1:]), "model_name_or_path", exit_code=2)
