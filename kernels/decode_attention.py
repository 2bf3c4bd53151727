"""Attend from one new token per sequence to its keys in the cache: grouped queries, split keys (Flash-Decoding).

A program takes one sequence, one key-value head and one split (a range of positions). All query heads of that head
share the program as one operand of the matrix product (padded to 16 rows), so each key is read once. The program keeps
the running maximum, sum and output of the online softmax. A second launch weights the splits by exp(lse - max lse),
where lse is the log-sum-exp of a split's scores. Positions at or after a sequence's length are never read. Splitting
the keys is from 2311.01282.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

POSITIONS = 64  # per tile
TILE = {"positions": POSITIONS, "num_warps": 4, "num_stages": 3}
EXACT_TILE = {"positions": POSITIONS // 2, "num_warps": 8, "num_stages": 2}  # float32: larger ones spill, see README.md
WAVES = 4  # programs per multiprocessor to aim for
MIN_DOT = 16  # rows and columns that an operand of tl.dot must have


def decode_attention(
    q_BHE: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    lengths_B: Tensor,
    num_positions: int,
    num_splits: int = 0,
) -> Tensor:
    """Return softmax(q kᵀ / sqrt(E)) v over the first lengths_B positions of each slot [B, H, E]; length 0 gives zeros.

    k_BKSE and v_BKSE are views of the cache with equal strides, contiguous along E. num_positions is at least the
    largest length. It and num_splits (0: chosen by the size of the GPU) shape the launch, so the lengths can stay on
    the device. Slow twin: kernels/twins.py `decode_attention`.
    """
    B, H, E = q_BHE.shape
    K = k_BKSE.shape[1]
    num_splits = num_splits or choose_splits(B * K, num_positions, _num_multiprocessors(q_BHE.device))
    out_BHE = q_BHE.new_empty(B, H, E)
    part_BHXE = out_BHE  # a single split is the result already
    if num_splits > 1:
        part_BHXE = q_BHE.new_empty(B, H, num_splits, E, dtype=torch.float32)
    lse_BHX = q_BHE.new_empty(B, H, num_splits, dtype=torch.float32)
    shape = {"E": E, "padded_E": max(MIN_DOT, triton.next_power_of_2(E))}
    is_exact = q_BHE.dtype == torch.float32
    _stretches[(B, K, num_splits)](
        q_BHE,
        k_BKSE,
        v_BKSE,
        lengths_B,
        part_BHXE,
        lse_BHX,
        *q_BHE.stride()[:2],
        *k_BKSE.stride()[:3],
        num_splits,
        1.0 / math.sqrt(E),
        J=H // K,
        padded_J=max(MIN_DOT, triton.next_power_of_2(H // K)),
        is_exact=is_exact,
        **shape,
        **(EXACT_TILE if is_exact else TILE),
    )
    if num_splits > 1:
        padded_splits = triton.next_power_of_2(num_splits)
        _combine[(B * H,)](part_BHXE, lse_BHX, out_BHE, num_splits, padded_splits=padded_splits, **shape, num_warps=2)
    return out_BHE


def choose_splits(programs: int, num_positions: int, multiprocessors: int) -> int:
    """Return the number of splits per sequence and head: enough to fill the device, none shorter than four tiles."""
    wanted = triton.cdiv(WAVES * multiprocessors, programs)
    return max(1, min(wanted, num_positions // (4 * POSITIONS)))


def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit(do_not_specialize=["splits"])
def _stretches(
    q_ptr,
    k_ptr,
    v_ptr,
    lengths_ptr,
    part_ptr,
    lse_ptr,
    q_row_stride,
    q_head_stride,
    slot_stride,
    kv_head_stride,
    position_stride,
    splits,
    scale,
    J: tl.constexpr,
    padded_J: tl.constexpr,
    positions: tl.constexpr,
    is_exact: tl.constexpr,
    E: tl.constexpr,
    padded_E: tl.constexpr,
):
    """Store the output of one split, normalized by its own sum, and its log-sum-exp. Scores are in units of log 2."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + row).to(tl.int32)
    j = tl.arange(0, padded_J)
    e = tl.arange(0, padded_E)
    s = tl.arange(0, positions)
    used = (j[:, None] < J) & (e[None] < E)
    source = q_ptr + row * q_row_stride + (kv_head * J + j[:, None]) * q_head_stride + e[None]
    queries = tl.load(source, mask=used, other=0.0)

    top = tl.full([padded_J], float("-inf"), tl.float32)
    sum_exp = tl.zeros([padded_J], tl.float32)
    out = tl.zeros([padded_J, padded_E], tl.float32)
    precision: tl.constexpr = "ieee" if is_exact else "tf32"  # tf32 matters for float32 operands only
    slot = row * slot_stride + kv_head * kv_head_stride
    split_length = tl.cdiv(tl.cdiv(length, splits), positions) * positions  # of this row: short rows keep all busy
    begin = split * split_length
    end = tl.minimum(begin + split_length, length)
    for start in range(begin, end, positions):
        place = slot + (start + s[:, None]) * position_stride.to(tl.int64) + e[None]
        inside = (start + s[:, None] < end) & (e[None] < E)
        keys = tl.load(k_ptr + place, mask=inside, other=0.0)
        products = tl.dot(queries, tl.trans(keys), input_precision=precision)
        scores = products * (scale * 1.4426950408889634)  # 1 / log 2
        scores = tl.where(start + s[None] < end, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))  # finite: every tile holds a position before `end`
        p = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        sum_exp = sum_exp * decay + tl.sum(p, 1)
        values = tl.load(v_ptr + place, mask=inside, other=0.0)
        out = out * decay[:, None] + tl.dot(p.to(values.dtype), values, input_precision=precision)
        top = new_top

    head = (row * tl.num_programs(1) + kv_head) * J + j
    sum_or_one = tl.where(sum_exp > 0, sum_exp, 1.0)  # a split beyond the length gives zeros and weight 0
    out = out / sum_or_one[:, None]
    target = part_ptr + (head[:, None] * splits + split) * E + e[None]
    tl.store(target, out.to(part_ptr.dtype.element_ty), mask=used)
    tl.store(lse_ptr + head * splits + split, top + tl.log2(sum_or_one), mask=j < J)


@triton.jit(do_not_specialize=["splits"])
def _combine(
    part_ptr,
    lse_ptr,
    out_ptr,
    splits,
    padded_splits: tl.constexpr,
    E: tl.constexpr,
    padded_E: tl.constexpr,
):
    """Average the splits of one query head, weighted by exp2(lse - max lse)."""
    head = tl.program_id(0).to(tl.int64)
    x = tl.arange(0, padded_splits)
    e = tl.arange(0, padded_E)
    lse = tl.load(lse_ptr + head * splits + x, mask=x < splits, other=float("-inf"))
    top = tl.max(lse, 0)
    weights = tl.exp2(lse - tl.where(top > float("-inf"), top, 0.0))
    total = tl.sum(weights, 0)
    used = (x[:, None] < splits) & (e[None] < E)
    parts = tl.load(part_ptr + (head * splits + x[:, None]) * E + e[None], mask=used, other=0.0)
    out = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + head * E + e, out.to(out_ptr.dtype.element_ty), mask=e < E)
