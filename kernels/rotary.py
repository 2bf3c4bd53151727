"""Apply rotary positions (RoPE, 2104.09864): for training, and for decoding together with the write to the cache.

For the halves x₁, x₂ of a head:  y = [x₁ cos - x₂ sin, x₂ cos + x₁ sin], in float32, rounded once.
The gradient of a rotation is the rotation by the opposite angle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotate(x_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """Rotate the heads of each token; return them contiguous [T, H, E]; differentiable in x.

    The input may be a view that is contiguous along E. The second halves of cos and sin repeat the first.
    Slow twin: kernels/twins.py `rotate`.
    """
    return _Rotate.apply(x_THE, cos_T1E, sin_T1E)


def rotate_into_cache(
    q_BHE: Tensor,
    k_BKE: Tensor,
    v_BKE: Tensor,
    cos_B1E: Tensor,
    sin_B1E: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    position_B: Tensor,
) -> Tensor:
    """Return the rotated queries [B, H, E]; write rotated keys and plain values into the cache at (b, position_B[b]).

    k_BKSE and v_BKSE are views of the cache with equal strides. Positions must lie inside the cache.
    Slow twin: kernels/twins.py `rotate` and plain indexing.
    """
    B, H, E = q_BHE.shape
    K = k_BKE.shape[1]
    out_BHE = q_BHE.new_empty(B, H, E)
    _into_cache[(B, H + 2 * K)](
        q_BHE,
        k_BKE,
        v_BKE,
        cos_B1E,
        sin_B1E,
        out_BHE,
        k_BKSE,
        v_BKSE,
        position_B,
        *q_BHE.stride()[:2],
        *k_BKE.stride()[:2],
        *v_BKE.stride()[:2],
        *k_BKSE.stride()[:3],
        H=H,
        K=K,
        half=E // 2,
        padded_half=triton.next_power_of_2(E // 2),
        num_warps=1,
    )
    return out_BHE


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_THE, cos_T1E, sin_T1E):
        ctx.save_for_backward(cos_T1E, sin_T1E)
        return _rotate_by(x_THE, cos_T1E, sin_T1E, 1.0)

    @staticmethod
    def backward(ctx, dy_THE):
        cos_T1E, sin_T1E = ctx.saved_tensors
        return _rotate_by(dy_THE.contiguous(), cos_T1E, sin_T1E, -1.0), None, None


def _rotate_by(x_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor, sign: float) -> Tensor:
    T, H, E = x_THE.shape
    y_THE = x_THE.new_empty(T, H, E)
    if T:
        _heads[(T,)](
            x_THE,
            cos_T1E,
            sin_T1E,
            y_THE,
            *x_THE.stride()[:2],
            sign,
            H=H,
            padded_H=triton.next_power_of_2(H),
            half=E // 2,
            padded_half=triton.next_power_of_2(E // 2),
            num_warps=4,
        )
    return y_THE


@triton.jit
def _heads(
    x_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    token_stride,
    head_stride,
    sign,
    H: tl.constexpr,
    padded_H: tl.constexpr,
    half: tl.constexpr,
    padded_half: tl.constexpr,
):
    """Rotate all heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, padded_H)[:, None]
    e = tl.arange(0, padded_half)[None]
    inside = (head < H) & (e < half)
    cos = tl.load(cos_ptr + token * 2 * half + e, mask=e < half, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * 2 * half + e, mask=e < half, other=0.0).to(tl.float32) * sign
    source = x_ptr + token * token_stride + head * head_stride + e
    target = y_ptr + (token * H + head) * 2 * half + e
    _rotate_head(source, target, cos, sin, half, inside)


@triton.jit
def _into_cache(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    position_ptr,
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    slot_stride,
    cache_head_stride,
    position_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    half: tl.constexpr,
    padded_half: tl.constexpr,
):
    """Handle one head of one token: the first H programs take queries, the next K keys, the last K values."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    e = tl.arange(0, padded_half)
    inside = e < half
    slot = row * slot_stride + tl.load(position_ptr + row).to(tl.int64) * position_stride
    if head < H + K:
        cos = tl.load(cos_ptr + row * 2 * half + e, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + row * 2 * half + e, mask=inside, other=0.0).to(tl.float32)
        if head < H:
            source = q_ptr + row * q_row_stride + head * q_head_stride + e
            target = out_ptr + (row * H + head) * 2 * half + e
        else:
            source = k_ptr + row * k_row_stride + (head - H) * k_head_stride + e
            target = k_cache_ptr + slot + (head - H) * cache_head_stride + e
        _rotate_head(source, target, cos, sin, half, inside)
    else:
        source = v_ptr + row * v_row_stride + (head - H - K) * v_head_stride + e
        target = v_cache_ptr + slot + (head - H - K) * cache_head_stride + e
        tl.store(target, tl.load(source, mask=inside, other=0.0), mask=inside)
        tl.store(target + half, tl.load(source + half, mask=inside, other=0.0), mask=inside)


@triton.jit
def _rotate_head(source, target, cos, sin, half: tl.constexpr, inside):
    """Read both halves at `source`, rotate them, and write them to `target`."""
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = target.dtype.element_ty
    tl.store(target, (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(target + half, (second * cos + first * sin).to(dtype), mask=inside)
