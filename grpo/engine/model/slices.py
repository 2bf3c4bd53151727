"""Which part of each tensor a shard holds: of the tensors of a checkpoint by their names, and of trained parameters."""

import torch
from torch import nn

from grpo.engine.device.shard import Split
from grpo.engine.model.build import ALL_PROJECTIONS, SPLIT_BY_INPUTS
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.int8_weight import Int8Rows
from grpo.engine.model.lora import Linear

SAME = "same"  # every shard has the parameter, and its gradient
PARTIAL = "partial"  # every shard has the parameter, and a term of its gradient
Share = Split | str


def split_of(model: Decoder, name: str, part: torch.Tensor | Int8Rows) -> Split | None:
    """Return how the shards share a tensor of a checkpoint; None if each has all of it.

    name: Hugging Face's. part: what this shard has of it, or a tensor of that shape.
    """
    num_shards, projection = model.build.shard.world, name.split(".")[-2]
    if num_shards > 1 and projection in ("embed_tokens", "lm_head"):
        return Split(0, (model.config.vocab_size,))
    if num_shards == 1 or projection not in ALL_PROJECTIONS:
        return None
    dim = int(projection in SPLIT_BY_INPUTS)
    return Split(dim, (part.shape[dim] * num_shards,)) if dim < len(part.shape) else None


def shares_of(model: Decoder) -> dict[nn.Parameter, Share]:
    """Return how the shards share each trained parameter."""
    shares: dict[nn.Parameter, Share] = dict.fromkeys(model.parameters(), SAME)
    if model.build.shard.world == 1:
        return shares
    for weight in filter(None, (model.embedding, model.untied_head)):
        shares |= dict.fromkeys(weight.parameters(), Split(0, (model.config.vocab_size,)))
    for block in model.blocks:
        for norm in (block.attention.q_norm, block.attention.k_norm):  # every shard norms its own heads
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
    if linear.inputs.world > 1:
        is_split = kind in ("weight", "A")
        return Split(1, (parameter.shape[1] * num_shards,)) if is_split else PARTIAL
    if kind == "A":
        return PARTIAL
    sizes = [len(parameter)] if kind == "B" else [rows.stop - rows.start for rows in linear.out_slices.values()]
    return Split(0, tuple(size * num_shards for size in sizes))


def whole_parameters(model: Decoder) -> list[torch.Tensor]:
    """Return the trained parameters of all shards together, on the meta device: only their sizes matter."""
    shard, found = model.build.shard, []
    for parameter, share in shares_of(model).items():
        shape = shard.whole_shape(parameter.shape, share if isinstance(share, Split) else None)
        found.append(torch.empty(shape, dtype=parameter.dtype, device="meta"))
    return found
