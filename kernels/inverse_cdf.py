"""Draw a token from each row of logits by inverse CDF, or take the likeliest (engine/device/draw.py, in two launches).

In the first launch, each program takes a piece of the vocabulary and finds its largest logit, and its mass relative to
that logit. In the second, each program takes a row. It rescales the masses to the row's largest logit and finds the
piece where the running sum (float64) exceeds u * total, and then the entry inside that piece. Only this piece is read
twice. u is a hash of (seed, position).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 4096


def draw_rows(
    logits_BV: Tensor,
    seed_B: Tensor,
    position_B: Tensor,
    temperature: float,
    thresholds: tuple[Tensor, Tensor] | None,
    results: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Return a token per row (int64), and record it with its log-prob at that temperature (float32, nats).

    Temperature 0 takes the likeliest token, with log-prob 0. If a row is not finite, its log-prob is not either, and
    its token, which means nothing, is draw.draw's. thresholds: from nucleus.thresholds, the least logit and
    the least log-prob that can be drawn; the log-prob is then that among the remaining tokens. results: three tensors
    [B, X] with equal strides; column position_B[b] of row b receives the token, its log-prob and the least log-prob.
    The tokens are those of draw.draw(logits_BV, draw.uniforms(seed_B, position_B), ...), except where u * total lies
    within rounding of the edge between two tokens. Slow twin: kernels/twins.py `draw`.
    """
    B, V = logits_BV.shape
    id_B = logits_BV.new_empty(B, dtype=torch.int64)
    if B:
        inverse_temperature = 1.0 / temperature if temperature else 0.0
        least_B, cut_B = thresholds or (None, None)
        top_BX, mass_BX = piece_masses(logits_BV, temperature, least_B)
        num_pieces = top_BX.shape[1]
        _pick[(B,)](
            logits_BV,
            least_B,
            top_BX,
            mass_BX,
            seed_B,
            position_B,
            id_B,
            cut_B,
            *results,
            results[0].stride(0),
            logits_BV.stride(0),
            V,
            num_pieces,
            inverse_temperature,
            is_greedy=temperature == 0,
            piece=PIECE,
            padded_pieces=triton.next_power_of_2(num_pieces),
            num_warps=8,
        )
    return id_B


