"""One decode step: the next token of every live sequence. The only one, for a CPU and for CUDA graphs.

With the kernels nothing in it waits for the device, so that on a GPU it can be captured. A row that has ended goes on
writing where nothing is read: its next position in the cache, and the column after its last token.
"""

from dataclasses import dataclass, fields

import torch

from grpo.device.draw import SamplingParams
from grpo.device.ops import draw_tokens, exact_logits
from grpo.model.decoder import Attend, Decoder
from grpo.sampling.cache import KVCache


@dataclass
class Slots:
    """The state of every slot."""

    cache: KVCache
    last_id_B: torch.Tensor  # the next input
    position_B: torch.Tensor  # of that input
    count_B: torch.Tensor  # tokens generated so far
    limit_B: torch.Tensor  # tokens it may have
    seed_B: torch.Tensor
    ended_B: torch.Tensor  # bool
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
        """List the tensors that have one row per slot."""
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def holds(self, num_slots: int, num_positions: int, max_new_tokens: int) -> bool:
        """Whether there is room for so many sequences of such lengths."""
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
    head_VD: torch.Tensor,
    eos: torch.Tensor,
) -> None:
    """Generate one token for each of the first `num_rows` slots that has not ended.

    attend: attention over the cache of these slots. eos: the ids that end a sequence.
    """
    rows = slice(num_rows)
    position_B, count_B, running_B = slots.position_B[rows], slots.count_B[rows], ~slots.ended_B[rows]
    hidden_BD = model(slots.last_id_B[rows], position_B, attend)
    results = slots.ids_BX[rows], slots.logps_BX[rows], slots.cuts_BX[rows]
    id_B = draw_tokens(exact_logits(hidden_BD, head_VD), slots.seed_B[rows], count_B, params, results)
    slots.last_id_B[rows] = torch.where(running_B, id_B, slots.last_id_B[rows])
    count_B += running_B
    position_B += running_B
    slots.ended_B[rows] |= (id_B[:, None] == eos).any(dim=1) | (count_B >= slots.limit_B[rows])
