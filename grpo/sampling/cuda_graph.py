"""Decode steps as CUDA graphs: one graph per bucket of rows, captured once and replayed many times.

So the host looks only once in several steps at what has ended. Rows of a bucket that no sequence occupies count as
ended.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

import torch

from grpo.attention.decode import DecodeAttention
from grpo.device.draw import SamplingParams
from grpo.device.ops import uses_kernels
from grpo.model.decoder import Decoder
from grpo.sampling.decode_step import Slots, decode_step


class Recorded(Protocol):
    """What a capture gives: `replay` runs what was recorded again."""

    def replay(self) -> None: ...


class DecodeGraphs:
    """Makes decode steps over some slots, several in a `run`; as graphs, if there is a `capture` (CudaCapture)."""

    def __init__(
        self,
        model: Decoder,
        slots: Slots,
        eos_ids: Sequence[int],
        kernel: str = "sdpa",
        capture: Callable[..., Recorded] | None = None,
    ):
        self.model, self.slots, self.kernel, self.capture = model, slots, kernel, capture
        self.eos = torch.tensor(eos_ids, dtype=torch.int64, device=slots.ended_B.device)
        self.graphs: dict[tuple, Recorded] = {}  # by rows and what is sampled

    def run(self, live: int, steps: int, params: SamplingParams, head_VD: torch.Tensor) -> None:
        """Generate `steps` tokens for the first `live` slots; those that end on the way stay as they are."""
        rows = bucket(live, self.slots.cache.num_slots)
        self.slots.ended_B[live:rows] = True
        # Without kernels, top-k and top-p sort by torch. Nobody has tried whether a graph can hold that.
        can_capture = not params.truncates or uses_kernels(self.slots.cache.kv_L2BKSE)
        if self.capture is None or not can_capture:
            for _ in range(steps):
                self.step(rows, params, head_VD)
            return
        key = rows, params.temperature, params.top_k, params.top_p
        if key not in self.graphs:
            self.graphs[key] = self._captured(rows, params, head_VD)
        for _ in range(steps):
            self.graphs[key].replay()

    def step(self, rows: int, params: SamplingParams, head_VD: torch.Tensor) -> None:
        """Generate one token for each of the first `rows` slots."""
        attend = DecodeAttention.with_kernel(self.slots.cache, self.slots.position_B[:rows], self.kernel)
        decode_step(self.model, self.slots, rows, attend, params, head_VD, self.eos)

    def _captured(self, rows: int, params: SamplingParams, head_VD: torch.Tensor) -> Recorded:
        """Capture a step. Its warm-up leaves no trace: every row is ended meanwhile."""
        ended_B = self.slots.ended_B.clone()
        self.slots.ended_B.fill_(True)
        graph = self.capture(lambda: self.step(rows, params, head_VD))
        self.slots.ended_B.copy_(ended_B)
        return graph


def bucket(live: int, num_slots: int) -> int:
    """Return for how many rows a step is made: few sizes, each little more than the `live` rows that are needed."""
    multiple = 32
    for limit, smaller in ((256, 16), (64, 8), (8, 4), (4, 2), (2, 1)):
        if live <= limit:
            multiple = smaller
    return min(ceil(live / multiple) * multiple, num_slots)
