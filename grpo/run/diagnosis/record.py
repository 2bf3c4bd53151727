"""Read back what a run has written, even if it is unfinished, killed or damaged.

Whatever is missing or cannot be read is empty, so that a report shows what there is.
"""

import math
import os
import re
import socket
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.base.errors import UserError
from grpo.base.storage import Json
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.diagnosis.reader import is_number, read_document, read_lines
from grpo.run.diagnosis.reasons import Grades

CONFIG_FILE, STATE_FILE, METRICS_FILE = "config.resolved.yaml", "run_state.json", "metrics.jsonl"
TRACES = (METRICS_FILE, STATE_FILE, CONFIG_FILE)  # a folder with one of them holds a run
MAX_STEP = 10**9
MAPPINGS = ("rewards", "reasons", "details", "facts")  # of an answer, by reward


@dataclass(frozen=True)
class Answer:
    """A line of completions/: see grpo.run.log.completion_record. reward: None if there is no finite one."""

    completion: str
    row: int | None = None
    question: str = ""
    true_answer: str = ""
    prompt: str = ""
    outcome: str = ""
    reward: float | None = None
    rewards: Json = field(default_factory=dict)
    reasons: Json = field(default_factory=dict)
    details: Json = field(default_factory=dict)
    facts: dict[str, list[Json]] = field(default_factory=dict)
    sentences: list[Json] = field(default_factory=list)
    tool_calls: list[Json] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    @property
    def grades(self) -> Grades:
        """Return what each reward gave, and why."""
        values = {name: value if is_number(value) else None for name, value in self.rewards.items()}
        return {name: (value, str(self.reasons.get(name, ""))) for name, value in values.items()}


@dataclass(frozen=True)
class Record:
    """A run directory.

    steps, evaluations: the lines of metrics.jsonl. summaries: those of evaluation.json.
    num_damaged: the lines that cannot be read, by file, such as the last one of a killed run.
    """

    path: Path
    config: Json = field(default_factory=dict)
    state: Json = field(default_factory=dict)
    steps: list[Metrics] = field(default_factory=list)
    evaluations: list[Metrics] = field(default_factory=list)
    summaries: dict[str, dict[str, Metrics]] = field(default_factory=dict)
    num_damaged: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.resolve().name

    def answer_steps(self, folder: str = "completions") -> list[int]:
        """Return the steps whose answers were written, in order: to completions/, or evaluation/ for held-out ones."""
        files = (self.path / folder).glob("step-*.jsonl")
        names = [path.stem.removeprefix("step-") for path in files]
        return sorted(int(name) for name in names if re.fullmatch("[0-9]{6,9}", name))

    def answers(self, step: int, folder: str = "completions") -> list[Answer]:
        """Return the answers of a step."""
        name = f"{folder}/step-{step:06d}.jsonl"
        lines = list(read_lines(self.path / name))
        intact = [line for line in lines if isinstance(line, dict) and isinstance(line.get("completion"), str)]
        self.num_damaged[name] = len(lines) - len(intact)
        return [_answer(line) for line in intact]

    def answered_twice(self) -> list[tuple[Answer, Answer]]:
        """Return the first and the last answer to each held-out question; [] until they were answered twice."""
        steps = self.answer_steps("evaluation")
        if len(steps) < 2:
            return []
        first = {answer.row: answer for answer in self.answers(steps[0], "evaluation")}
        last = {answer.row: answer for answer in self.answers(steps[-1], "evaluation")}
        rows = (first.keys() & last.keys()) - {None}
        return [(first[row], last[row]) for row in sorted(rows)]


def read_record(path: str | Path) -> Record:
    """Read a run directory. UserError if the path holds no run."""
    path = Path(path)
    if not any((path / name).is_file() for name in TRACES):
        raise UserError(
            f"{path} holds no run",
            f"it has none of {', '.join(TRACES)}",
            "give the output_dir of a run, such as runs/tiny",
        )
    steps, evaluations, num_damaged = read_metrics(path / METRICS_FILE)
    return Record(
        path,
        read_document(path / CONFIG_FILE),
        read_document(path / STATE_FILE),
        steps,
        evaluations,
        _summaries(read_document(path / "evaluation.json")),
        Counter({METRICS_FILE: num_damaged}),
    )


def was_killed(state: Json) -> bool:
    """Return whether the process of a run that has not ended ran on this machine, and is gone."""
    pid = state.get("pid")
    if not isinstance(pid, int) or not 0 < pid < 2**31 or state.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)  # which only asks
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to somebody else
        return False
    return False


def read_metrics(path: Path) -> tuple[list[Metrics], list[Metrics], int]:
    """Return the steps and the evaluations of metrics.jsonl, and the number of lines that cannot be read."""
    steps, evaluations, num_damaged = [], [], 0
    for line in read_lines(path):
        metrics = _numbers(line)
        if not 0 <= metrics.get("step", math.nan) <= MAX_STEP:
            num_damaged += 1
            continue
        metrics["step"] = int(metrics["step"])
        is_step = "step_time" in metrics
        (steps if is_step else evaluations).append(metrics)
    return steps, evaluations, num_damaged


def _answer(line: Json) -> Answer:
    """Return a line as an Answer, without the fields that have an unexpected type."""
    texts = {name: str(line[name]) for name in ("question", "prompt", "outcome") if line.get(name)}
    mappings = {name: line[name] for name in MAPPINGS if isinstance(line.get(name), dict)}
    facts = mappings.pop("facts", {})
    row = line.get("row")
    return Answer(
        line["completion"],
        row if isinstance(row, int) else None,
        true_answer=str(line.get("answer") or ""),
        reward=line["reward"] if is_number(line.get("reward")) else None,
        facts={name: _objects(of_reward) for name, of_reward in facts.items()},
        sentences=_objects(line.get("sentences")),
        tool_calls=_objects(line.get("tool_calls")),
        ids=[token for token in _list(line.get("ids")) if type(token) is int and 0 <= token < 2**31],
        **texts,
        **mappings,
    )


def _objects(value: Any) -> list[Json]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(content: Any) -> Metrics:
    """Return the numbers of a mapping. null stands for a number that was not finite."""
    pairs = content.items() if isinstance(content, dict) else ()
    return {name: math.nan if value is None else value for name, value in pairs if value is None or is_number(value)}


def _summaries(content: Json) -> dict[str, dict[str, Metrics]]:
    """Return the parts of each measurement, "before" and "after", with the numbers that are known."""
    found = {}
    for moment in ("before", "after"):
        parts = content.get(moment)
        if isinstance(parts, dict) and parts:
            numbers = {part: _numbers(summary) for part, summary in parts.items()}
            found[moment] = {part: {n: v for n, v in of.items() if math.isfinite(v)} for part, of in numbers.items()}
    return found
