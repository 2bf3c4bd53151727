"""Compare the confidences that answers state, such as `<confidence>0.8</confidence>`, with their outcomes.

Only answers that state one, and were right or wrong, count here; each counts the same.

    ece    expected calibration error with ten equal bins (1706.04599): the mean distance, over answers, between the
           accuracy and the mean confidence of the answer's bin
    brier  mean squared distance between confidence and truth, 1 or 0 (Brier, 1950): always saying 0.5 gets 0.25
"""

import statistics
from collections.abc import Sequence

from grpo.base.schema import Group, completions_of
from grpo.run.metrics import outcome_of
from rewards.format import stated_confidence

NUM_BINS = 10
Stated = tuple[float, bool]  # the confidence that an answer states, and whether the answer is right


def calibration(groups: Sequence[Group]) -> dict[str, float]:
    """Return the numbers above, and confidence_frac: the share of attempted answers that state a confidence.

    Without such an answer, return {}.
    """
    outcomes = [(stated_confidence(c.text), outcome_of(c.scores)) for c in completions_of(groups)]
    attempts = [
        (confidence, outcome == "correct") for confidence, outcome in outcomes if outcome in ("correct", "wrong")
    ]
    stated = [(confidence, is_right) for confidence, is_right in attempts if confidence is not None]
    if not stated:
        return {}
    return {"confidence_frac": len(stated) / len(attempts), "ece": ece(stated), "brier": brier(stated)}


def ece(stated: Sequence[Stated]) -> float:
    """Return the expected calibration error."""
    gaps = [0.0] * NUM_BINS
    for confidence, is_right in stated:
        gaps[min(int(confidence * NUM_BINS), NUM_BINS - 1)] += confidence - is_right
    return sum(map(abs, gaps)) / len(stated)


def brier(stated: Sequence[Stated]) -> float:
    """Return the Brier score."""
    return statistics.fmean((confidence - is_right) ** 2 for confidence, is_right in stated)
