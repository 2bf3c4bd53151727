"""Find the threshold of top-k and top-p for each row of logits, without a sort and without waiting for the host.

A float32 maps to an integer, its key, in the same order. The mass (or the number) of the entries from a key on only
falls as the key grows. So 32 halvings of the range of integers find the largest key from which on there is enough:
the k-th largest entry, or the last one that top-p keeps. Each halving is a sweep over the row, which stays in the L2
cache. This is draw.py's `_cut` on a GPU.
"""

import torch
import triton
import triton.language as tl

TILE = 8192


def thresholds(
    logits_BV: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for each row, the least logit that is kept and the same threshold as a log-prob (float32, nats).

    The first lies half way between the last entry that is kept and the first that is dropped. The second is that of
    the full distribution at this temperature. Both are -inf if nothing is dropped. Equal entries are kept or dropped
    together. Slow twin: draw._cut, and through it kernels/reference.py `draw`.
    """
    B, V = logits_BV.shape
    least_B = torch.empty(B, dtype=torch.float32, device=logits_BV.device)
    cut_B = torch.empty_like(least_B)
    if B:
        _thresholds[(B,)](
            logits_BV,
            least_B,
            cut_B,
            logits_BV.stride(0),
            V,
            1.0 / temperature,
            float(min(top_k, V)),
            top_p,
            tile=min(TILE, triton.next_power_of_2(V)),
            num_warps=32,
        )
    return least_B, cut_B


@triton.jit
def _thresholds(
    logits_ptr,
    least_ptr,
    cut_ptr,
    stride,
    V,
    inverse_temperature,
    top_k: tl.float32,
    top_p: tl.float32,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    lane = tl.arange(0, tile)

    tops = tl.full([tile], float("-inf"), tl.float32)
    for start in range(0, V, tile):
        z = tl.load(logits_ptr + start + lane, mask=start + lane < V, other=float("-inf")).to(tl.float32)
        tops = tl.maximum(tops, z)
    top = tl.max(tops, 0)

    lowest: tl.constexpr = -2147483648
    mass, _ = _mass_and_count(logits_ptr, lowest, top, V, inverse_temperature, lane, tile)
    key = tl.full([], lowest, tl.int32)
    kept_mass = mass
    if top_k > 0:
        key = _largest_key(logits_ptr, top, V, inverse_temperature, lane, 0.0, top_k, tile)
        kept_mass, _ = _mass_and_count(logits_ptr, key, top, V, inverse_temperature, lane, tile)
    if top_p < 1:
        key_p = _largest_key(logits_ptr, top, V, inverse_temperature, lane, kept_mass * top_p, 0.0, tile)
        key = tl.maximum(key, key_p)

    last_kept = tl.full([tile], float("inf"), tl.float32)
    first_dropped = tl.full([tile], float("-inf"), tl.float32)
    for start in range(0, V, tile):
        inside = start + lane < V
        z = tl.load(logits_ptr + start + lane, mask=inside, other=float("-inf")).to(tl.float32)
        kept = _key(z) >= key
        last_kept = tl.minimum(last_kept, tl.where(kept & inside, z, float("inf")))
        first_dropped = tl.maximum(first_dropped, tl.where(kept, float("-inf"), z))
    least = (tl.min(last_kept, 0) + tl.max(first_dropped, 0)) / 2  # -inf if nothing is dropped
    tl.store(least_ptr + row, least)
    tl.store(cut_ptr + row, (least - top) * inverse_temperature - tl.log(mass))


@triton.jit
def _key(z):
    """Map a float32 to an int32 in the same order."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 2147483647, bits)


@triton.jit
def _mass_and_count(logits_ptr, key, top, V, inverse_temperature, lane, tile: tl.constexpr):
    """Return the mass, relative to the largest logit's, and the number of the entries from a key on."""
    mass = tl.zeros([tile], tl.float32)
    count = tl.zeros([tile], tl.float32)
    for start in range(0, V, tile):
        inside = start + lane < V
        z = tl.load(logits_ptr + start + lane, mask=inside, other=float("-inf")).to(tl.float32)
        kept = inside & (_key(z) >= key)
        mass += tl.where(kept, tl.exp((z - top) * inverse_temperature), 0.0)
        count += tl.where(kept, 1.0, 0.0)
    return tl.sum(mass, 0), tl.sum(count, 0)


@triton.jit
def _largest_key(logits_ptr, top, V, inverse_temperature, lane, least_mass, least_count, tile: tl.constexpr):
    """Return the largest key from which on the entries have at least that mass and that number."""
    low = tl.full([], -2147483648, tl.int64)  # from `low` on there is enough,
    high = tl.full([], 2147483647, tl.int64)  # from `high` on too little
    for _ in range(32):
        middle = (low + high) >> 1
        mass, count = _mass_and_count(logits_ptr, middle.to(tl.int32), top, V, inverse_temperature, lane, tile)
        is_enough = (mass >= least_mass) & (count >= least_count)
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return low.to(tl.int32)