def piece_masses(logits_BV: Tensor, temperature: float, least_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each piece of a row, and the piece's mass relative to it: [B, pieces] each, float32.

    least_B: entries below it do not count. At temperature 0 the index of the largest logit takes the place of the mass.
    """
    B, V = logits_BV.shape
    top_BX = logits_BV.new_empty(B, triton.cdiv(V, PIECE), dtype=torch.float32)
    mass_BX = torch.empty_like(top_BX)
    _masses[top_BX.shape[::-1]](
        logits_BV,
        least_B,
        top_BX,
        mass_BX,
        logits_BV.stride(0),
        V,
        1.0 / temperature if temperature else 0.0,
        is_greedy=temperature == 0,
        piece=PIECE,
        num_warps=8,
    )
    return top_BX, mass_BX


@triton.jit
def _masses(
    logits_ptr,
    least_ptr,
    top_ptr,
    mass_ptr,
    stride,
    V,
    inverse_temperature,
    is_greedy: tl.constexpr,
    piece: tl.constexpr,
):
    """Store the largest logit of a piece and its mass; if greedy, the index of that logit instead of the mass."""
    row = tl.program_id(1)
    place = row * tl.num_programs(0) + tl.program_id(0)
    v = tl.program_id(0) * piece + tl.arange(0, piece)
    z = _load_logits(logits_ptr, least_ptr, row, stride, v, V)
    if is_greedy:
        z = tl.where(z == z, z, float("inf"))  # every comparison with NaN is false, so NaN would lose to the padding
    top = tl.max(z, 0)
    tl.store(top_ptr + place, top)
    if is_greedy:
        tl.store(mass_ptr + place, tl.argmax(z, 0).to(tl.float32))  # an index below 4096 is exact in float32
    else:
        finite_top = tl.where(top > float("-inf"), top, 0.0)
        tl.store(mass_ptr + place, tl.sum(tl.exp((z - finite_top) * inverse_temperature), 0))


@triton.jit
def _pick(
    logits_ptr,
    least_ptr,
    top_ptr,
    mass_ptr,
    seed_ptr,
    position_ptr,
    id_ptr,
    cut_ptr,
    ids_ptr,
    logps_ptr,
    cuts_ptr,
    results_stride,
    stride,
    V,
    num_pieces,
    inverse_temperature,
    is_greedy: tl.constexpr,
    piece: tl.constexpr,
    padded_pieces: tl.constexpr,
):
    """Pick the piece of a row, then the entry inside it."""
    row = tl.program_id(0)
    position = tl.load(position_ptr + row)
    x = tl.arange(0, padded_pieces)
    tops = tl.load(top_ptr + row * num_pieces + x, mask=x < num_pieces, other=float("-inf"))
    masses = tl.load(mass_ptr + row * num_pieces + x, mask=x < num_pieces, other=0.0)
    if is_greedy:
        chosen = tl.argmax(tops, 0)
        entry = tl.sum(tl.where(x == chosen, masses, 0.0), 0).to(tl.int32)
        logits = tl.where(x < num_pieces, tops, 0.0)
        logp = tl.sum(logits - logits, 0)  # 0, or NaN if the logits are not finite
    else:
        top = tl.max(tops, 0)
        weights = masses.to(tl.float64) * tl.exp((tops - top) * inverse_temperature).to(tl.float64)
        total = tl.sum(weights, 0)
        wanted = _uniform(tl.load(seed_ptr + row), position) * total
        chosen = _first(tl.cumsum(weights, 0) > wanted, weights > 0, x, padded_pieces)
        wanted_inside = wanted - tl.sum(tl.where(x < chosen, weights, 0.0), 0)

        lane = tl.arange(0, piece)
        z = _load_logits(logits_ptr, least_ptr, row, stride, chosen * piece + lane, V)
        weights = tl.exp((z - top) * inverse_temperature).to(tl.float64)
        wanted_inside = tl.minimum(wanted_inside, tl.sum(weights, 0) * (1 - 1e-12))  # rounding never steps past it
        entry = _first(tl.cumsum(weights, 0) > wanted_inside, weights > 0, lane, piece)
        logit = tl.sum(tl.where(lane == entry, z, 0.0), 0)
        logp = (logit - top) * inverse_temperature - tl.log(total.to(tl.float32))
        entry = tl.where(total - total == 0, entry, V)  # total is NaN if the row is not finite
    token = tl.minimum(chosen * piece + entry, V - 1).to(tl.int64)  # an id beyond the vocabulary would stop the GPU
    tl.store(id_ptr + row, token)
    place = row.to(tl.int64) * results_stride + position
    tl.store(ids_ptr + place, token)
    tl.store(logps_ptr + place, logp)
    tl.store(cuts_ptr + place, tl.load(cut_ptr + row) if cut_ptr is not None else float("-inf"))


@triton.jit
def _load_logits(logits_ptr, least_ptr, row, stride, v, V):
    """Load entries of a row; those that cannot be drawn become -inf."""
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + v, mask=v < V, other=float("-inf")).to(tl.float32)
    if least_ptr is not None:
        z = tl.where(z >= tl.load(least_ptr + row), z, float("-inf"))
    return z


@triton.jit
def _first(passed, possible, index, size: tl.constexpr):
    """Return the first possible index that has passed; if rounding let none pass, the last possible one."""
    first = tl.min(tl.where(passed & possible, index, size), 0)
    return tl.where(first < size, first, tl.max(tl.where(possible, index, 0), 0))


@triton.jit
def _uniform(seed, position):
    """Hash (seed, position) to a float64 in (0, 1) by SplitMix64, as draw.uniforms does."""
    x = seed.to(tl.uint64, bitcast=True) + position.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return ((x >> 12).to(tl.int64).to(tl.float64) + 0.5) * (1.0 / 4503599627370496.0)
