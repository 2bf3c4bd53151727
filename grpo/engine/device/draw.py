"""Draw a token: temperature, top-k, top-p, then inverse-CDF sampling with one uniform number per row.

Counterpart of `torch.multinomial` in minimal.py: what a completion draws does not depend on the others.

It needs no random number per entry, and no sort of the vocabulary (except for top-k and top-p without kernels/: on a
GPU, and on a CPU in a row that is nearly uniform). The uniform number is a hash of (seed of the row, position). So a
row's tokens do not depend on the other rows, and a completion can be replayed from its seed.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.algorithm.schema import NO_CUT
from grpo.base.errors import UserError

BLOCK = 128  # entries per block of the two-level search
LIKELIEST = 4096  # tokens of a row that are looked at first: top-p 0.9 of a real model keeps 350 in the mean
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # of SplitMix64, as int64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters. temperature 0: greedy. top_k 0, top_p 1: keep all tokens. max_new_tokens: with end token."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self):
        limits = {
            "temperature": (self.temperature >= 0, "0 is greedy, 1 is the distribution of the model"),
            "top_p": (0 < self.top_p <= 1, "1 keeps every token"),
            "top_k": (self.top_k >= 0, "0 keeps every token"),
            "max_new_tokens": (self.max_new_tokens >= 1, "an answer has at least one token"),
        }
        for name, (is_possible, advice) in limits.items():
            if not is_possible:
                raise UserError(f"{name} is {getattr(self, name)}", "sampling is not defined for this value", advice)

    @property
    def truncates(self) -> bool:
        """Return whether top-k or top-p exclude tokens."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


