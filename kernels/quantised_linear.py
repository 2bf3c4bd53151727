"""Multiply few rows by a weight in 8 or 4 bits: y = x [W | tail]ᵀ + b with W = scale · level, as in decoding.

A decode step waits for the weights to arrive, so it should read the codes q, and nothing twice. Each program makes its
tiles of W in registers, the same rounded numbers as `QuantisedRows.dequantise`, and multiplies them by a tile of rows
on tensor cores, with float32 sums. The columns of the tail (s B of an adapter) continue the same sum.
"""

import triton
import triton.language as tl
from torch import Tensor

OUTPUTS, INNER = 32, 128  # of a tile of W
MOST_ROWS = 64  # of a tile of x; a tile of W is dequantised once for each


def quantised_linear(
    x_TX: Tensor,
    q_OX: Tensor,
    scale_OX: Tensor,
    tail_OR: Tensor,
    bias_O: Tensor | None = None,
    levels: Tensor | None = None,
) -> Tensor:
    """Return x [W | tail]ᵀ + b [T, O] in the dtype of x, which is that of tail and bias; not differentiable.

    x: [T, I + R]. scale: one per row of W, or per block of it. levels: what the codes mean, two codes in a byte; None
    if the codes are the levels. All rows must be contiguous, and may lie apart.
    Slow twin: kernels/twins.py `lora_linear` with `int8_rows` or `nf4_rows`.
    """
    T = len(x_TX)
    O, width = q_OX.shape
    R = tail_OR.shape[1]
    I = width if levels is None else 2 * width
    block = 0 if levels is None else I // scale_OX.shape[1]
    y_TO = x_TX.new_empty(T, O)
    if T:
        rows = min(MOST_ROWS, max(16, triton.next_power_of_2(T)))  # tensor cores multiply 16 or more
        _tile[(triton.cdiv(T, rows), triton.cdiv(O, OUTPUTS))](
            x_TX,
            q_OX,
            scale_OX,
            tail_OR,
            bias_O,
            levels,
            y_TO,
            x_TX.stride(0),
            q_OX.stride(0),
            scale_OX.stride(0),
            tail_OR.stride(0),
            T,
            O,
            I,
            R,
            rows=rows,
            outputs=OUTPUTS,
            inner=INNER,
            block=block,
            num_warps=4,
            num_stages=3,
        )
    return y_TO


@triton.jit(do_not_specialize=["T"])
def _tile(
    x_ptr,
    q_ptr,
    scale_ptr,
    tail_ptr,
    bias_ptr,
    levels_ptr,
    y_ptr,
    x_stride,
    q_stride,
    scale_stride,
    tail_stride,
    T,
    O,
    I,
    R,
    rows: tl.constexpr,
    outputs: tl.constexpr,
    inner: tl.constexpr,
    block: tl.constexpr,
):
    """Compute a tile of y: first over the columns of W, then over those of the tail."""
    t = tl.program_id(0) * rows + tl.arange(0, rows)
    o = tl.program_id(1) * outputs + tl.arange(0, outputs)
    c = tl.arange(0, inner)
    x_rows = x_ptr + t[:, None].to(tl.int64) * x_stride
    q_rows = q_ptr + o[:, None].to(tl.int64) * q_stride
    tail_rows = tail_ptr + o[:, None].to(tl.int64) * tail_stride
    scale_rows = scale_ptr + o[:, None].to(tl.int64) * scale_stride
    is_row = t[:, None] < T
    is_output = o[:, None] < O
    row_scale = tl.load(scale_rows, mask=is_output, other=0.0)
    sums = tl.zeros([rows, outputs], tl.float32)
    for start in range(0, I, inner):
        i = start + c
        is_input = i[None] < I
        x = tl.load(x_rows + i[None], mask=is_row & is_input, other=0.0)
        if block:
            pairs = start // 2 + tl.arange(0, inner // 2)
            is_pair = pairs[None] < I // 2
            q = tl.load(q_rows + pairs[None], mask=is_output & is_pair, other=0)
            first = q >> 4
            second = q & 15
            code = tl.interleave(first, second)
            level = tl.load(levels_ptr + code)
            blocks = start // block + tl.arange(0, inner // block)
            is_block = blocks[None] < I // block
            scale = tl.load(scale_rows + blocks[None], mask=is_output & is_block, other=0.0)
            level = tl.reshape(level, [outputs, inner // block, block])
            w = level * scale[:, :, None]
            w = tl.reshape(w, [outputs, inner])
            w = w.to(x.dtype)
        else:
            q = tl.load(q_rows + i[None], mask=is_output & is_input, other=0)
            w = (q.to(tl.float32) * row_scale).to(x.dtype)
        sums += tl.dot(x, tl.trans(w), input_precision="ieee")
    for start in range(0, R, inner):
        r = start + c
        is_rank = r[None] < R
        h = tl.load(x_rows + I + r[None], mask=is_row & is_rank, other=0.0)
        tail = tl.load(tail_rows + r[None], mask=is_output & is_rank, other=0.0)
        sums += tl.dot(h, tl.trans(tail), input_precision="ieee")
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + o, mask=o < O, other=0.0).to(tl.float32)[None]
    y = y_ptr + t[:, None].to(tl.int64) * O + o[None]
    tl.store(y, sums.to(y_ptr.dtype.element_ty), mask=(t[:, None] < T) & (o[None] < O))
