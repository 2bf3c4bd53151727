"""Decode steps as CUDA graphs: one graph per bucket of rows, captured once and replayed many times.

Between two checks for ended sequences, the host only replays graphs, several in a row. A row of a bucket that has no
sequence counts as ended. If shards share a model, the graphs contain their collectives (NCCL). Then all shards replay
the same graphs in the same order, and the warm-up runs before a capture connect them. That has never been tried.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import torch

from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.device.capture import CudaCapture
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.kernel_choice import uses_kernels
from grpo.engine.device.ops import Packed
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.decode_step import DecodeLoop, Slots, decode_step


class DecodeGraphs(DecodeLoop):
    """Decode steps over static slots; as graphs, if `capture` is given (CudaCapture)."""

    def __init__(
        self,
        model: Decoder,
        slots: Slots,
        eos_ids: Sequence[int],
        kernel: str = "sdpa",
        capture: CudaCapture | None = None,
    ):
        super().__init__(model, slots, eos_ids)
        self.kernel, self.capture = kernel, capture
        self.graphs: dict[tuple, torch.cuda.CUDAGraph] = {}  # (number of rows, sampling parameters) -> graph

    def run(self, live: int, steps: int, params: SamplingParams, head_VD: Packed) -> None:
        rows = bucket(live, self.slots.cache.num_slots)
        self.slots.ended_B[live:rows] = True
        step = self._step_of(rows, params, head_VD)
        for _ in range(steps):
            step()

    def _step_of(self, rows: int, params: SamplingParams, head_VD: Packed) -> Callable[[], None]:
        """Return a step of so many rows: the replay of a graph, or where none can be captured, the step itself."""
        # Without kernels, top-k and top-p need torch's sort, which has not been tried inside a graph.
        has_kernels = uses_kernels(self.slots.cache.kv_L2BKSE)
        can_capture = has_kernels or not params.truncates
        if self.capture is None or not can_capture:
            return partial(self.step, rows, params, head_VD)
        key = rows, params.temperature, params.top_k, params.top_p
        if key not in self.graphs:
            self.graphs[key] = self._captured(self.capture, rows, params, head_VD)
        return self.graphs[key].replay

    def step(self, rows: int, params: SamplingParams, head_VD: Packed) -> None:
        """Generate one token for each of the first `rows` slots."""
        positions_B = self.slots.position_B[:rows]
        attend = DecodeAttention.over_all_positions(self.slots.cache, positions_B, self.kernel)
        decode_step(self.model, self.slots, rows, attend, params, head_VD, self.eos)

    def _captured(
        self, capture: CudaCapture, rows: int, params: SamplingParams, head_VD: Packed
    ) -> torch.cuda.CUDAGraph:
        """Capture a step as a graph. All rows count as ended meanwhile, so the warm-up changes nothing."""
        ended_B = self.slots.ended_B.clone()
        self.slots.ended_B.fill_(True)
        graph = capture(lambda: self.step(rows, params, head_VD))
        self.slots.ended_B.copy_(ended_B)
        return graph


def bucket(live: int, num_slots: int) -> int:
    """Round `live` up to one of a few numbers of rows, at most `num_slots`, so that few graphs are captured."""
    multiple = 32
    for limit, smaller in ((256, 16), (64, 8), (8, 4), (4, 2), (2, 1)):
        if live <= limit:
            multiple = smaller
    rounded = ceil(live / multiple) * multiple
    return min(rounded, num_slots)
