"""The log of a run: metrics.jsonl, the trackers, completions with the reason of every reward, and a progress bar."""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo.base.errors import reason, redact
from grpo.base.schema import Completion, Group, Prompt
from grpo.base.storage import Json, failpoint, is_at, write_atomically, write_lines
from grpo.config.load import to_yaml
from grpo.config.options import AnyConfig
from grpo.diagnosis.glossary import Metrics, check_names
from grpo.run.metrics import Window, outcome_of
from grpo.run.step_bar import StepBar, describe, longest_phase
from grpo.run.trackers import Tracker, open_tracker

MAX_TRACKED = 4  # completions that a tracker gets at each logged step


class Log:
    """Writes the metrics of one run; only rank 0 has one.

    metrics.jsonl gets every step. The trackers, and the terminal if logging_steps is more than 1, get the means of
    every logging_steps steps. completions/ gets the first step, the last one, and one of every logging_steps.

    If the disk is full or a tracker fails, lines are lost, with one warning for each, and training continues.
    """

    def __init__(self, config: AnyConfig, total_steps: int, first_step: int, run_id: str):
        run_dir = Path(config.output_dir)
        self.config, self.total_steps, self.step = config, total_steps, first_step
        self.completions = run_dir / "completions"
        self.warned: set[str] = set()
        self.window = Window()
        self.metrics_path = run_dir / "metrics.jsonl"
        self.metrics: int | None = _continue_lines(self.metrics_path, first_step, first_step == total_steps)
        self.bar = StepBar(total_steps, first_step, config.disable_tqdm, config.logging_steps > 1)
        self._attempt("completions/", _drop_answers, run_dir, first_step)
        self.trackers: dict[str, Tracker] = {}
        for name in config.report_to:
            if name != "none":
                self._track(name, self._open_tracker, name, first_step, run_id)

    def write_step(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        """Record a step: its metrics, and its completions if they are due."""
        self._write_line(step, metrics)
        self.bar.advance(metrics)
        self.step = step
        self.window.add(metrics)
        is_due = step % self.config.logging_steps == 0 or step == self.total_steps
        if is_due:
            self._write_means()
        if not groups:
            return
        is_bad = not math.isfinite(metrics.get("grad_norm", 0.0))
        if is_bad or (self.config.log_completions and (is_due or step == 1)):
            self.write_completions(step, groups, self.config.num_completions_to_print)

    def write_evaluation(self, step: int, metrics: Metrics) -> None:
        """Record the metrics of an evaluation."""
        self._write_line(step, metrics)
        for name, tracker in self.trackers.items():
            self._track(name, tracker.scalars, step, metrics)

    def _write_line(self, step: int, metrics: Metrics) -> None:
        """Write a line of metrics.jsonl."""
        check_names(metrics)
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        failpoint("log-append")
        self._attempt("metrics.jsonl", self._append_line, json.dumps({"step": step, **finite}) + "\n")
        failpoint("log-appended")

    def _append_line(self, line: str) -> None:
        """Append to metrics.jsonl. If it was deleted meanwhile, say so and begin a new one."""
        if not is_at(self.metrics, self.metrics_path):
            self.say("warning: metrics.jsonl was deleted or replaced; the next lines go to the file that is there now")
            os.close(self.metrics)
            self.metrics = _open_lines(self.metrics_path)
        _append(self.metrics, line)

    def _write_means(self) -> None:
        """Send the means over the steps since the last call to the trackers; print them if logging_steps is above 1."""
        number, means = self.window.number, self.window.take()
        for name, tracker in self.trackers.items():
            self._track(name, tracker.scalars, self.step, means)
        if self.config.logging_steps > 1:
            what = "" if number == 1 else f", mean of {number}"
            text = "  ".join(describe(means)) + longest_phase(means)
            self.say(f"step {self.step} of {self.total_steps}{what}: {text}")

    def say(self, text: str) -> None:
        """Print a line on the terminal without breaking the progress bar."""
        self.bar.say(text)

    def write_completions(self, step: int, groups: Sequence[Group], num_to_show: int) -> None:
        """Write completions/step-N.jsonl: each completion with its rewards, reasons and advantage."""
        records = completion_records(groups)
        self._attempt("completions/", write_lines, self.completions / f"step-{step:06d}.jsonl", records)
        for record in records[:num_to_show]:
            self.say(f"--- step {step}, reward {record['reward']}\n{record['prompt']}\n>>> {record['completion']}")
        text = "\n\n".join(f"reward {record['reward']}: {record['completion']}" for record in records[:MAX_TRACKED])
        for name, tracker in self.trackers.items():
            self._track(name, tracker.text, step, "completions", text)

    def close(self) -> None:
        """Close the files, the trackers and the progress bar."""
        self.bar.close()
        if self.window.number:  # the run was stopped between two lines
            self._write_means()
        if self.metrics is not None:
            os.close(self.metrics)
            self.metrics = None
        for name, tracker in self.trackers.items():
            self._track(name, tracker.close)
        self.trackers = {}

    def _open_tracker(self, name: str, first_step: int, run_id: str) -> None:
        self.trackers[name] = open_tracker(name, self.config, to_yaml(self.config), first_step, run_id)

    def _attempt(self, name: str, write: Callable[..., None], *arguments: Any) -> None:
        """Call `write(*arguments)`; if the disk fails, warn once per `name`."""
        try:
            write(*arguments)
        except OSError as error:
            self._warn(name, f"{name} cannot be written ({error})")

    def _track(self, name: str, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of a tracker. Any exception becomes a warning, once per tracker, so that training continues."""
        try:
            call(*arguments)
        except Exception as error:  # of a service's own kinds
            self._warn(name, f"{name} failed ({reason(error)})")

    def _warn(self, name: str, text: str) -> None:
        if name not in self.warned:
            self.warned.add(name)
            self.say(redact(f"warning: {text}; training continues"))


def completion_records(groups: Sequence[Group]) -> list[Json]:
    """Return what completions/ and the output of grpo.evaluate hold: one record per completion."""
    return [completion_record(group.prompt, completion) for group in groups for completion in group.completions]


def completion_record(prompt: Prompt, completion: Completion) -> Json:
    """Return the record of one completion."""
    scores = completion.scores
    return {
        "row": prompt.row,
        "question": prompt.columns.get("question"),
        "answer": prompt.columns.get("answer"),
        "title": prompt.columns.get("title"),
        "prompt": prompt.text,
        "completion": completion.text,
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.ids),
        "reward": _as_json(completion.reward),
        "outcome": outcome_of(scores),
        "advantage": _as_json(completion.advantage),
        "rewards": {name: _as_json(score.value) for name, score in scores.items()},
        "reasons": {name: score.reason for name, score in scores.items()},
        "details": {name: score.details for name, score in scores.items() if score.details},
        "facts": {name: score.facts for name, score in scores.items() if score.facts},
        **({"sentences": _sentences(completion)} if completion.sentences else {}),
    }


def _sentences(completion: Completion) -> list[Json]:
    """Return the credit of each sentence that was found true or false."""
    advantages = completion.token_advantages
    return [
        {
            "sentence": sentence.text,
            "is_true": sentence.is_true,
            "tokens": [sentence.start, sentence.end],
            "advantage": _as_json(advantages[sentence.start]) if sentence.start < sentence.end else None,
        }
        for sentence in completion.sentences
    ]


def _as_json(value: float | None) -> float | str | None:
    """Write a number that is not finite as text, since JSON has no NaN. null means unscorable."""
    if value is None or math.isfinite(value):
        return value
    return str(value)


def _continue_lines(path: Path, first_step: int, is_over: bool) -> int:
    """Open metrics.jsonl to append to it, and remove the lines that a resumed run writes again: those of later steps.

    A run that begins at step 0 writes all lines again, even those of step 0; a finished run, only its last evaluation.
    """
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line + "\n" for line in lines if first_step and _is_kept(line, first_step, is_over)]
        write_atomically(path, "".join(kept))
    return _open_lines(path)


def _drop_answers(run_dir: Path, first_step: int) -> None:
    """Remove the answers of steps that a resumed run repeats, from completions/ and evaluation/."""
    for folder in ("completions", "evaluation"):
        for path in (run_dir / folder).glob("step-*.jsonl"):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > first_step:
                path.unlink()


def _open_lines(path: Path) -> int:
    binary = getattr(os, "O_BINARY", 0)  # Windows' own flag: no \r before \n
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | binary, 0o644)


def _is_kept(line: str, last_step: int, is_over: bool) -> bool:
    """Return whether to keep a line of metrics.jsonl: it is complete, and the run will not write it again."""
    try:
        metrics = json.loads(line)
        is_repeated = is_over and metrics["step"] == last_step and "step_time" not in metrics
        return metrics["step"] <= last_step and not is_repeated
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _append(descriptor: int, line: str) -> None:
    """Write a complete line, or nothing."""
    size = os.fstat(descriptor).st_size
    data = line.encode()
    try:
        while data:
            written = os.write(descriptor, data)
            data = data[written:]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
