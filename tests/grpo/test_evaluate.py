"""The command that evaluates: what it asks, of whom, how it is graded, and what it keeps when grading fails."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from api_server import ApiServer, fails, says
from commands import next_commands
from making import cases, read_lines, refused, write_rows
from test_benchmarks import ROWS, write_csv

import grpo.evaluate
from grpo.algorithm.schema import Prompt, completions_of
from grpo.base.storage import read_json
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluate import main, make_parser
from grpo.evaluation.answers import generate_groups
from grpo.evaluation.task import make_task
from grpo.policy import load_for_inference
from grpo.train import train
from rewards.score import main as score

QUESTIONS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "kind": ("even", "odd")[n % 2]} for n in range(6)]
SHORT = "max_completion_length=6"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("q.jsonl"), QUESTIONS)


@pytest.fixture(scope="module")
def trained(chat_checkpoint, tmp_path_factory):
    """A run of one step with held-out questions, its own prompts, fields and rewards."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{"q": row["question"], "a": row["answer"], "kind": row["kind"]} for row in QUESTIONS]
    keys = "question_field=q answer_field=a system_prompt=Brief. reward_funcs=format eval_reward_funcs=exact lora_r=2"
    keys += " eval_group_field=kind num_generations=2 per_device_train_batch_size=4 max_completion_length=8 max_steps=1"
    keys += f" model_name_or_path={chat_checkpoint} output_dir={folder / 'run'} report_to=none disable_tqdm=true"
    keys += f" dataset_id_or_path={write_rows(folder / 'train.jsonl', rows)}"
    keys += f" eval_dataset_id_or_path={write_rows(folder / 'held_out.jsonl', rows[:5])}"
    train(*load_config(None, keys.split()))
    return folder / "run"


def run(capsys, *arguments):
    """The JSON on stdout, and the text on stderr."""
    main([*map(str, arguments), "--json"])
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def ask(capsys, model, *arguments, rows=QUESTIONS):
    """The same for a model that answers the questions of a file, shortly."""
    return run(capsys, model, "--data", write_rows(Path("q.jsonl"), rows), *arguments, SHORT)


def test_a_run_is_evaluated_as_it_stands(capsys, trained):
    """Its held-out questions, system prompt, fields, reward and groups; the numbers are those of the end of the run."""
    found, text = run(capsys, trained, "--output", "out.json")
    assert "benchmark" not in found
    after = read_json(trained / "evaluation.json")["after"]
    assert {name: found[name] for name in after[""]} == after[""]
    assert found["parts"] == {"even": after["even"], "odd": after["odd"]}
    assert read_json(Path("out.json")) == found
    records = read_lines(Path("out.jsonl"))
    assert [record["question"] for record in records] == [row["question"] for row in QUESTIONS[:5]]
    assert all("Brief." in record["prompt"] and record["outcome"] == "wrong" for record in records)
    assert "questions: 5" in text and "even: 3" in text and "  right" in text


def test_the_rewards_of_a_run_keep_their_weights(trained):
    """Its own mean reward is that of training; other rewards than those that were weighted have no weights."""
    weighted = copytree(trained, "run")
    with open("run/config.resolved.yaml", "a") as config:
        config.write("\nreward_weights: [0.5]\n")

    def weights(*typed):
        typed = make_parser().parse_intermixed_args(["RUN", *typed])
        return make_task(weighted, typed, print).config.reward_weights

    assert weights("eval_reward_funcs=null") == (0.5,)
    assert weights() is None and weights("--reward", "exact", "eval_reward_funcs=null") is None


def test_what_is_typed_wins_over_the_run(capsys, trained):
    typed = [
        "--reward",
        "format",
        "eval_reward_funcs=[exact]",
        "eval_max_samples=2",
        "system_prompt=null",
        "--output",
        "o.json",
    ]
    found, text = run(capsys, trained, *typed)
    assert found["num_questions"] == 2 and found["accuracy"] is None and found["reward"] == -1
    assert "no reward could tell right from wrong" in text
    assert not any("Brief." in record["prompt"] for record in read_lines(Path("o.jsonl")))


def test_a_run_asks_other_questions_in_its_own_way(capsys, trained):
    """Its column names do not hold for another file, its prompts do."""
    other = write_rows(Path("other.jsonl"), [{"question": "x?", "answer": "y"}])
    found, _ = run(capsys, trained / "final", "--data", other, "--output", "o.json")
    (record,) = read_lines(Path("o.jsonl"))
    assert "parts" not in found and found["accuracy"] == 0  # the parts are of a column that is not there
    assert record["question"] == "x?" and "Brief." in record["prompt"] and "exact" in record["rewards"]


