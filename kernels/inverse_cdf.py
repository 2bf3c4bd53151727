"""Drawing a token per row of logits by inverse CDF, or greedily: grpo/device/draw.py in two launches.

The first gives every piece of the vocabulary a program: its largest logit and its mass relative to that. The second
gives every row a program: it scales the masses to the row's largest logit, finds the piece where the running mass
(float64) exceeds u · total, and then the entry inside that piece, which is all of the logits that is read again. u is a
hash of (seed, position).
"""

import torch
import triton
import triton.language as tl

PIECE = 4096


def draw_rows(
    logits_BV: torch.Tensor,
    seed_B: torch.Tensor,
    position_B: torch.Tensor,
    temperature: float,
    least_B: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token per row (int64) and its log-prob (float32, nats) at that temperature; temperature 0: the likeliest token,
    log-prob 0.

    least_B: only logits from this one on can be drawn (nucleus.thresholds), and the log-prob is that among them.
    The same tokens as draw.draw(logits_BV, draw.uniforms(seed_B, position_B), ...), but for draws within rounding of an
    edge between two tokens. Slow twin: kernels/reference.py `draw`.
    """
    rows, width = logits_BV.shape
    pieces = triton.cdiv(width, PIECE)
    top_BX, mass_BX = (torch.empty(rows, pieces, dtype=torch.float32, device=logits_BV.device) for _ in range(2))
    id_B = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    logp_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    inverse = 1.0 / temperature if temperature else 0.0
    if rows:
        kind = {"greedy": temperature == 0, "cuts": least_B is not None}
        least_B = logp_B if least_B is None else least_B  # not read then
        _masses[(pieces, rows)](
            logits_BV, least_B, top_BX, mass_BX, logits_BV.stride(0), width, inverse, piece=PIECE, **kind, num_warps=8
        )
        _pick[(rows,)](
            logits_BV,
            least_B,
            top_BX,
            mass_BX,
            seed_B,
            position_B,
            id_B,
            logp_B,
            logits_BV.stride(0),
            width,
            pieces,
            inverse,
            **kind,
            piece=PIECE,
            padded=triton.next_power_of_2(pieces),
            num_warps=8,
        )
    return id_B, logp_B


@triton.jit
def _masses(
    logits,
    least,
    top_of,
    mass_of,
    stride,
    width,
    inverse_temperature,
    greedy: tl.constexpr,
    cuts: tl.constexpr,
    piece: tl.constexpr,
):
    """Per piece: its largest logit, and its mass; if greedy, the index of the largest instead of the mass."""
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    entries = tl.program_id(0) * piece + tl.arange(0, piece)
    z = tl.load(
        logits + tl.program_id(1).to(tl.int64) * stride + entries, mask=entries < width, other=float("-inf")
    ).to(tl.float32)
    if cuts:
        z = tl.where(z >= tl.load(least + tl.program_id(1)), z, float("-inf"))
    top = tl.max(z, 0)
    tl.store(top_of + place, top)
    if greedy:
        tl.store(mass_of + place, tl.argmax(z, 0).to(tl.float32))  # < 4096: exact
    else:
        tl.store(
            mass_of + place, tl.sum(tl.exp((z - tl.where(top > float("-inf"), top, 0.0)) * inverse_temperature), 0)
        )


@triton.jit
def _pick(
    logits,
    least,
    top_of,
    mass_of,
    seeds,
    positions,
    ids,
    logps,
    stride,
    width,
    pieces,
    inverse_temperature,
    greedy: tl.constexpr,
    cuts: tl.constexpr,
    piece: tl.constexpr,
    padded: tl.constexpr,
):
    row = tl.program_id(0)
    x = tl.arange(0, padded)
    tops = tl.load(top_of + row * pieces + x, mask=x < pieces, other=float("-inf"))
    masses = tl.load(mass_of + row * pieces + x, mask=x < pieces, other=0.0)
    top = tl.max(tops, 0)
    if greedy:
        first = tl.argmax(tops, 0)
        entry = tl.sum(tl.where(x == first, masses, 0.0), 0).to(tl.int64)
        tl.store(ids + row, first * piece + entry)
        tl.store(logps + row, 0.0)
    else:
        weights = masses.to(tl.float64) * tl.exp((tops - top) * inverse_temperature).to(tl.float64)
        running = tl.cumsum(weights, 0)
        total = tl.sum(weights, 0)
        wanted = _uniform(tl.load(seeds + row), tl.load(positions + row)) * total
        chosen = _first(running > wanted, weights > 0, x, padded)
        residual = wanted - tl.sum(tl.where(x < chosen, weights, 0.0), 0)
        inside = tl.arange(0, piece)
        entries = chosen * piece + inside
        z = tl.load(logits + row.to(tl.int64) * stride + entries, mask=entries < width, other=float("-inf")).to(
            tl.float32
        )
        if cuts:
            z = tl.where(z >= tl.load(least + row), z, float("-inf"))
        weights = tl.exp((z - top) * inverse_temperature).to(tl.float64)
        chosen_entry = _first(tl.cumsum(weights, 0) > residual, weights > 0, inside, piece)
        logit = tl.sum(tl.where(inside == chosen_entry, z, 0.0), 0)
        tl.store(ids + row, (chosen * piece + chosen_entry).to(tl.int64))
        tl.store(logps + row, (logit - top) * inverse_temperature - tl.log(total.to(tl.float32)))


@triton.jit
def _first(passed, possible, index, size: tl.constexpr):
    """The first possible index that has passed; where rounding left none, the last possible one."""
    first = tl.min(tl.where(passed & possible, index, size), 0)
    return tl.where(first < size, first, tl.max(tl.where(possible, index, 0), 0))


@triton.jit
def _uniform(seed, position):
    """SplitMix64 of (seed, position) as a float64 in (0, 1): draw.uniforms."""
    x = seed.to(tl.uint64, bitcast=True) + position.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return ((x >> 12).to(tl.int64).to(tl.float64) + 0.5) * (1.0 / 4503599627370496.0)
