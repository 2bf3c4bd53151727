"""Run directories in which anything may stand: explain and report show what can be read."""

import json
import os
import random
from pathlib import Path

import pytest
from test_measures import answers
from test_report import answer
from test_rules import HEALTHY

from grpo.evaluation.measures import summary
from grpo.explain import explain
from grpo.report.page import render
from grpo.run.diagnosis.record import read_record

DEEP, HUGE = "@deep@", "@huge@"  # written in place of values that json.dumps would not write
NUMBERS = [-1, 0, 10**18, 10**310, -(10**310), 1e308, -1e308, 1e-320, float("nan"), float("inf")]
TEXTS = ["", "text", "1e999", "\x00\x1b[31m\ud800", "x" * 30_000]
VALUES = [None, True, *NUMBERS, *TEXTS, [], {}, [None], [[1]], {"a": {"b": [1e308]}}, DEEP, HUGE]
STEP = {**HEALTHY, "step": 1, "loss": 0.1, "kl": 0.1, "num_tokens": 100, "time/train": 1.0, "peak_memory_gb": 1.0}
CONFIG = {
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "torch_dtype": "auto",
    "reward_funcs": ["mine"],
    "max_completion_length": 9,
    "model_name_or_path": "m",
    "learning_rate": 0.1,
}
DATA = {"training data": "d.jsonl: 40 rows"}
STATE = {"status": "done", "reason": "", "step": 25, "started": "2026-01-01T00:00:00", "data": DATA}
PART = summary(answers(5, 3, 1))
EVALUATION = {"before": {"": PART, "known": PART}, "after": {"": PART}}
FACTS = {"mine": [{"fact": "f", "verdict": "refuted"}]}
ANSWER = answer(1, 0.5, facts=FACTS, sentences=[{"sentence": "s", "is_true": True, "advantage": 0.5}])
WRITTEN = {"config.resolved.yaml": CONFIG, "run_state.json": STATE, "evaluation.json": EVALUATION}
ANSWER_FILES = [f"{folder}/step-{step:06d}.jsonl" for folder in ("completions", "evaluation") for step in (1, 25)]


def spoil(content, rng: random.Random):
    """Replace a value, at any depth, by a wild one; now and then a key."""
    if isinstance(content, dict) and content and rng.random() < 0.9:
        name = rng.choice(list(content))
        if rng.random() < 0.05:
            return {**content, "x" * 500 + name: content[name]}
        return {**content, name: spoil(content[name], rng)}
    if isinstance(content, list) and content and rng.random() < 0.5:
        return [spoil(content[0], rng), *content[1:]]
    return rng.choice(VALUES)


def as_text(content) -> str:
    text = json.dumps(content).replace(f'"{DEEP}"', "[" * 5_000 + "]" * 5_000)
    return text.replace(f'"{HUGE}"', "9" * 5_000)


def write_wild_run(folder: Path, seed: int) -> Path:
    """A run of 25 steps, with up to three wild values in each file, and in each line."""
    rng = random.Random(seed)

    def wild(content):
        for _ in range(rng.choice([0, 1, 3])):
            content = spoil(content, rng)
        return as_text(content) + "\n"

    (folder / "completions").mkdir(parents=True)
    (folder / "evaluation").mkdir()
    steps = [{**STEP, "step": number, "reward": 0.5 + 0.1 * (number % 3)} for number in range(1, 26)]
    (folder / "metrics.jsonl").write_text("".join(map(wild, steps)))
    for name, content in WRITTEN.items():
        (folder / name).write_text(wild(content))
    for name in ANSWER_FILES:
        (folder / name).write_text("".join(wild({**ANSWER, "row": row, "reward": row / 4}) for row in range(4)))
    return folder


def check(folder: Path) -> None:
    record = read_record(folder)
    remarks, page = explain(record), render(record)
    assert all(remark.sentence for remark in remarks) and page.rstrip().endswith("</html>")
    assert "\x1b" not in page


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_wild_values_in_every_file_are_borne(tmp_path, first):
    for seed in range(first, first + 20):
        check(write_wild_run(tmp_path / str(seed), seed))


@pytest.mark.parametrize("name", ["metrics.jsonl", *WRITTEN])
def test_what_is_no_file_is_not_read(tmp_path, name):
    folder = write_wild_run(tmp_path / "run", 1)
    (folder / name).unlink()
    os.mkfifo(folder / name)  # reading it would wait for ever
    check(folder)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[[[", b"{}", b"3", b'{"step": 1e999, "before": []}'])
def test_files_that_hold_something_else_are_borne(tmp_path, content):
    folder = write_wild_run(tmp_path / "run", 2)
    for name in ["metrics.jsonl", *WRITTEN, *ANSWER_FILES, "completions/step-x.jsonl"]:
        (folder / name).write_bytes(content)
    check(folder)
