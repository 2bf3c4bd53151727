"""Attention of one new token per sequence over the slot cache: grouped queries, split keys (Flash-Decoding,
2311.01282).

A program takes one sequence, one key-value head and one stretch of positions. All queries of the group share it as one
operand of the matrix product (padded to 16 rows), so that each key is read once. It keeps the running maximum, sum and
output of the online softmax; a second launch weighs the stretches by exp(lse - max lse). Positions at or after a
sequence's length are never read.
"""

import math

import torch
import triton
import triton.language as tl

POSITIONS = 64  # per tile
WAVES = 4  # programs per multiprocessor wanted before stretches are made longer


def decode_attention(
    q_BHE: torch.Tensor,
    k_BKSE: torch.Tensor,
    v_BKSE: torch.Tensor,
    lengths_B: torch.Tensor,
    num_positions: int,
    num_splits: int = 0,
) -> torch.Tensor:
    """softmax(q kᵀ / sqrt(E)) v over the first lengths_B positions of each slot [B, H, E]; a length of 0 gives zeros.

    k_BKSE, v_BKSE: views of the cache, equal in strides, contiguous along E. num_positions: at least the largest
    length; it and num_splits (0: by the size of the device) shape the launch, so that the lengths stay on the device.
    Slow twin: kernels/reference.py `decode_attention`.
    """
    (B, H, E), K = q_BHE.shape, k_BKSE.shape[1]
    splits = num_splits or choose_splits(B * K, num_positions, _multiprocessors(q_BHE.device))
    stretch = triton.cdiv(triton.cdiv(num_positions, splits), POSITIONS) * POSITIONS
    splits = triton.cdiv(num_positions, stretch)
    out_BHE = torch.empty(B, H, E, dtype=q_BHE.dtype, device=q_BHE.device)
    part_BHXE = torch.empty(B, H, splits, E, dtype=torch.float32, device=q_BHE.device) if splits > 1 else out_BHE
    lse_BHX = torch.empty(B, H, splits, dtype=torch.float32, device=q_BHE.device)
    shape = {"splits": splits, "E": E, "padded_E": max(16, triton.next_power_of_2(E))}
    _stretches[(B, K, splits)](
        q_BHE,
        k_BKSE,
        v_BKSE,
        lengths_B,
        part_BHXE,
        lse_BHX,
        q_BHE.stride(0),
        q_BHE.stride(1),
        *k_BKSE.stride()[:3],
        stretch,
        1.0 / math.sqrt(E),
        group=H // K,
        padded_group=max(16, triton.next_power_of_2(H // K)),
        positions=POSITIONS,
        exact=q_BHE.dtype == torch.float32,
        **shape,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        _combine[(B * H,)](
            part_BHXE, lse_BHX, out_BHE, padded_splits=triton.next_power_of_2(splits), **shape, num_warps=2
        )
    return out_BHE


def choose_splits(programs: int, num_positions: int, multiprocessors: int) -> int:
    """Stretches per sequence and head: enough to fill the device, none shorter than four tiles."""
    return max(1, min(-(-WAVES * multiprocessors // programs), num_positions // (4 * POSITIONS)))


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def _stretches(
    q,
    k,
    v,
    lengths,
    part,
    lse,
    q_row,
    q_head,
    kv_row,
    kv_head,
    kv_position,
    stretch,
    scale,
    group: tl.constexpr,
    padded_group: tl.constexpr,
    positions: tl.constexpr,
    exact: tl.constexpr,
    splits: tl.constexpr,
    E: tl.constexpr,
    padded_E: tl.constexpr,
):
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row).to(tl.int32)
    g, e, s = tl.arange(0, padded_group), tl.arange(0, padded_E), tl.arange(0, positions)
    base = row.to(tl.int64) * kv_row + head * kv_head
    queries = tl.load(
        q + row.to(tl.int64) * q_row + (head * group + g[:, None]) * q_head + e[None],
        mask=(g[:, None] < group) & (e[None] < E),
        other=0.0,
    )
    top = tl.full([padded_group], float("-inf"), tl.float32)
    mass = tl.zeros([padded_group], tl.float32)
    out = tl.zeros([padded_group, padded_E], tl.float32)
    precision: tl.constexpr = "ieee" if exact else "tf32"  # tf32 concerns float32 operands alone
    end = tl.minimum(split * stretch + stretch, length)
    for start in range(split * stretch, end, positions):
        place = base + (start + s[:, None]) * kv_position.to(tl.int64) + e[None]
        inside = (start + s[:, None] < end) & (e[None] < E)
        keys = tl.load(k + place, mask=inside, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision=precision) * (
            scale * 1.4426950408889634
        )  # in units of log 2
        scores = tl.where(start + s[None] < end, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))  # finite: every tile holds a position before `end`
        p = tl.exp2(scores - higher[:, None])
        decay = tl.exp2(top - higher)
        mass = mass * decay + tl.sum(p, 1)
        values = tl.load(v + place, mask=inside, other=0.0)
        out = out * decay[:, None] + tl.dot(p.to(values.dtype), values, input_precision=precision)
        top = higher
    place = (row.to(tl.int64) * tl.num_programs(1) + head) * group + g
    out = out / tl.where(mass > 0, mass, 1.0)[:, None]
    kept = (g[:, None] < group) & (e[None] < E)
    tl.store(part + (place[:, None] * splits + split) * E + e[None], out.to(part.dtype.element_ty), mask=kept)
    tl.store(lse + place * splits + split, top + tl.log2(tl.where(mass > 0, mass, 1.0)), mask=g < group)


@triton.jit
def _combine(
    part, lse, out, splits: tl.constexpr, padded_splits: tl.constexpr, E: tl.constexpr, padded_E: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64)
    x, e = tl.arange(0, padded_splits), tl.arange(0, padded_E)
    lses = tl.load(lse + place * splits + x, mask=x < splits, other=float("-inf"))
    top = tl.max(lses, 0)
    weights = tl.exp2(lses - tl.where(top > float("-inf"), top, 0.0))
    total = tl.sum(weights, 0)
    parts = tl.load(
        part + (place * splits + x[:, None]) * E + e[None], mask=(x[:, None] < splits) & (e[None] < E), other=0.0
    )
    mixed = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + place * E + e, mixed.to(out.dtype.element_ty), mask=e < E)
