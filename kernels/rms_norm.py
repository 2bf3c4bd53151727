"""Normalize by the root mean square (RMSNorm, 1910.07467), with or without adding the residual; forward and backward.

    h  = x (+ residual)
    r  = 1 / sqrt(mean h² + eps)
    ĥ  = h r
    y  = round(ĥ) w
    dh = r (w dy - ĥ mean(ĥ w dy)) + the gradient that arrives at h itself
    dw = Σ over rows of dy round(ĥ)

Sums are float32. `round` rounds to the dtype of x, as the checkpoints' own implementation does. A tile holds complete
rows, so each pass reads its inputs once. The backward pass keeps h and r and recomputes ĥ. Each program sums its part
of dw in a fixed order, and torch sums the parts, so every run gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # entries of a tile, which holds as many complete rows as fit, at least one
MAX_PROGRAMS = 256  # programs that share the rows when dw is wanted


def rms_norm(
    x_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    residual_TD: Tensor | None = None,
    spare_columns: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y and h, both [..., D] in the dtype of x; differentiable. Without a residual h is x.

    spare_columns: copies of y, and columns to leave free to the right of each; y is then [copies, T, D + columns] and
    not differentiable.
    Slow twin: kernels/twins.py `rms_norm`.
    """
    return _RMSNorm.apply(x_TD, weight_D, eps, residual_TD, spare_columns)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight_D, eps, residual, spare_columns):
        x_TD = x.reshape(-1, x.shape[-1])
        T, D = x_TD.shape
        copies, columns = spare_columns or (1, 0)
        y_XTD = x.new_empty(copies, T, D + columns)
        r_T = x.new_empty(T, dtype=torch.float32)
        has_residual = residual is not None
        h_TD = x.new_empty(T, D) if has_residual else x_TD
        residual_TD = residual.reshape(-1, D) if has_residual else x_TD  # not read without a residual
        tile = _tile(D)
        if T:
            _forward[(triton.cdiv(T, tile["rows"]),)](
                x_TD,
                residual_TD,
                weight_D,
                y_XTD,
                h_TD,
                r_T,
                T,
                x_TD.stride(0),
                residual_TD.stride(0),
                y_XTD.stride(0),
                y_XTD.stride(1),
                eps,
                copies=copies,
                has_residual=has_residual,
                **tile,
            )
        ctx.save_for_backward(h_TD, weight_D, r_T)
        ctx.has_residual = has_residual
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        return y_XTD if spare_columns else y_XTD.view(x.shape), h_TD.view(x.shape) if has_residual else x

    @staticmethod
    def backward(ctx, dy, dh):
        if dy is None:
            return dh, None, None, dh if ctx.has_residual else None, None
        h_TD, weight_D, r_T = ctx.saved_tensors
        T, D = h_TD.shape
        dy_TD = _with_dense_rows(dy.reshape(-1, D))
        dh_TD = dy_TD if dh is None else _with_dense_rows(dh.reshape(-1, D))  # not read if None arrives
        dx_TD = dy.new_empty(T, D)
        tile = _tile(D)
        num_programs = triton.cdiv(T, tile["rows"])
        wants_dw = ctx.needs_input_grad[1]
        dw_XD = dx_TD  # not written unless dw is wanted
        if wants_dw:
            num_programs = min(num_programs, MAX_PROGRAMS)
            dw_XD = dy.new_empty(num_programs, D, dtype=torch.float32)
        if T:
            _backward[(num_programs,)](
                dy_TD,
                dh_TD,
                h_TD,
                weight_D,
                r_T,
                dx_TD,
                dw_XD,
                T,
                dy_TD.stride(0),
                dh_TD.stride(0),
                h_TD.stride(0),
                has_dh=dh is not None,
                wants_dw=wants_dw,
                **tile,
            )
        dx = dx_TD.view(ctx.shape)
        dw_D = dw_XD.sum(0).to(weight_D.dtype) if wants_dw else None
        return dx, dw_D, None, dx if ctx.has_residual else None, None


def _with_dense_rows(x_TD: Tensor) -> Tensor:
    """Return x with contiguous rows; gaps between rows may stay."""
    return x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()


def _tile(D: int) -> dict[str, int]:
    """Choose the shape of a tile and the warps that work on it."""
    padded_D = triton.next_power_of_2(D)
    return {
        "D": D,
        "padded_D": padded_D,
        "rows": max(1, TILE // padded_D),
        "num_warps": 4 if padded_D <= TILE // 2 else 8,
    }


@triton.jit
def _forward(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    h_ptr,
    r_ptr,
    num_rows,
    x_stride,
    residual_stride,
    copy_stride,
    y_stride,
    eps,
    copies: tl.constexpr,
    has_residual: tl.constexpr,
    D: tl.constexpr,
    padded_D: tl.constexpr,
    rows: tl.constexpr,
):
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    row = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)
    d = tl.arange(0, padded_D)
    inside = (row[:, None] < num_rows) & (d[None] < D)
    entry = row[:, None] * D + d[None]
    h = tl.load(x_ptr + row[:, None] * x_stride + d[None], mask=inside, other=0.0)
    if has_residual:
        residual = tl.load(residual_ptr + row[:, None] * residual_stride + d[None], mask=inside, other=0.0)
        h = (h.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(h_ptr + entry, h, mask=inside)
    h = h.to(tl.float32)
    r = tl.rsqrt(tl.sum(h * h, 1) / D + eps)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    rounded = (h * r[:, None]).to(dtype).to(tl.float32)
    y = (rounded * weight[None]).to(dtype)
    for copy in tl.static_range(copies):
        tl.store(y_ptr + copy * copy_stride + row[:, None] * y_stride + d[None], y, mask=inside)
    tl.store(r_ptr + row, r, mask=row < num_rows)


@triton.jit
def _backward(
    dy_ptr,
    dh_ptr,
    h_ptr,
    weight_ptr,
    r_ptr,
    dx_ptr,
    dw_ptr,
    num_rows,
    dy_stride,
    dh_stride,
    h_stride,
    has_dh: tl.constexpr,
    wants_dw: tl.constexpr,
    D: tl.constexpr,
    padded_D: tl.constexpr,
    rows: tl.constexpr,
):
    d = tl.arange(0, padded_D)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    dw = tl.zeros([padded_D], tl.float32)
    for first in range(tl.program_id(0) * rows, num_rows, tl.num_programs(0) * rows):
        row = (first + tl.arange(0, rows)).to(tl.int64)
        inside = (row[:, None] < num_rows) & (d[None] < D)
        entry = row[:, None] * D + d[None]
        dy = tl.load(dy_ptr + row[:, None] * dy_stride + d[None], mask=inside, other=0.0).to(tl.float32)
        r = tl.load(r_ptr + row, mask=row < num_rows, other=0.0)
        h = tl.load(h_ptr + row[:, None] * h_stride + d[None], mask=inside, other=0.0).to(tl.float32)
        normed = h * r[:, None]
        weighted = dy * weight[None]
        mean = tl.sum(normed * weighted, 1) / D
        dx = r[:, None] * (weighted - normed * mean[:, None])
        if has_dh:
            dx += tl.load(dh_ptr + row[:, None] * dh_stride + d[None], mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + entry, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if wants_dw:
            dw += tl.sum(dy * normed.to(dy_ptr.dtype.element_ty).to(tl.float32), 0)
    if wants_dw:
        tl.store(dw_ptr + tl.program_id(0) * D + d, dw, mask=d < D)
