"""Draw a token: temperature, top-k, top-p, then inverse-CDF sampling with one uniform number per row.

No sort of the vocabulary, no random number per entry. The uniform is a hash of (seed of the row, position): the same
tokens come out whatever else is in the batch, and a generation can be replayed from its seed.
"""

import math
from dataclasses import dataclass

import torch

from grpo.errors import UserError

BLOCK = 128  # entries per block of the two-level search
NUM_BINS = 1024  # of the histogram that finds where top-p ends; rows of fewer entries are sorted
NO_CUT = float("-inf")
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 is greedy; top_k 0 and top_p 1 keep everything. max_new_tokens counts the end token."""

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
                raise UserError(f"{name} is {getattr(self, name)}", "there is no such sampling", advice)

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


def draw(
    logits_BV: torch.Tensor, uniform_B: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw a token per row; return ids, log-probs under the distribution drawn from, and its cuts (Completion.cuts).

    uniform_B: numbers in (0, 1). Greedy puts all mass on one token: log-prob 0. Where logits are not finite, the token
    means nothing, and its log-prob is not finite. Slow twin: kernels/reference.py `draw`.
    """
    exact = torch.promote_types(logits_BV.dtype, torch.float32)
    no_cut_B = torch.full(uniform_B.shape, NO_CUT, dtype=exact, device=logits_BV.device)
    if params.temperature == 0:
        id_B = logits_BV.argmax(dim=-1)
        best_B = logits_BV.gather(1, id_B[:, None])[:, 0].to(exact)
        return id_B, best_B - best_B, no_cut_B
    logits_BV = logits_BV.to(exact)
    if params.temperature != 1:  # a division by 1 would copy them all the same
        logits_BV = logits_BV / params.temperature
    if not params.truncates:
        weight_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)).exp_()
        id_B, total_B = inverse_cdf(weight_BV, uniform_B)
        return id_B, (weight_BV.gather(1, id_B[:, None])[:, 0] / total_B).log(), no_cut_B
    logp_BV = logits_BV.log_softmax(dim=-1)
    cut_B = _cut(logp_BV, params.top_k, params.top_p)
    weight_BV = torch.where(logp_BV >= cut_B[:, None], logp_BV, NO_CUT).exp_()
    id_B, total_B = inverse_cdf(weight_BV, uniform_B)
    return id_B, logp_BV.gather(1, id_B[:, None])[:, 0] - total_B.log(), cut_B


