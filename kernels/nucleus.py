"""Find the threshold of top-k and top-p for each row of logits, without a sort and without waiting for the host.

Each float32 maps to an unsigned integer, its key, in the same order. Let F(key) be the mass (or the number) of the
entries with this key or a larger one: it falls as the key grows. So the largest key with enough F is that of the last
entry to keep. It is found digit by digit, 4 bits each. A launch goes over all pieces of all rows. It sums the entries
that begin with the digits found so far, separately for each value of the next digit. The next launch first adds the
sums of the pieces, always in the same order; these give the digit. This is draw.py's `_threshold` on a GPU.
"""

import torch
import triton
import triton.language as tl
from grpo.kernels.inverse_cdf import PIECE, piece_masses
from torch import Tensor

BITS = tl.constexpr(4)  # of a digit
VALUES = tl.constexpr(2**BITS.value)  # that a digit may have
LEVELS = 32 // BITS.value


def thresholds(logits_BV: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the threshold of each row: as a logit, and as a log-prob in nats (both float32).

    It lies half way between the last entry that is kept and the first that is dropped. The log-prob is that of the
    full distribution at this temperature. Both are -inf if nothing is dropped, and NaN if the row's mass is not
    finite. Equal entries are kept or dropped together. Slow twin: kernels/twins.py `kept_tokens`.
    """
    least_B = logits_BV.new_full((len(logits_BV),), float("-inf"), dtype=torch.float32)
    cut_B = least_B
    if not len(logits_BV):
        return least_B, cut_B
    V = logits_BV.shape[1]
    tops_and_masses = piece_masses(logits_BV, temperature)
    if top_k:
        share = (min(top_k, V) - 0.5) / V
        least_B, cut_B = _search(logits_BV, temperature, *tops_and_masses, least_B, share, True)
    if top_p < 1:
        least_B, cut_B = _search(logits_BV, temperature, *tops_and_masses, least_B, top_p, False)
    return least_B, cut_B


def _search(
    logits_BV: Tensor,
    temperature: float,
    top_BX: Tensor,
    mass_BX: Tensor,
    least_B: Tensor,
    share: float,
    by_number: bool,
) -> tuple[Tensor, Tensor]:
    """Return the thresholds that keep at least `share` of the entries not below least_B, by mass or `by_number`.

    top_BX, mass_BX: of the row's pieces, from `piece_masses`.
    """
    B, V = logits_BV.shape
    num_pieces = top_BX.shape[1]
    device = logits_BV.device
    sums_XBXX = torch.zeros(LEVELS, B, num_pieces, VALUES.value, dtype=torch.float32, device=device)
    prefix_XB = torch.zeros(LEVELS, B, dtype=torch.int64, device=device)  # the digits found before each level
    larger_XB = torch.zeros(LEVELS, B, dtype=torch.float64, device=device)  # the sum of the entries above them
    found = (sums_XBXX, prefix_XB, larger_XB, B, num_pieces, share)
    padded_pieces = triton.next_power_of_2(num_pieces)
    shape = {"piece": PIECE, "padded_pieces": padded_pieces}
    grid, row = (num_pieces, B), (logits_BV, logits_BV.stride(0), V)
    inverse_temperature = 1.0 / temperature
    for level in range(LEVELS):
        _sum_digits[grid](*row, least_B, top_BX, inverse_temperature, level, *found, by_number=by_number, **shape)
    last_BX, next_BX = torch.empty_like(top_BX), torch.empty_like(top_BX)
    _gap[grid](*row, last_BX, next_BX, LEVELS, *found, **shape)
    least_B, cut_B = torch.empty_like(least_B), torch.empty_like(least_B)
    pieces = (last_BX, next_BX, top_BX, mass_BX)
    _finish[(B,)](*pieces, least_B, cut_B, num_pieces, inverse_temperature, padded_pieces=padded_pieces, num_warps=1)
    return least_B, cut_B


@triton.jit(do_not_specialize=["level"])
def _sum_digits(
    logits_ptr,
    stride,
    V,
    least_ptr,
    top_ptr,
    inverse_temperature,
    level,
    sums_ptr,
    prefix_ptr,
    larger_ptr,
    num_rows,
    num_pieces,
    share: tl.float64,
    piece: tl.constexpr,
    by_number: tl.constexpr,
    padded_pieces: tl.constexpr,
):
    """Store the sums of a piece's entries that begin with the digits found so far, separately for each next digit."""
    row = tl.program_id(1)
    v = tl.program_id(0) * piece + tl.arange(0, piece)
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + v, mask=v < V, other=float("-inf")).to(tl.float32)
    prefix = tl.zeros([], tl.int64)
    if level > 0:
        prefix, larger = _found(
            sums_ptr, prefix_ptr, larger_ptr, row, level, num_rows, num_pieces, share, padded_pieces
        )
        if tl.program_id(0) == 0:
            tl.store(prefix_ptr + level * num_rows + row, prefix)
            tl.store(larger_ptr + level * num_rows + row, larger)

    shift = 32 - (level + 1) * BITS
    key = _key(z)
    begins_so = (key >> shift >> BITS) == prefix.to(tl.uint32)
    is_open = (v < V) & (z >= tl.load(least_ptr + row)) & begins_so
    if tl.max(is_open.to(tl.int32), 0) > 0:
        if by_number:
            weight = tl.where(is_open, 1.0, 0.0)
        else:
            x = tl.arange(0, padded_pieces)
            tops = tl.load(top_ptr + row * num_pieces + x, mask=x < num_pieces, other=float("-inf"))
            weight = tl.where(is_open, tl.exp((z - tl.max(tops, 0)) * inverse_temperature), 0.0)
        digit = ((key >> shift) & (VALUES - 1)).to(tl.int32)
        place = (level * num_rows + row).to(tl.int64) * num_pieces + tl.program_id(0)
        for value in tl.static_range(VALUES):
            tl.store(sums_ptr + place * VALUES + value, tl.sum(tl.where(digit == value, weight, 0.0), 0))


