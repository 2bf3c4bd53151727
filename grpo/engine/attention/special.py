"""Attention with what some families add to it: a scale, a window, a cap on the scores, sinks.

    out = softmax([c tanh(scale q kᵀ / c) | sink]) [v | 0]   over the keys of the window

A cap is gemma2's, a sink is gpt_oss's. Layers that have nothing but a scale take the usual kernels. Only models of
transformers have such layers, and they say so each time they compute one (`Special`).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.attention.packed import MicroBatchAttention, PackedAttention

UNSEEN = 1 << 30  # the position of padding: it is after every token


@dataclass
class Special:
    """How the layer that is being computed scores its keys.

    window: how many tokens a token sees, itself included. cap: the largest score. sink_H: a score without a value.
    """

    scale: float = 1.0
    window: int | None = None
    cap: float | None = None
    sink_H: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.window is None and self.cap is None and self.sink_H is None

    def attend(self, q_NSHE: Tensor, k_NXKE: Tensor, v_NXKE: Tensor, at_NS: Tensor, key_NX: Tensor) -> Tensor:
        """Attend with queries and keys at these positions. Slow twin: transformers' eager attention."""
        distance_NSX = at_NS[:, :, None] - key_NX[:, None]
        sees_NSX = distance_NSX >= 0
        if self.window is not None:
            sees_NSX &= distance_NSX < self.window
        mask_NSX = torch.zeros_like(distance_NSX, dtype=q_NSHE.dtype)
        mask_NSX.masked_fill_(~sees_NSX, float("-inf"))
        mask_N1SX = mask_NSX[:, None]
        q_NHSE = q_NSHE.transpose(1, 2)
        k_NKXE = k_NXKE.transpose(1, 2)
        v_NKXE = v_NXKE.transpose(1, 2)
        if self.cap is None and self.sink_H is None:
            out_NHSE = F.scaled_dot_product_attention(
                q_NHSE,
                k_NKXE,
                v_NKXE,
                mask_N1SX,
                scale=self.scale,
                enable_gqa=True,
            )
        else:
            out_NHSE = self._by_scores(q_NHSE, k_NKXE, v_NKXE, mask_N1SX)
        return out_NHSE.transpose(1, 2)

    def _by_scores(self, q_NHSE: Tensor, k_NKXE: Tensor, v_NKXE: Tensor, mask_N1SX: Tensor) -> Tensor:
        per_key = q_NHSE.shape[1] // k_NKXE.shape[1]
        k_NHXE = k_NKXE.repeat_interleave(per_key, dim=1)
        v_NHXE = v_NKXE.repeat_interleave(per_key, dim=1)
        score_NHSX = q_NHSE @ k_NHXE.mT
        score_NHSX = score_NHSX * self.scale
        if self.cap is not None:
            score_NHSX = self.cap * torch.tanh(score_NHSX / self.cap)
        score_NHSX = score_NHSX + mask_N1SX
        if self.sink_H is not None:
            sink_1H11 = self.sink_H.to(score_NHSX.dtype)[None, :, None, None]
            sink_NHS1 = sink_1H11.expand(*score_NHSX.shape[:3], 1)
            score_NHSX = torch.cat([score_NHSX, sink_NHS1], dim=-1)
        exact = torch.promote_types(score_NHSX.dtype, torch.float32)
        weight_NHSX = score_NHSX.softmax(dim=-1, dtype=exact)
        weight_NHSX = weight_NHSX.to(v_NHXE.dtype)
        num_keys = k_NHXE.shape[2]
        return weight_NHSX[..., :num_keys] @ v_NHXE


class SpecialPackedAttention(PackedAttention):
    """Attention inside a micro-batch, of layers as `special` says. plain: for those with nothing special."""

    def __init__(
        self,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device | str,
        plain: MicroBatchAttention,
        special: Special,
    ):
        super().__init__(layout, dtype, device)
        self.plain, self.special = plain, special
        first_N1 = self.length_N[:, None]
        self.at_NS = first_N1 + torch.arange(self.completion_width, device=device)
        self.prompt_1X = torch.arange(self.prompt_width, device=device)[None]
        before_NX = torch.where(self.prompt_1X < first_N1, self.prompt_1X, UNSEEN)
        self.key_NX = torch.cat([before_NX, self.at_NS], dim=1)

    def attend(self, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        if self.special.is_plain:
            return self.plain.attend(q_THE, k_TKE, v_TKE)
        return super().attend(q_THE, k_TKE, v_TKE)

    def attend_padded(self, q_NSHE: Tensor, k_NXKE: Tensor, v_NXKE: Tensor, mask: Tensor | None) -> Tensor:
        positions = (self.prompt_1X, self.prompt_1X) if mask is None else (self.at_NS, self.key_NX)
        return self.special.attend(q_NSHE, k_NXKE, v_NXKE, *positions)


def decode(attention: DecodeAttention, layer: int, q_BHE: Tensor, k_BKE: Tensor, v_BKE: Tensor, special: Special):
    """Store keys and values of one new token per slot, and attend as `special` says: `DecodeAttention` otherwise."""
    k_BKSE, v_BKSE = attention.cache.read(layer, len(q_BHE), attention.num_positions)
    k_BKSE[attention.rows_B, :, attention.positions_B] = k_BKE
    v_BKSE[attention.rows_B, :, attention.positions_B] = v_BKE
    at_B1 = attention.positions_B[:, None]
    key_1S = torch.arange(attention.num_positions, device=q_BHE.device)[None]
    return special.attend(q_BHE[:, None], k_BKSE.transpose(1, 2), v_BKSE.transpose(1, 2), at_B1, key_1S)[:, 0]
