"""Where each trained parameter lies in one flat buffer, and the buffer that one process would have for all shards."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from grpo.device.shard import Cut, Shard
from grpo.model.slices import PARTIAL, SAME, Share


class FlatLayout:
    """The order of parameters in a buffer: matrices, then vectors; in both, by how the shards share them.

    Without shards, it is the order of `parameters`, which is that of files. num_parts: it divides the buffer's length.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], shares: Mapping[nn.Parameter, Share], num_parts: int):
        self.shapes = [parameter.shape for parameter in parameters]
        found = [shares.get(parameter, SAME) for parameter in parameters]
        self.cuts = [share if isinstance(share, Cut) else None for share in found]
        kinds = [2 if isinstance(share, Cut) else (SAME, PARTIAL).index(share) for share in found]
        order = sorted(range(len(parameters)), key=lambda number: (len(self.shapes[number]) < 2, kinds[number]))
        self.starts, self.size, self.decayed = [0] * len(order), 0, 0
        self.alike, self.summed, self.cut = [], [], []  # where SAME parameters lie; with PARTIAL ones; and cut ones
        for number in order:
            shape = self.shapes[number]
            place = slice(self.size, self.size + shape.numel())
            self.starts[number], self.size = place.start, place.stop
            self.decayed += shape.numel() * (len(shape) >= 2)
            for kind, places in enumerate((self.alike, self.summed, self.cut)):
                if kind == kinds[number] or (kind, kinds[number]) == (1, 0):
                    _extend(places, place)
        self.size += -self.size % num_parts

    def flatten(self, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
        """Return a buffer with the values of the parameters."""
        parameters = list(parameters)
        flat = parameters[0].data.new_zeros(self.size)
        for view, parameter in zip(self.views(flat), parameters, strict=True):
            view.copy_(parameter.data)
        return flat

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the part of a buffer that belongs to each parameter, in the parameter's shape."""
        return [
            flat[start : start + shape.numel()].view(shape)
            for start, shape in zip(self.starts, self.shapes, strict=True)
        ]

    def join(self, flat: torch.Tensor, shard: Shard) -> torch.Tensor | None:
        """Return the buffer of one process for all shards, on the CPU of the first shard. All shards must call it."""
        joined = []
        for view, cut in zip(self.views(flat), self.cuts, strict=True):
            whole = shard.join(view.to(shard.device), cut)
            if shard.rank == 0:
                joined.append(whole.flatten().cpu())
        return torch.cat(joined) if joined else None

    def groups(self, shard: Shard) -> list[slice]:
        """Return where, in the buffer of one process, matrices and vectors lie: what decays, and what does not."""
        sizes = [[0], [0]]
        for shape in self._whole_shapes(shard):
            sizes[len(shape) < 2].append(shape.numel())
        decayed, others = map(sum, sizes)
        return [part for part in (slice(0, decayed), slice(decayed, decayed + others)) if part.start < part.stop]

    def take(self, whole: torch.Tensor, shard: Shard) -> torch.Tensor:
        """Return this shard's buffer, given that of one process. RuntimeError if that is of other parameters."""
        if shard.world == 1 and len(whole) == self.size:
            return whole
        shapes, flat = self._whole_shapes(shard), whole.new_zeros(self.size)
        pieces = whole.split([shape.numel() for shape in shapes])
        for view, piece, shape, cut in zip(self.views(flat), pieces, shapes, self.cuts, strict=True):
            view.copy_(shard.take(piece.view(shape), cut))
        return flat

    def _whole_shapes(self, shard: Shard) -> list[torch.Size]:
        return [shard.whole_shape(shape, cut) for shape, cut in zip(self.shapes, self.cuts, strict=True)]


def _extend(places: list[slice], place: slice) -> None:
    """Add a place to a list of places, in which neighbours are one."""
    if places and places[-1].stop == place.start:
        place = slice(places.pop().start, place.stop)
    places.append(place)


def overlap(a: slice, b: slice) -> slice:
    """Return where two places overlap; an empty place if they do not."""
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))