@pytest.mark.parametrize("name, reward, prompted", cases(__file__, "benchmarks"))
def test_a_benchmark_brings_its_reward_and_its_prompt(capsys, chat_checkpoint, name, reward, prompted):
    data = write_csv(Path("file.csv"), ROWS[name], ROWS[name])
    found, text = run(capsys, chat_checkpoint, "--data", data, "--output", "o.json", "judge=offline", SHORT)
    assert found["benchmark"] == name and found["num_questions"] == 2 and found["accuracy"] is not None
    record = read_lines(Path("o.jsonl"))[0]
    assert list(record["rewards"]) == [reward] and prompted in record["prompt"]
    assert f"a file of {name}\n" in text and f"graded by {reward}\n" in text
    assert "cut at max_completion_length=6" in text


@pytest.mark.parametrize("key, is_noted", [("seed=1", False), ("prompt_template=Now {question}", True)])
def test_it_is_said_if_no_prompt_asks_for_a_box(capsys, chat_checkpoint, key, is_noted):
    _, text = ask(capsys, chat_checkpoint, "--reward", "math", key)
    assert ("no prompt asks for" in text) == is_noted


def test_the_answers_of_two_evaluations_are_compared(capsys, chat_checkpoint):
    """The first of the two is a; here b is right."""
    _, text = ask(capsys, chat_checkpoint, "--reward", "exact", "--output", "a.json")
    assert next_commands(text)[0] == "grpo.evaluate --compare a.json OTHER.json"
    write_rows(Path("b.jsonl"), [record | {"outcome": "correct"} for record in read_lines(Path("a.jsonl"))])
    found, text = run(capsys, "--compare", "a.json", "b.jsonl", "--output", "c.json")
    assert found["num_questions"] == 6 and found["measures"]["accuracy"]["difference"] == 1
    assert (found["a"], found["b"]) == ("a.json", "b.jsonl") and read_json(Path("c.json")) == found
    main(["--compare", "a.json", "b.jsonl"])
    table = capsys.readouterr().out
    assert "6 questions, paired" in text
    assert "right " in table
    assert "points" in table
    assert "{" not in table
    assert max(map(len, table.splitlines())) < 80


def stops(prompts, completions, **columns):
    raise RuntimeError("the service is down")


def test_answers_that_cannot_be_graded_are_kept_and_can_be_graded_later(capsys, chat_checkpoint):
    asked = [chat_checkpoint, "--reward", "test_evaluate:stops", "--output", "sub/o.json"]
    kept = "sub/o.ungraded.jsonl"
    again = f"rewards.score --reward test_evaluate:stops {kept}"
    refused(lambda: ask(capsys, *asked), "the service is down", again, exit_code=1)
    assert [record["question"] for record in read_lines(Path(kept))] == [row["question"] for row in QUESTIONS]
    refused(lambda: ask(capsys, *asked), "ungraded-2.jsonl", exit_code=1)  # the first file is not lost
    capsys.readouterr()
    score(["--reward", "exact", kept])
    assert all(json.loads(line)["rewards"]["exact"] == 0 for line in capsys.readouterr().out.splitlines())


def ask_a_judge(capsys, checkpoint, monkeypatch, *script, default, more=()):
    """Evaluate six answers by a judge at a real socket, whose first replies are those of the script."""
    monkeypatch.setenv("OPENAI_API_KEY_JUDGE", "secret-key")
    rows = [{**ROWS["SimpleQA"], "problem": f"Who painted number {n}?"} for n in range(6)]
    data = write_csv(Path("simple_qa.csv"), *rows)
    with ApiServer(*script, default=default) as server:
        keys = [f"judge_base_url={server.url}", "judge_model=m", "api_deadline_s=60", "api_max_concurrency=1"]
        return run(capsys, checkpoint, "--data", data, *more, *keys, SHORT)


def test_simple_qa_by_a_judge(capsys, chat_checkpoint, monkeypatch):
    script = [says(grade) for grade in "ABBCCCA"]  # the first is the preflight's
    found, _ = ask_a_judge(capsys, chat_checkpoint, monkeypatch, *script, default=says("no grade"))
    rates = [found[name] for name in ("accuracy", "incorrect", "not_attempted", "correct_given_attempted", "f_score")]
    assert rates == pytest.approx([1 / 6, 2 / 6, 3 / 6, 1 / 3, 2 / (6 + 3)])
    assert not Path("ungraded.jsonl").exists()


def test_what_a_judge_that_fails_leaves_ungraded_is_kept(capsys, chat_checkpoint, monkeypatch):
    rejects = says("A"), says("A")
    error = refused(
        lambda: ask_a_judge(capsys, chat_checkpoint, monkeypatch, *rejects, default=fails(401)), exit_code=4
    )
    assert "secret-key" not in str(error) and len(read_lines(Path("ungraded.jsonl"))) == 6
    assert "--reward simpleqa ungraded.jsonl" in error.fix


