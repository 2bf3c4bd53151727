"""Rotary positions (2104.09864): for training, forward and backward; for decoding, together with the write into the
slot cache.

y = x cos + [-x₂, x₁] sin for the halves x₁, x₂ of a head, in float32, rounded once. A rotation's gradient is the
rotation by the opposite angle.
"""

import torch
import triton
import triton.language as tl


def rotate(x_THE: torch.Tensor, cos_T1E: torch.Tensor, sin_T1E: torch.Tensor) -> torch.Tensor:
    """[T, H, E], contiguous; the input may be a view that is contiguous along E. The tables' second halves repeat the
    first. Differentiable in x. Slow twin: kernels/reference.py `rotate`."""
    return _Rotate.apply(x_THE, cos_T1E, sin_T1E)


def rotate_into_cache(
    q_BHE: torch.Tensor,
    k_BKE: torch.Tensor,
    v_BKE: torch.Tensor,
    cos_B1E: torch.Tensor,
    sin_B1E: torch.Tensor,
    k_BKSE: torch.Tensor,
    v_BKSE: torch.Tensor,
    position_B: torch.Tensor,
) -> torch.Tensor:
    """The rotated queries [B, H, E]; rotated keys and plain values are written to (slot b, position_B[b]) of the cache
    views, which are equal in strides. Positions must lie in the cache. Slow twin: kernels/reference.py `rotate` and
    plain indexing."""
    (B, H, E), K = q_BHE.shape, k_BKE.shape[1]
    out_BHE = torch.empty(B, H, E, dtype=q_BHE.dtype, device=q_BHE.device)
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
        padded=triton.next_power_of_2(E // 2),
        num_warps=1,
    )
    return out_BHE


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_THE, cos_T1E, sin_T1E):
        ctx.save_for_backward(cos_T1E, sin_T1E)
        return _launch(x_THE, cos_T1E, sin_T1E, 1.0)

    @staticmethod
    def backward(ctx, dy_THE):
        return _launch(dy_THE.contiguous(), *ctx.saved_tensors, -1.0), None, None


def _launch(x_THE: torch.Tensor, cos_T1E: torch.Tensor, sin_T1E: torch.Tensor, sign: float) -> torch.Tensor:
    T, H, E = x_THE.shape
    y_THE = torch.empty(T, H, E, dtype=x_THE.dtype, device=x_THE.device)
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
            padded=triton.next_power_of_2(E // 2),
            num_warps=4,
        )
    return y_THE


@triton.jit
def _turn(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _heads(
    x,
    cos,
    sin,
    y,
    x_row,
    x_head,
    sign,
    H: tl.constexpr,
    padded_H: tl.constexpr,
    half: tl.constexpr,
    padded: tl.constexpr,
):
    """All heads of one token."""
    row = tl.program_id(0).to(tl.int64)
    h, e = tl.arange(0, padded_H)[:, None], tl.arange(0, padded)[None]
    inside = (h < H) & (e < half)
    c = tl.load(cos + row * 2 * half + e, mask=e < half, other=0.0).to(tl.float32)
    s = tl.load(sin + row * 2 * half + e, mask=e < half, other=0.0).to(tl.float32) * sign
    source = x + row * x_row + h * x_head + e
    first, second = _turn(
        tl.load(source, mask=inside, other=0.0).to(tl.float32),
        tl.load(source + half, mask=inside, other=0.0).to(tl.float32),
        c,
        s,
    )
    target = y + (row * H + h) * 2 * half + e
    tl.store(target, first.to(y.dtype.element_ty), mask=inside)
    tl.store(target + half, second.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _into_cache(
    q,
    k,
    v,
    cos,
    sin,
    out,
    k_cache,
    v_cache,
    positions,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    slot,
    kv_head,
    kv_position,
    H: tl.constexpr,
    K: tl.constexpr,
    half: tl.constexpr,
    padded: tl.constexpr,
):
    """One head of one token: queries first, then keys, then values."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    e = tl.arange(0, padded)
    inside = e < half
    place = row * slot + tl.load(positions + row).to(tl.int64) * kv_position
    if head < H + K:
        c = tl.load(cos + row * 2 * half + e, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + row * 2 * half + e, mask=inside, other=0.0).to(tl.float32)
        if head < H:
            source, target = q + row * q_row + head * q_head + e, out + (row * H + head) * 2 * half + e
        else:
            source, target = k + row * k_row + (head - H) * k_head + e, k_cache + place + (head - H) * kv_head + e
        first, second = _turn(
            tl.load(source, mask=inside, other=0.0).to(tl.float32),
            tl.load(source + half, mask=inside, other=0.0).to(tl.float32),
            c,
            s,
        )
        tl.store(target, first.to(out.dtype.element_ty), mask=inside)
        tl.store(target + half, second.to(out.dtype.element_ty), mask=inside)
    else:
        source, target = v + row * v_row + (head - H - K) * v_head + e, v_cache + place + (head - H - K) * kv_head + e
        tl.store(target, tl.load(source, mask=inside, other=0.0), mask=inside)
        tl.store(target + half, tl.load(source + half, mask=inside, other=0.0), mask=inside)
