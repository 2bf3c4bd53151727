"""Log-softmax over a vocabulary that shards share: each has the logits of some tokens.

Of each row, a shard computes the largest logit, the sum of exp and the mean, both relative to it, and the target's
logit if it has that. These four numbers are all that is sent.
"""

import torch
from torch import Tensor

from grpo.engine.parallel.shard import Shard

DROPPED = -1e30  # the logit of a token that cannot be drawn; finite, so that 0 · DROPPED is 0


def split_log_softmax_rows(
    shard: Shard,
    vocab_size: int,
    logits_XV: Tensor,
    targets_X: Tensor,
    temperature: float,
    slope_dtype: torch.dtype | None,
    cut_X: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log-prob of the target [X], entropy [X], and onehot - softmax of this shard's tokens [X, V].

    logits_XV: of this shard's part of the vocabulary, which is filled up to the width of the others. Otherwise as
    `ops.log_softmax_rows`, which computes the same for all of the vocabulary.
    """
    own = shard.part(vocab_size)
    size = own.stop - own.start
    exact_dtype = torch.promote_types(logits_XV.dtype, torch.float32)
    z_XV = logits_XV.to(exact_dtype) / temperature
    z_XV[:, size:] = DROPPED
    place_X1 = (targets_X - own.start)[:, None]
    is_here_X1 = (place_X1 >= 0) & (place_X1 < size)
    place_X1 = place_X1.clamp(0, z_XV.shape[1] - 1)
    target_X1 = z_XV.gather(1, place_X1).where(is_here_X1, 0.0)
    target_X, log_sum_X, entropy_X = _statistics(z_XV, target_X1, shard)
    if cut_X is not None:
        dropped_XV = z_XV - log_sum_X[:, None] < cut_X[:, None]
        is_dropped_X1 = dropped_XV.gather(1, place_X1) & ~is_here_X1  # a drawn token was kept
        dropped_XV.scatter_(1, place_X1, is_dropped_X1)
        z_XV.masked_fill_(dropped_XV, DROPPED)
        target_X, log_sum_X, entropy_X = _statistics(z_XV, target_X1, shard)
    slope_XV = None
    if slope_dtype:
        slope_XV = z_XV.sub_(log_sum_X[:, None]).exp_().neg_()
        onehot_X1 = is_here_X1.to(z_XV.dtype)
        slope_XV = slope_XV.scatter_add_(1, place_X1, onehot_X1).to(slope_dtype)
    return target_X - log_sum_X, entropy_X, slope_XV  # Eq. 3


def _statistics(z_XV: Tensor, target_X1: Tensor, shard: Shard) -> tuple[Tensor, ...]:
    """Return the target's logit, the log of the sum of exp, and the entropy of each row, over all shards."""
    top_X1 = z_XV.amax(dim=1, keepdim=True)
    below_XV = z_XV - top_X1
    weight_XV = below_XV.exp()
    total_X1 = weight_XV.sum(dim=1, keepdim=True)
    mean_X1 = torch.linalg.vecdot(weight_XV, below_XV)[:, None]
    own_X4 = torch.cat([top_X1, total_X1, mean_X1, target_X1], dim=1)
    top_WX, total_WX, mean_WX, target_WX = shard.stack(own_X4).unbind(-1)
    highest_X = top_WX.amax(dim=0)
    below_WX = top_WX - highest_X
    scale_WX = below_WX.exp()
    total_X = (scale_WX * total_WX).sum(dim=0)
    sum_WX = scale_WX * (mean_WX + below_WX * total_WX)
    mean_X = sum_WX.sum(dim=0) / total_X
    log_total_X = total_X.log()
    return target_WX.sum(dim=0), highest_X + log_total_X, log_total_X - mean_X
