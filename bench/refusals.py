"""Measure whether a score, such as the log-odds of declining, ranks what would be answered wrong above what is known.

    auroc      the probability that a question that would be answered wrong has a higher score than one answered right
    within     the same among questions of one kind, such as one recalled answer: what telling kinds apart does not give
    risk_at    the share of wrong answers if a model answers this share of the questions (its coverage), from the lowest
               score on: models that decline more or less often can be compared at the same coverage
    mean_risk  the mean of this share over all coverages (AURC, 1805.08206)

None of them changes if a constant is added to the score. All take arrays with one entry per question.
"""

import math
from collections.abc import Callable

import numpy as np

DRAWS = 2000  # of the bootstrap


def auroc(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half. NaN without both."""
    above, below = scores[is_positive], scores[~is_positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def auroc_within(scores: np.ndarray, is_positive: np.ndarray, kinds: np.ndarray) -> float:
    """Return the AUROC within each kind of question, weighted by its pairs. NaN if no kind has both."""
    total = weights = 0.0
    for kind in np.unique(kinds):
        chosen = kinds == kind
        pairs = float(is_positive[chosen].sum() * (~is_positive[chosen]).sum())
        if pairs:
            total += pairs * auroc(scores[chosen], is_positive[chosen])
            weights += pairs
    return total / weights if weights else math.nan


def risk_at(scores: np.ndarray, is_right: np.ndarray, coverage: float) -> float:
    """Return the share of wrong answers if this share of the questions is answered, those of the lowest scores."""
    answered = np.argsort(scores, kind="stable")[: max(1, round(coverage * len(scores)))]
    return float(1 - is_right[answered].mean())


def mean_risk(scores: np.ndarray, is_right: np.ndarray) -> float:
    """Return the mean of the risk over all coverages."""
    in_order = ~is_right[np.argsort(scores, kind="stable")]
    return float((np.cumsum(in_order) / np.arange(1, len(in_order) + 1)).mean())


def interval(measure: Callable[[np.ndarray], float], count: int) -> tuple[float, float]:
    """Return the 95 % interval of a measure of chosen questions, by bootstrap over `count` of them."""
    rng = np.random.default_rng(0)
    values = [measure(rng.integers(count, size=count)) for _ in range(DRAWS)]
    return tuple(float(value) for value in np.nanpercentile(values, [2.5, 97.5]))
