"""One decode step as a function of static buffers, and its CUDA graphs.

`Slots` holds everything a step reads and writes: embed, layers, head, draw, append, end. Nothing in a step waits for
the device, so on a GPU it is captured once per bucket of rows and replayed: several steps per look of the host at what
has ended. Rows of a bucket that no sequence occupies count as ended, and an ended row goes on writing where nothing is
read: its next position in the cache, and the column after its last token. On a CPU the same steps run as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from grpo.attention.select import DECODERS, Attend, exact_logits, fused
from grpo.model.decoder import Decoder
from grpo.sampling.cache import KVCache
from grpo.sampling.draw import SamplingParams, draw, uniforms

WARM_UPS = 2  # runs before a capture: lazily made handles and compiled kernels


class Recorded(Protocol):
    """What a capture gives: `replay` runs what was recorded again."""

    def replay(self) -> None: ...


@dataclass
class Slots:
    """The state of every slot: next input and its position; tokens so far, the limit, the seed; whether it has ended;
    results."""

    cache: KVCache
    last_id_B: torch.Tensor
    position_B: torch.Tensor
    count_B: torch.Tensor
    limit_B: torch.Tensor
    seed_B: torch.Tensor
    ended_B: torch.Tensor
    ids_BX: torch.Tensor  # one column more than tokens: the last takes what ended rows go on writing
    logps_BX: torch.Tensor
    cuts_BX: torch.Tensor

    @classmethod
    def make(cls, cache: KVCache, max_new_tokens: int) -> "Slots":
        device, B = cache.kv_L2BKSE.device, cache.num_slots
        integers = [torch.zeros(B, dtype=torch.int64, device=device) for _ in range(5)]
        results = [
            torch.zeros(B, max_new_tokens + 1, dtype=dtype, device=device)
            for dtype in (torch.int64, torch.float32, torch.float32)
        ]
        return cls(cache, *integers, torch.ones(B, dtype=torch.bool, device=device), *results)

    def rows(self) -> list[torch.Tensor]:
        """All tensors with one row per slot."""
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def holds(self, num_slots: int, num_positions: int, max_new_tokens: int) -> bool:
        """Whether there is room for so many sequences of such lengths."""
        return (
            self.cache.num_slots >= num_slots
            and self.cache.num_positions >= num_positions
            and self.ids_BX.shape[1] > max_new_tokens
        )


class SlotAttention:
    """Attention of one new token per slot, whose lengths stay on the device: `attention.DecodeAttention` without a look
    at them.

    decoder: one of select.DECODERS.
    """

    def __init__(self, cache: KVCache, positions_B: torch.Tensor, decoder: str):
        self.cache, self.positions_B = cache, positions_B
        self.rows_B = torch.arange(len(positions_B), device=positions_B.device)
        self.attend: Attend = DECODERS[decoder](positions_B + 1, cache.num_positions)

    def __call__(self, layer: int, q_BHE: torch.Tensor, k_BKE: torch.Tensor, v_BKE: torch.Tensor) -> torch.Tensor:
        self.cache.write(layer, self.rows_B, self.positions_B, k_BKE, v_BKE)
        return self.attend(q_BHE, *self.cache.read(layer, len(q_BHE), self.cache.num_positions))


class RotatingSlotAttention(SlotAttention):
    """The same with rotation and write in one kernel: the model hands it queries and keys as they leave their
    projections."""

    def unrotated(
        self,
        layer: int,
        q_BHE: torch.Tensor,
        k_BKE: torch.Tensor,
        v_BKE: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        from grpo.kernels.rotary import rotate_into_cache

        k_BKSE, v_BKSE = self.cache.read(layer, len(q_BHE), self.cache.num_positions)
        return self.attend(
            rotate_into_cache(q_BHE, k_BKE, v_BKE, *rope, k_BKSE, v_BKSE, self.positions_B), k_BKSE, v_BKSE
        )


class DecodeGraphs:
    """Decode steps over some slots: `run` makes several, as graphs if there is a `capture` (CudaCapture) to make
    them."""

    def __init__(
        self,
        model: Decoder,
        slots: Slots,
        eos_ids: Sequence[int],
        decoder: str = "sdpa",
        capture: Callable[..., Recorded] | None = None,
    ):
        self.model, self.slots, self.decoder, self.capture = model, slots, decoder, capture
        self.eos = torch.tensor(eos_ids, dtype=torch.int64, device=slots.ended_B.device)
        self.graphs: dict[tuple, Recorded] = {}  # by rows and what is sampled

    def run(self, live: int, steps: int, sampling: SamplingParams, head_VD: torch.Tensor) -> None:
        """`steps` tokens for the first `live` slots; those that end on the way stay as they are."""
        rows = bucket(live, self.slots.cache.num_slots)
        self.slots.ended_B[live:rows] = True
        kernels = fused(self.slots.cache.kv_L2BKSE)
        if self.capture is None or (
            sampling.cuts and not kernels
        ):  # without kernels, the host looks at the thresholds of top-k and top-p
            for _ in range(steps):
                self.step(rows, sampling, head_VD)
            return
        key = rows, sampling.temperature, sampling.top_k, sampling.top_p
        if key not in self.graphs:
            self.graphs[key] = self._captured(rows, sampling, head_VD)
        for _ in range(steps):
            self.graphs[key].replay()

    def step(self, rows: int, sampling: SamplingParams, head_VD: torch.Tensor) -> None:
        """One token for each of the first `rows` slots."""
        slots, live = self.slots, slice(rows)
        position_B, count_B, running_B = slots.position_B[live], slots.count_B[live], ~slots.ended_B[live]
        attend = (RotatingSlotAttention if fused(slots.cache.kv_L2BKSE) else SlotAttention)(
            slots.cache, position_B, self.decoder
        )
        hidden_BD = self.model(slots.last_id_B[live], position_B, attend)
        id_B, logp_B, cut_B = draw_tokens(exact_logits(hidden_BD, head_VD), slots.seed_B[live], count_B, sampling)
        for buffer_BX, value_B in ((slots.ids_BX, id_B), (slots.logps_BX, logp_B), (slots.cuts_BX, cut_B)):
            buffer_BX[live].scatter_(1, count_B[:, None], value_B[:, None].to(buffer_BX.dtype))
        slots.last_id_B[live] = torch.where(running_B, id_B, slots.last_id_B[live])
        count_B += running_B
        position_B += running_B
        slots.ended_B[live] |= (id_B[:, None] == self.eos).any(dim=1) | (count_B >= slots.limit_B[live])

    def _captured(self, rows: int, sampling: SamplingParams, head_VD: torch.Tensor) -> Recorded:
        """The graph of a step. Its warm-up leaves no trace: every row is ended meanwhile."""
        ended_B = self.slots.ended_B.clone()
        self.slots.ended_B.fill_(True)
        graph = self.capture(lambda: self.step(rows, sampling, head_VD))
        self.slots.ended_B.copy_(ended_B)
        return graph


class CudaCapture:
    """Functions to CUDA graphs, which share one pool of memory since they never run at the same time, and one stream,
    for which cuBLAS keeps one workspace. Other threads (a verifier at work on rewards) may use the GPU during a
    capture."""

    def __init__(self):
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Runs `step` some times, then records it; recording does not run it."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                step()
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            step()
        return graph


def bucket(live: int, num_slots: int) -> int:
    """Rows that a step is made for: few sizes, each little more than what is needed."""
    step = next(step for limit, step in ((2, 1), (4, 2), (8, 4), (64, 8), (256, 16), (live, 32)) if live <= limit)
    return min(-(-live // step) * step, num_slots)


def draw_tokens(
    logits_BV: torch.Tensor, seed_B: torch.Tensor, count_B: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """draw.draw with the uniforms of (seed, tokens so far): on a GPU in two launches, three with top-k or top-p."""
    if not fused(logits_BV):
        return draw(logits_BV, uniforms(seed_B, count_B), sampling)
    from grpo.kernels.inverse_cdf import draw_rows
    from grpo.kernels.nucleus import thresholds

    least_B, cut_B = (
        thresholds(logits_BV, sampling.temperature, sampling.top_k, sampling.top_p) if sampling.cuts else (None, None)
    )
    id_B, logp_B = draw_rows(logits_BV, seed_B, count_B, sampling.temperature, least_B)
    return id_B, logp_B, torch.full_like(logp_B, float("-inf")) if cut_B is None else cut_B
