"""Write x Aᵀ to the right of x, for few rows and an adapter of low rank: the first half of Eq. 15.

    h = x Aᵀ        [T, R]

So small a product is bound by launches. A library takes two (the inner dimension is split, then the parts are added),
and a third where x has no free columns and must be copied. Here it is one. A program takes a few rows of x and a few of
A, runs along both, and adds in float32 in a fixed order: a row's bits do not depend on the other rows. All of A is read
again for every few rows of x, so this is for small ones alone (`ops.append_product`).
"""

import triton
import triton.language as tl
from torch import Tensor

TILE = {"rows": 1, "columns": 4, "tile": 1024, "num_warps": 4}  # rows of x and of A, and entries of both, at a time


def append_product(x: Tensor, A_RI: Tensor, copies: int = 1) -> tuple[Tensor, ...]:
    """Return [x | h₁], …, [x | hₙ], where x Aᵀ = [h₁ | … | hₙ], each [T, I + R / n]; not differentiable.

    x: [T, I]; or n copies of it with R / n spare columns each, [n, T, I + R / n], which are filled in place. copies: n.
    Both must be contiguous along their last axis. Slow twin: kernels/twins.py `append_product`.
    """
    R, I = A_RI.shape
    T = x.shape[-2]
    part = R // copies
    has_room = x.dim() == 3
    wide_XTC = x if has_room else x.new_empty(copies, T, I + part)
    x_TI = x[0] if has_room else x
    if T:
        grid = (triton.cdiv(T, TILE["rows"]), triton.cdiv(R, TILE["columns"]))
        _append[grid](
            x_TI,
            A_RI,
            wide_XTC,
            T,
            R,
            part,
            x_TI.stride(0),
            wide_XTC.stride(0),
            wide_XTC.stride(1),
            copies=0 if has_room else copies,
            I=I,
            **TILE,
        )
    return wide_XTC.unbind()


@triton.jit
def _append(
    x_ptr,
    A_ptr,
    wide_ptr,
    num_rows,
    num_columns,
    part,
    x_stride,
    copy_stride,
    wide_stride,
    copies: tl.constexpr,
    I: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    tile: tl.constexpr,
):
    """Multiply some rows of x by some rows of A. copies: of x, which the programs of the first columns make."""
    row = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)
    r = tl.program_id(1) * columns + tl.arange(0, columns)
    sums = tl.zeros([rows, columns, tile], tl.float32)
    for start in range(0, I, tile):
        i = start + tl.arange(0, tile)
        inside = (row[:, None] < num_rows) & (i[None] < I)
        x = tl.load(x_ptr + row[:, None] * x_stride + i[None], mask=inside, other=0.0)
        is_weight = (r[:, None] < num_columns) & (i[None] < I)
        A = tl.load(A_ptr + r[:, None] * I + i[None], mask=is_weight, other=0.0)
        sums += x.to(tl.float32)[:, None] * A.to(tl.float32)[None]
        if copies > 0:
            if tl.program_id(1) == 0:
                for copy in tl.static_range(copies):
                    tl.store(wide_ptr + copy * copy_stride + row[:, None] * wide_stride + i[None], x, mask=inside)
    h = tl.sum(sums, 2).to(wide_ptr.dtype.element_ty)
    column = (r // part) * copy_stride + I + r % part
    known = (row[:, None] < num_rows) & (r[None] < num_columns)
    tl.store(wide_ptr + row[:, None] * wide_stride + column[None], h, mask=known)
