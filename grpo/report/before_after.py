"""The gains of a run on held-out questions: each measure before and after, with its 95 % interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.diagnosis.glossary import Metrics
from grpo.diagnosis.record import Record
from grpo.evaluation.measures import wilson_interval
from grpo.evaluation.table import DECIMALS, SHOWN, SHOWN_OF_PART

OF_ATTEMPTED = "correct_given_attempted"  # a rate among the questions that were not declined
RATES_OF_ANSWERS = ("accuracy", "incorrect", "not_attempted", OF_ATTEMPTED)


@dataclass(frozen=True)
class Value:
    """A measured value, and its 95 % interval if that is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measure of the held-out questions, with its value in each measurement."""

    name: str
    is_rate: bool
    values: list[Value | None]


@dataclass(frozen=True)
class QuestionSet:
    """The held-out questions, or those of one value of eval_group_field."""

    name: str
    num_questions: int
    measures: list[Measure]


def before_and_after(records: Sequence[Record]) -> tuple[list[str], list[QuestionSet]]:
    """Return the column headers (before and after, for each run), and the question sets with their measures."""
    headers, columns = [], []
    for record in records:
        for moment, summaries in record.summaries.items():
            headers.append(moment if len(records) == 1 else f"{record.name}, {moment}")
            columns.append(summaries)
    names = list(dict.fromkeys(name for column in columns for name in column))
    return headers, [_question_set(name, [column.get(name, {}) for column in columns]) for name in names]


def _question_set(name: str, summaries: Sequence[Metrics]) -> QuestionSet:
    measures = []
    for measure in SHOWN_OF_PART if name else SHOWN:
        values = [_with_interval(summary, measure) for summary in summaries]
        if any(values):
            measures.append(Measure(measure, measure not in DECIMALS, values))
    num_questions = max((summary.get("num_questions", 0) for summary in summaries), default=0)
    return QuestionSet(name or "all held-out questions", int(num_questions), measures)


def _with_interval(summary: Metrics, name: str) -> Value | None:
    value = summary.get(name, math.nan)
    if not math.isfinite(value):
        return None
    low, high = summary.get(f"{name}_low", math.nan), summary.get(f"{name}_high", math.nan)
    if math.isfinite(low) and math.isfinite(high):
        return Value(value, low, high)
    num_answers = summary.get("num_answers", 0)
    if name not in RATES_OF_ANSWERS or num_answers != summary.get("num_questions"):
        return Value(value)
    if name == OF_ATTEMPTED:
        num_answers *= 1 - summary.get("not_attempted", 0.0)
    return Value(value, *wilson_interval(value, num_answers * (1 - summary.get("unscored_frac", 0.0))))
