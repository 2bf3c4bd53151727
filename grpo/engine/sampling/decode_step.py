"""Decode steps: the next token of every live sequence, as one CUDA graph or operation by operation.

Counterpart of one turn of the loop of `sample` in minimal.py.

A graph is captured once per bucket of rows and replayed many times: between two checks for ended sequences, the host
only replays graphs, several in a row. A row of a bucket that has no sequence counts as ended. If shards share a model,
the graphs contain their collectives (NCCL). Then all shards replay the same graphs in the same order, and the warm-up
runs before a capture connect them. That has never been tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import torch

from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.device.capture import CudaCapture
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.kernel_choice import uses_kernels
from grpo.engine.device.ops import Packed, draw_tokens
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.cache import KVCache
from grpo.engine.sampling.layers_in_c import LayersInC


@dataclass
class Slots:
    """The cache, and the state of the sequence in every slot."""

    cache: KVCache
    last_id_B: torch.Tensor  # int64, the next input
    position_B: torch.Tensor  # int64, of that input
    count_B: torch.Tensor  # int64, tokens generated so far
    limit_B: torch.Tensor  # int64, tokens it may generate
    seed_B: torch.Tensor  # int64
    ended_B: torch.Tensor  # bool; means nothing for a slot without a sequence
    ids_BX: torch.Tensor  # int64; a row that has reached its limit goes on writing to one spare column
    logps_BX: torch.Tensor  # float32, nats, as Completion.logps
    cuts_BX: torch.Tensor  # float32, as Completion.cuts

    @classmethod
    def make(cls, cache: KVCache, max_new_tokens: int) -> "Slots":
        """Make the state of all slots of a cache, without sequences."""
        device, B = cache.kv_L2BKSE.device, cache.num_slots

        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(B, *size, dtype=dtype, device=device)

        size = max_new_tokens + 1
        ended_B = torch.ones(B, dtype=torch.bool, device=device)
        results = zeros(size), zeros(size, dtype=torch.float32), zeros(size, dtype=torch.float32)
        return cls(cache, zeros(), zeros(), zeros(), zeros(), zeros(), ended_B, *results)

    def move(self, source: int, target: int) -> None:
        """Copy the sequence in slot `source` over that in slot `target`."""
        num_positions = int(self.position_B[source])
        self.cache.move(source, target, num_positions)
        for name, state in vars(self).items():
            if name != "cache":
                state[target] = state[source]

    def holds(self, num_slots: int, num_positions: int, max_new_tokens: int) -> bool:
        """Return whether there is room for this many sequences, positions and new tokens."""
        return (
            self.cache.num_slots >= num_slots
            and self.cache.num_positions >= num_positions
            and self.ids_BX.shape[1] > max_new_tokens
        )


class DecodeSteps:
    """Makes decode steps over some slots. `eos_ids` end a sequence.

    kernel: one of DECODE_KERNELS, if the cache has room for the longest sequence. Without one, the cache grows as it
    has to.
    capture: records steps as CUDA graphs, which needs a kernel. Without it, they run operation by operation.
    """

    def __init__(
        self,
        model: Decoder,
        slots: Slots,
        eos_ids: Sequence[int],
        kernel: str | None = None,
        capture: CudaCapture | None = None,
    ):
        self.model, self.slots = model, slots
        self.kernel, self.capture = kernel, capture
        self.layers_in_c = None if kernel else LayersInC.of(model)
        self.eos = torch.tensor(eos_ids, dtype=torch.int64, device=slots.ended_B.device)
        self.graphs: dict[tuple, torch.cuda.CUDAGraph] = {}  # (number of rows, sampling parameters) -> graph

    def run(self, live: int, steps: int, params: SamplingParams, head_VD: Packed) -> None:
        """Generate up to `steps` tokens for each of the first `live` slots; a slot that ends keeps its results."""
        rows = bucket(live, self.slots.cache.num_slots) if self.kernel else live
        ended_B = self.slots.ended_B
        ended_B[live:rows] = True
        step: Callable[[], object] = partial(self.step, rows, params, head_VD)
        # Without kernels, top-k and top-p need torch's sort, which has not been tried inside a graph.
        can_capture = uses_kernels(self.slots.cache.kv_L2BKSE) or not params.truncates
        if self.capture and can_capture:
            key = rows, params.temperature, params.top_k, params.top_p
            if key not in self.graphs:
                before_B = ended_B.clone()
                ended_B.fill_(True)  # so the warm-up changes nothing
                self.graphs[key] = self.capture(step)
                ended_B.copy_(before_B)
            step = self.graphs[key].replay
        for _ in range(steps):
            step()

    def step(self, num_rows: int, params: SamplingParams, head_VD: Packed) -> None:
        """Generate one token for each of the first `num_rows` slots, unless its sequence has ended.

        With the kernels nothing in it waits for the device, so a GPU can capture it. A row that has ended still writes,
        but only where nothing is read: at its next position in the cache, and in the column after its last token.
        """
        slots = self.slots
        rows = slice(num_rows)  # slicing gives views: writing to them writes to the slots
        position_B = slots.position_B[rows]
        count_B = slots.count_B[rows]
        ended_B = slots.ended_B[rows]
        running_B = ~ended_B
        hidden_BD = self.hidden(slots.last_id_B[rows], position_B)
        logits_BV = self.model.logits(hidden_BD, head_VD)
        results = slots.ids_BX[rows], slots.logps_BX[rows], slots.cuts_BX[rows]
        id_B = draw_tokens(logits_BV, slots.seed_B[rows], count_B, params, results)
        slots.last_id_B[rows] = torch.where(running_B, id_B, slots.last_id_B[rows])
        count_B += running_B
        position_B += running_B
        ended_B |= (id_B[:, None] == self.eos).any(dim=1) | (count_B >= slots.limit_B[rows])

    def hidden(self, id_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
        """Compute the final hidden states of these tokens, and store their keys and values."""
        cache = self.slots.cache
        if self.kernel:
            attend = DecodeAttention.over_all_positions(cache, position_B, self.kernel)
            return self.model(id_B, position_B, attend)
        num_positions = int(position_B.max()) + 1  # of the longest sequence
        cache.reserve(num_positions)
        if self.layers_in_c:
            return self.layers_in_c(id_B, position_B, cache)
        attend = DecodeAttention.over_used_positions(cache, position_B, num_positions)
        return self.model(id_B, position_B, attend)


def bucket(live: int, num_slots: int) -> int:
    """Round `live` up to one of a few numbers of rows, at most `num_slots`, so that few graphs are captured."""
    multiple = 32
    for limit, smaller in ((256, 16), (64, 8), (8, 4), (4, 2), (2, 1)):
        if live <= limit:
            multiple = smaller
    rounded = ceil(live / multiple) * multiple
    return min(rounded, num_slots)