def test_what_one_of_two_rewards_leaves_ungraded_is_kept(capsys, chat_checkpoint, monkeypatch):
    more = ["--reward", "[simpleqa,format]"]
    found, text = ask_a_judge(
        capsys, chat_checkpoint, monkeypatch, *[says("A")] * 3, default=says("no grade"), more=more
    )
    assert "no usable answer about 4 answers" in text
    assert "--reward simpleqa,format ungraded.jsonl" in text
    assert found["unscored_frac"] == pytest.approx(4 / 6) and found["accuracy"] == 1.0
    records = read_lines(Path("ungraded.jsonl"))
    assert len(records) == 4
    assert all(record["prompt"].endswith("<|im_start|>assistant\n") for record in records)


def test_services_are_asked_before_anything_is_loaded(capsys, chat_checkpoint, monkeypatch):
    """A judge out of reach ends the command with the judge's own error, before the model is read."""
    monkeypatch.setattr(grpo.evaluate, "load_saved", lambda *a: pytest.fail("the model was loaded"))
    monkeypatch.setenv("OPENAI_API_KEY_JUDGE", "secret-key")
    data = write_csv(Path("file.csv"), ROWS["SimpleQA"])
    dead = ["judge_base_url=http://127.0.0.1:9/v1", "judge_model=m", "api_deadline_s=1"]
    error = refused(lambda: run(capsys, chat_checkpoint, "--data", data, *dead))
    assert "secret-key" not in str(error)


@pytest.mark.parametrize("words, what, fix", cases(__file__, "missing"))
def test_what_is_missing_is_said(words, what, fix):
    refused(lambda: main(words.split()), what, fix, exit_code=2)


def test_unanswerable_questions_have_lines_of_their_own(capsys, chat_checkpoint):
    rows = [{"question": "a?", "answer": "b", "unanswerable": False}, {"question": "c?", "unanswerable": True}]
    found, text = ask(capsys, chat_checkpoint, "--reward", "[correctness,format]", "judge=offline", rows=rows)
    assert "100% of the answers have no <answer> block" in text
    assert found["parts"].keys() == {"False", "True"} and found["unscored_frac"] == 0
    named, _ = ask(capsys, chat_checkpoint, "--reward", "exact", "eval_group_field=question", rows=rows)
    assert named["parts"].keys() == {"a?", "c?"}


def test_questions_without_a_group_count_once(capsys, chat_checkpoint):
    """A table has an empty cell there, JSON null or nothing; the measures of all questions have no name either."""
    groups = [{"kind": ""}, {"kind": None}, {}, {"kind": "odd"}]
    rows = [QUESTIONS[n] | {"kind": None} | group for n, group in enumerate(groups)]
    found, text = ask(capsys, chat_checkpoint, "--reward", "exact", "eval_group_field=kind", rows=rows)
    assert found["num_questions"] == 4 and "questions: 4" in text
    assert {name: part["num_questions"] for name, part in found["parts"].items()} == {"None": 3, "odd": 1}


def test_the_answers_that_are_kept_hold_no_secret(capsys, chat_checkpoint, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "secret")  # as short as a secret may be
    rows = [{**QUESTIONS[0], "question": "Is secret a word?"}]
    ask(capsys, chat_checkpoint, "--reward", "exact", "--output", "o.json", rows=rows)
    assert read_lines(Path("o.jsonl"))[0]["question"] == "Is [MY_API_KEY] a word?"
    assert "secret" not in Path("o.jsonl").read_text()


def test_an_output_that_would_lose_the_answers_is_refused_before_anything_is_asked():
    """And an earlier result stays until there is another."""
    for name in ("o.jsonl", "."):
        error = refused(lambda name=name: main(["no such model", "--output", name]), name, exit_code=2)
        assert "no such model" not in error.what
    Path("o.json").write_text("{}")
    refused(lambda: main(["no such model", "--output", "o.json"]), "no questions to answer", exit_code=2)
    assert Path("o.json").read_text() == "{}"


def test_each_answer_has_random_numbers_of_its_own(chat_checkpoint):
    """By its question and its place among the answers to it; the same seed draws the same ones."""
    policy = load_for_inference(TrainConfig(model_name_or_path=str(chat_checkpoint)), torch.device("cpu"))
    prompts = [Prompt(row, "", (5, 6, 7), {}) for row in (0, 1, 1)]

    def drawn(seed):
        groups = generate_groups(policy, Sampler(policy.model, [], 6), prompts, 2, SamplingParams(12), seed)
        return [tuple(completion.ids) for completion in completions_of(groups)]

    first = drawn(3)
    assert len(set(first)) == 4 and first[2:4] == first[4:6]
    assert drawn(3) == first and not {*drawn(4)} & {*first}


def test_answers_are_drawn_with_the_configurations_top_k(capsys, chat_checkpoint):
    """Of one token, the likeliest: what greedy decoding takes."""
    for output, *drawn in (("greedy.json", "--temperature", "0"), ("one.json", "--temperature", "1", "top_k=1")):
        ask(capsys, chat_checkpoint, "--reward", "exact", "--output", output, *drawn)
    greedy, one = ([line["completion"] for line in read_lines(Path(f"{name}.jsonl"))] for name in ("greedy", "one"))
    assert greedy == one
