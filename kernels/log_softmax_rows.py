"""Turn rows of logits into log-probs, entropies and gradients, in place: the end of algorithm/logprobs.py on a GPU.

Sweep 1 goes over a row tile by tile. With m the largest logit so far and x = (z - m) / τ, it keeps

    sum_exp   S = Σ exp(x)
    sum_xexp  M = Σ x exp(x)

When the maximum grows by d, S becomes S e^(-d/τ), and M becomes (M - S d/τ) e^(-d/τ). At the end of the row
log-prob = x_target - log S (Eq. 3), and entropy = log S - M / S.
Sweep 2, if the slope is wanted, overwrites the row with onehot(target) - softmax.

The maximum is subtracted before the division by τ and before exp, so an offset common to all logits costs no precision
beyond their own rounding. An entry is read twice and written once; the second read comes from the L2 cache if the rows
in flight fit into it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192


def log_softmax_rows(
    logits_CV: Tensor,
    targets_C: Tensor,
    temperature: float,
    slope_dtype: torch.dtype | None = None,
    cut_C: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the target's log-prob and the entropy of each row (float32, nats), and onehot - softmax [C, V].

    The last result overwrites the logits. slope_dtype: that of the logits, or a narrower one, which then fills the
    front half of each row's bytes. None leaves the logits unchanged, and the last result is None. cut_C: drops tokens
    whose log-prob in the full distribution is below it, but never the target; all results are then those of the
    distribution over the remaining tokens. Slow twin: kernels/twins.py `log_softmax_rows`.
    """
    C, V = logits_CV.shape
    logp_C = logits_CV.new_empty(C, dtype=torch.float32)
    entropy_C = torch.empty_like(logp_C)
    slope_CV = logits_CV.view(slope_dtype or logits_CV.dtype)[:, :V]
    if C:
        _rows[(C,)](
            logits_CV,
            targets_C,
            cut_C,
            logp_C,
            entropy_C,
            slope_CV,
            logits_CV.stride(0),
            slope_CV.stride(0),
            V,
            1.0 / temperature,
            has_slope=slope_dtype is not None,
            is_narrower=slope_CV.dtype != logits_CV.dtype,
            tile=min(TILE, triton.next_power_of_2(V)),
            num_warps=16,
        )
    return logp_C, entropy_C, slope_CV if slope_dtype else None


@triton.jit
def _rows(
    logits_ptr,
    targets_ptr,
    cut_ptr,
    logp_ptr,
    entropy_ptr,
    slope_ptr,
    logits_stride,
    slope_stride,
    V,
    inverse_temperature,
    has_slope: tl.constexpr,
    is_narrower: tl.constexpr,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    slope_ptr += row * slope_stride
    target = tl.load(targets_ptr + row)
    target_logit = tl.load(logits_ptr + target).to(tl.float32)
    lane = tl.arange(0, tile)

    top = -3.0e38  # finite: with -inf, a tile of -inf would compute -inf - (-inf)
    sum_exp = 0.0
    sum_xexp = 0.0
    for start in tl.range(0, V, tile, num_stages=3):
        v = start + lane
        z = tl.load(logits_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
        new_top = tl.maximum(top, tl.max(z, 0))
        shift = (top - new_top) * inverse_temperature
        decay = tl.exp(shift)
        x = (z - new_top) * inverse_temperature
        p = tl.exp(x)
        rescaled = decay * (sum_xexp + tl.where(sum_exp > 0, sum_exp * shift, 0.0))
        sum_xexp = rescaled + tl.sum(tl.where(p > 0, p * x, 0.0), 0)
        sum_exp = sum_exp * decay + tl.sum(p, 0)
        top = new_top
    log_sum = tl.log(sum_exp)

    floor = float("-inf")
    if cut_ptr is not None:  # another sweep: the same sums over the kept tokens
        floor = tl.load(cut_ptr + row) + log_sum
        sum_exp = 0.0
        sum_xexp = 0.0
        for start in tl.range(0, V, tile, num_stages=3):
            v = start + lane
            z = tl.load(logits_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
            x = (z - top) * inverse_temperature
            p = tl.where((x >= floor) | (v == target), tl.exp(x), 0.0)
            sum_xexp += tl.sum(tl.where(p > 0, p * x, 0.0), 0)
            sum_exp += tl.sum(p, 0)
        log_sum = tl.log(sum_exp)

    tl.store(logp_ptr + row, (target_logit - top) * inverse_temperature - log_sum)  # Eq. 3
    tl.store(entropy_ptr + row, log_sum - sum_xexp / sum_exp)

    if has_slope:
        for start in tl.range(0, V, tile, num_stages=3):
            v = start + lane
            z = tl.load(logits_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
            x = (z - top) * inverse_temperature
            p = tl.exp(x - log_sum)
            if cut_ptr is not None:
                p = tl.where((x >= floor) | (v == target), p, 0.0)
            if is_narrower:
                tl.debug_barrier()  # the first tile is written over entries that other threads still read
            slope = tl.where(v == target, 1.0, 0.0) - p
            tl.store(slope_ptr + v, slope.to(slope_ptr.dtype.element_ty), mask=v < V)
