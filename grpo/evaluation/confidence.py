"""Compare the confidences that answers state, such as `<confidence>0.8</confidence>`, with their outcomes.

Only answers that state one, and were right or wrong, count here; each counts the same.

    ece    expected calibration error with ten equal bins (1706.04599): the mean distance, over answers, between the
           accuracy and the mean confidence of the answer's bin
    brier  mean squared distance between confidence and truth, 1 or 0 (Brier, 1950)
    aurc   area under the risk-coverage curve (1805.08206): the mean, over answers, of the share of wrong ones among
           those that state at least the answer's confidence
"""

import statistics
from collections.abc import Sequence

from grpo.algorithm.schema import Group, completions_of
from rewards.format import stated_confidence

NUM_BINS = 10
ATTEMPTED = ("correct", "wrong")
Stated = tuple[float, bool]  # the confidence that an answer states, and whether the answer is right


def calibration(groups: Sequence[Group]) -> dict[str, float]:
    """Return the numbers above, and confidence_frac: the share of attempted answers that state a confidence.

    Without such an answer, return {}.
    """
    stated = stated_claims(groups)
    if not stated:
        return {}
    num_attempts = sum(completion.outcome in ATTEMPTED for completion in completions_of(groups))
    confidence_frac = len(stated) / num_attempts
    return {"confidence_frac": confidence_frac, "ece": ece(stated), "brier": brier(stated), "aurc": aurc(stated)}


def stated_claims(groups: Sequence[Group]) -> list[Stated]:
    """Return the stated confidence of each attempted answer that states one, and whether the answer is right."""
    claims = []
    for completion in completions_of(groups):
        confidence = stated_confidence(completion.text)
        outcome = completion.outcome
        if confidence is not None and outcome in ATTEMPTED:
            claims.append((confidence, outcome == "correct"))
    return claims


def ece(stated: Sequence[Stated]) -> float:
    """Return the expected calibration error."""
    gaps = [0.0] * NUM_BINS
    for confidence, is_right in stated:
        gaps[min(int(confidence * NUM_BINS), NUM_BINS - 1)] += confidence - is_right
    return sum(map(abs, gaps)) / len(stated)


def brier(stated: Sequence[Stated]) -> float:
    """Return the Brier score: 0 is best, always saying 0.5 gets 0.25."""
    return statistics.fmean((confidence - is_right) ** 2 for confidence, is_right in stated)


def risk_coverage(stated: Sequence[Stated]) -> list[tuple[float, float]]:
    """Return (coverage, risk) for each threshold on the confidence, from the highest.

    coverage: share of the answers that state at least this confidence. risk: share of wrong ones among these. Equal
    confidences cannot be told apart, so they enter together.
    """
    ranked = sorted(stated, reverse=True)
    curve = []
    num_wrong = 0
    for number, (confidence, is_right) in enumerate(ranked, 1):
        num_wrong += not is_right
        is_last_of_its_kind = number == len(ranked) or ranked[number][0] < confidence
        if is_last_of_its_kind:
            curve.append((number / len(ranked), num_wrong / number))
    return curve


def aurc(stated: Sequence[Stated]) -> float:
    """Return the area under the risk-coverage curve: 0 is best; equal confidences give the error rate."""
    area = 0.0
    before = 0.0
    for coverage, risk in risk_coverage(stated):
        area += (coverage - before) * risk
        before = coverage
    return area
