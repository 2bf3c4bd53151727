"""The log of a run: metrics.jsonl, the trackers, completions with the reason of every reward, and a progress bar."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from grpo.algorithm.schema import Call, Completion, Group, Prompt
from grpo.base.storage import Json, failpoint, write_lines
from grpo.config.options import AnyConfig
from grpo.run.diagnosis.glossary import Metrics, check_names
from grpo.run.diagnosis.record import METRICS_FILE, read_lines
from grpo.run.messages import USUAL_COLUMNS, tell, tolerated
from grpo.run.metrics import Window
from grpo.run.trackers import Tracker, open_tracker

BAR = "{n_fmt}/{total_fmt} {bar:8} {remaining} left{postfix}"
SPARE_COLUMNS = 4  # beside the progress line, since the time left may grow longer
SEPARATOR = "  "
TEXTS = {  # metric: its text; the most important metrics first, since a narrow terminal has no room for the last ones
    "loss": "loss {:.4f}",  # of stage 1; that of stage 2 says nothing
    "reward": "reward {:+.2f}",
    "reward_std": "±{:.2f}",
    "accuracy": "right {:.0%}",
    "refusal_rate": "declined {:.0%}",
    "tools/called_frac": "called {:.0%}",
    "frac_reward_zero_std": "no signal {:.0%}",
    "completions/mean_length": "length {:.0f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "grad_norm": "grad {:.3f}",
    "kl": "kl {:z.4f}",
}


class Log:
    """Writes the metrics of one run; only rank 0 has one.

    metrics.jsonl gets every step. The trackers get the means of every logging_steps steps; so does the terminal if
    logging_steps is more than 1, or if there is no progress bar. completions/ gets the first step, the last one, and
    every one whose number logging_steps divides.

    If the disk is full or a tracker fails, lines are lost and training continues. Each file and tracker warns once.
    """

    def __init__(self, config: AnyConfig, total_steps: int, first_step: int, run_id: str):
        run_dir = Path(config.output_dir)
        self.config = config
        self.total_steps = total_steps
        self.step = first_step
        self.completions = run_dir / "completions"
        self.metrics = run_dir / METRICS_FILE
        self.warned: set[str] = set()
        self.window = Window()
        self.prints = config.logging_steps > 1 or not (config.disable_tqdm or sys.stderr.isatty())
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            bar_format=BAR,
            dynamic_ncols=True,
            smoothing=0,  # the time left follows from the mean of all steps
            mininterval=0,
            disable=config.disable_tqdm or None,  # None: unless stderr is a terminal
        )
        _keep_lines(self.metrics, first_step, first_step == total_steps)
        with tolerated("completions/", self.warned):
            _drop_answers(run_dir, first_step)
        self.trackers: dict[str, Tracker] = {}
        for name in config.report_to:
            if name != "none":
                with tolerated(name, self.warned, Exception):  # a service raises exceptions of its own
                    self.trackers[name] = open_tracker(name, config, first_step, run_id)

    def write_step(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        """Record a step: its metrics, and its completions if they are due."""
        self._write_line(step, metrics)
        if not self.bar.disable:
            self.bar.set_postfix_str(describe(metrics, self._room()), refresh=False)
            self.bar.update()
        self.step = step
        self.window.add(metrics)
        is_due = step % self.config.logging_steps == 0 or step == self.total_steps
        if is_due:
            self._write_means()
        if not groups:
            return
        is_bad = not math.isfinite(metrics.get("grad_norm", 0.0))
        if is_bad or (self.config.log_completions and (is_due or step == 1)):
            self._write_completions(step, groups)

    def _room(self) -> int:
        """Return the columns that the progress bar leaves to the metrics."""
        now = self.bar.format_dict
        bare = self.bar.format_meter(**{**now, "ncols": None, "postfix": None})
        return (now["ncols"] or USUAL_COLUMNS) - len(bare) - len(", ") - SPARE_COLUMNS

    def write_evaluation(self, step: int, metrics: Metrics) -> None:
        """Record the metrics of an evaluation."""
        self._write_line(step, metrics)
        self._track(step, metrics)

    def _write_line(self, step: int, metrics: Metrics) -> None:
        """Write a line of metrics.jsonl."""
        check_names(metrics)
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        failpoint("log-append")
        if not self.metrics.exists():
            tell(f"warning: {METRICS_FILE} was deleted; the next lines go to a new file")
        with tolerated(METRICS_FILE, self.warned):
            _append(self.metrics, json.dumps({"step": step, **finite}) + "\n")
        failpoint("log-appended")

    def _write_means(self) -> None:
        """Send the means over the steps since the last call to the trackers, and print them."""
        number = self.window.number
        means = self.window.take()
        self._track(self.step, means)
        if self.prints:
            what = "" if number == 1 else f", mean of {number}"
            tell(f"step {self.step} of {self.total_steps}{what}: {describe(means)}")

    def _track(self, step: int, metrics: Metrics) -> None:
        for name, tracker in self.trackers.items():
            with tolerated(name, self.warned, Exception):
                tracker.log(dict(metrics), step=step)

    def _write_completions(self, step: int, groups: Sequence[Group]) -> None:
        """Write completions/step-N.jsonl: each completion with its rewards, reasons and advantage."""
        records = completion_records(groups)
        with tolerated("completions/", self.warned):
            write_lines(self.completions / f"step-{step:06d}.jsonl", records, for_people=True)
        for record in records[: self.config.num_completions_to_print]:
            tell(f"--- step {step}, reward {record['reward']}\n{record['prompt']}\n>>> {record['completion']}")

    def close(self) -> None:
        """Close the trackers and the progress bar."""
        self.bar.close()
        if self.window.number:  # the run was stopped between two lines
            self._write_means()
        for name, tracker in self.trackers.items():
            with tolerated(name, self.warned, Exception):
                tracker.finish()
        self.trackers = {}


def describe(metrics: Metrics, columns: int | None = None) -> str:
    """Return the metrics that matter, the most important ones first.

    columns: show only as many of them as fit, each completely.
    """
    hidden = {"loss"} if "reward" in metrics else set()
    shown = metrics.keys() - hidden
    texts = [text.format(metrics[name]) for name, text in TEXTS.items() if name in shown]
    while texts and columns is not None and len(SEPARATOR.join(texts)) > columns:
        texts.pop()
    return SEPARATOR.join(texts)


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
        "ids": list(completion.ids),
        "reward": _as_json(completion.reward),
        "outcome": completion.outcome,
        "advantage": _as_json(completion.advantage),
        "rewards": {name: _as_json(score.value) for name, score in scores.items()},
        "reasons": {name: score.reason for name, score in scores.items()},
        "details": {name: score.details for name, score in scores.items() if score.details},
        "facts": {name: score.facts for name, score in scores.items() if score.facts},
        **({"tool_calls": [call_record(call) for call in completion.calls]} if completion.calls else {}),
        **({"sentences": _sentences(completion)} if completion.sentences else {}),
    }


def call_record(call: Call) -> Json:
    """Return a call of a tool, with the characters of the completion that hold it and its result."""
    said = {"failure": call.failure} if call.failure else {"result": call.result}
    turn = {"is_turn": True} if call.is_turn else {}
    place = {"span": list(call.span), "tokens": [call.start, call.end]}
    return {"tool": call.tool, "query": call.query, **said, **turn, **place}


def _sentences(completion: Completion) -> list[Json]:
    """Return the credit of each sentence that was found true or false."""
    advantages = completion.token_advantages()
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


def _keep_lines(path: Path, first_step: int, is_over: bool) -> None:
    """Remove the lines of metrics.jsonl that a resumed run writes again: those of later steps.

    A run that begins at step 0 writes all lines again, even those of step 0; a finished run, only its last evaluation.
    Lines that cannot be read go, too.
    """
    kept = []
    for metrics in read_lines(path) if first_step else ():
        step = metrics.get("step")
        is_repeated = is_over and step == first_step and "step_time" not in metrics
        if isinstance(step, int) and step <= first_step and not is_repeated:
            kept.append(metrics)
    write_lines(path, kept)


def _append(path: Path, line: str) -> None:
    """Append a complete line, or nothing."""
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        data = line.encode()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise


def _drop_answers(run_dir: Path, first_step: int) -> None:
    """Remove the answers of steps that a resumed run repeats."""
    digits = "[0-9]" * 6
    for folder in ("completions", "evaluation"):
        for path in run_dir.glob(f"{folder}/step-{digits}.jsonl"):
            if int(path.name[5:11]) > first_step:
                path.unlink()
