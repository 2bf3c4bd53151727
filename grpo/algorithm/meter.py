"""What the tokens of a step say: means over all scored tokens, for the metrics."""

from collections.abc import Mapping

import torch

from grpo.algorithm.schema import PackedBatch
from grpo.engine.device.distributed import Ranks


class TokenMeter:
    """Sums over the scored tokens of a step, which are divided at the end.

    The means are over all iterations; in the first one no ratio is clipped. The
    noise between sampler and trainer is measured only in the first iteration, before the policy changes.
    """

    NAMES = ("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean")

    def __init__(self):
        self.sums = [0.0] * len(self.NAMES)
        self.num_tokens = self.loss = 0.0
        self.first_num_tokens = self.first_diff = 0.0  # of the first iteration
        self.largest_diff = 0.0

    def add(
        self,
        batch: PackedBatch,
        loss: torch.Tensor,
        logp_C: torch.Tensor,
        entropy_C: torch.Tensor,
        stats: Mapping[str, torch.Tensor],
    ) -> None:
        """Add one pass over a micro-batch: its loss, log-probs and entropies, and the statistics of `policy_loss`."""
        values = (stats["kl"], entropy_C, stats["clipped_low"].float(), stats["clipped_high"].float())
        totals = [value.sum() for value in values]
        diff_C = (logp_C.detach() - batch.sampler_logp_C).abs()
        others = [loss.detach(), diff_C.sum(), diff_C.max()]
        *sums, its_loss, diff, largest_diff = torch.stack(totals + others).tolist()
        num_tokens = len(logp_C)
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.num_tokens += num_tokens
        self.loss += its_loss
        if batch.old_logp_C is None:
            self.first_num_tokens += num_tokens
            self.first_diff += diff
            self.largest_diff = max(self.largest_diff, largest_diff)

    def include(self, other: "TokenMeter") -> None:
        """Add all that another meter has measured."""
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.num_tokens += other.num_tokens
        self.loss += other.loss
        self.first_num_tokens += other.first_num_tokens
        self.first_diff += other.first_diff
        self.largest_diff = max(self.largest_diff, other.largest_diff)

    def result(self, ranks: Ranks) -> dict[str, float]:
        """Return the means over all ranks, under their names in the glossary. The loss is the mean over iterations.

        A step without scored tokens has the loss 0, and no means.
        """
        mine = [*self.sums, self.num_tokens, self.loss, self.first_num_tokens, self.first_diff]
        *sums, num_tokens, loss, first_num_tokens, first_diff = ranks.sum(mine)
        largest_diff = ranks.max(self.largest_diff)
        if not num_tokens:
            return {"loss": 0.0}
        means = {name: value / num_tokens for name, value in zip(self.NAMES, sums, strict=True)}
        means["clip_ratio/region_mean"] = means["clip_ratio/low_mean"] + means["clip_ratio/high_mean"]
        means["sampler/logp_diff_mean"] = first_diff / first_num_tokens
        means["sampler/logp_diff_max"] = largest_diff
        means["loss"] = loss * first_num_tokens / num_tokens
        return means
