"""Which part of each tensor a shard holds: of the tensors of a checkpoint by their names, and of trained parameters."""

import torch
from torch import nn

from grpo.engine.device.shard import Split
from grpo.engine.model.build import ALL_PROJECTIONS, SPLIT_BY_INPUTS
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.lora import Linear
from grpo.engine.model.weight import Int8Rows

SAME = "same"  # every shard has the parameter, and its gradient
PARTIAL = "partial"  # every shard has the parameter, and a term of its gradient
Share = Split | str


def split_of(model: Decoder, name: str, part: torch.Tensor | Int8Rows) -> Split | None:
    """Return how the shards share a tensor of a checkpoint; None if each has all of it.

    name: Hugging Face's. part: what this shard has of it, or a tensor of that shape.
    """
    num_shards = model.build.shard.world
    projection = name.split(".")[-2]
    if num_shards == 1:
        return None
    if projection in ("embed_tokens", "lm_head"):
        return Split(0, (model.config.vocab_size,))
    if projection not in ALL_PROJECTIONS:
        return None
    dim = 1 if projection in SPLIT_BY_INPUTS else 0
    if dim == len(part.shape):
        return None  # a bias of projections that are split by their inputs
    size = part.shape[dim] * num_shards
    return Split(dim, (size,))


def splits_of_adapter(split: Split | None) -> tuple[Split | None, Split | None]:
    """Return how the shards share A and B of a projection whose weight they share in this way."""
    if split is None:
        return None, None
    return (None, split) if split.dim == 0 else (split, None)


def shares_of(model: Decoder) -> dict[nn.Parameter, Share]:
    """Return how the shards share each trained parameter."""
    shares: dict[nn.Parameter, Share] = dict.fromkeys(model.parameters(), SAME)
    if model.build.shard.world == 1:
        return shares
    by_token = Split(0, (model.config.vocab_size,))
    shares |= dict.fromkeys(model.embedding.parameters(), by_token)
    if model.untied_head:
        shares |= dict.fromkeys(model.untied_head.parameters(), by_token)
    for block in model.blocks:  # every shard norms its own heads
        for norm in (block.attention.q_norm, block.attention.k_norm):
            if norm is not None:
                shares |= dict.fromkeys(norm.parameters(), PARTIAL)
    for linear in model.linears():
        for name, parameter in linear.named_parameters():
            shares[parameter] = _share(linear, name, parameter, model.build.shard.world)
    return shares


def _share(linear: Linear, name: str, parameter: nn.Parameter, num_shards: int) -> Share:
    """Return how the shards share a parameter of projections that are split by their inputs, or by their outputs.

    A multiplies the inputs, B makes outputs; weight and bias have the outputs of all projections below one another.
    """
    kind = name.partition(".")[0]
    if linear.input_shard.world > 1:
        if kind not in ("weight", "A"):
            return PARTIAL
        return Split(1, (parameter.shape[1] * num_shards,))
    if kind == "A":
        return PARTIAL
    if kind == "B":
        return Split(0, (len(parameter) * num_shards,))
    sizes = [rows.stop - rows.start for rows in linear.out_slices.values()]
    return Split(0, tuple(size * num_shards for size in sizes))


def whole_parameters(model: Decoder) -> list[torch.Tensor]:
    """Return the trained parameters of all shards together, on the meta device: only their sizes matter."""
    found = []
    for parameter, share in shares_of(model).items():
        split = share if isinstance(share, Split) else None
        shape = model.build.shard.whole_shape(parameter.shape, split)
        found.append(torch.empty(shape, dtype=parameter.dtype, device="meta"))
    return found
