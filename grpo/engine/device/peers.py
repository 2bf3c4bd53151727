"""Some of the processes of a run, and what they compute together. A process alone communicates with nobody."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.base.errors import INTERNAL, UserError, is_out_of_memory

# The first names are those of torch 2.13, which warns of the others.
all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
T = TypeVar("T")
JOINED_AT_ONCE = 1 << 24  # numbers of each rank, when parts go to the CPU


@contextmanager
def explain_lost_peers() -> Iterator[None]:
    """Turn the error of a collective whose peer has ended into a UserError. It comes at once, or after TIMEOUT."""
    try:
        yield
    except RuntimeError as error:
        is_from_peers = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
        if not is_from_peers or is_out_of_memory(error):
            raise
        raise UserError(
            "another process of this run has ended",
            str(error).splitlines()[0][:200],
            "its own message is on stderr and in run_state.rank*.json of the output directory; "
            "continue with resume_from_checkpoint=true",
            INTERNAL,
        ) from error


@dataclass(eq=False)
class Peers:
    """Processes that work together, and the place of this one among them.

    rank, world: the number of this process, and how many there are. group: torch's; None for all processes of a run.
    """

    rank: int = 0
    world: int = 1
    device: torch.device | str = "cpu"
    group: dist.ProcessGroup | None = None

    def sum_(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Sum a tensor over all ranks, in place; or reduce it by another operation."""
        if self.world > 1:
            with explain_lost_peers():
                dist.all_reduce(tensor, operation, self.group)
        return tensor

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each of some numbers over all ranks."""
        if self.world == 1:
            return list(values)
        return self.sum_(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def max(self, value: float) -> float:
        """Return the largest value of all ranks."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        return float(self.sum_(tensor, dist.ReduceOp.MAX))

    def min(self, value: float) -> float:
        """Return the smallest value of all ranks."""
        return -self.max(-value)

    def gather(self, value: object) -> list:
        """Return every rank's value, in the order of ranks. Values should be small."""
        if self.world == 1:
            return [value]
        values: list = [None] * self.world
        with explain_lost_peers():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def gather_lists(self, values: Sequence[T]) -> list[T]:
        """Return the values of all ranks in one list, in the order of ranks."""
        return [value for of_rank in self.gather(values) for value in of_rank]

    def of_first(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make` returns on rank 0. It is called only there."""
        return self.gather(make() if self.rank == 0 else None)[0]

    def stack(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, which have the same shape, as one [world, ...]."""
        if self.world == 1:
            return tensor[None]
        stacked = tensor.new_empty(self.world, *tensor.shape)
        with explain_lost_peers():
            all_gather_flat(stacked.view(-1), tensor.contiguous().view(-1), group=self.group)
        return stacked

    def sum_to_parts(self, tensor: Tensor) -> Tensor:
        """Sum a flat tensor over all ranks, and return this rank's part of the sum; `world` must divide its length."""
        if self.world == 1:
            return tensor
        part = tensor.new_empty(len(tensor) // self.world)
        with explain_lost_peers():
            reduce_scatter_flat(part, tensor, group=self.group)
        return part

    def join_parts_(self, tensor: Tensor, own: slice) -> None:
        """Fill a flat tensor with the parts of all ranks, in their order. own: where this rank's part is."""
        if self.world > 1:
            with explain_lost_peers():
                all_gather_flat(tensor, tensor[own].clone(), group=self.group)

    def join_parts(self, part: Tensor) -> Tensor | None:
        """Return, on the CPU of rank 0, the flat tensor of whose parts each rank has one; None on the others."""
        joined = part.new_empty(self.world, len(part), device="cpu") if self.rank == 0 else None
        for start in range(0, len(part), JOINED_AT_ONCE):
            piece = slice(start, start + JOINED_AT_ONCE)
            found = self.stack(part[piece])
            if joined is not None:
                joined[:, piece] = found
        return None if joined is None else joined.view(-1)
