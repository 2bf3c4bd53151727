"""Attention of layers with more than a scale: a mask of their own, a cap on the scores (gemma2), sinks (gpt_oss).

Only models of transformers have such layers, and they say so each time they compute one (`Special`). All others take
the usual kernels, and so do windows that are wider than what there is to see.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.attention.packed import MicroBatchAttention, PackedAttention, additive_mask


class Special:
    """How the layer that is being computed attends, as transformers says it.

    sees: (number of the sequence, of the head, position of the query, of the key) to whether the query sees the key.
    function: the family's own, if it has cap or sinks: (q_NHSE, k_NKXE, v_NKXE, mask_N1SX) to (out_NSHE, its weights).
    """

    sees: Callable[[int, int, Tensor, Tensor], Tensor]
    function: Callable[..., tuple[Tensor, object]] | None

    def is_plain(self, longest: int) -> bool:
        """Return whether the usual kernels compute it, for sequences of so many tokens at most."""
        first, last = torch.tensor([0, longest - 1])
        return self.function is None and bool(self.sees(0, 0, last, first))

    def attend(self, q_NHSE: Tensor, k_NKXE: Tensor, v_NKXE: Tensor, at_NS: Tensor, key_NX: Tensor) -> Tensor:
        """Attend with queries and keys at these positions, to [N, S, H, E]."""
        sees_NSX = self.sees(0, 0, at_NS[:, :, None], key_NX[:, None])
        mask_N1SX = additive_mask(sees_NSX, q_NHSE.dtype)
        if self.function is None:
            out_NHSE = F.scaled_dot_product_attention(q_NHSE, k_NKXE, v_NKXE, mask_N1SX, enable_gqa=True)
            return out_NHSE.transpose(1, 2)
        out_NSHE, _ = self.function(q_NHSE, k_NKXE, v_NKXE, mask_N1SX)
        return out_NSHE

    def decoding(self, usual: DecodeAttention) -> DecodeAttention:
        """Return the attention of one new token per slot in this layer, given that of other layers."""
        position_B = usual.positions_B
        key_1S = torch.arange(usual.num_positions, device=position_B.device)[None]

        def kernel(q_BHE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
            return self.attend(q_BHE[:, :, None], k_BKSE, v_BKSE, position_B[:, None], key_1S)[:, 0]

        return DecodeAttention(usual.cache, position_B, usual.num_positions, kernel)


class SpecialPackedAttention(PackedAttention):
    """Attention inside a micro-batch, of layers as `special` says. plain: for those where nothing is special."""

    def __init__(
        self,
        plain: MicroBatchAttention,
        special: Special,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device | str,
    ):
        super().__init__(layout, dtype, device)
        self.plain = plain
        self.special = special

    def attend(self, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        if self.special.is_plain(self.key_NX.shape[1]):
            return self.plain.attend(q_THE, k_TKE, v_TKE)
        return super().attend(q_THE, k_TKE, v_TKE)

    def attend_padded(self, q_NSHE: Tensor, k_NXKE: Tensor, v_NXKE: Tensor, mask: Tensor | None) -> Tensor:
        positions = self.own_NS, self.key_NX
        if mask is None:
            positions = self.prompt_1X, self.prompt_1X
        q_NHSE = q_NSHE.transpose(1, 2)
        k_NKXE = k_NXKE.transpose(1, 2)
        v_NKXE = v_NXKE.transpose(1, 2)
        return self.special.attend(q_NHSE, k_NKXE, v_NKXE, *positions)
