"""The weights of a model: in its dtype, trained by way of a float32 master; frozen in few bits.

bf16 keeps 8 bits of a number: an update below 0.4 % of a weight would be rounded away. So the optimizer changes a
float32 master, and `refresh()` copies it into the tensor that the products use.

In few bits (device/quantised.py) a product first writes [W | s B] in the model's dtype, and then multiplies as in
Eq. 15. So sampler and trainer multiply by the same numbers, and the adapter's small change is added inside the product,
where sums are float32. One scratch tensor, as large as the largest of these matrices, serves all of them.
"""

import torch
from torch import Tensor, nn

from grpo.engine.device.ops import Prepacked, prepack
from grpo.engine.device.peers import Peers
from grpo.engine.device.quantised import QuantisedRows
from grpo.engine.model.build import Build

ALL = slice(None)


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 for a float64 model."""
    return torch.promote_types(dtype, torch.float32)


class Weight(nn.Module):
    """A tensor of the model, all zeros. `value`, in its dtype, is what products read; `stored` is what files hold.

    frozen                       both are `cast`
    trained, in half precision   stored is the float32 `master`, and value its `cast` to the model's dtype
    trained, in float32 or more  both are the master, and there is no cast

    trained: by default as `build` says. tail: of a matrix W, how many columns lie to its right, [W | tail].
    """

    cast: Tensor | None

    def __init__(self, build: Build, *shape: int, trained: bool | None = None, tail: int = 0):
        super().__init__()
        if trained is None:
            trained = build.train_weights
        exact_dtype = master_dtype(build.dtype)
        needs_cast = not trained or build.dtype != exact_dtype
        self.width = shape[-1]
        full_shape = (*shape[:-1], self.width + tail)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(full_shape, dtype=dtype, device=build.device)

        self.master = nn.Parameter(zeros(exact_dtype)) if trained else None
        self.register_buffer("cast", zeros(build.dtype) if needs_cast else None)
        self.prepacked: Prepacked | None = None  # see `prepack`

    @property
    def value(self) -> Tensor:
        """Return the tensor to compute with, outside autograd."""
        if self.cast is not None:
            return self.cast
        assert self.master is not None
        return self.master.data

    @property
    def stored(self) -> Tensor:
        """Return the tensor to write to when loading and to read from when saving; call `refresh` after writing."""
        return self.value if self.master is None else self.master.data

    def forward(self) -> Tensor:
        """Return the tensor to compute with; its gradient goes to the master."""
        if self.master is None:
            return self.value
        if self.cast is None:
            return self.master
        return _StraightThrough.apply(self.master, self.cast)

    def rows(self, rows: slice = ALL, tail: int = 0) -> Tensor:
        """Return a view of these rows of W, with the first `tail` columns beside it, to read and to write."""
        return self.stored[rows, : self.width + tail]

    def tail_rows(self, rows: slice = ALL) -> Tensor:
        """Return a view of these rows of the columns beside W, to read and to write."""
        return self.stored[rows, self.width :]

    def prepack(self) -> Prepacked:
        """Return the value in the layout that products read fastest, and keep it until `refresh` or `release`."""
        if self.prepacked is None:
            self.prepacked = prepack(self.value)
        return self.prepacked

    def release(self) -> None:
        """Free the prepacked copy of a trained weight; that of a frozen one stays valid and is kept."""
        if self.master is not None:
            self.prepacked = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the cast up to date with a master that has changed, and forget the prepacked copy."""
        self.prepacked = None
        if self.master is not None and self.cast is not None:
            self.cast.copy_(self.master)


class _StraightThrough(torch.autograd.Function):
    """The value of `cast` with the gradient of `master`, in the master's precision."""

    @staticmethod
    def forward(ctx, master, cast):
        ctx.dtype = master.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype), None


# --- in 8 or 4 bits --------------------------------------------------------------------------------------------------


class QuantisedWeight(nn.Module):
    """A frozen matrix [W | tail], W in few bits and `tail` columns in the model's dtype. Its methods are a Weight's.

    input_peers: as in QuantisedRows.
    """

    q: Tensor
    scale: Tensor
    tail: Tensor

    def __init__(self, build: Build, num_rows: int, width: int, tail: int = 0):
        super().__init__()
        assert build.quantised is not None
        self.format = format = build.quantised
        self.input_peers: Peers | None = None
        dtype = torch.uint8 if format.levels else torch.int8

        def zeros(columns: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_rows, columns, dtype=dtype, device=build.device)

        self.register_buffer("q", zeros(width // format.per_byte, dtype))
        self.register_buffer("scale", zeros(format.num_blocks(width), torch.float32) + 1)
        self.register_buffer("tail", zeros(tail, build.dtype))
        self.scratch: Tensor | None = None

    def rows(self, rows: slice = ALL, tail: int = 0) -> QuantisedRows:
        """Return views of these rows of W, with the first `tail` columns beside it."""
        parts = self.q[rows], self.scale[rows], self.tail[rows, :tail]
        return QuantisedRows(self.format, *parts, self.scratch, self.input_peers)

    def tail_rows(self, rows: slice = ALL) -> Tensor:
        """Return a view of these rows of the columns beside W, to read and to write."""
        return self.tail[rows]

    def prepack(self) -> QuantisedRows:
        """Return W as it is: a prepacked copy would take the memory that few bits save."""
        return self.rows()

    def release(self) -> None:
        """Do nothing: there is no prepacked copy."""


def share_scratch(model: nn.Module) -> None:
    """Give all QuantisedWeights of a model one tensor to dequantise into, as large as the largest needs."""
    weights = [module for module in model.modules() if isinstance(module, QuantisedWeight)]
    if weights:
        size = max(weight.rows().numel() + weight.tail.numel() for weight in weights)
        scratch = torch.empty(size, dtype=weights[0].tail.dtype, device=weights[0].tail.device)
        model.register_buffer("scratch", scratch)
        for weight in weights:
            weight.scratch = scratch


def dense(weight: Tensor | QuantisedRows) -> Tensor:
    """Return a weight as a tensor to use at once: see `QuantisedRows.dequantise`."""
    return weight.dequantise() if isinstance(weight, QuantisedRows) else weight
