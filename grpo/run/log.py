"""The log of a run: metrics.jsonl, the trackers, completions with the reason of every reward, and a progress bar."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grpo.errors import escape, redact
from grpo.run.glossary import check_names
from grpo.run.metrics import outcome_of
from grpo.run.trackers import Tracker, open_tracker
from grpo.schema import Completion, Group, Prompt
from grpo.storage import failpoint, write_atomically

ON_BAR = {  # metric: label and format on the progress bar
    "loss": ("loss", ".4f"),
    "reward": ("reward", "+.2f"),
    "accuracy": ("accuracy", ".0%"),
    "completions/mean_length": ("length", ".0f"),
    "refusal_rate": ("refused", ".0%"),
    "kl": ("kl", ".4f"),
    "grad_norm": ("grad", ".3f"),
    "frac_reward_zero_std": ("no signal", ".0%"),
    "tokens_per_second": ("tok/s", ",.0f"),
}
MAX_TRACKED = 4  # completions that a tracker gets at each logged step


class Log:
    """Writes the metrics of one run; only rank 0 has one.

    If the disk is full, lines are lost, with one warning per file, and training continues.
    """

    def __init__(
        self,
        run_dir: Path,
        config_text: str,
        total_steps: int,
        first_step: int,
        report_to: Sequence[str],
        run_name: str | None,
        show_bar: bool,
    ):
        self.completions = run_dir / "completions"
        self.warned: set[str] = set()
        self.metrics: int | None = _continue_lines(run_dir / "metrics.jsonl", first_step)
        self.bar = tqdm(total=total_steps, initial=first_step, disable=not show_bar, dynamic_ncols=True, unit="step")
        self.trackers: dict[str, Tracker] = {}
        for name in report_to:
            if name != "none":
                self._attempt(name, self._open_tracker, name, run_dir, run_name, config_text, first_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line of metrics.jsonl, and send the metrics to the trackers."""
        check_names(metrics)
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        failpoint("log-append")
        self._attempt("metrics.jsonl", _append, self.metrics, json.dumps({"step": step, **finite}) + "\n")
        failpoint("log-appended")
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.scalars, step, metrics)

    def advance(self, metrics: Mapping[str, float]) -> None:
        """Move the progress bar by a step, and show some metrics on it."""
        parts = []
        for name, (label, style) in ON_BAR.items():
            if name in metrics:
                parts.append(f"{label} {metrics[name]:{style}}")
        self.bar.set_postfix_str("  ".join(parts), refresh=False)
        self.bar.update()

    def say(self, text: str) -> None:
        """Print a line on the terminal without breaking the progress bar."""
        tqdm.write(escape(text), file=sys.stderr)

    def write_completions(self, step: int, groups: Sequence[Group], num_to_show: int) -> None:
        """Write completions/step-N.jsonl: each completion with its rewards, reasons and advantage."""
        records = [completion_record(group.prompt, completion) for group in groups for completion in group.completions]
        self._attempt("completions/", self._write_records, self.completions / f"step-{step:06d}.jsonl", records)
        for record in records[:num_to_show]:
            self.say(f"--- step {step}, reward {record['reward']}\n{record['prompt']}\n>>> {record['completion']}")
        text = "\n\n".join(f"reward {record['reward']}: {record['completion']}" for record in records[:MAX_TRACKED])
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.text, step, "completions", text)

    def close(self) -> None:
        """Close the files, the trackers and the progress bar."""
        self.bar.close()
        if self.metrics is not None:
            os.close(self.metrics)
            self.metrics = None
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.close)

    def _open_tracker(self, name: str, *arguments: Any) -> None:
        self.trackers[name] = open_tracker(name, *arguments)

    def _write_records(self, path: Path, records: Sequence[Mapping[str, Any]]) -> None:
        self.completions.mkdir(exist_ok=True)
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        write_atomically(path, redact("".join(lines)))

    def _attempt(self, name: str, write: Callable[..., None], *arguments: Any) -> None:
        """Call `write(*arguments)`; if the disk fails, warn once per `name`."""
        try:
            write(*arguments)
        except OSError as error:
            if name not in self.warned:
                self.warned.add(name)
                self.say(f"warning: {name} cannot be written ({error}); training continues")


def completion_record(prompt: Prompt, completion: Completion) -> dict[str, Any]:
    """Return what completions/ and the output of grpo.evaluate hold about a completion."""
    scores = completion.scores
    return {
        "row": prompt.row,
        "question": prompt.columns.get("question"),
        "answer": prompt.columns.get("answer"),
        "prompt": prompt.text,
        "completion": completion.text,
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.ids),
        "outcome": outcome_of(scores),
        "reward": _as_json(completion.reward),
        "advantage": _as_json(completion.advantage),
        "rewards": {name: _as_json(score.value) for name, score in scores.items()},
        "reasons": {name: score.reason for name, score in scores.items()},
        "details": {name: score.details for name, score in scores.items() if score.details},
        "facts": {name: score.facts for name, score in scores.items() if score.facts},
    }


def _as_json(value: float | None) -> float | str | None:
    """Write a number that is not finite as text, since JSON has no NaN. null means unscorable."""
    if value is None or math.isfinite(value):
        return value
    return str(value)


def _continue_lines(path: Path, first_step: int) -> int:
    """Open metrics.jsonl to append to it, without the lines of steps that a resumed run repeats."""
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line + "\n" for line in lines if _step_of(line) <= first_step]
        write_atomically(path, "".join(kept))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _step_of(line: str) -> float:
    """Return the step of a line of metrics.jsonl; infinity for a line that a killed run has not completed."""
    try:
        return json.loads(line)["step"] + 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _append(descriptor: int, line: str) -> None:
    """Write a complete line, or nothing."""
    size = os.fstat(descriptor).st_size
    data = line.encode()
    try:
        while data:
            written = os.write(descriptor, data)
            data = data[written:]
    except OSError:
        os.truncate(descriptor, size)
        raise
