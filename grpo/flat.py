"""Where each trained parameter lies in one flat buffer, and the buffer that one process would have for all shards."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from grpo.device.shard import Cut, Shard
from grpo.model.slices import PARTIAL, SAME, Share


class FlatLayout:
    """The order of parameters in a buffer: matrices first, then vectors; in both SAME ones, PARTIAL ones, cut ones.

    So weight decay applies to one slice, and an operation on one kind of share to two slices at most.

    parameters: matrices before vectors, which is the order of files. Without shards the buffer has the same order.
    shares: how the shards share each parameter; a parameter that is not there is SAME.
    num_parts: the buffer's length is a multiple of it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], shares: Mapping[nn.Parameter, Share], num_parts: int):
        self.shapes = [parameter.shape for parameter in parameters]
        self.shares = [shares.get(parameter, SAME) for parameter in parameters]
        self.cuts = [share if isinstance(share, Cut) else None for share in self.shares]
        self.starts = [0] * len(self.shapes)
        self.size = 0
        self.decayed = 0  # numbers in matrices: weight decay applies to them alone
        self.alike: list[slice] = []  # places of SAME parameters
        self.summed: list[slice] = []  # places of SAME and PARTIAL parameters
        self.cut: list[slice] = []  # places of cut parameters
        for number in sorted(range(len(self.shapes)), key=self._sort_key):
            self._append(number)
        self.size += -self.size % num_parts

    def _sort_key(self, number: int) -> tuple[bool, bool, bool]:
        is_vector = len(self.shapes[number]) < 2
        share = self.shares[number]
        return is_vector, isinstance(share, Cut), share == PARTIAL

    def _append(self, number: int) -> None:
        """Give a parameter the next place in the buffer."""
        shape, share = self.shapes[number], self.shares[number]
        place = slice(self.size, self.size + shape.numel())
        self.starts[number] = place.start
        self.size = place.stop
        if len(shape) >= 2:
            self.decayed = place.stop
        if share == SAME:
            _extend(self.alike, place)
        _extend(self.cut if isinstance(share, Cut) else self.summed, place)

    def flatten(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        """Return a buffer with the values of the parameters."""
        flat = parameters[0].data.new_zeros(self.size)
        for view, parameter in zip(self.views(flat), parameters, strict=True):
            view.copy_(parameter.data)
        return flat

    def views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the part of a buffer that belongs to each parameter, in the parameter's shape."""
        for start, shape in zip(self.starts, self.shapes, strict=True):
            yield flat[start : start + shape.numel()].view(shape)

    def join(self, flat: torch.Tensor, shard: Shard) -> torch.Tensor | None:
        """Return the buffer of one process for all shards, on the CPU of the first shard. All shards must call it."""
        joined = []
        for view, cut in zip(self.views(flat), self.cuts, strict=True):
            whole = shard.join(view.to(shard.device), cut)
            if shard.rank == 0:
                joined.append(whole.flatten().cpu())
        return torch.cat(joined) if joined else None

    def groups(self, shard: Shard) -> list[slice]:
        """Return where matrices and vectors lie in the buffer of one process. A kind that is missing has no slice."""
        shapes = self._whole_shapes(shard)
        size = sum(shape.numel() for shape in shapes)
        decayed = sum(shape.numel() for shape in shapes if len(shape) >= 2)
        places = slice(0, decayed), slice(decayed, size)
        return [place for place in places if place.start < place.stop]

    def take(self, whole: torch.Tensor, shard: Shard) -> torch.Tensor:
        """Return this shard's buffer, given that of one process. RuntimeError if that is of other parameters."""
        if shard.world == 1 and len(whole) == self.size:
            return whole
        shapes = self._whole_shapes(shard)
        pieces = whole.split([shape.numel() for shape in shapes])
        flat = whole.new_zeros(self.size)
        for view, piece, shape, cut in zip(self.views(flat), pieces, shapes, self.cuts, strict=True):
            view.copy_(shard.take(piece.view(shape), cut))
        return flat

    def _whole_shapes(self, shard: Shard) -> list[torch.Size]:
        return [shard.whole_shape(shape, cut) for shape, cut in zip(self.shapes, self.cuts, strict=True)]


def _extend(places: list[slice], place: slice) -> None:
    """Add a place to a list of places. If it begins where the last one ends, the two become one."""
    if places and places[-1].stop == place.start:
        place = slice(places.pop().start, place.stop)
    places.append(place)


def overlap(a: slice, b: slice) -> slice:
    """Return where two places overlap; an empty place if they do not."""
    start = max(a.start, b.start)
    stop = min(a.stop, b.stop)
    return slice(start, max(start, stop))