def inverse_cdf(weight_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first entry at which the running sum of the weights exceeds uniform · total, and the total (Eq. 13).

    Two levels: find the block, then the entry in it, so that long running sums are over V / 128 numbers in float64. For
    a row that is not finite the entry means nothing, and the total is not finite.
    """
    num_rows, width = weight_BV.shape
    if width % BLOCK:
        weight_BV = torch.nn.functional.pad(weight_BV, (0, -width % BLOCK))
    block_BXX = weight_BV.reshape(num_rows, -1, BLOCK)
    running_BX = block_BXX.sum(dim=-1).double().cumsum(dim=-1)
    total_B = running_BX[:, -1]
    target_B1 = (uniform_B.double() * total_B)[:, None]
    block_B1 = torch.searchsorted(running_BX, target_B1, right=True).clamp_(max=running_BX.shape[1] - 1)  # Eq. 13
    before_B1 = torch.where(block_B1 > 0, running_BX.gather(1, (block_B1 - 1).clamp_min(0)), 0.0)
    chosen_B1X = block_BXX.gather(1, block_B1[:, :, None].expand(-1, -1, BLOCK))
    inside_BX = chosen_B1X[:, 0].double().cumsum(dim=-1)
    last_B1 = inside_BX[:, -1:] * (1 - 1e-12)  # rounding never steps past the block
    residual_B1 = torch.minimum(target_B1 - before_B1, last_B1)
    entry_B1 = torch.searchsorted(inside_BX, residual_B1, right=True)  # Eq. 13
    id_B = (block_B1 * BLOCK + entry_B1)[:, 0].clamp_(max=width - 1)  # a row that is not finite must not crash
    return id_B, total_B.to(weight_BV.dtype)


def _cut(logp_BV: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return the log-prob that a token needs to be kept (Eq. 14).

    It lies half way between the last one kept and the first one dropped, so that rounding differences between sampler
    and trainer do not move tokens across it. Equal tokens are kept or dropped together. Slow twin:
    kernels/reference.py `kept_tokens`.
    """
    width, total_B1 = logp_BV.shape[1], 1.0
    if top_k or width <= NUM_BINS:
        sorted_BX = logp_BV.topk(min(max(NUM_BINS, top_k + 1), width), dim=-1).values
        before_B = torch.zeros_like(logp_BV[:, 0], dtype=torch.float64)
    else:
        sorted_BX, before_B = _crossing_bin(logp_BV, top_p)
    if top_k:
        least_B1 = sorted_BX[:, min(top_k, width) - 1, None]
        sorted_BX = sorted_BX.where(sorted_BX >= least_B1, NO_CUT)
        total_B1 = logp_BV.where(logp_BV >= least_B1, NO_CUT).exp_().sum(dim=-1, keepdim=True, dtype=torch.float64)
    wanted_B1 = top_p * total_B1 if top_p < 1 else float("inf")
    last_B = _last_kept(sorted_BX, before_B, wanted_B1)
    next_B = logp_BV.masked_fill(logp_BV >= last_B[:, None], NO_CUT).amax(dim=-1)
    cut_B = (last_B + next_B) / 2  # Eq. 14
    return torch.where((cut_B == next_B) & (next_B > NO_CUT), last_B, cut_B)  # nothing lies between neighbours


def _last_kept(sorted_BX: torch.Tensor, before_B: torch.Tensor, wanted_B1: torch.Tensor | float) -> torch.Tensor:
    """Return the last log-prob that is needed to reach the mass. before_B: that of what comes before the sorted."""
    mass_BX = sorted_BX.double().exp()
    running_BX = before_B[:, None] + mass_BX.cumsum(dim=-1)
    kept_BX = (running_BX - mass_BX < wanted_B1) & (sorted_BX > NO_CUT)
    return sorted_BX.gather(1, kept_BX.sum(dim=-1, keepdim=True).clamp_min(1) - 1)[:, 0]


def _crossing_bin(logp_BV: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, in order, the log-probs among which the running mass reaches top_p, and the mass of all larger ones.

    A histogram of each row's mass over its log-probs finds the bin where that happens, so only this bin is sorted. What
    is less likely than (1 - top_p) / V lies in the last bin: all of it together is never needed.
    """
    top_B1 = logp_BV.amax(dim=-1, keepdim=True)
    low_B1 = logp_BV.amin(dim=-1, keepdim=True).clamp_min(math.log((1 - top_p) / logp_BV.shape[1]))
    scale_B1 = (NUM_BINS - 1) / (top_B1 - low_B1).clamp_min(1e-6)
    bin_BV = ((top_B1 - logp_BV) * scale_B1).nan_to_num_(0).clamp_(0, NUM_BINS - 1).long()
    mass_BX = logp_BV.new_zeros(len(logp_BV), NUM_BINS).scatter_add_(1, bin_BV, logp_BV.exp())
    running_BX = mass_BX.double().cumsum(dim=-1)
    crossing_B1 = (running_BX < top_p).sum(dim=-1, keepdim=True).clamp_max(NUM_BINS - 1)
    before_B = (running_BX - mass_BX).gather(1, crossing_B1)[:, 0]
    inside_BV = bin_BV == crossing_B1
    found = logp_BV[inside_BV].split(inside_BV.count_nonzero(dim=-1).tolist())
    padded_BX = torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=NO_CUT)
    return padded_BX.sort(dim=-1, descending=True).values, before_B


def uniforms(seed_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
    """Return a number in (0, 1), float64, for each (seed, position), int64 each: SplitMix64 (Steele, Lea, Flood 2014).

    It is the middle of its interval: a 0 would draw an entry of any probability, such as 1e-45.
    """
    x = seed_B + position_B * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    x = x ^ _shift_right(x, 31)
    return (_shift_right(x, 12).double() + 0.5) * 2.0**-52


def hash_seed(*parts: int) -> int:
    """Hash several numbers, such as the run's seed, a step and a place in it, to one 63-bit seed.

    FNV-1a over their bytes: another order or number of parts gives another seed.
    """
    seed = 0xCBF29CE484222325
    for byte in b"".join(part.to_bytes(8, "little", signed=True) for part in parts):
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    return seed >> 1


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 logically; torch shifts it arithmetically."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
