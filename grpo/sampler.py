"""Batched generation over a slot cache: schedule, run, collect.

Each prompt is prefilled once for its whole group, up to its last token; that token is the first input of every completion's
decoding, so all sampling happens in one place. Sequences wait in a queue while all slots are taken and enter as others
end. Log-probs are those of the distribution that was really drawn from.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from grpo.attention import DecodeAttention, PackedAttention
from grpo.cache import KVCache
from grpo.draw import Sampling, draw, uniforms
from grpo.model import Decoder
from grpo.products import linear
from grpo.schema import Completion, Layout

OnFinish = Callable[[int, Completion], None]


@dataclass
class _Sequence:
    """A completion in the making: its number, its prompt's number, the tokens it may produce, its seed."""

    number: int
    prompt: int
    limit: int
    seed: int


class Sampler:
    """Generates with `model` (its current adapter) until one of `eos_ids` or the length limit.

    max_slots: sequences decoded together; prefill_tokens: prompt tokens per prefill pass; check_every: decode steps between
    two looks at what has ended (on a GPU each look waits for the device).
    """

    def __init__(self, model: Decoder, eos_ids: Sequence[int], max_slots: int = 256, prefill_tokens: int = 16384, check_every: int = 1):
        self.model, self.eos_ids = model, tuple(eos_ids)
        self.max_slots, self.prefill_tokens, self.check_every = max_slots, prefill_tokens, check_every

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], num_generations: int, sampling: Sampling, seeds: Sequence[int],
               on_finish: OnFinish | None = None, limits: Sequence[int] | None = None) -> list[list[Completion]]:
        """num_generations completions of each prompt.

        seeds: one per completion, prompt by prompt; a completion depends on its prompt, its seed and the weights, not on
        what else is generated. limits: tokens each completion may have, if fewer than sampling.max_new_tokens.
        on_finish(number, completion) is called as each one ends, number = prompt * num_generations + index. The
        completions' text is left empty: the tokenizer is the caller's.
        """
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued: nothing predicts its first token")
        total = len(prompts) * num_generations
        limits = limits or [sampling.max_new_tokens] * total
        waiting = deque(_Sequence(number, number // num_generations, limits[number], seeds[number]) for number in range(total))
        done: list[Completion | None] = [None] * total
        with self.model.packed() as head_VD:
            batch = _Batch(self, prompts, sampling, min(self.max_slots, total), head_VD)
            while waiting or batch.live:
                batch.admit(waiting)
                for _ in range(self.check_every):
                    batch.step()
                for sequence, completion in batch.collect():
                    done[sequence.number] = completion
                    if on_finish:
                        on_finish(sequence.number, completion)
        return [done[start:start + num_generations] for start in range(0, total, num_generations)]

    @torch.inference_mode()
    def stream(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Iterator[int]:
        """The tokens of one completion, one by one, without its end token."""
        with self.model.packed() as head_VD:
            batch = _Batch(self, [prompt], sampling, 1, head_VD)
            batch.admit(deque([_Sequence(0, 0, sampling.max_new_tokens, seed)]))
            for count in range(sampling.max_new_tokens):
                batch.step()
                token = int(batch.ids_B[0, count])
                if token in self.eos_ids:
                    return
                yield token


class _Batch:
    """The live sequences, in slots 0 ... B-1; the tensors named *_B have one row per slot."""

    def __init__(self, sampler: Sampler, prompts: Sequence[Sequence[int]], sampling: Sampling, num_slots: int, head_VD: torch.Tensor):
        self.sampler, self.model, self.prompts, self.sampling = sampler, sampler.model, prompts, sampling
        self.device = sampler.model.build.device
        c, integers = sampler.model.config, {"dtype": torch.int64, "device": self.device}
        self.longest = max(map(len, prompts), default=0) + sampling.max_new_tokens
        at_once = self.longest if torch.device(self.device).type == "cuda" else 0
        self.cache = KVCache(c.num_layers, num_slots, c.num_kv_heads, at_once, c.head_dim, sampler.model.build.dtype, self.device)
        self.head_VD, self.eos = head_VD, torch.tensor(sampler.eos_ids, **integers)
        self.live: list[_Sequence] = []
        self.used: list[int] = []                                                # positions in use per slot, an upper bound
        self.prefilled: dict[int, torch.Tensor] = {}                             # prompt -> its keys and values [L, 2, K, S, E]
        self.last_id_B, self.position_B = torch.zeros(num_slots, **integers), torch.zeros(num_slots, **integers)   # next input
        self.count_B, self.limit_B, self.seed_B = (torch.zeros(num_slots, **integers) for _ in range(3))
        self.ended_B = torch.zeros(num_slots, dtype=torch.bool, device=self.device)
        width = sampling.max_new_tokens + 1                                      # an ended row goes on writing, in the last column
        self.ids_B = torch.zeros(num_slots, width, **integers)
        self.logps_B, self.cuts_B = (torch.zeros(num_slots, width, device=self.device) for _ in range(2))

    def admit(self, waiting: deque[_Sequence]) -> None:
        """Fills free slots from the queue, whole groups at a time where they fit."""
        while waiting and len(self.live) < self.cache.num_slots:
            if waiting[0].prompt not in self.prefilled:
                self._prefill(waiting, self.cache.num_slots - len(self.live))
            prompt, run = waiting[0].prompt, []
            while waiting and waiting[0].prompt == prompt and len(self.live) + len(run) < self.cache.num_slots:
                run.append(waiting.popleft())
            self._enter(prompt, run)
            if not waiting or waiting[0].prompt != prompt:
                del self.prefilled[prompt]                                       # its last completion has entered

    def _prefill(self, waiting: deque[_Sequence], free: int) -> None:
        """Runs the next prompts, as many as the free slots ask for, packed, without their last tokens."""
        chosen, tokens = [], 0
        for prompt in dict.fromkeys(waiting[i].prompt for i in range(min(free, len(waiting)))):
            tokens += len(self.prompts[prompt]) - 1
            if chosen and tokens > self.sampler.prefill_tokens:
                break
            chosen.append(prompt)
        lengths = [len(self.prompts[prompt]) - 1 for prompt in chosen]
        layout = Layout(tuple((length, ()) for length in lengths))
        record = _Recording(PackedAttention(layout, self.model.build.dtype, self.device))
        if layout.num_tokens:
            ids = [token for prompt in chosen for token in self.prompts[prompt][:-1]]
            positions = [position for length in lengths for position in range(length)]
            self.model(torch.tensor(ids, device=self.device), torch.tensor(positions, device=self.device), record)
            self.prefilled.update(zip(chosen, record.split(lengths), strict=True))
        else:
            self.prefilled.update((prompt, self.cache.kv_L2BKSE[:, :, 0, :, :0]) for prompt in chosen)

    def _enter(self, prompt: int, run: list[_Sequence]) -> None:
        """Gives the next slots to completions of one prompt: its keys and values are copied to each."""
        ids, slots = self.prompts[prompt], slice(len(self.live), len(self.live) + len(run))
        self.cache.reserve(len(ids))
        self.cache.kv_L2BKSE[:, :, slots, :, :len(ids) - 1] = self.prefilled[prompt][:, :, None]
        self.last_id_B[slots], self.position_B[slots], self.count_B[slots], self.ended_B[slots] = ids[-1], len(ids) - 1, 0, False
        self.limit_B[slots] = torch.tensor([sequence.limit for sequence in run], device=self.device)
        self.seed_B[slots] = torch.tensor([sequence.seed for sequence in run], device=self.device)
        self.live += run
        self.used += [len(ids)] * len(run)

    def step(self) -> None:
        """One token for every live sequence."""
        if not self.live:
            return
        live = slice(len(self.live))
        position_B, count_B1, running_B = self.position_B[live], self.count_B[live, None], ~self.ended_B[live]
        self.cache.reserve(min(max(self.used), self.longest))
        attend = DecodeAttention(self.cache, position_B, min(max(self.used), self.longest))
        hidden_BD = self.model(self.last_id_B[live], position_B, attend)
        uniform_B = uniforms(self.seed_B[live], count_B1[:, 0])
        id_B, logp_B, cut_B = draw(linear(hidden_BD, self.head_VD), uniform_B, self.sampling)
        for buffer_B, value_B in ((self.ids_B, id_B), (self.logps_B, logp_B), (self.cuts_B, cut_B)):
            buffer_B[live].scatter_(1, count_B1, value_B[:, None].to(buffer_B.dtype))
        self.last_id_B[live] = id_B
        self.count_B[live] += running_B
        self.position_B[live] += running_B
        self.ended_B[live] |= torch.isin(id_B, self.eos) | (self.count_B[live] >= self.limit_B[live])
        self.used = [positions + 1 for positions in self.used]

    def collect(self) -> list[tuple[_Sequence, Completion]]:
        """Takes out the sequences that have ended; the last live slot moves into each gap."""
        finished = []
        for slot in reversed(self.ended_B[:len(self.live)].nonzero()[:, 0].tolist()):
            finished.append((self.live[slot], self._completion(slot)))
            last = len(self.live) - 1
            if slot != last:
                self.cache.move(last, slot, min(self.used[last], self.longest))
                for tensor_B in (self.last_id_B, self.position_B, self.count_B, self.limit_B, self.seed_B, self.ended_B,
                                 self.ids_B, self.logps_B, self.cuts_B):
                    tensor_B[slot] = tensor_B[last]
                self.live[slot], self.used[slot] = self.live[last], self.used[last]
            self.live.pop()
            self.used.pop()
        return finished[::-1]

    def _completion(self, slot: int) -> Completion:
        count = int(self.count_B[slot])
        ids = self.ids_B[slot, :count].tolist()
        reason = "stop" if ids[-1] in self.sampler.eos_ids else "length"
        return Completion(ids, self.logps_B[slot, :count].tolist(), self.cuts_B[slot, :count].tolist(), reason)


class _Recording:
    """Attention that also keeps the keys and values of each layer."""

    def __init__(self, attend: PackedAttention):
        self.attend, self.layers = attend, []

    def __call__(self, layer: int, q_THE: torch.Tensor, k_TKE: torch.Tensor, v_TKE: torch.Tensor) -> torch.Tensor:
        self.layers.append(torch.stack([k_TKE, v_TKE]))
        return self.attend(layer, q_THE, k_TKE, v_TKE)

    def split(self, lengths: list[int]) -> list[torch.Tensor]:
        """Per prompt [L, 2, K, S, E]."""
        return list(torch.stack(self.layers).transpose(2, 3).split(lengths, dim=3))
