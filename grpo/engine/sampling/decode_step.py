"""One decode step: the next token of every live sequence. CPUs and CUDA graphs share this code.

Counterpart of one turn of the loop of `sample` in minimal.py.

With the kernels nothing in it waits for the device, so a GPU can capture it. A row that has ended still writes, but
only where nothing is read: at its next position in the cache, and in the column after its last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.ops import Packed, draw_tokens
from grpo.engine.model.decoder import Attend, Decoder
from grpo.engine.sampling.cache import KVCache


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

        def integers() -> torch.Tensor:
            return torch.zeros(B, dtype=torch.int64, device=device)

        def results(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(B, max_new_tokens + 1, dtype=dtype, device=device)

        return cls(
            cache=cache,
            last_id_B=integers(),
            position_B=integers(),
            count_B=integers(),
            limit_B=integers(),
            seed_B=integers(),
            ended_B=torch.ones(B, dtype=torch.bool, device=device),
            ids_BX=results(torch.int64),
            logps_BX=results(torch.float32),
            cuts_BX=results(torch.float32),
        )

    def move(self, source: int, target: int, num_positions: int) -> None:
        """Copy the sequence in slot `source` over that in slot `target`. num_positions: of its keys and values."""
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


def decode_step(
    model: Decoder,
    slots: Slots,
    num_rows: int,
    attend: Attend,
    params: SamplingParams,
    head_VD: Packed,
    eos: torch.Tensor,
) -> None:
    """Generate one token for each of the first `num_rows` slots, unless its sequence has ended.

    attend: attention over the cache of these slots. eos: the ids that end a sequence.
    """
    rows = slice(num_rows)  # slicing gives views: writing to them writes to the slots
    position_B = slots.position_B[rows]
    count_B = slots.count_B[rows]
    seed_B = slots.seed_B[rows]
    ended_B = slots.ended_B[rows]
    running_B = ~ended_B
    hidden_BD = model(slots.last_id_B[rows], position_B, attend)
    results = slots.ids_BX[rows], slots.logps_BX[rows], slots.cuts_BX[rows]
    logits_BV = model.logits(hidden_BD, head_VD)
    id_B = draw_tokens(logits_BV, seed_B, count_B, params, results)
    slots.last_id_B[rows] = torch.where(running_B, id_B, slots.last_id_B[rows])
    count_B += running_B
    position_B += running_B
    ended_B |= (id_B[:, None] == eos).any(dim=1) | (count_B >= slots.limit_B[rows])


class DecodeLoop:
    """Runs decode steps over some slots, one after the other. The cache grows as they need it."""

    def __init__(self, model: Decoder, slots: Slots, eos_ids: Sequence[int]):
        self.model, self.slots = model, slots
        self.eos = torch.tensor(eos_ids, dtype=torch.int64, device=slots.ended_B.device)

    def run(self, live: int, steps: int, params: SamplingParams, head_VD: Packed) -> None:
        """Generate up to `steps` tokens for each of the first `live` slots; a slot that ends keeps its results."""
        cache, position_B = self.slots.cache, self.slots.position_B[:live]
        for _ in range(steps):
            num_positions = int(position_B.max()) + 1  # of the longest sequence
            cache.reserve(num_positions)
            attend = DecodeAttention.over_used_positions(cache, position_B, num_positions)
            decode_step(self.model, self.slots, live, attend, params, head_VD, self.eos)
