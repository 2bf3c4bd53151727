"""The key-value cache: one contiguous slot per sequence, positions from 0, no padding and no pages.

The live sequences always occupy slots 0 ... B-1, so that attention reads plain views. When one ends, the last live slot
is copied into its place. That is one copy per finished sequence, about the memory traffic of one of its decode steps;
gathering the live slots by index would copy the complete cache at every step.
"""

from dataclasses import dataclass

import torch

from grpo.engine.model.decoder import Decoder

GROWTH = 32  # positions; the cache grows to a multiple of it


@dataclass
class KVCache:
    """Keys and values for `num_slots` sequences of `num_positions` tokens.

    Bytes: 2 · L · slots · K · S · E · bytes of the dtype (56 KiB per token for a 7B Qwen2 in bf16). On a GPU it is made
    for the longest sequence at once. On a CPU it starts with no position and grows, because products over all of its
    positions are the fastest.
    """

    kv_L2BKSE: torch.Tensor

    @classmethod
    def of(cls, model: Decoder, num_slots: int, num_positions: int) -> "KVCache":
        """Make a cache for the sequences of a model."""
        config, build = model.shape, model.build
        shape = config.num_layers, 2, num_slots, config.num_kv_heads, num_positions, config.head_dim
        kv_L2BKSE = torch.zeros(shape, dtype=build.dtype, device=build.device)
        return cls(kv_L2BKSE)

    @property
    def num_slots(self) -> int:
        return self.kv_L2BKSE.shape[2]

    @property
    def num_positions(self) -> int:
        return self.kv_L2BKSE.shape[4]

    def reserve(self, num_positions: int) -> None:
        """Make room for `num_positions`, and a little more: growing copies everything."""
        if num_positions <= self.num_positions:
            return
        wanted = num_positions + -num_positions % GROWTH
        L, _, B, K, S, E = self.kv_L2BKSE.shape
        more_L2BKSE = self.kv_L2BKSE.new_zeros(L, 2, B, K, wanted - S, E)
        self.kv_L2BKSE = torch.cat([self.kv_L2BKSE, more_L2BKSE], dim=4)

    def read(self, layer: int, num_rows: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views k_BKSE, v_BKSE of the first `num_rows` slots and `num_positions` positions."""
        k_BKSE, v_BKSE = self.kv_L2BKSE[layer, :, :num_rows, :, :num_positions]
        return k_BKSE, v_BKSE

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`, in all layers."""
        begun_L2BKSE = self.kv_L2BKSE[..., :length, :]
        begun_L2BKSE[:, :, target] = begun_L2BKSE[:, :, source]
