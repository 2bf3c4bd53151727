"""Trained parameters in one flat buffer, which replicas update together and shards share.

All trained parameters become views of one tensor, and so do their gradients: one fused update, one norm, one sum over
replicas. Each replica sums and updates a part of the tensor, keeps AdamW's moments of that part alone, and gets the
other parts from the others (ZeRO-1, 1910.02054). That sends as much as an all-reduce of the gradient.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from grpo.engine.device.peers import Peers
from grpo.engine.parallel.shard import ALONE, Shard, Split


class FlatParameters:
    """Parameters and their gradients, as views of two buffers. All processes make the same calls.

    In the buffer lie matrices first, then vectors, so weight decay applies to one slice. Shards train matrices alone,
    those of adapters: first come the ones that every shard has, then the split ones. Files do not depend on shards: in
    them, matrices and vectors have the order of `parameters`. Without shards, so has the buffer.

    replicas: the processes that train the same parameters on other data. shard: the processes that hold the model
    together. splits: how those share parameters. Of one that is not there, each has all, and a term of its gradient.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        replicas: Peers | None = None,
        shard: Shard = ALONE,
        splits: Mapping[nn.Parameter, Split] | None = None,
    ):
        self.replicas, self.shard = replicas or Peers(), shard
        self.parameters = sorted(parameters, key=_is_vector)
        if not self.parameters:
            raise ValueError("nothing to train: no parameter requires a gradient")
        self.shapes = [parameter.shape for parameter in self.parameters]
        self._lay_out(splits or {})
        self.values = self.parameters[0].data.new_zeros(self.size)
        self.grad = torch.zeros_like(self.values)
        views = zip(self.parameters, self._views(self.values), self._views(self.grad), strict=True)
        for parameter, value, grad in views:
            value.copy_(parameter.data)
            parameter.data = value
            parameter.grad = grad
        length = self.size // self.replicas.world
        start = self.replicas.rank * length
        self.partition = slice(start, start + length)  # of the buffer: what is updated here

    def _lay_out(self, splits: Mapping[nn.Parameter, Split]) -> None:
        """Give each parameter its place in the buffer, whose length is a multiple of the number of replicas."""
        self.splits = [splits.get(parameter) for parameter in self.parameters]
        self.size = 0
        self.decayed = 0  # numbers in matrices: weight decay applies to them alone
        self.summed = slice(0, 0)  # the place of parameters that every shard has
        starts = {}
        for parameter in sorted(self.parameters, key=splits.__contains__):
            starts[parameter] = self.size
            self.size += parameter.numel()
            if parameter not in splits:
                self.summed = slice(0, self.size)
            if not _is_vector(parameter):
                self.decayed = self.size
        self.starts = [starts[parameter] for parameter in self.parameters]
        self.size += -self.size % self.replicas.world
        self.split = slice(self.summed.stop, self.size)

    def _views(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield the part of a buffer that belongs to each parameter, in the parameter's shape."""
        for start, shape in zip(self.starts, self.shapes, strict=True):
            piece = flat[start : start + shape.numel()]
            yield piece.view(shape)

    # --- an update ---------------------------------------------------------------------------------------------------

    def partitioned(self) -> Iterator[tuple[nn.Parameter, slice, bool]]:
        """Yield the matrices, and the vectors, that are updated here: as a parameter with its gradient, where they lie
        in `partition`, and whether they decay."""
        for place, decays in ((slice(0, self.decayed), True), (slice(self.decayed, self.size), False)):
            mine = _overlap(place, self.partition)
            if mine.start < mine.stop:
                part = nn.Parameter(self.values[mine])
                part.grad = self.grad[mine]
                start = mine.start - self.partition.start
                yield part, slice(start, start + part.numel()), decays

    def sum_grad(self) -> Tensor:
        """Sum the gradient of `partition` over replicas and shards, and return it."""
        grad = self.grad[self.partition]
        if self.replicas.world > 1:
            grad.copy_(self.replicas.sum_to_parts(self.grad))
        self.shard.sum_(self.grad[_overlap(self.summed, self.partition)])
        return grad

    def grad_norm(self) -> float:
        """Return the norm of the summed gradient over all processes."""
        if self.replicas.world == self.shard.world == 1:
            return float(torch.linalg.vector_norm(self.grad))
        split = self._square(self.split)
        others = self._square(self.summed)
        squares = [*self.shard.sum([split]), others]
        return math.sqrt(sum(self.replicas.sum(squares)))

    def _square(self, place: slice) -> float:
        """Return the sum of the squares of the gradient in this place, as far as it is in `partition`."""
        mine = self.grad[_overlap(place, self.partition)]
        return float(torch.linalg.vector_norm(mine, dtype=torch.float64)) ** 2

    def share_update(self) -> None:
        """Send what was updated here to the other replicas, and take their parts."""
        self.replicas.join_parts_(self.values, self.partition)

    def anywhere(self, is_true: bool) -> bool:
        """Return whether this is true in any of the processes."""
        return self.replicas.max(self.shard.max(is_true)) > 0

    # --- files -------------------------------------------------------------------------------------------------------

    def join(self, buffer: Tensor) -> Tensor | None:
        """Return the buffer that one process would have, on the CPU of the first one; None on the others.

        buffer: all of it, or what belongs to `partition`. One process alone gets what it gave, on any device.
        """
        if self.replicas.world == self.shard.world == 1:
            return buffer
        is_part = len(buffer) < self.size
        whole = self.replicas.join_parts(buffer) if is_part else buffer
        if whole is None or self.replicas.rank:
            return None
        joined = []
        for view, split in zip(self._views(whole), self.splits, strict=True):
            own = view.to(self.shard.device)
            parameter = self.shard.join(own, split)
            if self.shard.rank == 0:
                joined.append(parameter.flatten().cpu())
        return torch.cat(joined) if joined else None

    def take(self, whole: Tensor) -> Tensor:
        """Return this shard's buffer, given that of one process. RuntimeError if that is of other parameters."""
        if self.shard.world == 1 and len(whole) == self.size:
            return whole
        shapes = self._whole_shapes()
        sizes = [shape.numel() for shape in shapes]
        pieces = whole.split(sizes)
        buffer = whole.new_zeros(self.size)
        parameters = zip(self._views(buffer), pieces, shapes, self.splits, strict=True)
        for view, piece, shape, split in parameters:
            own = self.shard.take(piece.view(shape), split)
            view.copy_(own)
        return buffer

    def groups(self) -> list[slice]:
        """Return where matrices and vectors lie in the buffer of one process. A kind that is missing has no slice."""
        shapes = self._whole_shapes()
        size = sum(shape.numel() for shape in shapes)
        decayed = sum(shape.numel() for shape in shapes if len(shape) >= 2)
        places = slice(0, decayed), slice(decayed, size)
        return [place for place in places if place.start < place.stop]

    def _whole_shapes(self) -> list[torch.Size]:
        return list(map(self.shard.whole_shape, self.shapes, self.splits))


def _is_vector(parameter: nn.Parameter) -> bool:
    return parameter.ndim < 2


def _overlap(a: slice, b: slice) -> slice:
    """Return where two places overlap; an empty place if they do not."""
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))
