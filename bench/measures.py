"""Measure what a model was asked, with intervals.

A measure takes the places of chosen questions, or of countries, and returns a number. The bootstrap chooses again and
again, so a place may occur twice. The difference of two measures is a measure, too; both take the same choice, so it is
paired.

    auroc         the probability that a positive, such as a fact that would be answered wrong, has a higher score than
                  a negative, one that is known
    auroc_within  the same among questions of one kind: telling kinds apart does not count
    risk_at       the share of wrong answers if a model answers this share of the questions (its coverage), from the
                  lowest score on: models that decline more or less often can be compared at the same coverage
    mean_risk     the mean of this share over all coverages (AURC, 1805.08206)

None of these four changes if a constant is added to the score.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from grpo.evaluation.compare import interval

Row = Mapping[str, object]  # what is stored of a question
Array = np.ndarray  # one entry per question
Chosen = Sequence[int] | Array
Measure = Callable[[Chosen], float]
Measured = tuple[float, float, float]  # a value, and the ends of its 95 % interval
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)  # quantiles of Student's t, of 1, 2, … degrees of freedom


# --- Measures of chosen questions ----------------------------------------------------------------------------------


def column(rows: Sequence[Row], name: str) -> Array:
    """Return a column of the rows."""
    return np.array([row[name] for row in rows])


def mean_of(values: Array) -> Measure:
    """Return the measure that is the mean of some values."""

    def measure(chosen: Chosen) -> float:
        return values[chosen].mean()

    return measure


def area(scores: Array, is_positive: Array) -> Measure:
    """Return the measure that is the AUROC of some scores."""

    def measure(chosen: Chosen) -> float:
        return auroc(scores[chosen], is_positive[chosen])

    return measure


def area_within(scores: Array, is_positive: Array, kinds: Array) -> Measure:
    """Return the measure that is the AUROC within kinds."""

    def measure(chosen: Chosen) -> float:
        return auroc_within(scores[chosen], is_positive[chosen], kinds[chosen])

    return measure


def less(one: Measure, other: Measure) -> Measure:
    """Return the measure that is the difference of two, of the same choice."""

    def measure(chosen: Chosen) -> float:
        return one(chosen) - other(chosen)

    return measure


def with_interval(measure: Measure, number: int) -> Measured:
    """Return a measure of all of `number` places, and its 95 % interval, by bootstrap over them."""
    value = measure(np.arange(number))
    low, high = interval(measure, number)
    return float(value), low, high


def with_intervals(measures: Mapping[str, Measure], number: int) -> dict[str, Measured]:
    """Return each measure with its interval."""
    found = {}
    for name, measure in measures.items():
        found[name] = with_interval(measure, number)
    return found


# --- Scores --------------------------------------------------------------------------------------------------------


def auroc(scores: Array, is_positive: Array) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half. NaN without both."""
    above = scores[is_positive]
    below = scores[~is_positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below
    is_higher = differences > 0
    is_equal = differences == 0
    return float((is_higher + 0.5 * is_equal).mean())


def auroc_within(scores: Array, is_positive: Array, kinds: Array) -> float:
    """Return the AUROC within each kind of question, weighted by its pairs. NaN if no kind has both."""
    total = weights = 0.0
    for kind in np.unique(kinds):
        is_of_kind = kinds == kind
        positive = is_positive[is_of_kind]
        pairs = float(positive.sum() * (~positive).sum())
        if pairs:
            total += pairs * auroc(scores[is_of_kind], positive)
            weights += pairs
    return total / weights if weights else math.nan


def risk_at(scores: Array, is_right: Array, coverage: float) -> float:
    """Return the share of wrong answers if this share of the questions is answered, those of the lowest scores."""
    number = max(1, round(coverage * len(scores)))
    order = np.argsort(scores, kind="stable")
    answered = order[:number]
    return float(1 - is_right[answered].mean())


def mean_risk(scores: Array, is_right: Array) -> float:
    """Return the mean of the risk over all coverages."""
    order = np.argsort(scores, kind="stable")
    num_wrong = np.cumsum(~is_right[order])
    num_answered = np.arange(1, len(order) + 1)
    return float((num_wrong / num_answered).mean())


# --- Texts ---------------------------------------------------------------------------------------------------------


def shown(measured: Sequence[float], form: str = ".0%") -> str:
    """Write a value with its interval.

    >>> shown((0.5, 0.4, 0.61)), shown((0.5, 0.4, 0.61), ".2f")
    ('50% (40% to 61%)', '0.50 (0.40 to 0.61)')
    """
    value, low, high = (format(number, form) for number in measured)
    return f"{value} ({low} to {high})"


def percent(measured: Sequence[float], sign: str = "") -> str:
    """Write a share with its interval, in percent.

    >>> percent((0.5, 0.4, 0.61))
    '50 % (40 to 61)'
    """
    value, low, high = (f"{100 * number:{sign}.0f}" for number in measured)
    return f"{value} % ({low} to {high})"


def over_seeds(values: Sequence[float]) -> str:
    """Write the mean over seeds with its 95 % interval, by Student's t; with more than eight, a little wider than that.

    >>> over_seeds([0.2, 0.4])
    '0.300 [-0.971, 1.571]'
    """
    mean, number = np.mean(values), len(values)
    if number == 1:
        return f"{mean:.3f}"
    quantile = T95[min(number, len(T95) + 1) - 2]
    reach = quantile * np.std(values, ddof=1) / math.sqrt(number)
    return f"{mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}]"
