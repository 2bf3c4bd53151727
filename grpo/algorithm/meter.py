"""What the tokens of a step say: means over all trained tokens, for the metrics."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from grpo.algorithm.interfaces import Peers
from grpo.algorithm.schema import PackedBatch


@dataclass
class TokenMeter:
    """Sums over the trained tokens of all passes of a step, which are divided at the end.

    In the first iteration no ratio is clipped. The noise between sampler and trainer is measured only there, before the
    policy changes.
    """

    kl: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    num_tokens: float = 0.0
    loss: float = 0.0
    num_first: float = 0.0  # tokens of the first iteration
    first_diff: float = 0.0  # of them: how far the log-probs of sampler and trainer are apart
    num_kl: float = 0.0  # tokens with a log-prob of the reference
    largest_diff: float = 0.0  # of the first iteration; no sum, but the maximum

    def add(
        self,
        batch: PackedBatch,
        loss: Tensor,
        logp_C: Tensor,
        entropy_C: Tensor,
        stats: Mapping[str, Tensor],
    ) -> None:
        """Add one pass over a micro-batch: its loss, log-probs and entropies, and the statistics of `policy_loss`."""
        per_token = (stats["kl"], entropy_C, stats["clipped_low"].float(), stats["clipped_high"].float())
        diff_C = (logp_C.detach() - batch.sampler_logp_C).abs()
        numbers = [*(values_C.sum() for values_C in per_token), loss.detach(), diff_C.sum(), diff_C.max()]
        kl, entropy, low, high, loss_of_batch, diff, largest_diff = torch.stack(numbers).tolist()  # one wait for a GPU
        num_tokens = len(logp_C)
        of_pass = TokenMeter(kl, entropy, low, high, num_tokens, loss_of_batch)
        if batch.old_logp_C is None:
            of_pass.num_first, of_pass.first_diff, of_pass.largest_diff = num_tokens, diff, largest_diff
        if batch.ref_logp_C is not None:
            of_pass.num_kl = num_tokens
        self.include(of_pass)

    def include(self, other: "TokenMeter") -> None:
        """Add all that another meter has measured."""
        for name, total in other.sums().items():
            setattr(self, name, getattr(self, name) + total)
        self.largest_diff = max(self.largest_diff, other.largest_diff)

    def sums(self) -> dict[str, float]:
        """Return all but the maximum."""
        return {name: value for name, value in asdict(self).items() if name != "largest_diff"}

    def result(self, replicas: Peers) -> dict[str, float]:
        """Return the means over all replicas, under their names in the glossary. The loss is the mean over iterations.

        A step without trained tokens has the loss 0, and no means; one without a reference has no `kl`.
        """
        total = TokenMeter(*replicas.sum(list(self.sums().values())))
        total.largest_diff = replicas.max(self.largest_diff)
        if not total.num_tokens:
            return {"loss": 0.0}
        clipped_low = total.clipped_low / total.num_tokens
        clipped_high = total.clipped_high / total.num_tokens
        kl = {"kl": total.kl / total.num_kl} if total.num_kl else {}
        return kl | {
            "entropy": total.entropy / total.num_tokens,
            "clip_ratio/low_mean": clipped_low,
            "clip_ratio/high_mean": clipped_high,
            "clip_ratio/region_mean": clipped_low + clipped_high,
            "sampler/logp_diff_mean": total.first_diff / total.num_first,
            "sampler/logp_diff_max": total.largest_diff,
            "loss": total.loss * total.num_first / total.num_tokens,  # by the number of iterations
        }
