"""The operations that have a fused kernel: each computes by kernels/ or by torch.

Each function runs a kernel of Triton where `uses_kernels` says so, one of those in C where `on_cpu` returns them, and
torch's operations otherwise (kernel_choice.py). A kernel is imported where it runs, since Triton may not be there.
Decode attention in C is called where it is chosen (attention/decode.py), and whole layers by sampling/layers_in_c.py.
"""

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.engine.device import products
from grpo.engine.device.draw import NO_CUT, SamplingParams, draw, uniforms
from grpo.engine.device.kernel_choice import HALF, on_cpu, uses_kernels
from grpo.engine.device.quantised import QuantisedRows, levels_of
from grpo.kernels.cpu import Panels

CACHE_BYTES = 2 << 20  # of float32 logits that a CPU works on at a time, so that they stay in its cache
FEW_ROWS = 256  # up to so many, a product with a weight in few bits waits for reading it; above, dequantising is cheap
CosSin = tuple[Tensor, Tensor]  # cos_T1E and sin_T1E of the tokens' positions
SpareColumns = tuple[int, int]  # copies of a product's input, and columns to leave free to the right of each
Prepacked: TypeAlias = Tensor | Panels  # a weight as `prepack` returns it
RowSettings = tuple[Tensor, float, torch.dtype | None, Tensor | None]  # of `log_softmax_rows`: all but the logits
SMALL_READS = 32 << 20  # bytes of A, once per row of x, up to which our kernel for x Aᵀ is used (bench/LOG.md)


# --- products ------------------------------------------------------------------------------------------------------


def prepack(weight_OI: Tensor) -> Prepacked:
    """Return the weight in the layout that `linear` reads fastest. Only `linear` can read the result."""
    kernels = on_cpu(weight_OI)
    return kernels.prepack(weight_OI) if kernels else products.prepack(weight_OI)


