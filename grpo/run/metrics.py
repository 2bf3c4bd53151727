"""The numbers of a step: token statistics summed over micro-batches and ranks, and what the completions look like."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from grpo.run.distributed import Ranks
from grpo.schema import Group, Outcome, PackedBatch, Score


class TokenMeter:
    """Means over all completion tokens that count, of a whole step: sums are kept, and divided at the end.

    With several iterations over a batch they are means over all of them (only then can a ratio be clipped), but for the
    noise between sampler and trainer, which the first tells alone: after it the policy has changed.
    """

    NAMES = ("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean")

    def __init__(self):
        self.sums = [0.0] * (
            len(self.NAMES) + 4
        )  # then: tokens, loss, and of the first iteration |difference| and tokens
        self.largest = 0.0

    def add(
        self,
        batch: PackedBatch,
        loss: torch.Tensor,
        logp_C: torch.Tensor,
        entropy_C: torch.Tensor,
        stats: dict[str, torch.Tensor],
        is_first: bool,
    ) -> None:
        used_C = batch.weight_C != 0
        diff_C = torch.where(used_C, (logp_C - batch.sampler_logp_C).abs() * is_first, 0.0)
        values = (stats["kl"], entropy_C, stats["clipped_low"].float(), stats["clipped_high"].float())
        count = used_C.sum().float()
        sums = [torch.where(used_C, value, 0.0).sum() for value in values] + [
            count,
            loss,
            diff_C.sum(),
            count * is_first,
            diff_C.max(),
        ]
        *sums, largest = torch.stack(sums).tolist()
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.largest = max(self.largest, largest)

    def result(self, ranks: Ranks) -> dict[str, float]:
        *sums, count, loss, difference, first = ranks.sum(self.sums)
        means = {name: value / max(count, 1) for name, value in zip(self.NAMES, sums, strict=True)}
        means["clip_ratio/region_mean"] = means["clip_ratio/low_mean"] + means["clip_ratio/high_mean"]
        return means | {
            "sampler/logp_diff_mean": difference / max(first, 1),
            "sampler/logp_diff_max": ranks.max(self.largest),
            "loss": loss * first / max(count, 1),
        }


def completion_metrics(groups: Sequence[Group], reward_names: Sequence[str]) -> dict[str, float]:
    """Rewards, advantages and lengths of a step's completions (of all ranks). A mean over nothing scorable is no
    number."""
    completions = [completion for group in groups for completion in group.completions]
    scores = [score for group in groups for score in group.scores]
    rewards = [[reward for reward in group.rewards if reward is not None] for group in groups]
    scorable = [reward for group in rewards for reward in group]
    lengths = [len(completion.ids) for completion in completions]
    ended = [len(completion.ids) for completion in completions if completion.finish_reason == "stop"]
    metrics = {
        "reward": _mean(scorable) if scorable else math.nan,
        "reward_std": _std(scorable),
        "frac_reward_zero_std": _mean([float(len(group) < 2 or min(group) == max(group)) for group in rewards]),
        "advantage_abs_mean": _mean([abs(a) for group in groups for a in group.advantages]),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/mean_terminated_length": _mean(ended),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
    }
    for name in reward_names:
        values = [score[name].value for score in scores if score[name].value is not None]
        metrics |= {
            f"rewards/{name}/mean": _mean(values) if values else math.nan,
            f"rewards/{name}/std": _std(values),
            f"rewards/{name}/unscored_frac": 1 - len(values) / len(scores),
        }
    outcomes = [outcome for score in scores if (outcome := outcome_of(score))]
    if outcomes:
        metrics |= {
            "accuracy": outcomes.count("correct") / len(outcomes),
            "refusal_rate": outcomes.count("refused") / len(outcomes),
        }
    return metrics


def outcome_of(scores: Mapping[str, Score]) -> Outcome | None:
    """How a completion's answer turned out, by the first reward that can tell; None if none could."""
    return next((score.outcome for score in scores.values() if score.outcome is not None), None)


def is_mixed(group: Group) -> bool:
    """0 < right answers < G: what dynamic sampling keeps. Goes by the outcome, not by the reward's value, unless no
    reward knows one."""
    outcomes = [outcome_of(scores) for scores in group.scores]
    if not any(outcomes):
        return len({reward for reward in group.rewards if reward is not None}) > 1
    return 0 < outcomes.count("correct") < len(outcomes)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0


class Clock:
    """Seconds of a step by phase; time that a phase spent on something else is excluded from it."""

    def __init__(self):
        self.laps: dict[str, float] = {"time/reward": 0.0}
        self.started = self.last = time.perf_counter()
        self.elsewhere = 0.0

    def lap(self, name: str) -> None:
        """The time since the last lap was `name`."""
        now = time.perf_counter()
        self.laps[name] = now - self.last - self.elsewhere
        self.last, self.elsewhere = now, 0.0

    def exclude(self, name: str, seconds: float) -> None:
        self.laps[name] = self.laps.get(name, 0.0) + seconds
        self.elsewhere += seconds

    def total(self) -> float:
        return time.perf_counter() - self.started
