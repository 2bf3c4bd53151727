"""Prefill: the keys and values of prompts, packed into one pass.

Counterpart of the first pass of `sample` in minimal.py.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention.choice import packed_attention
from grpo.engine.device.ops import CosSin, rotate
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.decode_step import KVCache


def prefill(model: Decoder, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the keys (rotated) and values of each prompt's tokens, [L, 2, K, S, E]. A prompt may have no tokens."""
    lengths = list(map(len, prompts))
    if not any(lengths):
        return list(KVCache.of(model, len(prompts), 0).kv_L2BKSE.unbind(2))
    attention = packed_attention(model, Layout.of(*((length, ()) for length in lengths)))
    layers: list[Tensor] = []

    def attend(
        layer: int,
        q_THE: Tensor,
        k_TKE: Tensor,
        v_TKE: Tensor,
        cos_sin: CosSin,
    ) -> Tensor:
        k_TKE = rotate(k_TKE, cos_sin)
        layers.append(torch.stack([k_TKE, v_TKE]))
        return attention.attend(rotate(q_THE, cos_sin), k_TKE, v_TKE)

    id_T = torch.tensor(list(chain(*prompts)), device=model.build.device)
    position_T = torch.tensor(list(chain(*map(range, lengths))), device=model.build.device)
    model(id_T, position_T, attend)
    kv_L2KTE = torch.stack(layers).transpose(2, 3)
    return list(kv_L2KTE.split(lengths, dim=3))
