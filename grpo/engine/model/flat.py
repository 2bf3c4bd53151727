"""Where each trained parameter lies in one flat buffer, and the buffer that one process would have for all shards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from grpo.engine.device.shard import Shard, Split
from grpo.engine.model.slices import PARTIAL, SAME, Share


class FlatLayout:
    """Where each parameter lies: matrices first, then vectors; in both SAME ones, PARTIAL ones, split ones.

    So weight decay applies to one slice, and an operation on one kind of share to two slices at most. Files do not
    depend on shards: in them, matrices and vectors have the order of `parameters`. Without shards, so has the buffer.

    shares: how the shards share each parameter; a parameter that is not there is SAME.
    num_parts: the buffer's length is a multiple of it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], shares: Mapping[nn.Parameter, Share], num_parts: int):
        self.parameters = sorted(parameters, key=_is_vector)
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.size = 0
        self.decayed = 0  # numbers in matrices: weight decay applies to them alone
        self.alike: list[slice] = []  # places of SAME parameters
        self.summed: list[slice] = []  # places of SAME and PARTIAL parameters
        self.split: list[slice] = []  # places of split parameters
        share_of = {parameter: shares.get(parameter, SAME) for parameter in self.parameters}
        starts = {}
        for parameter, share in sorted(share_of.items(), key=_sort_key):
            start = self.size
            self.size += parameter.numel()
            place = slice(start, self.size)
            starts[parameter] = start
            if not _is_vector(parameter):
                self.decayed = place.stop
            if share == SAME:
                _extend(self.alike, place)
            if isinstance(share, Split):
                _extend(self.split, place)
            else:
                _extend(self.summed, place)
        self.starts = [starts[parameter] for parameter in self.parameters]
        self.splits = [share if isinstance(share, Split) else None for share in share_of.values()]
        missing = -self.size % num_parts
        self.size += missing

    def flatten(self) -> Tensor:
        """Return a buffer with the values of the parameters."""
        flat = self.parameters[0].data.new_zeros(self.size)
        for view, parameter in zip(self.views(flat), self.parameters, strict=True):
            view.copy_(parameter.data)
        return flat

    def views(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield the part of a buffer that belongs to each parameter, in the parameter's shape."""
        for start, shape in zip(self.starts, self.shapes, strict=True):
            piece = flat[start : start + shape.numel()]
            yield piece.view(shape)

    def sum_over_shards(self, grad: Tensor, own: slice, shard: Shard) -> None:
        """Sum, in a gradient, what all shards have of the same parameters. All shards must call it.

        All shards have computed the gradient of SAME parameters. Only the first shard's is used, so that the shards'
        weights stay equal bit for bit. own: the part of the buffer that this process updates.
        """
        if shard.rank:
            for place in self.alike:
                mine = overlap(place, own)
                grad[mine] = 0
        for place in self.summed:
            mine = overlap(place, own)
            shard.sum_(grad[mine])

    def squares(self, grad: Tensor, own: slice) -> tuple[float, float]:
        """Return the sums of the squares of a gradient within `own`: in split parameters, and in all others."""
        of_split = _square(grad, own, self.split)
        of_others = _square(grad, own, self.summed)
        return of_split, of_others

    def join(self, flat: Tensor, shard: Shard) -> Tensor | None:
        """Return the buffer of one process for all shards, on the CPU of the first shard. All shards must call it."""
        joined = []
        for view, split in zip(self.views(flat), self.splits, strict=True):
            own = view.to(shard.device)
            whole = shard.join(own, split)
            if shard.rank == 0:
                joined.append(whole.flatten().cpu())
        return torch.cat(joined) if joined else None

    def groups(self, shard: Shard) -> list[slice]:
        """Return where matrices and vectors lie in the buffer of one process. A kind that is missing has no slice."""
        decayed = size = 0
        for shape in self._whole_shapes(shard):
            size += shape.numel()
            if len(shape) >= 2:
                decayed += shape.numel()
        matrices = slice(0, decayed)
        vectors = slice(decayed, size)
        return [place for place in (matrices, vectors) if place.start < place.stop]

    def take(self, whole: Tensor, shard: Shard) -> Tensor:
        """Return this shard's buffer, given that of one process. RuntimeError if that is of other parameters."""
        if shard.world == 1 and len(whole) == self.size:
            return whole
        shapes = self._whole_shapes(shard)
        sizes = [shape.numel() for shape in shapes]
        pieces = whole.split(sizes)
        flat = whole.new_zeros(self.size)
        parameters = zip(self.views(flat), pieces, shapes, self.splits, strict=True)
        for view, piece, shape, split in parameters:
            own = shard.take(piece.view(shape), split)
            view.copy_(own)
        return flat

    def _whole_shapes(self, shard: Shard) -> list[torch.Size]:
        return list(map(shard.whole_shape, self.shapes, self.splits))


def _is_vector(parameter: nn.Parameter) -> bool:
    return parameter.ndim < 2


def _sort_key(item: tuple[nn.Parameter, Share]) -> tuple[bool, bool, bool]:
    parameter, share = item
    return _is_vector(parameter), isinstance(share, Split), share == PARTIAL


def _extend(places: list[slice], place: slice) -> None:
    """Add a place to a list of places. If it begins where the last one ends, the two become one."""
    if places and places[-1].stop == place.start:
        place = slice(places.pop().start, place.stop)
    places.append(place)


def _square(grad: Tensor, own: slice, places: Sequence[slice]) -> float:
    """Return the sum of the squares of a gradient in these places, as far as they are in `own`."""
    square = 0.0
    for place in places:
        mine = grad[overlap(place, own)]
        norm = torch.linalg.vector_norm(mine, dtype=torch.float64)
        square += float(norm) ** 2
    return square


def overlap(a: slice, b: slice) -> slice:
    """Return where two places overlap; an empty place if they do not."""
    start = max(a.start, b.start)
    stop = min(a.stop, b.stop)
    return slice(start, max(start, stop))
