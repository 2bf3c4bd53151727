"""What each completion's reward is worth, compared with the others of its group."""

import math

STD_FLOOR = 1e-4  # added to the standard deviation, as in TRL; the paper (DeepSeekMath, 2402.03300) has none


def group_advantages(rewards: list[list[float | None]], scale_rewards: str = "group") -> list[list[float]]:
    """Advantages of all completions of a step, group by group (Eq. 1 and 2).

        Â_i = (R_i − mean R) / (std R + 1e-4)                                                    Eq. 1, "group"
        Â_i = (R_i − mean R) / (std of all rewards of the batch + 1e-4)                          Eq. 2, "batch"
        Â_i =  R_i − mean R                                                                      "none", Dr. GRPO (2503.20783)

    Standard deviations divide by n − 1. None (unscorable) stays out of every mean and deviation and gets 0. A group
    with fewer than two scorable rewards, or with all of them equal, gets exactly 0. A reward that is not finite makes
    its group's advantages NaN, so that the gradient is not finite and the step is skipped: a broken reward must not
    train anything.

    >>> group_advantages([[1.0, 0.0, None], [2.0, 2.0]], "none")
    [[0.5, -0.5, 0.0], [0.0, 0.0]]
    """
    batch_std = (
        _std([r for group in rewards for r in group if r is not None and math.isfinite(r)])
        if scale_rewards == "batch"
        else None
    )
    return [_one_group(group, scale_rewards, batch_std) for group in rewards]


def _one_group(rewards: list[float | None], scale_rewards: str, batch_std: float | None) -> list[float]:
    known = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in known):
        return [math.nan] * len(rewards)
    if len(known) < 2 or min(known) == max(known):
        return [0.0] * len(rewards)
    mean = math.fsum(known) / len(known)
    divisor = {"none": 1.0, "group": _std(known) + STD_FLOOR, "batch": (batch_std or 0.0) + STD_FLOOR}[scale_rewards]
    return [0.0 if r is None else (r - mean) / divisor for r in rewards]


def _std(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
