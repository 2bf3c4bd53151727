"""Keys and values of prompts, all of them packed into one pass."""

from collections.abc import Sequence

import torch

from grpo.algorithm.schema import Layout
from grpo.engine.attention.packed import MicroBatchAttention
from grpo.engine.attention.select import packed_attention
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.cache import KVCache


def prefill(model: Decoder, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the keys (rotated) and values of each prompt's tokens, [L, 2, K, S, E]. A prompt may have no tokens."""
    lengths = [len(ids) for ids in prompts]
    layout = Layout.of(*((length, ()) for length in lengths))
    if not layout.num_tokens:
        nothing_L2BKSE = KVCache.of(model, 1, 0).kv_L2BKSE
        return [nothing_L2BKSE[:, :, 0]] * len(prompts)
    ids: list[int] = []
    positions: list[int] = []
    for prompt, length in zip(prompts, lengths, strict=True):
        ids += prompt
        positions += range(length)
    id_T = torch.tensor(ids, device=model.build.device)
    position_T = torch.tensor(positions, device=model.build.device)
    record = RecordingAttention(packed_attention(model, layout))
    model(id_T, position_T, record)
    return record.split(lengths)


class RecordingAttention(MicroBatchAttention):
    """Attention that also keeps the keys (rotated) and values of each layer."""

    def __init__(self, attention: MicroBatchAttention):
        self.attention = attention
        self.layers: list[torch.Tensor] = []

    def attend(self, q_THE: torch.Tensor, k_TKE: torch.Tensor, v_TKE: torch.Tensor) -> torch.Tensor:
        kv_2TKE = torch.stack([k_TKE, v_TKE])
        self.layers.append(kv_2TKE)
        return self.attention.attend(q_THE, k_TKE, v_TKE)

    def split(self, lengths: list[int]) -> list[torch.Tensor]:
        """Return the keys and values of each prompt, [L, 2, K, S, E]."""
        kv_L2TKE = torch.stack(self.layers)
        kv_L2KTE = kv_L2TKE.transpose(2, 3)
        return list(kv_L2KTE.split(lengths, dim=3))
