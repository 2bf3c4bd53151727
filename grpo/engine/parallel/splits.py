"""Which part of each tensor a shard holds: of the tensors of a checkpoint by their names, and of trained parameters."""

import torch
from torch import nn

from grpo.engine.device.quantised import QuantisedRows
from grpo.engine.model.build import ALL_PROJECTIONS
from grpo.engine.model.decoder import Decoder
from grpo.engine.parallel.shard import Split

SPLIT_BY_INPUTS = ("o_proj", "down_proj")  # the shards share the inputs of these, and the outputs of the others


def split_of(model: Decoder, name: str, part: torch.Tensor | QuantisedRows) -> Split | None:
    """Return how the shards share a tensor of a checkpoint; None if each has all of it.

    name: Hugging Face's. part: what this shard has of it, or a tensor of that shape.
    """
    num_shards = model.build.shard.world
    projection = name.split(".")[-2]
    if num_shards == 1:
        return None
    if projection in ("embed_tokens", "lm_head"):
        return Split(0, model.config.vocab_size)
    if projection not in ALL_PROJECTIONS:
        return None
    dim = 1 if projection in SPLIT_BY_INPUTS else 0
    if dim == len(part.shape):
        return None  # a bias of projections that are split by their inputs
    return Split(dim, part.shape[dim] * num_shards)


def splits_of_adapter(split: Split | None) -> tuple[Split | None, Split | None]:
    """Return how the shards share A and B of a projection whose weight they share in this way."""
    if split is None:
        return None, None
    return (None, split) if split.dim == 0 else (split, None)


def trained_splits(model: Decoder) -> dict[nn.Parameter, Split]:
    """Return how the shards share trained parameters. One that is not there is on every shard, with a term of its
    gradient: A multiplies the inputs, and B makes the outputs; the shards share one or the other."""
    num_shards = model.build.shard.world
    splits: dict[nn.Parameter, Split] = {}
    if num_shards == 1:
        return splits
    for linear in model.lora_linears():
        assert linear.A is not None and linear.A.master is not None
        A = linear.A.master
        if linear.input_shard.world > 1:
            splits[A] = Split(1, A.shape[1] * num_shards)
            continue
        for B in linear.B.values():
            splits[B] = Split(0, len(B) * num_shards)
    return splits


def trained_bytes(model: Decoder) -> int:
    """Return how many bytes the trained parameters of all shards have together."""
    splits, shard = trained_splits(model), model.build.shard
    return sum(shard.whole_shape(p.shape, splits.get(p)).numel() * p.itemsize for p in model.parameters())
