"""The threshold of top-k and top-p for each row of logits, without a sort and without a look by the host: draw.py's
`_cut` on a GPU.

A float32 maps to an integer in the same order, and the mass (or number) of the entries from a key on only falls as the
key grows. So 32 halvings of the integers find the largest key from which on there is enough: the k-th largest entry, or
the last one that top-p keeps. Each halving is a sweep over the row, which stays in the L2 cache.
"""

import torch
import triton
import triton.language as tl

TILE = 8192


def thresholds(
    logits_BV: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per row, float32: the logit from which on entries are kept, half way between the last kept and the first dropped;
    and the same as a log-prob of the full distribution at that temperature (nats), -inf if nothing is dropped. Equal
    entries are kept or dropped together. Slow twin: draw._cut, and through it kernels/reference.py `draw`."""
    rows, width = logits_BV.shape
    least_B, cut_B = (torch.empty(rows, dtype=torch.float32, device=logits_BV.device) for _ in range(2))
    if rows:
        _thresholds[(rows,)](
            logits_BV,
            least_B,
            cut_B,
            logits_BV.stride(0),
            width,
            1.0 / temperature,
            float(min(top_k, width)),
            top_p,
            tile=min(TILE, triton.next_power_of_2(width)),
            num_warps=32,
        )
    return least_B, cut_B


@triton.jit
def _thresholds(
    logits,
    least_out,
    cut_out,
    stride,
    width,
    inverse_temperature,
    top_k: tl.float32,
    top_p: tl.float32,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    entries = tl.arange(0, tile)
    tops = tl.full([tile], float("-inf"), tl.float32)
    for start in range(0, width, tile):
        tops = tl.maximum(
            tops, tl.load(logits + start + entries, mask=start + entries < width, other=float("-inf")).to(tl.float32)
        )
    top = tl.max(tops, 0)
    mass, _ = _from(logits, -2147483648, top, width, inverse_temperature, entries, tile)
    wanted, key = mass, tl.full([], -2147483648, tl.int32)
    if top_k > 0:
        key = _largest(logits, top, width, inverse_temperature, entries, 0.0, top_k, tile)
        wanted, _ = _from(logits, key, top, width, inverse_temperature, entries, tile)
    if top_p < 1:
        key = tl.maximum(key, _largest(logits, top, width, inverse_temperature, entries, wanted * top_p, 0.0, tile))
    last = tl.full([tile], float("inf"), tl.float32)
    following = tl.full([tile], float("-inf"), tl.float32)
    for start in range(0, width, tile):
        inside = start + entries < width
        z = tl.load(logits + start + entries, mask=inside, other=float("-inf")).to(tl.float32)
        kept = _key(z) >= key
        last = tl.minimum(last, tl.where(kept & inside, z, float("inf")))
        following = tl.maximum(following, tl.where(kept, float("-inf"), z))
    least = (tl.min(last, 0) + tl.max(following, 0)) / 2  # -inf if nothing is dropped
    tl.store(least_out + row, least)
    tl.store(cut_out + row, (least - top) * inverse_temperature - tl.log(mass))


@triton.jit
def _key(z):
    """A float32 as an int32 in the same order."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 2147483647, bits)


@triton.jit
def _from(logits, key, top, width, inverse_temperature, entries, tile: tl.constexpr):
    """Mass relative to the largest logit, and number, of the entries from a key on."""
    mass = tl.zeros([tile], tl.float32)
    number = tl.zeros([tile], tl.float32)
    for start in range(0, width, tile):
        inside = start + entries < width
        z = tl.load(logits + start + entries, mask=inside, other=float("-inf")).to(tl.float32)
        kept = inside & (_key(z) >= key)
        mass += tl.where(kept, tl.exp((z - top) * inverse_temperature), 0.0)
        number += tl.where(kept, 1.0, 0.0)
    return tl.sum(mass, 0), tl.sum(number, 0)


@triton.jit
def _largest(logits, top, width, inverse_temperature, entries, mass_wanted, number_wanted, tile: tl.constexpr):
    """The largest key from which on the entries have at least that mass and that number."""
    low = tl.full([], -2147483648, tl.int64)
    high = tl.full([], 2147483647, tl.int64)  # enough from `low` on, too little from `high` on
    for _ in range(32):
        middle = (low + high) >> 1
        mass, number = _from(logits, middle.to(tl.int32), top, width, inverse_temperature, entries, tile)
        enough = (mass >= mass_wanted) & (number >= number_wanted)
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    return low.to(tl.int32)
