"""Batched generation over a slot cache: schedule, run (prefill and decode), collect.

Counterpart of `sample` in minimal.py, which computes all earlier tokens again for each new one.

    schedule   sequences wait in a queue while all slots are taken, and enter as others end
    prefill    each prompt once for its group, up to its last token
    decode     the next token of every sequence in a slot. That last token is the first input, so all sampling happens
               here. Log-probs are those of the distribution that was really sampled from
    collect    those that have ended

A completion that calls a tool leaves its slot, and comes back once the tool has answered: what it has so far is then
prefilled like a prompt. Meanwhile others decode. What was drawn after the call is dropped before anything sees it, so
nothing depends on when it was noticed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Protocol

import torch
from torch import Tensor

from grpo.algorithm.schema import Completion, FinishReason, Prompt
from grpo.base.errors import NON_FINITE, UserError
from grpo.engine.attention.choice import decode_kernel
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.ops import Prepacked
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.decode_step import CudaCapture, DecodeSteps, KVCache, Slots
from grpo.engine.sampling.prefill import prefill

OnFinish = Callable[[int, Completion], None]


class Tools(Protocol):
    """The tools that completions may call (grpo/tools/tools.py)."""

    @property
    def ends(self) -> Sequence[int]:
        """Return the tokens with which a call may end."""

    def reset(
        self,
        prompts: list[Prompt],
        num_generations: int,
        seeds: Sequence[int],
        tick: Callable[[], None],
    ) -> list[Prompt]:
        """Make an environment for each of the next completions; return the prompts with what these say first.

        tick: called again and again until all have begun.
        """

    def forget_calls(self) -> None:
        """Wait no longer for calls of earlier completions."""

    def pause(self, number: int, completion: Completion, limit: int) -> bool:
        """Cut a completion after its first new call, and begin this; return False if there is none.

        number: of the completion. limit: of its tokens.
        """

    def has_failed(self, number: int) -> bool:
        """Return whether a completion means nothing, since its environment could not begin."""

    def take(self, wait: bool) -> list[tuple[int, Completion, bool]]:
        """Return the paused completions whose calls are over, with what the tools gave, and whether they go on.

        wait: sleep until one is over, for 50 ms at most.
        """

    def close(self) -> None:
        """Free what the tools hold."""


@dataclass
class Unfinished:
    """A completion that waits or is being generated."""

    number: int  # among the completions of the call
    prompt: tuple[int, ...]
    limit: int  # tokens it may have
    seed: int
    so_far: Completion = field(default_factory=lambda: Completion([], [], [], "length"))  # what it had when it paused

    @property
    def start(self) -> tuple[int, ...]:
        """Return the tokens that it continues. Sequences with the same ones share one prefill."""
        return *self.prompt, *self.so_far.ids


Groups = dict[tuple[int, ...], list[Unfinished]]  # sequences by what they continue
Ended = list[tuple[int, Completion]]  # completions with their numbers


class Sampler:
    """Generates completions with `model` and its current adapter, up to one of `eos_ids` or the length limit.

    max_slots: sequences decoded together. before_decoding: called before each check for ended sequences. tools: those
    that completions may call.
    """

    def __init__(
        self,
        model: Decoder,
        eos_ids: Sequence[int],
        max_slots: int = 256,
        before_decoding: Callable[[], None] = lambda: None,
        tools: Tools | None = None,
    ):
        self.model = model
        self.eos_ids = tuple(eos_ids)
        self.max_slots = max_slots
        self.tools = tools
        self.on_cuda = torch.device(model.build.device).type == "cuda"
        self.prefill_tokens = 16384  # prompt tokens per prefill pass
        self.check_every = 16 if self.on_cuda else 1  # decode steps between two checks for ended sequences
        self.uses_graphs = self.on_cuda and model.can_be_captured  # then slots are kept from one call to the next
        self.kept: DecodeSteps | None = None
        self.before_decoding = before_decoding

    @torch.inference_mode()
    def reserve(self, num_slots: int, num_positions: int, max_new_tokens: int) -> DecodeSteps:
        """Return steps over slots for this many sequences of these lengths.

        With graphs they are kept from one call to the next, as long as their slots are large enough.
        """
        if self.kept and self.kept.slots.holds(num_slots, num_positions, max_new_tokens):
            return self.kept
        self.release()  # before the next ones are made
        cache = KVCache.of(self.model, num_slots, num_positions if self.uses_graphs else 0)
        slots = Slots.make(cache, max_new_tokens)
        if not self.uses_graphs:
            return DecodeSteps(self.model, slots, self.eos_ids)
        capture = CudaCapture() if self.on_cuda else None
        self.kept = DecodeSteps(self.model, slots, self.eos_ids, decode_kernel(self.model), capture)
        return self.kept

    def release(self) -> None:
        """Free slots and graphs. Graphs that hold collectives must go before their group of processes does."""
        self.kept = None

    def reset(self, prompts: list[Prompt], num_generations: int, seeds: Sequence[int]) -> list[Prompt]:
        """Return the prompts of the next `sample` as environments begin them, if there are some."""
        return self.tools.reset(prompts, num_generations, seeds, self.before_decoding) if self.tools else prompts

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        num_generations: int,
        params: SamplingParams,
        seeds: Sequence[int],
        on_finish: OnFinish | None = None,
        limits: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        """Generate num_generations completions of each prompt.

        seeds: one per completion, prompt by prompt; a completion depends on its prompt, its seed, the weights and what
        tools say, not on what else is generated. limits: of each completion's tokens, if lower than
        params.max_new_tokens.
        on_finish(number, completion) is called as each one ends, number = place of its prompt * num_generations + its
        place in the group. `Completion.text` stays empty: the caller has the tokenizer.
        """
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued: nothing predicts its first token")
        numbers = range(len(prompts) * num_generations)
        limits = limits or [params.max_new_tokens] * len(numbers)
        sequences = [
            Unfinished(number, tuple(prompts[number // num_generations]), limits[number], seeds[number])
            for number in numbers
        ]
        done: dict[int, Completion] = {}
        with self.model.sampling() as head_VD:
            generation = Generation(self, sequences, params, head_VD)
            for ended in generation.turns(self.check_every):
                for number, completion in ended:
                    done[number] = completion
                    if on_finish:
                        on_finish(number, completion)
        firsts = numbers[::num_generations]
        return [[done[number] for number in numbers[first : first + num_generations]] for first in firsts]

    @torch.inference_mode()
    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        on_finish: OnFinish | None = None,
    ) -> Iterator[int]:
        """Yield the tokens of one completion, also those that tools give, without its end token.

        on_finish: as in `sample`. UserError (exit 5) if logits are not finite.
        """
        only = Unfinished(0, tuple(prompt), params.max_new_tokens, seed)
        num_yielded = 0
        with self.model.sampling() as head_VD:
            generation = Generation(self, [only], params, head_VD)
            for ended in generation.turns(steps=1):
                if generation.live:
                    ids, logps, _ = generation.tokens(0, num_yielded)
                    check_finite(*logps)
                    yield from (token for token in ids if token not in self.eos_ids)
                    num_yielded += len(ids)
                for _, completion in ended:
                    if on_finish:
                        on_finish(0, completion)


class Generation:
    """The sequences of one `sample`: waiting, in slots 0 ... B-1, or paused while a tool works for them."""

    def __init__(
        self,
        sampler: Sampler,
        sequences: Sequence[Unfinished],
        params: SamplingParams,
        head_VD: Prepacked,
    ):
        self.sampler, self.params, self.head_VD = sampler, params, head_VD
        self.model = sampler.model
        self.device = self.model.build.device
        longest_prompt = max((len(sequence.prompt) for sequence in sequences), default=0)
        num_slots = min(sampler.max_slots, len(sequences))
        self.steps = sampler.reserve(num_slots, longest_prompt + params.max_new_tokens, params.max_new_tokens)
        self.slots = self.steps.slots
        self.waiting = deque(sequences)
        self.live: list[Unfinished] = []
        self.prefilled: dict[tuple[int, ...], Tensor] = {}  # keys and values [L, 2, K, S, E] of a start
        self.paused: dict[int, Unfinished] = {}  # by their numbers
        self.tools = sampler.tools
        if self.tools:
            self.tools.forget_calls()
            for sequence in sequences:
                if self.tools.has_failed(sequence.number):
                    sequence.limit = 1
            self.ends_V = torch.zeros(self.model.config.vocab_size, dtype=torch.bool, device=self.device)
            self.ends_V[list(self.tools.ends)] = True

    def turns(self, steps: int) -> Iterator[Ended]:
        """Decode `steps` tokens a turn until all sequences have ended; yield what ended in the turn before.

        It is handed over once `decode` has given a GPU its next work.
        """
        ended: Ended = []
        while self.waiting or self.live or self.paused or ended:
            self.sampler.before_decoding()
            ended += self.resume(wait=not (self.waiting or self.live or ended))
            while groups := self.schedule():
                self.prefill(groups)
            self.decode(steps)
            yield ended
            ended = self.collect()

    # --- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self) -> Groups:
        """Take the next sequences from the queue: as many as slots are free, and as one pass can prefill."""
        groups: Groups = {}
        num_tokens = 0
        for _ in range(self.slots.cache.num_slots - len(self.live)):
            if not self.waiting:
                break
            start = self.waiting[0].start
            if start not in groups and start not in self.prefilled:
                num_tokens += len(start) - 1
                if groups and num_tokens > self.sampler.prefill_tokens:
                    break
            groups.setdefault(start, []).append(self.waiting.popleft())
        return groups

    def resume(self, wait: bool) -> Ended:
        """Put the sequences whose tools have answered before the waiting ones; return those that do not go on."""
        ended = []
        for number, completion, goes_on in self.tools.take(wait) if self.tools and self.paused else ():
            sequence = self.paused.pop(number)
            if goes_on:
                self.waiting.appendleft(replace(sequence, so_far=completion))
            else:
                ended.append((number, completion))
        return ended

    # --- run ---------------------------------------------------------------------------------------------------------

    def prefill(self, groups: Groups) -> None:
        """Compute the keys and values of what sequences continue, and give each of them the next slot.

        The last token is left to decoding. Where some of a group still wait, what they continue is kept for them.
        """
        new = [start for start in groups if start not in self.prefilled]
        found = prefill(self.model, [start[:-1] for start in new])
        self.prefilled.update(zip(new, found, strict=True))
        for start, group in groups.items():
            self._enter(start, group)
            if not self.waiting or self.waiting[0].start != start:
                del self.prefilled[start]

    def _enter(self, start: tuple[int, ...], group: Sequence[Unfinished]) -> None:
        """Give the next slots to sequences that continue `start`, and copy its keys and values to each."""
        slots = self.slots
        first = len(self.live)
        rows = slice(first, first + len(group))
        slots.cache.reserve(len(start))
        slots.cache.kv_L2BKSE[:, :, rows, :, : len(start) - 1] = self.prefilled[start][:, :, None]
        slots.last_id_B[rows] = start[-1]
        slots.position_B[rows] = len(start) - 1
        slots.ended_B[rows] = False
        states = [(len(sequence.so_far.ids), sequence.limit, sequence.seed) for sequence in group]
        states_3B = torch.tensor(states, device=self.device).T
        slots.count_B[rows], slots.limit_B[rows], slots.seed_B[rows] = states_3B
        self.live += group

    def decode(self, steps: int) -> None:
        """Generate `steps` tokens for every live sequence, or fewer if it ends before that."""
        if self.live:
            self.steps.run(len(self.live), steps, self.params, self.head_VD)

    # --- collect -----------------------------------------------------------------------------------------------------

    def collect(self) -> Ended:
        """Remove the sequences that have ended or called; return the former. The last live slot moves into each gap."""
        finished = []
        for slot, is_ended in reversed(self._stopping()):
            sequence, completion = self.live[slot], self.completion(slot)
            if self.tools and self.tools.pause(sequence.number, completion, sequence.limit):
                self.paused[sequence.number] = sequence
            elif is_ended:
                finished.append((sequence.number, completion))
            else:
                continue
            last = self.live.pop()
            if last is not sequence:
                self.slots.move(len(self.live), slot)
                self.live[slot] = last
        return finished[::-1]

    def _stopping(self) -> list[tuple[int, bool]]:
        """Return the slots that may stop, and whether they have ended: if not, a new token may end a call."""
        rows, slots = slice(len(self.live)), self.slots
        stops_B = ended_B = slots.ended_B[rows]
        if self.tools:
            steps_X = torch.arange(self.sampler.check_every, device=self.device)
            recent_BX = (slots.count_B[rows, None] - 1 - steps_X).clamp_min(0)
            recent_ids_BX = slots.ids_BX[rows].gather(1, recent_BX)
            stops_B = ended_B | self.ends_V[recent_ids_BX].any(dim=1)
        found = stops_B.nonzero()[:, 0]
        return list(zip(found.tolist(), ended_B[found].tolist(), strict=True))

    def completion(self, slot: int) -> Completion:
        """Return the completion in a slot, with what it had before it entered."""
        ids, logps, cuts = self.tokens(slot)
        reason: FinishReason = "stop" if ids[-1] in self.sampler.eos_ids else "length"
        return Completion(ids, logps, cuts, reason, calls=list(self.live[slot].so_far.calls))

    def tokens(self, slot: int, first: int = 0) -> tuple[list[int], list[float], list[float]]:
        """Return the tokens of the completion in a slot from number `first` on, their log-probs and their cuts."""
        slots, before = self.slots, self.live[slot].so_far
        new = slice(max(first, len(before.ids)), int(slots.count_B[slot]))
        ids = before.ids[first:] + slots.ids_BX[slot, new].tolist()
        logps = before.logps[first:] + slots.logps_BX[slot, new].tolist()
        cuts = before.cuts[first:] + slots.cuts_BX[slot, new].tolist()
        return ids, logps, cuts


def check_finite(*logps: float) -> None:
    """Raise UserError (exit 5) if a log-prob is not finite: the logits were not either, and the tokens mean nothing."""
    if not all(map(isfinite, logps)):
        raise UserError(
            "the model's logits are not finite",
            "its weights are damaged or too large, or the numbers overflow in this dtype",
            "download the model again, or set torch_dtype to bfloat16 or float32",
            NON_FINITE,
        )
