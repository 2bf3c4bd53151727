"""Weights in the model's dtype, trained by way of a float32 master.

bf16 keeps 8 bits of a number: an update below 0.4 % of a weight would be rounded away. So the optimizer changes a
float32 master, and `refresh()` copies it into the tensor that the products use.
"""

import torch
from torch import nn

from grpo.engine.device.ops import Packed, prepack


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 for a float64 model."""
    return torch.promote_types(dtype, torch.float32)


class MasterWeight(nn.Module):
    """A tensor of the model. `value`, in `dtype`, is what products read; `stored` is what files hold.

    frozen                       both are `cast`
    trained, in half precision   stored is the float32 `master`, and value its `cast` to `dtype`
    trained, in float32 or more  both are the master, and there is no cast
    """

    cast: torch.Tensor | None

    def __init__(self, *shape: int, trained: bool, dtype: torch.dtype, device: torch.device | str):
        super().__init__()
        self.master = nn.Parameter(torch.zeros(shape, dtype=master_dtype(dtype), device=device)) if trained else None
        needs_cast = not trained or dtype != master_dtype(dtype)
        self.register_buffer("cast", torch.zeros(shape, dtype=dtype, device=device) if needs_cast else None)
        self.prepacked: Packed | None = None  # see `prepack`

    @property
    def value(self) -> torch.Tensor:
        """Return the tensor to compute with, outside autograd."""
        if self.cast is not None:
            return self.cast
        assert self.master is not None
        return self.master.data

    @property
    def stored(self) -> torch.Tensor:
        """Return the tensor to write to when loading and to read from when saving; call `refresh` after writing."""
        return self.value if self.master is None else self.master.data

    def forward(self) -> torch.Tensor:
        """Return the tensor to compute with; its gradient goes to the master."""
        if self.master is None:
            return self.value
        if self.cast is None:
            return self.master
        return _StraightThrough.apply(self.master, self.cast)

    def prepack(self) -> Packed:
        """Return the value in the layout that products read fastest, and keep it until `refresh` or `release`."""
        if self.prepacked is None:
            self.prepacked = prepack(self.value)
        return self.prepacked

    def release(self) -> None:
        """Free the packed copy of a trained weight; that of a frozen one stays valid and is kept."""
        if self.master is not None:
            self.prepacked = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the cast up to date with a master that has changed, and forget the packed copy."""
        self.prepacked = None
        if self.master is not None and self.cast is not None:
            self.cast.copy_(self.master)


class MasterMatrix(MasterWeight):
    """The weight of projections [O, I], with `num_columns` more columns to its right: [W | tail]."""

    def __init__(self, num_outputs: int, num_inputs: int, num_columns: int = 0, **more):
        super().__init__(num_outputs, num_inputs + num_columns, **more)
        self.num_inputs = num_inputs

    def base_rows(self, rows: slice = slice(None)) -> torch.Tensor:
        """Return a view of W, to read and to write."""
        return self.stored[rows, : self.num_inputs]

    def tail_rows(self, rows: slice = slice(None)) -> torch.Tensor:
        """Return a view of the other columns, to read and to write."""
        return self.stored[rows, self.num_inputs :]

    def all_rows(self, rows: slice = slice(None)) -> torch.Tensor:
        """Return a view of [W | tail]."""
        return self.stored[rows]


class _StraightThrough(torch.autograd.Function):
    """The value of `cast` with the gradient of `master`, in the master's precision."""

    @staticmethod
    def forward(ctx, master, cast):
        ctx.dtype = master.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype), None
