"""Drawing a token: temperature, top-k, top-p, then inverse-CDF sampling with one uniform number per row.

No sort of the vocabulary, no random number per entry. The uniform is a hash of (seed of the row, position): the same
tokens come out whatever else is in the batch, and a generation can be replayed from its seed.
"""

from dataclasses import dataclass

import torch

BLOCK = 128  # entries per block of the two-level search
CANDIDATES = 1024  # entries that are sorted for top-p before the whole row is
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 is greedy; top_k 0 and top_p 1 keep everything. max_new_tokens counts the end token."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def cuts(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


def draw(
    logits_BV: torch.Tensor, uniform_B: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A token per row, its log-prob under the distribution drawn from, and that distribution's cut (Completion.cuts).

    Greedy puts all mass on one token: log-prob 0. Slow twin: kernels/reference.py `draw`.
    """
    exact = torch.promote_types(logits_BV.dtype, torch.float32)
    no_cut_B = torch.full(uniform_B.shape, float("-inf"), dtype=exact, device=logits_BV.device)
    if sampling.temperature == 0:
        return logits_BV.argmax(dim=-1), torch.zeros_like(no_cut_B), no_cut_B
    logits_BV = logits_BV.to(exact) / sampling.temperature
    if not sampling.cuts:
        weight_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)).exp_()
        ids_B, total_B = inverse_cdf(weight_BV, uniform_B)
        return ids_B, (weight_BV.gather(1, ids_B[:, None])[:, 0] / total_B).log(), no_cut_B
    logp_BV = logits_BV.log_softmax(dim=-1)
    cut_B = _cut(logp_BV, sampling.top_k, sampling.top_p)
    weight_BV = torch.where(logp_BV >= cut_B[:, None], logp_BV, float("-inf")).exp_()
    ids_B, total_B = inverse_cdf(weight_BV, uniform_B)
    return ids_B, logp_BV.gather(1, ids_B[:, None])[:, 0] - total_B.log(), cut_B


def inverse_cdf(weight_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first entry at which the running sum of the weights exceeds uniform · total; and the total.

    Two levels: find the block, then the entry in it, so that long running sums are over V / 128 numbers in float64.
    """
    rows, width = weight_BV.shape
    padded = torch.nn.functional.pad(weight_BV, (0, -width % BLOCK)).view(rows, -1, BLOCK)
    running_BK = padded.sum(dim=-1).double().cumsum(dim=-1)
    total_B = running_BK[:, -1]
    target_B1 = (uniform_B.double() * total_B)[:, None]
    block_B1 = torch.searchsorted(running_BK, target_B1, right=True).clamp_(max=running_BK.shape[1] - 1)
    before_B1 = torch.where(block_B1 > 0, running_BK.gather(1, (block_B1 - 1).clamp_min(0)), 0.0)
    inside_BX = padded.gather(1, block_B1[:, :, None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(dim=-1)
    residual_B1 = torch.minimum(
        target_B1 - before_B1, inside_BX[:, -1:] * (1 - 1e-12)
    )  # rounding never steps past the block
    entry_B1 = torch.searchsorted(inside_BX, residual_B1, right=True)
    return (block_B1 * BLOCK + entry_B1)[:, 0], total_B.to(weight_BV.dtype)


def _cut(logp_BV: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The log-prob that a token needs to be kept: half way between the last one kept and the first one dropped, so that
    rounding differences between the sampler and the trainer do not move tokens across it."""
    width = logp_BV.shape[1]
    for size in sorted({min(max(CANDIDATES, top_k + 1), width), width}):
        sorted_BX = logp_BV.topk(size, dim=-1).values
        kept_BX = torch.ones_like(sorted_BX, dtype=torch.bool)
        if 0 < top_k < width:
            kept_BX[:, top_k:] = False
        mass_BX = torch.where(kept_BX, sorted_BX, float("-inf")).exp()
        before_BX = mass_BX.cumsum(dim=-1) - mass_BX
        total_B1 = mass_BX.sum(dim=-1, keepdim=True) if top_k else 1.0
        kept_BX &= before_BX < top_p * total_B1
        if size == width or not bool(kept_BX[:, -1].any()):
            break
    count_B1 = kept_BX.sum(dim=-1, keepdim=True).clamp_min(1)
    last_B1 = sorted_BX.gather(1, count_B1 - 1)
    next_B1 = torch.where(count_B1 < width, sorted_BX.gather(1, count_B1.clamp(max=size - 1)), float("-inf"))
    return torch.where(next_B1 > float("-inf"), (last_B1 + next_B1) / 2, next_B1)[:, 0]


def uniforms(seed_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
    """A number in (0, 1) for each (seed, position), int64 each: SplitMix64 (Steele, Lea, Flood 2014), float64. The
    middle of its interval: a 0 would draw an entry of any probability, such as 1e-45."""
    x = seed_B + position_B * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    x = x ^ _shift_right(x, 31)
    return (_shift_right(x, 12).double() + 0.5) * 2.0**-52


def row_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers (run seed, step, row of the data set, completion): FNV-1a over their
    bytes."""
    seed = 0xCBF29CE484222325
    for byte in b"".join(part.to_bytes(8, "little", signed=True) for part in parts):
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    return seed >> 1


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64, which torch shifts arithmetically."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
