"""RMSNorm, alone or after adding the residual stream, forward and backward (1910.07467).

    h = x (+ residual),   r = 1 / sqrt(mean h² + eps),   ĥ = h r,   y = round(ĥ) w
    dh = r (w dy - ĥ mean(ĥ w dy)) + what arrives at h itself,   dw = Σ rows dy round(ĥ)

Sums are float32; `round` is to x's dtype, as in the checkpoints' own implementation. A tile holds whole rows, so each
pass reads its inputs once. The backward pass keeps h and r and computes ĥ again. dw is summed per program in a fixed
order, then over the programs: the same bits at every run.
"""

import torch
import triton
import triton.language as tl

TILE = 4096  # entries: whole rows of it
MAX_PROGRAMS = 256  # that share the rows when dw is wanted


def rms_norm(
    x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, residual_TD: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and h, both [..., D] in x's dtype; without a residual h is x. Differentiable. Slow twin: kernels/reference.py
    `rms_norm`."""
    return _RMSNorm.apply(x_TD, weight_D, eps, residual_TD)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight_D, eps, residual):
        width = x.shape[-1]
        x_TD = x.reshape(-1, width)
        y_TD = torch.empty(x_TD.shape, dtype=x.dtype, device=x.device)
        r_T = torch.empty(len(x_TD), dtype=torch.float32, device=x.device)
        h_TD = x_TD if residual is None else torch.empty_like(y_TD)
        added_TD = x_TD if residual is None else residual.reshape(-1, width)
        padded, tile_rows, warps = _shape(width)
        if len(x_TD):
            _forward[(triton.cdiv(len(x_TD), tile_rows),)](
                x_TD,
                added_TD,
                weight_D,
                y_TD,
                h_TD,
                r_T,
                len(x_TD),
                x_TD.stride(0),
                added_TD.stride(0),
                eps,
                adds=residual is not None,
                D=width,
                padded_D=padded,
                rows=tile_rows,
                num_warps=warps,
            )
        ctx.save_for_backward(h_TD, weight_D, r_T)
        ctx.adds, ctx.shape = residual is not None, x.shape
        ctx.set_materialize_grads(False)
        return y_TD.view(x.shape), x if residual is None else h_TD.view(x.shape)

    @staticmethod
    def backward(ctx, dy, dh):
        h_TD, weight_D, r_T = ctx.saved_tensors
        width, rows = h_TD.shape[1], len(h_TD)
        if dy is None:
            return dh, None, None, dh if ctx.adds else None
        dy_TD = dy.reshape(-1, width).contiguous()
        dh_TD = dy_TD if dh is None else dh.reshape(-1, width).contiguous()
        dx_TD = torch.empty_like(dy_TD)
        padded, tile_rows, warps = _shape(width)
        programs = triton.cdiv(rows, tile_rows)
        programs = min(programs, MAX_PROGRAMS) if ctx.needs_input_grad[1] else programs
        dw_PD = torch.empty(programs, width, dtype=torch.float32, device=dy.device) if ctx.needs_input_grad[1] else None
        if rows:
            _backward[(programs,)](
                dy_TD,
                dh_TD,
                h_TD,
                weight_D,
                r_T,
                dx_TD,
                dx_TD if dw_PD is None else dw_PD,
                rows,
                h_TD.stride(0),
                adds=dh is not None,
                trains=dw_PD is not None,
                D=width,
                padded_D=padded,
                rows=tile_rows,
                num_warps=warps,
            )
        dx = dx_TD.view(ctx.shape)
        return dx, None if dw_PD is None else dw_PD.sum(0).to(weight_D.dtype), None, dx if ctx.adds else None


def _shape(width: int) -> tuple[int, int, int]:
    padded = triton.next_power_of_2(width)
    return padded, max(1, TILE // padded), 4 if padded <= TILE // 2 else 8


@triton.jit
def _forward(
    x,
    added,
    weight,
    y,
    h_out,
    r_out,
    num_rows,
    x_stride,
    added_stride,
    eps,
    adds: tl.constexpr,
    D: tl.constexpr,
    padded_D: tl.constexpr,
    rows: tl.constexpr,
):
    row = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)
    d = tl.arange(0, padded_D)
    inside = (row[:, None] < num_rows) & (d[None] < D)
    h = tl.load(x + row[:, None] * x_stride + d[None], mask=inside, other=0.0)
    if adds:
        residual = tl.load(added + row[:, None] * added_stride + d[None], mask=inside, other=0.0)
        h = (h.to(tl.float32) + residual.to(tl.float32)).to(y.dtype.element_ty)
        tl.store(h_out + row[:, None] * D + d[None], h, mask=inside)
    exact = h.to(tl.float32)
    r = tl.rsqrt(tl.sum(exact * exact, 1) / D + eps)
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    normed = (exact * r[:, None]).to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row[:, None] * D + d[None], (normed * w[None]).to(y.dtype.element_ty), mask=inside)
    tl.store(r_out + row, r, mask=row < num_rows)


@triton.jit
def _backward(
    dy,
    dh,
    h,
    weight,
    r_in,
    dx,
    dw,
    num_rows,
    h_stride,
    adds: tl.constexpr,
    trains: tl.constexpr,
    D: tl.constexpr,
    padded_D: tl.constexpr,
    rows: tl.constexpr,
):
    d = tl.arange(0, padded_D)
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    dw_sum = tl.zeros([padded_D], tl.float32)
    for first in range(tl.program_id(0) * rows, num_rows, tl.num_programs(0) * rows):
        row = (first + tl.arange(0, rows)).to(tl.int64)
        inside = (row[:, None] < num_rows) & (d[None] < D)
        gradient = tl.load(dy + row[:, None] * D + d[None], mask=inside, other=0.0).to(tl.float32)
        r = tl.load(r_in + row, mask=row < num_rows, other=0.0)
        normed = tl.load(h + row[:, None] * h_stride + d[None], mask=inside, other=0.0).to(tl.float32) * r[:, None]
        weighed = gradient * w[None]
        result = r[:, None] * (weighed - normed * (tl.sum(normed * weighed, 1) / D)[:, None])
        if adds:
            result += tl.load(dh + row[:, None] * D + d[None], mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + row[:, None] * D + d[None], result.to(dx.dtype.element_ty), mask=inside)
        if trains:
            dw_sum += tl.sum(gradient * normed.to(dy.dtype.element_ty).to(tl.float32), 0)
    if trains:
        tl.store(dw + tl.program_id(0) * D + d, dw_sum, mask=d < D)
