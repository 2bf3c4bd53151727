"""Rewards to advantages: compare each completion's reward with the others of its group (Eq. 1, 2).

Counterpart of the line of Eq. 1 in minimal.py. Here a reward may be missing.
"""

import math
from collections.abc import Sequence

from grpo.algorithm.interfaces import Peers
from grpo.algorithm.schema import Group

STD_EPSILON = 1e-4  # added to the standard deviation, as in TRL; the paper (DeepSeekMath, 2402.03300) has none


def set_advantages(
    groups: Sequence[Group], rewards: Sequence[Sequence[float | None]], scale_rewards: str, replicas: Peers
) -> None:
    """Set the advantage of every completion. Every replica must call it.

    groups: those of this replica. rewards: of their completions. scale_rewards: as for `group_advantages`.
    """
    batch_std = None  # of all rewards of the step, on all replicas
    if scale_rewards == "batch":
        mine = [reward for of_group in rewards for reward in of_group]
        batch_std = reward_std(replicas.gather_lists(mine))  # Eq. 2
    for group, of_group in zip(groups, rewards, strict=True):
        advantages = group_advantages(of_group, scale_rewards, batch_std)  # Eq. 1, 2
        for completion, advantage in zip(group.completions, advantages, strict=True):
            completion.advantage = advantage


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
        assert batch_std is not None
        divisor = batch_std + STD_EPSILON  # Eq. 2
    else:
        divisor = 1.0
    return [0.0 if reward is None else (reward - mean) / divisor for reward in rewards]  # Eq. 1, 2


def reward_std(rewards: Sequence[float | None]) -> float:
    """Return the standard deviation of the scorable rewards; 0 for fewer than two."""
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2:
        return 0.0
    mean = math.fsum(known) / len(known)
    squares = math.fsum((reward - mean) ** 2 for reward in known)
    return math.sqrt(squares / (len(known) - 1))
