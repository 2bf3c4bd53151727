"""Read back what a run has written, even if it is unfinished or was killed: what is missing is empty."""

import json
import math
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

from grpo.base.errors import UserError
from grpo.base.storage import Json, read_mapping
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.diagnosis.reasons import Grades

CONFIG_FILE = "config.resolved.yaml"
STATE_FILE = "run_state.json"
METRICS_FILE = "metrics.jsonl"
TRACES = (METRICS_FILE, STATE_FILE, CONFIG_FILE)  # a folder with one of them holds a run


@dataclass(frozen=True)
class Answer:
    """A line of completions/: see grpo.run.log.completion_record. reward: None if there is no finite one."""

    completion: str
    row: int = -1
    question: str = ""
    title: str = ""
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
        return {name: (_number(value), self.reasons.get(name, "")) for name, value in self.rewards.items()}


@dataclass(frozen=True)
class Record:
    """A run directory. steps, evaluations: the lines of metrics.jsonl. summaries: those of evaluation.json."""

    path: Path
    config: Json = field(default_factory=dict)
    state: Json = field(default_factory=dict)
    steps: list[Metrics] = field(default_factory=list)
    evaluations: list[Metrics] = field(default_factory=list)
    summaries: dict[str, dict[str, Metrics]] = field(default_factory=dict)

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
        return [_answer(line) for line in read_lines(self.path / folder / f"step-{step:06d}.jsonl")]

    def answered_twice(self) -> list[tuple[Answer, Answer]]:
        """Return the first and the last answer to each held-out question; [] until they were answered twice."""
        steps = self.answer_steps("evaluation")
        if len(steps) < 2:
            return []
        answers = (self.answers(step, "evaluation") for step in (steps[0], steps[-1]))
        first, last = ({answer.row: answer for answer in of_step} for of_step in answers)
        return [(first[row], last[row]) for row in sorted(first.keys() & last.keys())]


def read_record(path: str | Path) -> Record:
    """Read a run directory. UserError if the path holds no run."""
    path = Path(path)
    if not any((path / name).is_file() for name in TRACES):
        raise UserError(
            f"{path} holds no run",
            f"it has none of {', '.join(TRACES)}",
            "give the output_dir of a run, such as runs/tiny",
        )
    steps, evaluations = read_metrics(path / METRICS_FILE)
    return Record(
        path,
        read_mapping(path / CONFIG_FILE),
        read_mapping(path / STATE_FILE),
        steps,
        evaluations,
        _summaries(read_mapping(path / "evaluation.json")),
    )


def was_killed(state: Json) -> bool:
    """Return whether the process of a run that has not ended ran on this machine, and is gone."""
    pid = state.get("pid")
    if not isinstance(pid, int) or not 0 < pid < 2**31 or state.get("host") != socket.gethostname():
        return False
    if os.name != "posix":  # elsewhere os.kill does more than ask
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to somebody else
        return False
    return False


def read_metrics(path: Path) -> tuple[list[Metrics], list[Metrics]]:
    """Return the steps and the evaluations of metrics.jsonl. null stands for a number that was not finite."""
    steps: list[Metrics] = []
    evaluations: list[Metrics] = []
    for line in read_lines(path):
        metrics = {name: math.nan if value is None else value for name, value in line.items()}
        of_kind = steps if "step_time" in metrics else evaluations
        of_kind.append(metrics)
    return steps, evaluations


def read_lines(path: Path) -> list[Json]:
    """Return the mappings in a JSONL file, without the torn line that a killed run leaves."""
    lines = []
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in filter(str.strip, file):
                with suppress(ValueError, RecursionError):
                    lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def _answer(line: Json) -> Answer:
    """Return a line of completions/ as an Answer."""
    known = {entry.name for entry in fields(Answer)}
    given = {name: value for name, value in line.items() if name in known and value is not None}
    return Answer(**given | {"true_answer": str(line.get("answer") or ""), "reward": _number(line.get("reward"))})


def _number(value: float | str | None) -> float | None:
    """Return a number; None for one that was not finite, which is written as text."""
    return None if isinstance(value, str) else value


def _summaries(content: Json) -> dict[str, dict[str, Metrics]]:
    """Return the parts of each measurement, "before" and "after", with the numbers that are known."""
    return {
        moment: {part: {name: value for name, value in of.items() if value is not None} for part, of in parts.items()}
        for moment, parts in content.items()
        if moment in ("before", "after") and parts
    }