def linear(x_TI: Tensor, weight_OI: Prepacked | QuantisedRows, bias_O: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, outside autograd; the weight may be prepacked, or in few bits."""
    if isinstance(weight_OI, QuantisedRows):
        return quantised_linear(x_TI, weight_OI, bias_O)
    if isinstance(weight_OI, Panels):
        return weight_OI.kernels.product(x_TI, weight_OI, bias_O)
    return products.linear(x_TI, weight_OI, bias_O)


# --- layers --------------------------------------------------------------------------------------------------------


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    spare_columns: SpareColumns | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual over the last axis, weighted, and the sum x + residual. Computed in float32.

    spare_columns: how many copies of the norm to write, and how many columns to leave free to the right of each, so
    that `append_product` copies nothing. Only a kernel does this; torch's operations leave none.
    """
    if uses_kernels(x):
        from grpo.kernels import rms_norm as kernel

        return kernel.rms_norm(x, weight, eps, residual, spare_columns)
    x = x if residual is None else residual + x
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight, x


def swiglu(gate_TF: Tensor, up_TF: Tensor, spare_columns: SpareColumns | None = None) -> Tensor:
    """Return silu(gate) · up (2002.05202). spare_columns: as in `rms_norm`."""
    if uses_kernels(gate_TF):
        from grpo.kernels import swiglu as kernel

        return kernel.swiglu(gate_TF, up_TF, spare_columns)
    return F.silu(gate_TF) * up_TF


def append_product(x: Tensor, A_RI: Prepacked, copies: int = 1) -> tuple[Tensor, ...]:
    """Return [x | h₁], …, [x | hₙ], where x Aᵀ = [h₁ | … | hₙ], outside autograd. It takes one product.

    x: [T, I]; or n copies of it with R / n spare columns each, [n, T, I + R / n] (`rms_norm`, `swiglu`). Then the
    product is written into the spare columns, and x is not copied. A_RI may be prepacked. copies: n.
    """
    R, I = A_RI.shape
    if uses_kernels(x) and x.shape[-2] * R * I * x.itemsize <= SMALL_READS:
        from grpo.kernels import append_product as kernel

        return kernel.append_product(x, A_RI, copies)
    if x.dim() == 2:
        h_TR = linear(x, A_RI)
        return tuple(torch.cat([x, h], dim=-1) for h in h_TR.chunk(copies, dim=-1))
    x_XTI, spare_XTR = x.split([I, R // copies], dim=-1)
    if x.is_cuda:
        A_XRI = A_RI.view(copies, -1, I)
        torch.bmm(x_XTI, A_XRI.mT, out=spare_XTR)
    else:
        h_TR = linear(x_XTI[0], A_RI)
        h_TXR = h_TR.unflatten(-1, (copies, -1))
        spare_XTR.copy_(h_TXR.transpose(0, 1))
    return x.unbind()


def rotate(x_THE: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate each pair (e, e + E/2) by the angle of its position (2104.09864). Without angles, x came rotated."""
    cos_T1E, sin_T1E = cos_sin
    if not len(cos_T1E):
        return x_THE
    if uses_kernels(x_THE):
        from grpo.kernels import rotary as kernel

        return kernel.rotate(x_THE, cos_T1E, sin_T1E)
    first, second = x_THE.chunk(2, dim=-1)
    return x_THE * cos_T1E + torch.cat([-second, first], dim=-1) * sin_T1E


def rotate_into_cache(
    q_BHE: Tensor,
    k_BKE: Tensor,
    v_BKE: Tensor,
    cos_sin: CosSin,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    row_B: Tensor,
    position_B: Tensor,
) -> Tensor:
    """Return the rotated queries; write rotated keys, and values, into row b of the cache at position_B[b].

    row_B: 0 ... B-1, made once for all layers.
    """
    if uses_kernels(q_BHE):
        from grpo.kernels import rotary as kernel

        return kernel.rotate_into_cache(q_BHE, k_BKE, v_BKE, *cos_sin, k_BKSE, v_BKSE, position_B)
    k_BKSE[row_B, :, position_B] = rotate(k_BKE, cos_sin)
    v_BKSE[row_B, :, position_B] = v_BKE
    return rotate(q_BHE, cos_sin)


def decode_attention(q_BHE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, lengths_B: Tensor, num_positions: int) -> Tensor:
    """Attend from one query per row to the first lengths_B[b] positions, always by the kernel (attention/decode.py)."""
    from grpo.kernels import decode_attention as kernel

    return kernel.decode_attention(q_BHE, k_BKSE, v_BKSE, lengths_B, num_positions)


def merge_attention(
    out_THE: Tensor,
    lse_HT: Tensor,
    part_XHE: Tensor,
    part_lse_HX: Tensor,
    token_X: Tensor,
) -> None:
    """Merge another part into the attention of the tokens `token_X`, in place.

    Each part is normalised by its own sum, and lse is the logarithm of that sum (engine/attention/flash.py).
    """
    if uses_kernels(out_THE):
        from grpo.kernels import merge_attention as kernel

        kernel.merge_attention(out_THE, lse_HT, part_XHE, part_lse_HX, token_X)
        return
    own_HX = lse_HT[:, token_X]
    both_HX = torch.logaddexp(own_HX, part_lse_HX)
    share_XH1 = (own_HX - both_HX).exp().T[:, :, None]
    part_share_XH1 = (part_lse_HX - both_HX).exp().T[:, :, None]
    merged_XHE = share_XH1 * out_THE[token_X] + part_share_XH1 * part_XHE
    out_THE.index_copy_(0, token_X, merged_XHE.to(out_THE.dtype))
    lse_HT.index_copy_(1, token_X, both_HX)


# --- weights in 8 or 4 bits ----------------------------------------------------------------------------------------


def quantised_linear(x_TX: Tensor, weight: QuantisedRows, bias_O: Tensor | None) -> Tensor:
    """Return x [W | tail]ᵀ + b. For few rows it is a kernel, which multiplies by the same rounded numbers."""
    if x_TX.dtype in HALF and len(x_TX) <= FEW_ROWS and uses_kernels(x_TX):
        from grpo.kernels import quantised_linear as kernel

        levels = levels_of(weight.format, x_TX.device)
        return kernel.quantised_linear(x_TX, weight.q_OX, weight.scale_OX, weight.tail_OR, bias_O, levels)
    return linear(x_TX, weight.dequantise(), bias_O)


# --- logits --------------------------------------------------------------------------------------------------------


def exact_logits(hidden_XD: Tensor, head_VD: Prepacked) -> Tensor:
    """Return hidden headᵀ [X, V]: on a GPU in float32, as the product sums it; elsewhere in the inputs' dtype."""
    if hidden_XD.is_cuda and hidden_XD.dtype in HALF:
        return torch.mm(hidden_XD, head_VD.T, out_dtype=torch.float32)
    return linear(hidden_XD, head_VD)


def draw_tokens(
    logits_BV: Tensor,
    seed_B: Tensor,
    count_B: Tensor,
    params: SamplingParams,
    results: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Draw a token per row with the uniforms of (seed, tokens so far), and return it.

    results: three tensors [B, X] of equal strides; column count_B takes the token, its log-prob and the cut
    (`draw.draw`). The kernels need two launches, and 28 more with both top-k and top-p.
    """
    if not uses_kernels(logits_BV):
        place = "cpu" if logits_BV.device.type == "mps" else logits_BV.device  # Apple's GPUs have no float64
        drawn = draw(logits_BV.to(place), uniforms(seed_B.to(place), count_B.to(place)), params)
        for values_BX, value_B in zip(results, drawn, strict=True):
            values_BX.scatter_(1, count_B[:, None], value_B[:, None].to(values_BX))
        return drawn[0].to(logits_BV.device)
    from grpo.kernels.inverse_cdf import draw_rows
    from grpo.kernels.nucleus import thresholds

    least = None
    if params.truncates:
        least = thresholds(logits_BV, params.temperature, params.top_k, params.top_p)
    return draw_rows(logits_BV, seed_B, count_B, params.temperature, least, results)


def log_softmax_rows(
    logits_XV: Tensor,
    targets_X: Tensor,
    temperature: float,
    slope_dtype: torch.dtype | None,
    cut_X: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log-prob of the target [X], entropy [X], and onehot - softmax [X, V] in `slope_dtype` of each row.

    logits_XV: before the division by the temperature; onehot - softmax overwrites them, unless slope_dtype is None.
    cut_X: tokens with a lower log-prob were excluded when the target was drawn. torch's operations work on a few rows
    at a time on a CPU, so that they stay cached.
    """
    if uses_kernels(logits_XV):
        from grpo.kernels import log_softmax_rows as kernel

        return kernel.log_softmax_rows(logits_XV, targets_X, temperature, slope_dtype, cut_X)
    exact_dtype = torch.promote_types(logits_XV.dtype, torch.float32)
    logp_X = logits_XV.new_empty(len(targets_X), dtype=exact_dtype)
    entropy_X = torch.empty_like(logp_X)
    size = len(targets_X)
    if logits_XV.device.type == "cpu":
        size = min(size, CACHE_BYTES // (logits_XV.shape[1] * exact_dtype.itemsize))
    size = max(1, size)
    # One allocation serves all parts: on a CPU, touching new memory costs more than the arithmetic.
    scratch_2XV = logits_XV.new_empty(2, size, logits_XV.shape[1], dtype=exact_dtype)
    for start in range(0, len(targets_X), size):
        part = slice(start, start + size)
        target_X1 = targets_X[part, None]
        cut_X1 = None if cut_X is None else cut_X[part, None]
        spare_XV, logp_XV = _log_softmax(logits_XV[part], target_X1, temperature, cut_X1, scratch_2XV)
        logp_X[part] = logp_XV.gather(1, target_X1)[:, 0]  # Eq. 3
        p_XV = torch.exp(logp_XV, out=spare_XV)
        kept_XV = logp_XV if cut_X is None else logp_XV.clamp_min_(torch.finfo(exact_dtype).min)  # 0 · -inf
        entropy_X[part] = -torch.linalg.vecdot(p_XV, kept_XV)
        if slope_dtype:
            onehot_X1 = torch.ones_like(p_XV[:, :1])
            logits_XV[part] = p_XV.neg_().scatter_add_(1, target_X1, onehot_X1)
    return logp_X, entropy_X, logits_XV.to(slope_dtype) if slope_dtype else None


def _log_softmax(
    logits_XV: Tensor,
    target_X1: Tensor,
    temperature: float,
    cut_X1: Tensor | None,
    scratch_2XV: Tensor,
) -> tuple[Tensor, Tensor]:
    """Normalise over the vocabulary, or over what the cut leaves of it. Return free memory, and the log-softmax.

    scratch_2XV: holds both.
    """
    scaled_XV, logp_XV = scratch_2XV[:, : len(logits_XV)]
    scaled_XV.copy_(logits_XV)
    if temperature != 1:
        scaled_XV /= temperature
    torch.log_softmax(scaled_XV, dim=-1, out=logp_XV)
    if cut_X1 is None:
        return scaled_XV, logp_XV
    dropped_XV = (logp_XV < cut_X1).scatter_(1, target_X1, False)  # a drawn token was kept
    logp_XV.masked_fill_(dropped_XV, NO_CUT)
    return logp_XV, torch.log_softmax(logp_XV, dim=-1, out=scaled_XV)
