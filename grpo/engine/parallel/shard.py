"""Tensor parallelism: several processes, called shards, hold one model together (1909.08053).

Each shard has a part of every large matrix. Projections come in pairs: the first one (q, k, v, gate, up) is split by
its outputs, the second one (o, down) by its inputs, and the outputs of the second are summed over the shards:

    y = Σᵢ f(x W₁ᵢᵀ) W₂ᵢᵀ          forward: `collect` sums y.   backward: `spread` sums dx.

Everything between two such pairs (residual stream, norms) is computed by every shard alike. Terms are added in the
order of the shards, in float32 at least, so the sum does not depend on how many rows there are, and is the same on
every shard bit for bit. An all-reduce promises neither; for two shards it sends as much.

LoRA follows: where outputs are split, A is whole, B is split, and dA is a sum of terms; where inputs are split, the
reverse. Of the vocabulary, a shard has the logits of its tokens; log Σ exp and the entropy come from four numbers per
shard and row (softmax.py). To draw, logits are gathered. A row's scale in 8 bits is that of the whole row.

Bit for bit as with one process: prompts, seeds, the start of A, dropout masks, the layout of all files; and all shards
have the same activations, tokens and log-probs as each other. Equal but for rounding: sums of terms (y, dx, dA, dB),
log Σ exp, the norm of the gradient. tests/grpo/test_shards.py has the bounds.

A process that has the model for itself is `ALONE`, whose methods return what they are given.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.engine.device.peers import Peers


@dataclass(frozen=True)
class Split:
    """How shards share a tensor: each has a part of the axis `dim`, along which the whole has this size.

    The size is divided by the number of shards, rounded up; beyond the end there are zeros.
    """

    dim: int
    size: int


class Sliceable(Protocol):
    """A tensor, or safetensors' slice of a file, of which no more is read than is asked for."""

    def __getitem__(self, index: slice | tuple[slice, ...], /) -> Tensor: ...


class Shard(Peers):
    """The place of this process among those that hold one model together."""

    def part(self, size: int) -> slice:
        """Return the part of this size that this shard has."""
        start = self.rank * self.width(size)
        stop = start + self.width(size)
        return slice(min(size, start), min(size, stop))

    def width(self, size: int) -> int:
        """Return the size of a part, including zeros beyond the end."""
        return -(-size // self.world)

    def take(self, whole: Sliceable, split: Split | None) -> Tensor:
        """Return the part of a tensor that this shard has. split: None if each shard has all of it."""
        if split is None:
            return whole[:]
        mine = self.part(split.size)
        part = whole[(slice(None),) * split.dim + (mine,)]
        missing = self.width(split.size) - part.shape[split.dim]
        axes_behind = part.dim() - 1 - split.dim
        return F.pad(part, (0, 0) * axes_behind + (0, missing))

    def join(self, part: Tensor, split: Split | None) -> Tensor:
        """Return the tensor whose parts the shards have. All shards must call it."""
        if split is None:
            return part
        parts = self.stack(part).unbind()
        return torch.cat(parts, dim=split.dim).narrow(split.dim, 0, split.size)

    def whole_shape(self, part: torch.Size, split: Split | None) -> torch.Size:
        """Return the shape of the tensor, given that of a part."""
        shape = list(part)
        if split is not None:
            shape[split.dim] = split.size
        return torch.Size(shape)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Return the sum over the shards, added in their order, in float32 at least, and rounded once."""
        total, *others = self.stack(tensor).unbind()
        total = total.to(torch.promote_types(tensor.dtype, torch.float32))
        for other in others:
            total = total + other
        return total.to(tensor.dtype)

    def spread(self, x: Tensor) -> Tensor:
        """Return x, the same on all shards, for products split by their outputs: their gradients of x are summed."""
        return _Spread.apply(x, self) if torch.is_grad_enabled() else x

    def collect(self, y: Tensor) -> Tensor:
        """Return the sum over the shards of products split by their inputs. Its gradient is that of each product."""
        return _Collect.apply(y, self)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.shard = shard
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.shard.add_up(gradient), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, shard):
        return shard.add_up(y)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


ALONE = Shard()
