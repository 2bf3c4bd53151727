"""Decode steps: the next token of every live sequence, as one CUDA graph, by one call in C, or operation by operation.

Counterpart of one turn of the loop of `sample` in minimal.py.

The cache has one contiguous slot per sequence, positions from 0, no padding and no pages. The live sequences always
occupy slots 0 ... B-1, so that attention reads plain views. When one ends, the last live slot is copied into its place.
That is one copy per finished sequence, about the memory traffic of one of its decode steps; gathering the live slots by
index would copy the complete cache at every step.

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
from torch import Tensor

from grpo.base.errors import INTERNAL, MEMORY, UserError, is_out_of_memory, reason
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.kernel_choice import uses_kernels
from grpo.engine.device.ops import Prepacked, draw_tokens
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.layers_in_c import LayersInC

GROWTH = 32  # positions; the cache grows to a multiple of it
WARM_UPS = 2  # runs before a capture, which create handles and compile kernels


@dataclass
class KVCache:
    """Keys and values for `num_slots` sequences of `num_positions` tokens.

    Bytes: 2 · L · slots · K · S · E · bytes of the dtype (56 KiB per token for a 7B Qwen2 in bf16). For CUDA graphs
    it is made for the longest sequence at once. Otherwise it starts with no position and grows: on a CPU, products over
    all of its positions are the fastest.
    """

    kv_L2BKSE: Tensor

    @classmethod
    def of(cls, model: Decoder, num_slots: int, num_positions: int) -> "KVCache":
        """Make a cache for the sequences of a model."""
        config, build = model.shape, model.build
        shape = config.num_layers, 2, num_slots, config.num_kv_heads, num_positions, config.head_dim
        kv_L2BKSE = torch.zeros(shape, dtype=build.dtype, device=build.device)
        return cls(kv_L2BKSE)

    @property
    def num_slots(self) -> int:
        return self.kv_L2BKSE.shape[2]

    @property
    def num_positions(self) -> int:
        return self.kv_L2BKSE.shape[4]

    def reserve(self, num_positions: int) -> None:
        """Make room for `num_positions`, and a little more: growing copies everything."""
        if num_positions <= self.num_positions:
            return
        wanted = num_positions + -num_positions % GROWTH
        L, _, B, K, S, E = self.kv_L2BKSE.shape
        more_L2BKSE = self.kv_L2BKSE.new_zeros(L, 2, B, K, wanted - S, E)
        self.kv_L2BKSE = torch.cat([self.kv_L2BKSE, more_L2BKSE], dim=4)

    def read(self, layer: int, num_rows: int, num_positions: int) -> tuple[Tensor, Tensor]:
        """Return views k_BKSE, v_BKSE of the first `num_rows` slots and `num_positions` positions."""
        k_BKSE, v_BKSE = self.kv_L2BKSE[layer, :, :num_rows, :, :num_positions]
        return k_BKSE, v_BKSE

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`, in all layers."""
        begun_L2BKSE = self.kv_L2BKSE[..., :length, :]
        begun_L2BKSE[:, :, target] = begun_L2BKSE[:, :, source]


@dataclass
class Slots:
    """The cache, and the state of the sequence in every slot."""

    cache: KVCache
    last_id_B: Tensor  # int64, the next input
    position_B: Tensor  # int64, of that input
    count_B: Tensor  # int64, tokens generated so far
    limit_B: Tensor  # int64, tokens it may generate
    seed_B: Tensor  # int64
    ended_B: Tensor  # bool; means nothing for a slot without a sequence
    ids_BX: Tensor  # int64; a row that has reached its limit goes on writing to one spare column
    logps_BX: Tensor  # float32, nats, as Completion.logps
    cuts_BX: Tensor  # float32, as Completion.cuts

    @classmethod
    def make(cls, cache: KVCache, max_new_tokens: int) -> "Slots":
        """Make the state of all slots of a cache, without sequences."""
        kv, B = cache.kv_L2BKSE, cache.num_slots

        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return kv.new_zeros(B, *size, dtype=dtype)

        size = max_new_tokens + 1
        return cls(
            cache,
            last_id_B=zeros(),
            position_B=zeros(),
            count_B=zeros(),
            limit_B=zeros(),
            seed_B=zeros(),
            ended_B=kv.new_ones(B, dtype=torch.bool),
            ids_BX=zeros(size),
            logps_BX=zeros(size, dtype=torch.float32),
            cuts_BX=zeros(size, dtype=torch.float32),
        )

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
        capture: "CudaCapture | None" = None,
    ):
        self.model = model
        self.slots = slots
        self.kernel = kernel
        self.capture = capture
        self.layers_in_c = None if kernel else LayersInC.of(model)
        self.eos = torch.tensor(eos_ids, dtype=torch.int64, device=slots.ended_B.device)
        self.graphs: dict[tuple, torch.cuda.CUDAGraph] = {}  # (number of rows, sampling parameters) -> graph

    def run(self, live: int, steps: int, params: SamplingParams, head_VD: Prepacked) -> None:
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

    def step(self, num_rows: int, params: SamplingParams, head_VD: Prepacked) -> None:
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

    def hidden(self, id_B: Tensor, position_B: Tensor) -> Tensor:
        """Compute the final hidden states of these tokens, and store their keys and values."""
        cache = self.slots.cache
        if self.kernel:
            attend = DecodeAttention.over_all_positions(cache, position_B, self.kernel)
            return self.model(id_B, position_B, attend)
        num_positions = int(position_B.max()) + 1  # of the longest sequence
        cache.reserve(num_positions)
        if self.layers_in_c:
            return self.layers_in_c(id_B, position_B, cache.kv_L2BKSE)
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


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


class CudaCapture:
    """Turns functions into CUDA graphs.

    They share one pool of memory, since they never run at the same time, and one stream, for which cuBLAS keeps one
    workspace. Other threads (an entailment model, for example) may use the GPU during a capture.
    """

    def __init__(self):
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()

    def __call__(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Run `step` WARM_UPS times, then record it (which does not run it), and return the graph.

        UserError (exit 1 or 8) if it cannot be recorded: the process cannot use the GPU after that.
        """
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                step()
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                step()
        except Exception as error:  # the allocator is damaged now, so nothing in this process may try on
            what = "a CUDA graph could not be recorded"
            why = reason(error)
            if is_out_of_memory(error):
                fix = "lower max_num_seqs, max_completion_length or max_prompt_length"
                raise UserError(what, why, fix, MEMORY) from error
            raise UserError(what, why, "set kernels=none", INTERNAL) from error
        return graph
