"""Measure whether a score, such as the log-odds of declining, ranks what would be answered wrong above what is known.

    within     the AUROC among questions of one kind, such as one recalled answer: telling kinds apart does not count
    risk_at    the share of wrong answers if a model answers this share of the questions (its coverage), from the lowest
               score on: models that decline more or less often can be compared at the same coverage
    mean_risk  the mean of this share over all coverages (AURC, 1805.08206)

None of them changes if a constant is added to the score. All take arrays with one entry per question. `over_seeds`
writes the mean of a measure over seeds.
"""

import math
from collections.abc import Sequence

import numpy as np

from grpo.evaluation.boundary import auroc

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)  # quantiles of Student's t, of 1, 2, … degrees of freedom


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


def over_seeds(values: Sequence[float]) -> str:
    """Write the mean over seeds with its 95 % interval, by Student's t; with more than eight, a little wider than that.

    >>> over_seeds([0.2, 0.4])
    '0.300 [-0.971, 1.571]'
    """
    mean = np.mean(values)
    if len(values) == 1:
        return f"{mean:.3f}"
    reach = T95[min(len(values), len(T95) + 1) - 2] * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}]"
