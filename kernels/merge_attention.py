"""Merge two attentions of the same queries, over different keys, into the attention over both.

Each part is normalized by its own sum and comes with its log-sum-exp l. With l = log(e^l₁ + e^l₂), the attention over
both is e^(l₁ - l) out₁ + e^(l₂ - l) out₂. A program takes one token with all its heads, reads both parts once, and
writes the result over the first. grpo/engine/attention/flash.py uses it.
"""

import triton
import triton.language as tl
from torch import Tensor


def merge_attention(
    out_THE: Tensor,
    lse_HT: Tensor,
    part_XHE: Tensor,
    part_lse_HX: Tensor,
    token_X: Tensor,
) -> None:
    """Merge a part into the outputs and log-sum-exps (float32, nats) of the tokens `token_X`, in place.

    The outputs must be contiguous, the log-sum-exps along their last axis. Slow twin: kernels/twins.py
    `attention`, over all keys at once.
    """
    X, H, E = part_XHE.shape
    if X:
        _merge[(X,)](
            out_THE,
            lse_HT,
            part_XHE,
            part_lse_HX,
            token_X,
            lse_HT.stride(0),
            part_lse_HX.stride(0),
            H=H,
            padded_H=triton.next_power_of_2(H),
            E=E,
            padded_E=triton.next_power_of_2(E),
            num_warps=4,
        )


@triton.jit
def _merge(
    out_ptr,
    lse_ptr,
    part_ptr,
    part_lse_ptr,
    token_ptr,
    lse_stride,
    part_lse_stride,
    H: tl.constexpr,
    padded_H: tl.constexpr,
    E: tl.constexpr,
    padded_E: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ptr + row)
    h = tl.arange(0, padded_H)
    e = tl.arange(0, padded_E)
    lse = tl.load(lse_ptr + h * lse_stride + token, mask=h < H, other=0.0)
    part_lse = tl.load(part_lse_ptr + h * part_lse_stride + row, mask=h < H, other=0.0)
    top = tl.maximum(lse, part_lse)
    share = tl.exp(lse - top)
    part_share = tl.exp(part_lse - top)
    total = share + part_share

    inside = (h[:, None] < H) & (e[None] < E)
    entry = h[:, None] * E + e[None]
    target = out_ptr + token * H * E + entry
    out = tl.load(target, mask=inside, other=0.0).to(tl.float32) * (share / total)[:, None]
    part = tl.load(part_ptr + row * H * E + entry, mask=inside, other=0.0).to(tl.float32)
    out += part * (part_share / total)[:, None]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + h * lse_stride + token, top + tl.log(total), mask=h < H)
