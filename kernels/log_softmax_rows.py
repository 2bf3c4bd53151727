"""Rows of logits to log-prob, entropy and gradient in two sweeps, in place: the epilogue of grpo/logprobs.py on a GPU.

Sweep 1 keeps, tile by tile, the largest logit m so far, S = Σ exp((z - m) / τ) and M = Σ exp((z - m) / τ) (z - m) / τ;
when the maximum grows by d, S becomes S e^(-d/τ) and M becomes (M - S d/τ) e^(-d/τ). Then
log-prob = (z_target - m) / τ - log S (Eq. 3) and entropy = log S - M / S.
Sweep 2 overwrites the row with onehot(target) - softmax. Differences are taken before the division by τ and before any
exp, so an offset common to all logits costs nothing but the logits' own rounding. Bytes per entry: two reads and one
write, the second read from the L2 cache where the rows in flight fit into it.
"""

import torch
import triton
import triton.language as tl

TILE = 8192


def log_softmax_rows(
    logits_XV: torch.Tensor,
    targets_X: torch.Tensor,
    temperature: float,
    slope_dtype: torch.dtype | None = None,
    cut_X: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-prob of the target and entropy of each row, float32 [X], in nats; and onehot - softmax [X, V] in the logits'
    memory.

    cut_X: tokens whose log-prob in the full distribution lies below it are dropped (the target never), and all results
    are those of the distribution over what is left. slope_dtype: of that last result, the logits' own if not given; a
    narrower one fills the front half of each row's bytes. Slow twin: kernels/reference.py `log_softmax_rows`.
    """
    rows, width = logits_XV.shape
    logp_X, entropy_X = (torch.empty(rows, dtype=torch.float32, device=logits_XV.device) for _ in range(2))
    slope_XV = logits_XV.view(slope_dtype or logits_XV.dtype)[:, :width]
    if rows:
        _rows[(rows,)](
            logits_XV,
            targets_X,
            logp_X if cut_X is None else cut_X,
            logp_X,
            entropy_X,
            slope_XV,
            logits_XV.stride(0),
            slope_XV.stride(0),
            width,
            1.0 / temperature,
            narrower=slope_XV.dtype != logits_XV.dtype,
            cuts=cut_X is not None,
            tile=min(TILE, triton.next_power_of_2(width)),
            num_warps=16,
        )
    return logp_X, entropy_X, slope_XV


@triton.jit
def _rows(
    logits,
    targets,
    cut,
    logp,
    entropy,
    slope,
    logits_stride,
    slope_stride,
    width,
    inverse_temperature,
    narrower: tl.constexpr,
    cuts: tl.constexpr,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    slope += row * slope_stride
    target = tl.load(targets + row)
    target_logit = tl.load(logits + target).to(tl.float32)
    entries = tl.arange(0, tile)
    top = -3.0e38  # finite, so that a tile of -inf subtracts to -inf, not NaN
    mass = 0.0
    moment = 0.0
    for start in tl.range(0, width, tile, num_stages=3):
        z = tl.load(logits + start + entries, mask=start + entries < width, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(z, 0))
        shift = (top - higher) * inverse_temperature
        decay = tl.exp(shift)
        z = (z - higher) * inverse_temperature
        p = tl.exp(z)
        moment = decay * (moment + tl.where(mass > 0, mass * shift, 0.0)) + tl.sum(tl.where(p > 0, p * z, 0.0), 0)
        mass = mass * decay + tl.sum(p, 0)
        top = higher
    log_mass = tl.log(mass)
    floor = float("-inf")
    if cuts:  # the same sums over what is kept, by a sweep of their own
        floor = tl.load(cut + row) + log_mass
        mass = 0.0
        moment = 0.0
        for start in tl.range(0, width, tile, num_stages=3):
            z = tl.load(logits + start + entries, mask=start + entries < width, other=float("-inf")).to(tl.float32)
            z = (z - top) * inverse_temperature
            p = tl.where((z >= floor) | (start + entries == target), tl.exp(z), 0.0)
            moment += tl.sum(tl.where(p > 0, p * z, 0.0), 0)
            mass += tl.sum(p, 0)
        log_mass = tl.log(mass)
    tl.store(logp + row, (target_logit - top) * inverse_temperature - log_mass)
    tl.store(entropy + row, log_mass - moment / mass)
    for start in tl.range(0, width, tile, num_stages=3):
        inside = start + entries < width
        z = tl.load(logits + start + entries, mask=inside, other=float("-inf")).to(tl.float32)
        z = (z - top) * inverse_temperature
        p = tl.exp(z - log_mass)
        if cuts:
            p = tl.where((z >= floor) | (start + entries == target), p, 0.0)
        if narrower:
            tl.debug_barrier()  # the first tile's writes land on what other threads still read
        tl.store(
            slope + start + entries,
            (tl.where(start + entries == target, 1.0, 0.0) - p).to(slope.dtype.element_ty),
            mask=inside,
        )
