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

import torch
from torch import Tensor

from grpo.engine.device.peers import Peers


@dataclass(frozen=True)
class Split:
    """How shards share a tensor: along `dim` lie blocks of these sizes, and each shard has its part of every block.

    Each block is divided by the number of shards, rounded up; beyond the end of a block, there are zeros.
    """

    dim: int
    blocks: tuple[int, ...]


class Shard(Peers):
    """The place of this process among those that hold one model together."""

    def part(self, size: int) -> slice:
        """Return the part of a block of this size that this shard has."""
        start = self.rank * self.width(size)
        stop = start + self.width(size)
        return slice(min(size, start), min(size, stop))

    def width(self, size: int) -> int:
        """Return the size of a part of a block of this size, including zeros beyond its end."""
        return -(-size // self.world)

    def take(self, whole: Tensor, split: Split | None) -> Tensor:
        """Return the part of a tensor that this shard has. split: None if each shard has all of it."""
        if split is None or self.world == 1:
            return whole
        parts = []
        for block in whole.split(split.blocks, dim=split.dim):
            size = block.shape[split.dim]
            mine = self.part(size)
            own_size = mine.stop - mine.start
            part = block.narrow(split.dim, mine.start, own_size)
            missing = [*part.shape]
            missing[split.dim] = self.width(size) - own_size
            parts += [part, part.new_zeros(missing)]
        return torch.cat(parts, dim=split.dim)

    def join(self, part: Tensor, split: Split | None) -> Tensor:
        """Return the tensor whose parts the shards have. All shards must call it."""
        if split is None or self.world == 1:
            return part
        widths = [self.width(size) for size in split.blocks]
        of_shards = [one.split(widths, dim=split.dim) for one in self.stack(part).unbind()]
        blocks = []
        for size, *parts in zip(split.blocks, *of_shards, strict=True):
            block = torch.cat(parts, dim=split.dim)
            blocks.append(block.narrow(split.dim, 0, size))
        return torch.cat(blocks, split.dim)

    def whole_shape(self, part: torch.Size, split: Split | None) -> torch.Size:
        """Return the shape of the tensor, given that of a part."""
        shape = list(part)
        if split is not None:
            shape[split.dim] = sum(split.blocks)
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
        return _Spread.apply(x, self) if self.world > 1 and torch.is_grad_enabled() else x

    def collect(self, y: Tensor) -> Tensor:
        """Return the sum over the shards of products split by their inputs. Its gradient is that of each product."""
        return _Collect.apply(y, self) if self.world > 1 else y


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
