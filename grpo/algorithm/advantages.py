"""Rewards to advantages: compare each completion's reward with the others of its group."""

import math
from collections.abc import Sequence
from typing import NamedTuple

STD_EPSILON = 1e-4  # added to the standard deviation, as in TRL; the paper (DeepSeekMath, 2402.03300) has none


def group_advantages(
    rewards: Sequence[float | None], scale_rewards: str = "group", batch_std: float | None = None
) -> list[float]:
    """Compute the advantages of one group's completions from their rewards (Eq. 1, 2).

    scale_rewards: "group", "batch" (`batch_std` is then the deviation of all rewards of the step), or "none" (Dr. GRPO,
    2503.20783). Standard deviations divide by n - 1. A reward of None (unscorable) is left out of mean and deviation,
    and its advantage is 0. A group with fewer than two scorable rewards, or with all of them equal, gets exactly 0.

    >>> group_advantages([1.0, 0.0, None], "none")
    [0.5, -0.5, 0.0]
    """
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2 or min(known) == max(known):
        return [0.0] * len(rewards)
    mean = math.fsum(known) / len(known)
    if scale_rewards == "group":
        divisor = reward_std(known) + STD_EPSILON  # Eq. 1
    elif scale_rewards == "batch":
        divisor = batch_std + STD_EPSILON  # Eq. 2
    else:
        divisor = 1.0
    return [0.0 if reward is None else (reward - mean) / divisor for reward in rewards]  # Eq. 1, 2


def normalize_then_sum(values: Sequence[Sequence[float | None]], weights: Sequence[float]) -> list[float | None]:
    """Normalise each reward within the group, then add them up (GDPO, 2601.05242; Eq. 17).

    values: one list per reward, each with one value per completion. If rewards were summed first, the one with the
    widest spread would drown the others. A completion that some reward could not score gets None, and is left out of
    the mean of every reward. Rewards of weight 0 do not count.

    >>> normalize_then_sum([[1.0, 0.0, None], [0.0, 0.0, 5.0]], [1.0, 1.0])[2] is None
    True
    """
    paid = [(weight, column) for weight, column in zip(weights, values, strict=True) if weight]
    is_scored = [None not in row for row in zip(*(column for _, column in paid), strict=True)]
    sums = [0.0] * len(is_scored)
    for weight, column in paid:
        known = [value if scored else None for value, scored in zip(column, is_scored, strict=True)]
        normalized = group_advantages(known, "group")  # Eq. 17
        sums = [total + weight * value for total, value in zip(sums, normalized, strict=True)]  # Eq. 17
    return [total if scored else None for total, scored in zip(sums, is_scored, strict=True)]


class RefusalCounts(NamedTuple):
    """The completions of a group by whether they decline, or the sums of these numbers over the groups of a step.

    In a group, D decline and earn V together; A answer and earn U. gain: over all pairs of one that answers and one
    that declines, the sum of how much more the first earns.
    """

    gain: float  # D U - A V
    num_pairs: float  # D A
    num_declined: float  # D
    num_known: float  # D + A


def refusal_counts(rewards: Sequence[float | None], outcomes: Sequence[str | None]) -> RefusalCounts:
    """Count one group, without completions that have no reward or no outcome. One without an answer block is wrong.

    >>> tuple(refusal_counts([0.0, 1.0, -1.0, None], ["refused", "correct", "wrong", None]))
    (0.0, 2, 1, 3)
    """
    known = [pair for pair in zip(rewards, outcomes, strict=True) if None not in pair]
    declined = [reward for reward, outcome in known if outcome == "refused"]
    answered = [reward for reward, outcome in known if outcome != "refused"]
    D, A = len(declined), len(answered)
    return RefusalCounts(D * math.fsum(answered) - A * math.fsum(declined), D * A, D, D + A)


def refusal_shift(gain: float, num_pairs: float, num_declined: float, num_known: float, target: float) -> float:
    """Return what is added to the reward of declining in a step (Eq. 20), from the RefusalCounts of all its groups.

    With the first term alone, the advantages of all completions that decline add up to 0: the step teaches which
    questions to decline, and not how many. The second term is how far the log-odds of declining are below those of the
    target. It counts half an answer more on both sides, so that it is finite.

    >>> refusal_shift(1.0, 2, 2, 4, target=0.5)  # half of them decline, as wanted; answers earn 0.5 more
    0.5
    """
    missing = math.log(target / (1 - target)) - math.log((num_declined + 0.5) / (num_known - num_declined + 0.5))
    return (gain / num_pairs if num_pairs else 0.0) + missing  # Eq. 20


def reward_std(rewards: Sequence[float | None]) -> float:
    """Return the standard deviation of the scorable rewards; 0 for fewer than two."""
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2:
        return 0.0
    mean = math.fsum(known) / len(known)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / (len(known) - 1))
