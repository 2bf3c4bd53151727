"""Read back what a run has written, even if it is unfinished, killed or damaged.

Whatever is missing or cannot be read is empty, so that a report shows what there is.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.base.errors import UserError
from grpo.base.storage import Json, read_mapping
from grpo.diagnosis.glossary import Metrics

CONFIG_FILE, STATE_FILE, METRICS_FILE = "config.resolved.yaml", "run_state.json", "metrics.jsonl"
DATA_FILE = "data.json"  # use of a data set -> its rows (see grpo/data/count.py)
TRACES = (METRICS_FILE, STATE_FILE, CONFIG_FILE)  # a folder with one of them holds a run


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
    facts: dict[str, list[Json]] = field(default_factory=dict)
    sentences: list[Json] = field(default_factory=list)

    def reason(self, reward: str) -> str:
        """Return why a reward has its value, without the facts that the reason repeats."""
        reason = str(self.reasons.get(reward, ""))
        facts = self.facts.get(reward)
        return reason.partition(f"; {facts[0].get('fact')}"[:62])[0] if facts else reason


@dataclass(frozen=True)
class Record:
    """A run directory. steps, evaluations: the lines of metrics.jsonl. summaries: those of evaluation.json.

    num_damaged: lines of metrics.jsonl that cannot be read, such as the last one of a killed run.
    """

    path: Path
    config: Json = field(default_factory=dict)
    state: Json = field(default_factory=dict)
    steps: list[Metrics] = field(default_factory=list)
    evaluations: list[Metrics] = field(default_factory=list)
    summaries: dict[str, dict[str, Metrics]] = field(default_factory=dict)
    num_damaged: int = 0

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.resolve().name

    def answer_steps(self, folder: str = "completions") -> list[int]:
        """Return the steps whose answers were written, in order: to completions/, or evaluation/ for held-out ones."""
        names = [path.stem.removeprefix("step-") for path in (self.path / folder).glob("step-*.jsonl")]
        return sorted(int(name) for name in names if name.isdecimal())

    def answers(self, step: int, folder: str = "completions") -> list[Answer]:
        """Return the answers of a step."""
        lines = _lines(self.path / folder / f"step-{step:06d}.jsonl")
        return [_answer(line) for line in lines if isinstance(line, dict) and isinstance(line.get("completion"), str)]


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
        read_mapping(path / CONFIG_FILE),
        read_mapping(path / STATE_FILE),
        steps,
        evaluations,
        _summaries(read_mapping(path / "evaluation.json")),
        num_damaged,
    )


def read_metrics(path: Path) -> tuple[list[Metrics], list[Metrics], int]:
    """Return the steps and the evaluations of metrics.jsonl, and the number of lines that cannot be read."""
    steps, evaluations, num_damaged = [], [], 0
    for line in _lines(path):
        metrics = _numbers(line)
        if not math.isfinite(metrics.get("step", math.nan)):
            num_damaged += 1
            continue
        metrics["step"] = int(metrics["step"])
        is_step = "step_time" in metrics
        (steps if is_step else evaluations).append(metrics)
    return steps, evaluations, num_damaged


def _answer(line: Json) -> Answer:
    """Return a line as an Answer, without the fields that have an unexpected type."""
    texts = {name: str(line[name]) for name in ("question", "prompt", "outcome") if line.get(name)}
    mappings = {name: line[name] for name in ("rewards", "reasons", "facts") if isinstance(line.get(name), dict)}
    facts = mappings.pop("facts", {})
    reward = _numbers({"reward": line.get("reward")}).get("reward", math.nan)
    row = line.get("row")
    return Answer(
        line["completion"],
        row if isinstance(row, int) else None,
        true_answer=str(line.get("answer") or ""),
        reward=reward if math.isfinite(reward) else None,
        facts={name: _objects(of_reward) for name, of_reward in facts.items()},
        sentences=_objects(line.get("sentences")),
        **texts,
        **mappings,
    )


def _objects(value: Any) -> list[Json]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _lines(path: Path) -> list[Any]:
    """Return the content of each line of a JSONL file; None for a line that is not JSON."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    return [_parsed(line) for line in lines if line.strip()]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _numbers(content: Any) -> Metrics:
    """Return the numbers of a mapping. null stands for a number that was not finite."""
    if not isinstance(content, dict):
        return {}
    metrics = {}
    for name, value in content.items():
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            metrics[name] = math.nan if value is None else float(value)
    return metrics


def _summaries(content: Json) -> dict[str, dict[str, Metrics]]:
    """Return the parts of each measurement, "before" and "after"."""
    found = {}
    for moment in ("before", "after"):
        parts = content.get(moment)
        if isinstance(parts, dict) and parts:
            found[moment] = {part: _numbers(summary) for part, summary in parts.items()}
    return found
