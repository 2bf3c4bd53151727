"""Draw a token from a vocabulary that shards share: each has the logits of some tokens. (draw.py has those of all.)

The shards tell each other their largest logit and their mass relative to it. So all of them know in whose part of the
vocabulary the running sum exceeds u · total (Eq. 16). That shard finds the token, and tells it with its logit. For each
row, four numbers are sent in place of a part's logits. top-k and top-p need all logits in one place.
"""

import torch
from torch import Tensor

from grpo.engine.device.draw import NO_CUT, inverse_cdf
from grpo.engine.device.shard import Shard
from grpo.engine.device.split_softmax import DROPPED


def split_draw(
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, shard: Shard, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `draw.draw` returns for all of the vocabulary without top-k and top-p; every shard gets the same.

    logits_BV: of this shard's part of the vocabulary, which is filled up to the width of the others.
    """
    own = shard.part(vocab_size)
    exact_dtype = torch.promote_types(logits_BV.dtype, torch.float32)
    size = own.stop - own.start
    z_BV = logits_BV.to(exact_dtype) / (temperature or 1)
    z_BV[:, size:] = DROPPED
    top_B, place_B = z_BV.max(dim=1)
    weight_BV = (z_BV - top_B[:, None]).exp()
    mass_B = weight_BV.sum(dim=1, dtype=torch.float64)
    top_WB, mass_WB = _stack(shard, top_B, mass_B)
    highest_B = top_WB.amax(dim=0)
    if temperature == 0:
        owner_B = top_WB.argmax(dim=0)
        log_total_B: Tensor | int = 0
    else:
        share_WB = (top_WB - highest_B).exp()
        common_WB = mass_WB * share_WB  # relative to one logit
        running_WB = common_WB.cumsum(dim=0)
        log_total_B = running_WB[-1].log()
        owner_B, inside_B = _owner(running_WB, uniform_B, shard)
        place_B, _ = inverse_cdf(weight_BV, inside_B)
    logit_B1 = z_BV.gather(1, place_B[:, None])
    logit_B = logit_B1[:, 0]
    id_WB, logit_WB = _stack(shard, place_B + own.start, logit_B)
    id_B = id_WB.gather(0, owner_B[None])[0]
    logit_B = logit_WB.gather(0, owner_B[None])[0]
    logp_B = logit_B - highest_B - log_total_B
    cut_B = torch.full_like(logp_B, NO_CUT)
    return id_B.long(), logp_B, cut_B


def _owner(running_WB: Tensor, uniform_B: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Return the shard that has the token of each row, and the uniform number within this shard's part if it is that.

    running_WB: the running sum of the shards' masses.
    """
    target_B = uniform_B * running_WB[-1]
    owner_B = (running_WB <= target_B).sum(dim=0)  # Eq. 16
    owner_B = owner_B.clamp_(max=shard.world - 1)
    before_B = running_WB[shard.rank - 1] if shard.rank else 0
    own_B = running_WB[shard.rank] - before_B
    inside_B = (target_B - before_B) / own_B  # from 0 to 1 where this shard is owner
    inside_B = inside_B.clamp_(0, 1 - 1e-12)  # rounding never steps past the part
    return owner_B, inside_B


def _stack(shard: Shard, *values: Tensor) -> tuple[Tensor, ...]:
    """Return what all shards have of some numbers per row, [W, B] each, in float64."""
    own_XB = torch.stack([value_B.double() for value_B in values])
    all_WXB = shard.stack(own_XB)
    return all_WXB.unbind(1)