def draw(logits_BV: Tensor, uniform_B: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token per row; return ids, log-probs under the distribution drawn from, and its cuts (Completion.cuts).

    uniform_B: numbers in (0, 1). Greedy puts all mass on one token: log-prob 0. If logits are not finite, the token
    means nothing, and its log-prob is not finite. Slow twin: kernels/twins.py `draw`.
    """
    exact_dtype = torch.promote_types(logits_BV.dtype, torch.float32)
    no_cut_B = logits_BV.new_full(uniform_B.shape, NO_CUT, dtype=exact_dtype)
    if params.temperature == 0:
        id_B = logits_BV.argmax(dim=-1)
        best_B = logits_BV.gather(1, id_B[:, None])[:, 0].to(exact_dtype)
        return id_B, best_B - best_B, no_cut_B  # 0; NaN if the logits are not finite
    logits_BV = logits_BV.to(exact_dtype)
    if params.temperature != 1:  # even a division by 1 would copy them
        logits_BV = logits_BV / params.temperature
    weight_BV = logits_BV.softmax(dim=-1)
    cut_B = no_cut_B
    if params.truncates:
        largest_p_B1 = _largest_share(weight_BV)
        least_B1, cut_B = _threshold(logits_BV, largest_p_B1, params.top_k, params.top_p)
        weight_BV *= _reaches(logits_BV, least_B1)
    id_B, total_B = inverse_cdf(weight_BV, uniform_B)
    share_B = weight_BV.gather(1, id_B[:, None])[:, 0] / total_B
    return id_B, share_B.log(), cut_B


def inverse_cdf(weight_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first entry at which the running sum of the weights exceeds uniform · total, and the total (Eq. 16).

    It finds the block first, then the entry in it, so that running sums are over at most V / 128 numbers in float64. If
    a row is not finite, its entry means nothing, and its total is not finite.
    """
    block_BXX = _blocks(weight_BV)
    sum_BX = block_BXX.sum(dim=-1)
    running_BX = sum_BX.double().cumsum(dim=-1)
    total_B = running_BX[:, -1]
    target_B1 = (uniform_B.double() * total_B)[:, None]
    block_B1 = torch.searchsorted(running_BX, target_B1, right=True)  # Eq. 16: the first that exceeds it
    block_B1.clamp_(max=running_BX.shape[1] - 1)
    up_to_previous_B1 = running_BX.gather(1, (block_B1 - 1).clamp_min(0))
    before_B1 = torch.where(block_B1 > 0, up_to_previous_B1, 0.0)
    block_B1X = block_B1[:, :, None].expand(-1, -1, BLOCK)
    chosen_BX = block_BXX.gather(1, block_B1X)[:, 0]
    inside_BX = chosen_BX.double().cumsum(dim=-1)
    last_B1 = inside_BX[:, -1:] * (1 - 1e-12)  # rounding never steps past the block
    residual_B1 = torch.minimum(target_B1 - before_B1, last_B1)
    entry_B1 = torch.searchsorted(inside_BX, residual_B1, right=True)
    id_B = (block_B1 * BLOCK + entry_B1)[:, 0]
    id_B.clamp_(max=weight_BV.shape[1] - 1)  # a row that is not finite must not crash
    return id_B, total_B.to(weight_BV.dtype)


def _blocks(weight_BV: Tensor) -> Tensor:
    """Cut each row into blocks of BLOCK entries, the last one filled up with zeros."""
    missing = -weight_BV.shape[1] % BLOCK
    padded_BV = F.pad(weight_BV, (0, missing)) if missing else weight_BV  # a pad of 0 would copy
    return padded_BV.unflatten(-1, (-1, BLOCK))


def _threshold(logits_BV: Tensor, largest_p_B1: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the logit of the last token kept [B, 1], and the cut [B]: the least log-prob that is kept (Eq. 17).

    Only the likeliest tokens of a row are looked at; rows whose last token is not found among them are sorted as a
    whole. Tokens with equal logits are kept or dropped together.

    largest_p_B1: the probability of the likeliest token. Slow twin: kernels/twins.py `kept_tokens`.
    """
    rising_BX = _largest(logits_BV, LIKELIEST)
    least_B1, is_certain_B1 = _last_kept(rising_BX, largest_p_B1, top_k, top_p)
    cut_B = _cut_below(least_B1, rising_BX, largest_p_B1)
    unsettled_B = ~is_certain_B1[:, 0]  # rows whose last token kept may not be among the LIKELIEST
    vocab_size = logits_BV.shape[1]
    if vocab_size > LIKELIEST and unsettled_B.any():
        whole_XV = _largest(logits_BV[unsettled_B], vocab_size)
        largest_p_X1 = largest_p_B1[unsettled_B]
        least_X1, _ = _last_kept(whole_XV, largest_p_X1, top_k, top_p)
        least_B1[unsettled_B] = least_X1
        cut_B[unsettled_B] = _cut_below(least_X1, whole_XV, largest_p_X1)
    return least_B1, cut_B


def _last_kept(rising_BX: Tensor, largest_p_B1: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the logit of the last token kept [B, 1], and whether it is certain [B, 1].

    rising_BX: the largest logits of each row. Where the last token kept has the least of them, more tokens of this
    logit may lie outside.

    Top-p keeps the fewest likeliest tokens that hold this share of the probability; with top-k, of what that has left.
    Added up from below, the last one kept is the first at which the sum exceeds the share of the others, 1 - top_p.
    """
    lowest_B1 = rising_BX[:, :1]
    floor_B1 = rising_BX[:, -top_k:][:, :1].contiguous()  # the k-th from the end; without top-k, the lowest
    if top_p == 1:
        return floor_B1, floor_B1 > lowest_B1
    mass_BX = (rising_BX - rising_BX[:, -1:]).exp_()
    if top_k:
        mass_BX *= _reaches(rising_BX, floor_B1)
    seen_B = _exact_sum(mass_BX)
    total_B = seen_B if top_k else 1 / largest_p_B1[:, 0]
    wanted_B = top_p * (1 - 1e-12) * total_B  # a sum of exactly top_p is enough, however it is rounded
    place_B, _ = inverse_cdf(mass_BX, 1 - wanted_B / seen_B)
    least_B1 = rising_BX.gather(1, place_B[:, None])
    return least_B1, (floor_B1 if top_k else least_B1) > lowest_B1


def _cut_below(least_B1: Tensor, rising_BX: Tensor, largest_p_B1: Tensor) -> Tensor:
    """Return the cut below the last token kept, as a log-prob [B].

    It lies half way between that token and the first one dropped, so that rounding differences between sampler and
    trainer do not move tokens across it.
    """
    num_dropped_B1 = torch.searchsorted(rising_BX, least_B1)
    first_dropped_B1 = (num_dropped_B1 - 1).clamp_min(0)
    next_B1 = rising_BX.gather(1, first_dropped_B1)
    next_B1 = torch.where(num_dropped_B1 > 0, next_B1, NO_CUT)
    middle_B1 = (least_B1 + next_B1) / 2  # Eq. 17
    are_neighbours_B1 = (middle_B1 == next_B1) & next_B1.isfinite()  # nothing lies between them
    limit_B1 = torch.where(are_neighbours_B1, least_B1, middle_B1)
    cut_B1 = limit_B1 - rising_BX[:, -1:] + largest_p_B1.log()
    return cut_B1[:, 0].to(rising_BX.dtype)


def _largest_share(weight_BV: Tensor) -> Tensor:
    """Return the largest weight of each row [B, 1] as a share of their sum, which a softmax makes only nearly 1."""
    largest_B1 = weight_BV.amax(dim=-1, keepdim=True)
    sum_B1 = _exact_sum(weight_BV)[:, None]
    return largest_B1 / sum_B1


def _exact_sum(weight_BV: Tensor) -> Tensor:
    """Add each row in float64, block by block, which is much faster than entry by entry."""
    sum_BX = _blocks(weight_BV).sum(dim=-1)
    return sum_BX.sum(dim=-1, dtype=torch.float64)


def _reaches(x_BV: Tensor, least_B1: Tensor) -> Tensor:
    """Return 1 where x is at least its row's `least`, else 0. (On a CPU, numbers multiply faster than booleans.)"""
    return x_BV.clone().ge_(least_B1)


def _largest(x_BV: Tensor, number: int) -> Tensor:
    """Return the largest entries of each row, rising.

    On a CPU NumPy finds them: its sort and partition use vector units, and are many times as fast as torch's.
    """
    start = max(0, x_BV.shape[1] - number)
    if x_BV.device.type != "cpu":
        return x_BV.sort(dim=-1).values[:, start:]
    rows = x_BV.contiguous().numpy()
    if start:
        rows = np.partition(rows, start, axis=-1)[:, start:]
    return torch.from_numpy(np.sort(rows, axis=-1))


def uniforms(seed_B: Tensor, position_B: Tensor) -> Tensor:
    """Return a number in (0, 1), float64, for each (seed, position), int64 each: SplitMix64 (Steele, Lea, Flood 2014).

    It is the middle of one of 2^52 equal intervals, never 0: a 0 could draw an entry of any probability, such as 1e-45.
    """
    x = seed_B + position_B * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    x = x ^ _shift_right(x, 31)
    interval = _shift_right(x, 12).double()
    return (interval + 0.5) * 2.0**-52


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 logically; torch's own shift is arithmetic."""
    low_bits = (1 << (64 - bits)) - 1
    return (x >> bits) & low_bits