@triton.jit
def _found(
    sums_ptr,
    prefix_ptr,
    larger_ptr,
    row,
    level,
    num_rows,
    num_pieces,
    share,
    padded_pieces: tl.constexpr,
):
    """Return the first `level` digits of the last key to keep, and the sum of the entries whose digits are larger."""
    before = (level - 1) * num_rows + row
    wanted = share * tl.sum(_totals(sums_ptr, row, num_pieces, padded_pieces), 0)
    total = _totals(sums_ptr, before, num_pieces, padded_pieces)
    larger = tl.load(larger_ptr + before)
    value = tl.arange(0, VALUES)
    is_enough = larger + tl.cumsum(total, 0, reverse=True) >= wanted
    digit = tl.maximum(tl.sum(is_enough.to(tl.int32), 0) - 1, 0)  # sums fall as the value grows
    larger += tl.sum(tl.where(value > digit, total, 0.0), 0)
    return tl.load(prefix_ptr + before) * VALUES + digit, larger


@triton.jit
def _totals(sums_ptr, row, num_pieces, padded_pieces: tl.constexpr):
    """Add the sums of all pieces of a row, for each value of a digit (float64)."""
    x = tl.arange(0, padded_pieces)[:, None]
    place = (row.to(tl.int64) * num_pieces + x) * VALUES + tl.arange(0, VALUES)[None]
    return tl.sum(tl.load(sums_ptr + place, mask=x < num_pieces, other=0.0).to(tl.float64), 0)


@triton.jit(do_not_specialize=["level"])
def _gap(
    logits_ptr,
    stride,
    V,
    last_ptr,
    next_ptr,
    level,
    sums_ptr,
    prefix_ptr,
    larger_ptr,
    num_rows,
    num_pieces,
    share: tl.float64,
    piece: tl.constexpr,
    padded_pieces: tl.constexpr,
):
    """Store the least logit of a piece that is kept, and the largest that is not."""
    row = tl.program_id(1)
    v = tl.program_id(0) * piece + tl.arange(0, piece)
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + v, mask=v < V, other=float("-inf")).to(tl.float32)
    key, _ = _found(sums_ptr, prefix_ptr, larger_ptr, row, level, num_rows, num_pieces, share, padded_pieces)
    kept = (v < V) & (_key(z) >= key.to(tl.uint32))
    place = row * num_pieces + tl.program_id(0)
    tl.store(last_ptr + place, tl.min(tl.where(kept, z, float("inf")), 0))
    tl.store(next_ptr + place, tl.max(tl.where(kept, float("-inf"), z), 0))


@triton.jit
def _finish(
    last_ptr,
    next_ptr,
    top_ptr,
    mass_ptr,
    least_ptr,
    cut_ptr,
    num_pieces,
    inverse_temperature,
    padded_pieces: tl.constexpr,
):
    """Store both thresholds of a row."""
    row = tl.program_id(0)
    x = tl.arange(0, padded_pieces)
    place, inside = row * num_pieces + x, x < num_pieces
    last = tl.min(tl.load(last_ptr + place, mask=inside, other=float("inf")), 0)
    first_dropped = tl.max(tl.load(next_ptr + place, mask=inside, other=float("-inf")), 0)
    tops = tl.load(top_ptr + place, mask=inside, other=float("-inf"))
    masses = tl.load(mass_ptr + place, mask=inside, other=0.0)
    top = tl.max(tops, 0)
    mass = tl.sum(masses * tl.exp((tops - top) * inverse_temperature), 0)
    least = last / 2 + first_dropped / 2
    least = tl.where(least == first_dropped, last, least)  # neighbours, or -inf twice
    least = tl.where(first_dropped > float("-inf"), least, first_dropped) + (
        mass - mass
    )  # NaN if the mass is not finite
    tl.store(least_ptr + row, least)
    tl.store(cut_ptr + row, (least - top) * inverse_temperature - tl.log(mass))


@triton.jit
def _key(z):
    """Map a float32 to a uint32 in the same order; 0 and -0 are one."""
    bits = tl.where(z == 0, 0.0, z).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, ~bits, bits | 0x80000000)
