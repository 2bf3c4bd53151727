"""The command that grades a file of completions."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from commands import run_command
from making import read_lines, refused, write_rows
from tokenizers.processors import TemplateProcessing

import rewards
from grpo.base.errors import CONFIG, INTERNAL, PREFLIGHT, STORAGE
from grpo.config.options import TrainConfig
from grpo.data.prompts import load_tokenizer
from knowledge.build import main as build
from rewards.registry import build_rewards
from rewards.score import encoder, main, score_rows
from rewards.scorer import Scorer

ROWS = [
    {"completion": "Velda", "question": "Where?", "answer": "Velda", "id": 7},
    {"completion": "Orun", "ground_truth": "Velda"},
    {"completion": "<think>a</think><answer>Velda</answer>", "answer": "Velda", "ground_truth": "Orun"},
    {"completion": "Velda"},
]


def graded(rows, *names):
    scorer = Scorer(build_rewards(names, {}))
    try:
        return score_rows(rows, scorer, encoder(TrainConfig()), Path("rows.jsonl"))
    finally:
        scorer.close()


@pytest.fixture
def score(tmp_path, capsys):
    """score(rewards, rows, *settings) -> the rows that the command prints. A name `mine:f` is a function of mine.py."""

    def run(names, rows, *settings):
        source = write_rows(tmp_path / "in.jsonl", rows)
        main(["--reward", names.replace("mine:", f"{tmp_path}/mine.py:"), str(source), *settings])
        return [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]

    return run


def test_each_row_comes_back_with_its_own_rewards_and_reasons():
    found = graded(ROWS, "exact", "format")
    assert [row["rewards"] for row in found] == [
        {"exact": 1.0, "format": -1.0},
        {"exact": 0.0, "format": -1.0},
        {"exact": 1.0, "format": 1.0},  # `answer` goes before the other names of the column
        {"exact": None, "format": -1.0},
    ]
    assert [{key: row[key] for key in source} for row, source in zip(found, ROWS, strict=True)] == ROWS
    assert found[1]["reasons"]["exact"] == "'Orun' is not 'Velda'" and "no answer" in found[3]["reasons"]["exact"]


def test_rows_that_training_refuses_are_not_graded_either():
    """They are counted together. The messages of stage 1 are a question, as in training."""
    bad = [{"completion": "b", "answer": {"text": "b"}}, {"completion": 3}]
    told = "row 1 has an answer that the reward exact cannot", "row 2 has no completion"
    refused(lambda: graded([*bad, ROWS[0]], "exact"), "2 rows are bad", *told, exit_code=PREFLIGHT)
    user, answer = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Velda"}
    (row,) = graded([{"completion": "Velda", "messages": [user, answer], "answer": "Velda"}], "exact")
    assert row["rewards"] == {"exact": 1.0}


@pytest.mark.parametrize(
    ("completion", "shown"),
    [
        ("<think>\\boxed{1}</think><answer>\\boxed{2}</answer>", "2"),
        ("<think>a</think><answer> Velda </answer>", "Velda"),
        ("Velda", None),
    ],
)
def test_what_a_row_predicts_stands_beside_what_it_should(completion, shown):
    (row,) = graded([{"completion": completion, "ground_truth": ["2", "two"]}], "format")
    assert (row["predicted"], row["expected"]) == (shown, ["2", "two"])


EXAMPLES = Path(rewards.__file__).parent / "examples"


def test_the_examples_of_knowrl_without_any_service(score, tmp_path, capsys):
    """Right, declined, wrong with a supported fact, wrong without, a list of alternatives, no format."""
    base = tmp_path / "knowledge.db"
    build([str(EXAMPLES / "articles.jsonl"), str(base)])
    capsys.readouterr()
    offline = ["judge=offline", "decomposer=rules", "verifier=lexical", f"knowledge_base={base}"]
    lines = score("knowrl", read_lines(EXAMPLES / "knowrl.jsonl"), *offline)
    assert [line["rewards"]["knowrl"] for line in lines] == [2, 1, -0.75, -1, -1, -1]
    (fact,) = lines[2]["facts"]["knowrl"]  # a row explains itself
    assert fact["verdict"] == "supported" and fact["passage"].endswith("#0") and fact["fact"] in lines[2]["completion"]
    assert fact["text"] and "facts supported" in lines[2]["reasons"]["knowrl"]


def test_the_command_writes_a_file_or_stdout_and_tells_the_means(score, tmp_path, capsys):
    found = score("math", ROWS, "math_reward_no_answer=-0.25")
    assert [row["rewards"]["math"] for row in found] == [-0.25, -0.25, -0.25, None]
    main(["--reward", "exact,format", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")])
    said = capsys.readouterr()
    table = [line.split() for line in said.err.splitlines()[:3]]
    assert table == [
        ["reward", "scored", "mean"],
        ["exact", "3", "of", "4", "+0.667"],
        ["format", "4", "of", "4", "-0.500"],
    ]
    assert said.out == "" and read_lines(tmp_path / "out.jsonl") == graded(ROWS, "exact", "format")


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_graded(score, tmp_path):
    refused(lambda: score("exact", ROWS, "--output", str(tmp_path)), "cannot write", exit_code=CONFIG)


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


BOXED = {"completion": "\\boxed{4}\u2028", "answer": "4"}  # what follows the box ends no line of a file
OLD = '{"completion": "of an earlier day"}\n'
FAILURES = {  # what ends the command before, or while, it writes: rows, reward, what it does first; its exit code
    "a row without a completion": ([BOXED, {"answer": "4"}], "math", None, PREFLIGHT),
    "a reward that raises": ([BOXED], "mine.py:f", None, INTERNAL),
    "a full disk": ([BOXED] * 200, "math", limit_files, STORAGE),
    "a kill": ([BOXED], "math", lambda: os.environ.update(FAILPOINT="write-out.jsonl"), -9),
}


@pytest.mark.parametrize("case", FAILURES)
def test_the_command_replaces_its_output_whole_or_not_at_all(tmp_path, case):
    rows, reward, before, code = FAILURES[case]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    (tmp_path / "mine.py").write_text("def f(completions, **columns):\n    return 1 / 0\n")
    out.write_text(OLD)
    reward = reward.replace("mine.py", f"{tmp_path}/mine.py")
    done = run_command("rewards.score", "--reward", reward, source, "--output", out, before=before)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert out.read_text() == OLD and (before or not list(tmp_path.glob("*.tmp")))


def test_the_command_may_replace_its_own_input(tmp_path):
    """It has been read by then."""
    source = write_rows(tmp_path / "in.jsonl", [BOXED])
    done = run_command("rewards.score", "--reward", "math", source, "--output", source)
    assert read_lines(source)[0]["rewards"] == {"math": 1.0}, done.stderr


def test_what_a_function_prints_is_no_row_and_what_json_cannot_hold_is_null_or_escaped(score, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def f(completions, **columns):\n    print('a line')\n    return [float(text) for text in completions]\n"
    )
    graded = score("mine:f", [{"completion": text, "note": "\ud800"} for text in ("1.5", "nan", "inf")])
    assert [row["rewards"]["mine:f"] for row in graded] == [1.5, None, None]
    assert graded[1]["reasons"]["mine:f"].startswith("the reward returned nan: a reward is a number between")
    assert {row["note"] for row in graded} == {"?"}


def test_a_row_is_graded_with_its_prompt_as_in_training(score, tmp_path):
    """Functions get messages where there are some, and the judge the last; a prompt may have opened the thoughts, or be
    missing."""
    turns = [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Where?"}]
    (tmp_path / "mine.py").write_text(
        "def f(prompts, completions, log_extra, **columns):\n"
        "    log_extra('seen', [str((prompts[0], completions[0], columns['question'][0]))])\n"
        "    return [0.0]\n"
    )
    said = {"completion": "a</think><answer>b</answer>", "answer": "b"}
    rows = [{**said, "prompt": turns}, {**said, "prompt": "Where?<think>", "question": "Where?"}, said]
    found = score("mine:f,tag_count", rows)
    replied = [{"role": "assistant", "content": said["completion"]}]
    text = said["completion"]
    seen = [(turns, replied, "Where?"), ("Where?<think>", text, "Where?"), ("", text, None)]
    assert [row["extra"]["mine:f"]["seen"] for row in found] == list(map(str, seen))
    assert [row["rewards"]["tag_count"] for row in found] == [0.75, 1, 0.75]
    wrong = [{**said, "prompt": [3]}]
    refused(lambda: graded(wrong, "format"), "row 1: its prompt is no conversation", exit_code=PREFLIGHT)


def test_the_tokens_that_are_counted_are_those_of_the_text_alone(score, tmp_path, chat_checkpoint):
    """Not what a tokenizer puts in front of every text, as that of Llama does."""
    model = shutil.copytree(chat_checkpoint, tmp_path / "model")
    tokenizer = load_tokenizer(model)
    start = ("<|im_start|>", tokenizer.convert_tokens_to_ids("<|im_start|>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[start])
    tokenizer.save_pretrained(model)
    text = "12 + 3"
    alone = load_tokenizer(chat_checkpoint).encode(text)
    assert load_tokenizer(model).encode(text) == [start[1], *alone]
    (tmp_path / "mine.py").write_text("def f(completion_ids, **_): return [len(ids) for ids in completion_ids]\n")
    (row,) = score("mine:f", [{"completion": text}], f"model_name_or_path={model}")
    assert row["rewards"] == {"mine:f": len(alone)}
    needed = "there is no tokenizer", "model_name_or_path=MODEL"
    refused(lambda: score("mine:f", [{"completion": text}]), *needed, exit_code=CONFIG)


def test_what_a_tool_has_said_is_not_graded_and_calls_that_are_none_are_named():
    row = {"completion": "<f>x</f><result>y</result>b", "answer": "b"}
    assert graded([row | {"tool_calls": [{"tool": "f", "span": [0, 26]}]}], "exact")[0]["rewards"] == {"exact": 1.0}
    assert graded([row, row | {"tool_calls": None}], "exact")[1]["rewards"] == {"exact": 0.0}
    wild = [row | {"tool_calls": [{"tool": "f", "span": 1}]}]
    refused(lambda: graded(wild, "exact"), "row 1: its tool_calls are no calls", exit_code=PREFLIGHT)
