"""Frozen matrices in 8 bits, W = scale q: whole numbers from -127 to 127, and a float32 scale per row (2208.07339).

Only storage changes, not arithmetic: a product first writes [scale q | s B] in the model's dtype, and then multiplies
as in Eq. 15. So sampler and trainer multiply by the same numbers, and the adapter's small change is added inside the
product, where sums are float32. One scratch tensor, as large as the largest of these matrices, serves all of them.
"""

from dataclasses import dataclass

import torch
from torch import nn

from grpo.engine.device import ops
from grpo.engine.device.ops import Packed
from grpo.engine.device.shard import ALONE, Shard

STEPS = 127  # from zero to a row's largest value


@dataclass(frozen=True)
class Int8Rows:
    """Rows of an Int8Weight, as views: q [O, I], scale [O] and the columns beside W, tail [O, R].

    scratch: memory to dequantise into; None for fresh memory.
    input_shard: this process among those that have columns of W, under the same scale.
    """

    q_OI: torch.Tensor
    scale_O: torch.Tensor
    tail_OR: torch.Tensor
    scratch: torch.Tensor | None = None
    input_shard: Shard = ALONE

    @property
    def shape(self) -> torch.Size:
        """Return the shape of W alone."""
        return self.q_OI.shape

    def numel(self) -> int:
        return self.q_OI.numel()

    @torch.no_grad()
    def copy_(self, weight_OI: torch.Tensor) -> None:
        """Set W to this matrix, rounded to the nearest steps of each row. All shards of its columns call this."""
        exact_OI = weight_OI.to(self.scale_O.device, torch.float32)
        largest_O = exact_OI.abs().amax(dim=1)
        scale_O = self.input_shard.stack(largest_O).amax(dim=0) / STEPS
        self.scale_O.copy_(torch.where(scale_O > 0, scale_O, 1.0))
        self.q_OI.copy_((exact_OI / self.scale_O[:, None]).round_())

    def dequantise(self) -> torch.Tensor:
        """Return [W | tail] in the model's dtype. It is valid until the next call of any weight of the model."""
        return ops.dequantise(self.q_OI, self.scale_O, self.tail_OR, self.scratch)


class Int8Weight(nn.Module):
    """A frozen weight [W | tail] of I + R columns; the tail is in `dtype`, and may have no columns.

    Its methods are those of a MasterMatrix. input_shard: as in Int8Rows.
    """

    q: torch.Tensor
    scale: torch.Tensor
    tail: torch.Tensor

    def __init__(
        self,
        num_rows: int,
        num_inputs: int,
        dtype: torch.dtype,
        device: torch.device | str,
        num_columns: int = 0,
        input_shard: Shard = ALONE,
    ):
        super().__init__()
        self.input_shard = input_shard
        self.register_buffer("q", torch.zeros(num_rows, num_inputs, dtype=torch.int8, device=device))
        self.register_buffer("scale", torch.ones(num_rows, device=device))
        self.register_buffer("tail", torch.zeros(num_rows, num_columns, dtype=dtype, device=device))
        self.scratch: torch.Tensor | None = None

    def base_rows(self, rows: slice = slice(None)) -> Int8Rows:
        """Return views of W alone."""
        return Int8Rows(self.q[rows], self.scale[rows], self.tail[rows, :0], self.scratch, self.input_shard)

    def tail_rows(self, rows: slice = slice(None)) -> torch.Tensor:
        """Return a view of the other columns, to read and to write."""
        return self.tail[rows]

    def all_rows(self, rows: slice = slice(None)) -> Int8Rows:
        """Return views of [W | tail]."""
        return Int8Rows(self.q[rows], self.scale[rows], self.tail[rows], self.scratch, self.input_shard)

    def forward(self) -> Int8Rows:
        return self.all_rows()

    def prepack(self) -> Int8Rows:
        """Return the weight as it is: a packed copy would take the memory that 8 bits save."""
        return self.all_rows()

    def release(self) -> None:
        """Do nothing: there is no packed copy."""


def share_scratch(model: nn.Module) -> None:
    """Give all Int8Weights of a model one tensor to dequantise into, as large as the largest needs."""
    weights = [module for module in model.modules() if isinstance(module, Int8Weight)]
    if weights:
        size = max(weight.q.numel() + weight.tail.numel() for weight in weights)
        scratch = torch.empty(size, dtype=weights[0].tail.dtype, device=weights[0].tail.device)
        model.register_buffer("scratch", scratch)
        for weight in weights:
            weight.scratch = scratch


def dense(weight: torch.Tensor | Int8Rows) -> torch.Tensor:
    """Return a weight as a tensor to use at once: see `Int8Rows.dequantise`."""
    return weight.dequantise() if isinstance(weight, Int8Rows) else weight


def frozen_linear(x_TX: torch.Tensor, weight_OX: Packed | Int8Rows, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x Wᵀ + b, outside autograd; the weight may be prepacked, or in 8 bits."""
    if isinstance(weight_OX, Int8Rows):
        w = weight_OX
        return ops.int8_linear(x_TX, w.q_OI, w.scale_O, w.tail_OR, bias_O, w.scratch)
    return ops.linear(x_TX, weight_OX, bias_O)


class Int8Product(torch.autograd.Function):
    """`frozen_linear` with a weight in 8 bits, which the gradient dx = g W dequantises again."""

    @staticmethod
    def forward(ctx, x_TI, weight, bias_O):
        ctx.weight = weight
        return frozen_linear(x_TI, weight, bias_O)

    @staticmethod
    def backward(ctx, g_TO):
        return ops.linear(g_TO, ctx.weight.dequantise().T), None, None
