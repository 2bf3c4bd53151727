"""A decoder of which each shard computes a part: its heads, its columns of the MLP, its tokens of the vocabulary.

The shards' terms are summed by hooks around attention and MLP; the layers themselves know nothing of it. All weights
are frozen, and adapters are trained.
"""

from dataclasses import replace
from math import gcd

import torch.nn.functional as F
from torch import Tensor

from grpo.base.errors import PREFLIGHT, UserError
from grpo.engine.device.ops import RowSettings
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import OwnDecoder
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weight import QuantisedWeight
from grpo.engine.parallel.shard import Split
from grpo.engine.parallel.softmax import split_log_softmax_rows


def own_shape(config: ModelConfig, num_shards: int) -> ModelConfig:
    """Return the shape of what each shard computes; UserError (exit 3) if that many cannot share the model."""
    shared = {name: getattr(config, name) for name in ("num_heads", "num_kv_heads", "intermediate_size")}
    if any(size % num_shards for size in shared.values()):
        fitting = [number for number in range(1, min(shared.values()) + 1) if not gcd(*shared.values()) % number]
        raise UserError(
            f"tensor_parallel_size is {num_shards}, and the model cannot be cut into that many parts",
            "it must divide " + ", ".join(f"{name} {size}" for name, size in shared.items()),
            f"set tensor_parallel_size to one of {', '.join(map(str, fitting))}",
            PREFLIGHT,
        )
    sizes = {name: size // num_shards for name, size in shared.items()}
    return replace(config, **sizes, vocab_size=-(-config.vocab_size // num_shards))


class SharedDecoder(OwnDecoder):
    """The part of a decoder that this process holds, one of `build.shard.world`. Every shard makes the same calls."""

    def __init__(self, config: ModelConfig, build: Build):
        assert not build.train_weights  # the configuration refuses it
        shard = build.shard
        super().__init__(own_shape(config, shard.world), build)
        self.config = config

        def spread(_, inputs: tuple) -> tuple:
            x_TD, *others = inputs
            return shard.spread(x_TD), *others

        def collect(_, __, out_TD: Tensor) -> Tensor:
            return shard.collect(out_TD)

        def spread_to_head(_, __, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            normed_TD, sum_TD = outputs
            return shard.spread(normed_TD), sum_TD

        for block in self.blocks:
            for module in (block.attention, block.mlp):
                module.register_forward_pre_hook(spread)
                module.register_forward_hook(collect)
            for linear in (block.attention.o, block.mlp.down):
                linear.input_shard = shard
                if isinstance(linear.weight, QuantisedWeight):
                    linear.weight.input_peers = shard
        self.norm.register_forward_hook(spread_to_head)

    def embed(self, ids_T: Tensor) -> Tensor:
        """Look up the embeddings of tokens: those of this shard's tokens, and 0 for the others; all shards add up."""
        shard, size = self.build.shard, self.shape.vocab_size
        place_T = ids_T - shard.part(self.config.vocab_size).start
        is_here_T = (place_T >= 0) & (place_T < size)
        nearest_T = place_T.clamp(0, size - 1)
        found_TD = F.embedding(nearest_T, self.embedding())
        own_TD = found_TD.where(is_here_T[:, None], 0.0)
        return shard.collect(own_TD)

    def logits(self, hidden_XD, head_VD) -> Tensor:
        """Return the logits of all tokens, of which each shard computes its own."""
        own_XV = super().logits(hidden_XD, head_VD)
        return self.build.shard.join(own_XV, Split(1, self.config.vocab_size))

    def log_softmax_rows(self, logits_XV: Tensor, *settings: *RowSettings) -> tuple[Tensor, Tensor, Tensor | None]:
        """Normalise over all tokens. logits_XV, and the result's: of this shard's tokens."""
        return split_log_softmax_rows(self.build.shard, self.config.vocab_size, logits_XV, *settings)
