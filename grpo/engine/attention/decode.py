"""Attention of one new token per cache slot: several kernels with one signature, and the code they share.

Counterpart of `Block.attention` in minimal.py for one query per sequence.

A kernel is made once per decode step, for the lengths of the slots; then every layer calls it.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.engine.attention import dense
from grpo.engine.attention.packed import additive_mask
from grpo.engine.device import ops
from grpo.engine.device.kernel_choice import on_cpu
from grpo.engine.device.ops import CosSin, rotate_into_cache

if TYPE_CHECKING:
    from grpo.engine.sampling.decode_step import KVCache

DecodeKernel = Callable[[Tensor, Tensor, Tensor], Tensor]  # q_BHE, k_BKSE, v_BKSE -> out_BHE
MANY_ROWS = 8  # from this number of rows on, dense.py is faster in bfloat16 on a CPU


class DecodeAttention:
    """Store keys and values of one new token per slot, then attend to all positions up to its own.

    positions_B: position of the new token in slots 0 ... B-1. num_positions: positions of each slot to read. kernel:
    made for these lengths.
    """

    def __init__(self, cache: "KVCache", positions_B: Tensor, num_positions: int, kernel: DecodeKernel):
        self.cache, self.kernel = cache, kernel
        self.positions_B, self.num_positions = positions_B, num_positions
        self.rows_B = torch.arange(len(positions_B), device=positions_B.device)

    @classmethod
    def over_all_positions(cls, cache: "KVCache", positions_B: Tensor, name: str) -> "DecodeAttention":
        """Attend with one of DECODE_KERNELS. It reads all positions of the cache, so the lengths stay on the device."""
        kernel = DECODE_KERNELS[name](positions_B + 1, cache.num_positions)
        return cls(cache, positions_B, cache.num_positions, kernel)

    @classmethod
    def over_used_positions(cls, cache: "KVCache", positions_B: Tensor, longest: int) -> "DecodeAttention":
        """Attend without CUDA graphs, and read only the positions in use, whose number the host knows.

        longest: upper bound of the positions in use.
        """
        kv_L2BKSE = cache.kv_L2BKSE
        kernels = on_cpu(kv_L2BKSE)
        if kernels and kernels.attends(kv_L2BKSE.shape[-1]):
            attend_to = partial(kernels.decode_attention, length_B=positions_B + 1)
            return cls(cache, positions_B, longest, attend_to)
        is_dense = dense.usable(kv_L2BKSE) and len(positions_B) >= MANY_ROWS
        num_positions = cache.num_positions if is_dense else longest
        reachable_BS = _reachable(positions_B + 1, num_positions)
        mask_BX1S = additive_mask(reachable_BS[:, None], kv_L2BKSE.dtype)
        attend: Callable[..., Tensor] = F.scaled_dot_product_attention
        if is_dense:
            num_kv_heads = kv_L2BKSE.shape[3]
            mask_BX1S = mask_BX1S.repeat(1, num_kv_heads, 1, 1)
            attend = dense.decode
        return cls(cache, positions_B, num_positions, _grouped(attend, mask_BX1S))

    def __call__(self, layer: int, q_BHE: Tensor, k_BKE: Tensor, v_BKE: Tensor, cos_sin: CosSin) -> Tensor:
        k_BKSE, v_BKSE = self.cache.read(layer, len(q_BHE), self.num_positions)
        q_BHE = rotate_into_cache(q_BHE, k_BKE, v_BKE, cos_sin, k_BKSE, v_BKSE, self.rows_B, self.positions_B)
        return self.kernel(q_BHE, k_BKSE, v_BKSE)


def _grouped(attend: Callable[..., Tensor], mask_BX1S: Tensor) -> DecodeKernel:
    """Make a kernel that puts a group's queries on the query axis, so each key is read once. mask_BX1S: X is 1 or K."""

    def kernel(q_BHE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        num_kv_heads = k_BKSE.shape[1]
        q_BKJE = q_BHE.unflatten(1, (num_kv_heads, -1))
        out_BKJE = attend(q_BKJE, k_BKSE, v_BKSE, mask_BX1S)
        return out_BKJE.flatten(1, 2)

    return kernel


def triton(lengths_B: Tensor, num_positions: int) -> DecodeKernel:
    """Use the kernel of kernels/decode_attention.py."""
    return partial(ops.decode_attention, lengths_B=lengths_B, num_positions=num_positions)


def flash_attn(lengths_B: Tensor, num_positions: int) -> DecodeKernel:
    """Use the flash-attn package. ImportError if it is not installed."""
    from flash_attn import flash_attn_with_kvcache

    lengths = lengths_B.to(torch.int32)

    def attend(q_BHE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        q_B1HE = q_BHE[:, None]
        k_BSKE = k_BKSE.transpose(1, 2)
        v_BSKE = v_BKSE.transpose(1, 2)
        out_B1HE = flash_attn_with_kvcache(q_B1HE, k_BSKE, v_BSKE, cache_seqlens=lengths)
        return out_B1HE[:, 0]

    return attend


def sdpa(lengths_B: Tensor, num_positions: int) -> DecodeKernel:
    """Use torch's scaled_dot_product_attention with a mask."""
    reachable_BS = _reachable(lengths_B, num_positions)
    return _grouped(F.scaled_dot_product_attention, reachable_BS[:, None, None])


def _reachable(lengths_B: Tensor, num_positions: int) -> Tensor:
    """Return [B, S]: whether the slot's token sees the position."""
    return torch.arange(num_positions, device=lengths_B.device) < lengths_B[:, None]


# In order of preference: whoever has installed flash-attn wants it.
DECODE_KERNELS: dict[str, Callable[[Tensor, int], DecodeKernel]] = {
    "flash-attn": flash_attn,
    "triton": triton,
    "sdpa": sdpa,
}
