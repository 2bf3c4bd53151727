"""A matrix in 8 or 4 bits: W = scale · level, where a scale serves a row, or a block of it.

    int8   (2208.07339)           levels -127 to 127, a scale per row
    nf4    (QLoRA, 2305.14314)    16 levels, quantiles of a normal distribution, a scale per 64 numbers; two in a byte

Only storage changes, not arithmetic: what multiplies is the dense matrix in the model's dtype (`dequantise`), or a
kernel that makes the same numbers tile by tile (`ops.quantised_linear`).
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from grpo.engine.device.peers import Peers

CACHE_BYTES = 2 << 20  # that a CPU dequantises at a time, so that they stay in its cache
GPU_NUMBERS = 1 << 24  # that a GPU looks up at a time, 4 bytes each


@dataclass(frozen=True)
class Format:
    """How numbers are stored: `largest` is the level of a block's largest number.

    block: how many numbers share a scale; 0 for a row. levels: what the codes 0, 1, … mean, two codes in a byte;
    without them the codes are the levels.
    """

    largest: float
    block: int = 0
    levels: tuple[float, ...] = ()

    @property
    def per_byte(self) -> int:
        return 2 if self.levels else 1

    def num_blocks(self, width: int) -> int:
        """Return how many scales a row of `width` numbers has. A width that 64 does not divide has smaller blocks."""
        return width // math.gcd(width, self.block) if self.block else 1


NF4 = (
    (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334)
    + (-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224)
    + (0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
)
FORMATS = {"int8": Format(127), "nf4": Format(1, 64, NF4)}


@cache
def levels_of(format: Format, device: torch.device) -> Tensor | None:
    """Return the levels [16] in float32 on a device; None if the codes are the levels."""
    return torch.tensor(format.levels, device=device) if format.levels else None


@cache
def _pairs(format: Format, device: torch.device) -> Tensor:
    """Return the two levels that each byte stands for [256, 2]: of its upper four bits, and of its lower four."""
    levels = torch.tensor(format.levels, device=device)
    return torch.cartesian_prod(levels, levels)


@dataclass(frozen=True)
class QuantisedRows:
    """Rows of a matrix [W | tail], as views: codes q [O, I / per_byte], scale [O, blocks], tail [O, R] in the dtype.

    scratch: memory to dequantise into; None for fresh memory.
    input_peers: the processes that have the other columns of W. A row's scale is the same in all of them.
    """

    format: Format
    q_OX: Tensor
    scale_OX: Tensor
    tail_OR: Tensor
    scratch: Tensor | None = None
    input_peers: Peers | None = None

    @property
    def shape(self) -> torch.Size:
        """Return the shape of W alone."""
        return torch.Size((len(self.q_OX), self.q_OX.shape[1] * self.format.per_byte))

    def numel(self) -> int:
        return self.shape.numel()

    @torch.no_grad()
    def copy_(self, weight_OI: Tensor) -> None:
        """Set W to the nearest numbers that can be stored. All processes that have columns of W call this."""
        exact_OI = weight_OI.to(self.q_OX.device, torch.float32)
        exact_OXX = exact_OI.unflatten(1, (self.scale_OX.shape[1], -1))
        largest_OX = exact_OXX.abs().amax(dim=2)
        if self.input_peers is not None and not self.format.block:
            largest_OX = self.input_peers.stack(largest_OX).amax(dim=0)
        scale_OX = largest_OX / self.format.largest
        self.scale_OX.copy_(torch.where(scale_OX > 0, scale_OX, 1.0))
        level_OXX = exact_OXX / self.scale_OX[:, :, None]
        level_OI = level_OXX.flatten(1)
        levels = levels_of(self.format, level_OI.device)
        if levels is None:
            self.q_OX.copy_(level_OI.round_())
            return
        between = (levels[1:] + levels[:-1]) / 2
        code_OI = torch.bucketize(level_OI, between)
        first_OX = code_OI[:, 0::2]
        second_OX = code_OI[:, 1::2]
        self.q_OX.copy_(16 * first_OX + second_OX)

    @torch.no_grad()
    def dequantise(self) -> Tensor:
        """Return [W | tail] in the dtype of the tail. It is valid until the next call of any weight of the model.

        It works on some rows at a time: torch would first convert all codes.
        """
        O, I = self.shape
        dtype = self.tail_OR.dtype
        shape = torch.Size((O, I + self.tail_OR.shape[1]))
        scratch = self.scratch
        if scratch is None:
            scratch = self.tail_OR.new_empty(shape)
        dense_OX = scratch.view(-1)[: shape.numel()].view(shape)
        scale_OX1 = self.scale_OX[:, :, None].to(torch.promote_types(dtype, torch.float32))
        size = max(1, (GPU_NUMBERS if self.q_OX.is_cuda else CACHE_BYTES // 8) // I)
        for start in range(0, O, size):
            part = slice(start, start + size)
            level_OI = self.q_OX[part]
            if self.format.levels:
                pairs = _pairs(self.format, level_OI.device)
                codes = level_OI.flatten().int()
                level_OI = pairs.index_select(0, codes).view(-1, I)
            blocks = (scale_OX1.shape[1], -1)
            level_OXX = level_OI.unflatten(1, blocks)
            out_OXX = dense_OX[part, :I].unflatten(1, blocks)
            torch.mul(level_OXX, scale_OX1[part], out=out_OXX)
        dense_OX[:, I:] = self.tail_OR
        return dense_OX
