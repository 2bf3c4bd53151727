"""Explain a run in sentences: what went wrong, since which step, why, and what helps.

  python -m grpo.explain RUN

RUN is the output_dir of a run, which may be under way or may have been killed. The rules of grpo/run/diagnosis/rules.py
are applied to its metrics again, step by step.
"""

import textwrap
from dataclasses import dataclass
from math import ceil, isfinite, nan
from statistics import median
from typing import Literal

from grpo.base.errors import escape, run_main
from grpo.base.progress import command_parser, say_next
from grpo.base.text import in_words
from grpo.run.diagnosis.health import Diagnosis
from grpo.run.diagnosis.record import Record, read_record, was_killed
from grpo.run.diagnosis.rules import TREND, History, meaning

WIDTH = 100
SPIKE = 5  # times the median of a run's gradients, from which on one stands out
MAX_FILES = 20  # of completions/ whose reasons are read
LEARNED = ("loss", "reward", "accuracy", "refusal_rate", "completions/mean_length")  # whose change is reported


@dataclass(frozen=True)
class Remark:
    """A sentence about a run; what it means and what to do, if it is about a failure."""

    sentence: str
    meaning: str = ""
    advice: str = ""
    tone: Literal["bad", "plain", "good"] = "bad"


def explain(record: Record) -> list[Remark]:
    """Return the remarks about a run: how it ended, the failures that rules recognise, and what it has learned."""
    diagnosis = _diagnose(record)
    ending = _ending(record)
    first = diagnosis.first_step
    remarks = []
    for found in diagnosis.symptoms.values():
        passed = f" (last seen at step {found.last_step})" if diagnosis.has_passed(found) else ""
        remarks.append(Remark(f"Step {found.step}: {found.text}{passed}.", meaning(found.rule), found.advice))
    if not remarks and not ending:
        number = len(record.steps)
        few = " For trends these are too few." if number < 2 * TREND else ""
        remarks = [Remark(f"No known failure shows in {number} steps.{few}", tone="plain")]
    start = [Remark(f"Step 1: {first}.", tone="plain")] if first else []
    return ending + start + remarks + _spike(record) + _learned(diagnosis)


def _diagnose(record: Record) -> Diagnosis:
    """Apply the rules to the steps of a run, with the reasons in some of the files of completions/."""
    written = record.answer_steps()
    answers = {step: record.answers(step) for step in written[:: ceil(len(written) / MAX_FILES) or 1]}
    diagnosis = Diagnosis(config=record.config)
    for metrics in record.steps:
        grades = [answer.grades for answer in answers.get(metrics["step"], [])]
        diagnosis.check(metrics["step"], metrics, grades)
    diagnosis.compare(record.answered_twice())
    return diagnosis


def _ending(record: Record) -> list[Remark]:
    """Return remarks on how the run ended, unless it ended as planned."""
    status = record.state.get("status")
    reason = str(record.state.get("reason") or "")
    step = record.steps[-1]["step"] if record.steps else record.state.get("step", 0)
    remarks = []
    if status in ("failed", "interrupted"):
        what, _, rest = reason.partition("\n")
        remarks.append(Remark(f"The run ended after step {step}: {what.removeprefix('error: ')}.", rest))
    elif status != "done" and was_killed(record.state):
        remarks.append(
            Remark(
                f"The run was killed after step {step}: process {record.state['pid']} is gone, and recorded no end.",
                "By kill -9, by the system for want of memory, or by a power cut.",
                "continue it with resume_from_checkpoint=true.",
            )
        )
    elif status != "done":
        remarks.append(
            Remark(
                f"The run has not ended: step {step} was its last so far.",
                "It is under way, or was killed.",
                "if it was killed, continue it with resume_from_checkpoint=true.",
            )
        )
    if not record.steps:
        remarks.append(Remark("No step was finished, so there is nothing to explain."))
    return remarks


def _spike(record: Record) -> list[Remark]:
    """Return a remark on the step with the largest gradient, if that stands out."""
    norms = {line["step"]: line["grad_norm"] for line in record.steps if isfinite(line.get("grad_norm", nan))}
    usual = median(norms.values()) if len(norms) >= TREND and "reward_funcs" in record.config else 0.0
    step = max(norms, key=norms.get, default=0)
    if not usual or norms[step] < SPIKE * usual:
        return []
    size = f"its norm {norms[step]:.3g} is {norms[step] / usual:.0f} times the median"
    do = f"`python -m grpo.replay {record.path} {step}` shows which answers and which tokens made it."
    return [Remark(f"Step {step} has the largest gradient: {size}.", "Few tokens may have decided it.", do, "plain")]


def _learned(history: History) -> list[Remark]:
    """Return a remark on what changed from the first steps to the last by more than chance explains."""
    changes = []
    for name in LEARNED:
        trend = history.trend(name)
        if trend and trend.direction and not (name == "loss" and "reward" in history.steps[-1]):
            changes.append(f"{in_words(name)} {trend.start:.3g} → {trend.end:.3g}")
    if len(history.steps) < 2 * TREND:
        return []
    earned = history.trend("reward")
    tone = "good" if earned and earned.direction > 0 else "plain"
    what = ", ".join(changes) or "nothing has changed by more than chance explains"
    return [Remark(f"From the first {TREND} steps to the last: {what}.", tone=tone)]


def lay_out(remark: Remark) -> str:
    """Lay out a remark: the sentence, and indented below it what it means and what to do."""
    lines = textwrap.wrap(remark.sentence, WIDTH)
    for text in (remark.meaning, f"To do: {remark.advice}" if remark.advice else ""):
        lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    parser = command_parser("grpo.explain", __doc__)
    parser.add_argument("run", metavar="RUN", help="the output_dir of a run")
    record = read_record(parser.parse_args(argv).run)
    remarks = explain(record)
    print(escape("\n\n".join(map(lay_out, remarks))))
    say_next("the sentences above", ["grpo.report", record.path], ["grpo.evaluate", record.path])


if __name__ == "__main__":
    run_main(main)
