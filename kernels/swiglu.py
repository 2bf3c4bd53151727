"""Compute silu(gate) * up, forward and backward (SwiGLU, 2002.05202).

    y     = gate σ up            with σ = 1 / (1 + exp(-gate))
    dup   = dy gate σ
    dgate = dy up σ (1 + gate (1 - σ))

Everything is computed in float32 and rounded once. The backward pass keeps only gate and up and recomputes the rest.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # features that one program computes


def swiglu(gate_TF: Tensor, up_TF: Tensor, spare_columns: tuple[int, int] | None = None) -> Tensor:
    """Return silu(gate) * up [T, F]; differentiable.

    The inputs may be views of one matrix product; they must be contiguous along F.
    spare_columns: (1, columns to leave free to the right); the result is then [1, T, F + columns] and not
    differentiable.
    Slow twin: kernels/twins.py `swiglu`.
    """
    _, columns = spare_columns or (1, 0)
    y_TX = _SwiGLU.apply(gate_TF, up_TF, columns)
    return y_TX[None] if spare_columns else y_TX


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_TF, up_TF, spare_columns):
        ctx.save_for_backward(gate_TF, up_TF)
        T, F = gate_TF.shape
        y_TX = gate_TF.new_empty(T, F + spare_columns)
        if T:
            grid = (T, triton.cdiv(F, TILE))
            _forward[grid](
                gate_TF,
                up_TF,
                y_TX,
                gate_TF.stride(0),
                up_TF.stride(0),
                y_TX.stride(0),
                F,
                tile=TILE,
                num_warps=4,
            )
        return y_TX

    @staticmethod
    def backward(ctx, dy_TF):
        gate_TF, up_TF = ctx.saved_tensors
        dy_TF = dy_TF if dy_TF.stride(1) == 1 else dy_TF.contiguous()
        T, F = gate_TF.shape
        dgate_TF, dup_TF = dy_TF.new_empty(2, T, F)
        if T:
            grid = (T, triton.cdiv(F, TILE))
            _backward[grid](
                dy_TF,
                gate_TF,
                up_TF,
                dgate_TF,
                dup_TF,
                dy_TF.stride(0),
                gate_TF.stride(0),
                up_TF.stride(0),
                F,
                tile=TILE,
                num_warps=4,
            )
        return dgate_TF, dup_TF, None


@triton.jit
def _forward(
    gate_ptr,
    up_ptr,
    y_ptr,
    gate_stride,
    up_stride,
    y_stride,
    F,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = f < F
    gate = tl.load(gate_ptr + row * gate_stride + f, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + f, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row * y_stride + f, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    dy_stride,
    gate_stride,
    up_stride,
    F,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = f < F
    gate = tl.load(gate_ptr + row * gate_stride + f, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + f, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * dy_stride + f, mask=inside, other=0.0).to(tl.float32)
    sigma = tl.sigmoid(gate)
    dup = dy * gate * sigma
    dgate = dy * up * sigma * (1 + gate * (1 - sigma))
    tl.store(dup_ptr + row * F + f, dup.to(dup_ptr.dtype.element_ty), mask=inside)
    tl.store(dgate_ptr + row * F + f, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
