"""silu(gate) · up, forward and backward (SwiGLU, 2002.05202).

With σ = 1 / (1 + exp(-gate)):  y = gate σ up,  dup = dy gate σ,  dgate = dy up σ (1 + gate (1 - σ)).
Computed in float32 and rounded once. The backward pass keeps gate and up alone and computes the rest again.
"""

import torch
import triton
import triton.language as tl

TILE = 1024


def swiglu(gate_TF: torch.Tensor, up_TF: torch.Tensor) -> torch.Tensor:
    """[T, F]; the inputs may be views of one product, contiguous along F. Differentiable. Slow twin:
    kernels/reference.py `swiglu`."""
    return _SwiGLU.apply(gate_TF, up_TF)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_TF, up_TF):
        ctx.save_for_backward(gate_TF, up_TF)
        y_TF = torch.empty(gate_TF.shape, dtype=gate_TF.dtype, device=gate_TF.device)
        rows, width = gate_TF.shape
        if rows:
            _forward[(rows, triton.cdiv(width, TILE))](
                gate_TF, up_TF, y_TF, gate_TF.stride(0), up_TF.stride(0), width, tile=TILE, num_warps=4
            )
        return y_TF

    @staticmethod
    def backward(ctx, dy_TF):
        gate_TF, up_TF = ctx.saved_tensors
        rows, width = gate_TF.shape
        dgate_TF, dup_TF = (torch.empty(rows, width, dtype=dy_TF.dtype, device=dy_TF.device) for _ in range(2))
        dy_TF = dy_TF.contiguous()
        if rows:
            _backward[(rows, triton.cdiv(width, TILE))](
                dy_TF,
                gate_TF,
                up_TF,
                dgate_TF,
                dup_TF,
                gate_TF.stride(0),
                up_TF.stride(0),
                width,
                tile=TILE,
                num_warps=4,
            )
        return dgate_TF, dup_TF


@triton.jit
def _forward(gate, up, y, gate_stride, up_stride, width, tile: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * tile + tl.arange(0, tile)
    g = tl.load(gate + row * gate_stride + f, mask=f < width, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + f, mask=f < width, other=0.0).to(tl.float32)
    tl.store(y + row * width + f, (g * tl.sigmoid(g) * u).to(y.dtype.element_ty), mask=f < width)


@triton.jit
def _backward(dy, gate, up, dgate, dup, gate_stride, up_stride, width, tile: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * tile + tl.arange(0, tile)
    g = tl.load(gate + row * gate_stride + f, mask=f < width, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + f, mask=f < width, other=0.0).to(tl.float32)
    d = tl.load(dy + row * width + f, mask=f < width, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    tl.store(dup + row * width + f, (d * g * s).to(dup.dtype.element_ty), mask=f < width)
    tl.store(dgate + row * width + f, (d * u * s * (1 + g * (1 - s))).to(dgate.dtype.element_ty), mask=f < width)
