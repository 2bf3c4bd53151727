"""The sequences that are being generated: in slots, or paused while a tool works for them.

A completion that calls a tool leaves its slot, and comes back once the tool has answered: what it has so far is then
prefilled like a prompt. Meanwhile others decode. What was drawn after the call is dropped before anything sees it, so
nothing depends on when it was noticed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from grpo.algorithm.schema import Completion, FinishReason
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.ops import Packed
from grpo.engine.sampling.prefill import prefill

if TYPE_CHECKING:
    from grpo.engine.sampling.sampler import Sampler


class Calls(Protocol):
    """The calls of tools within the completions of one `sample` (grpo/tools/tools.py)."""

    def pause(self, number: int, completion: Completion, limit: int) -> bool:
        """Cut a completion after its first new call, and begin this; return False if there is none.

        number: of the completion. limit: of its tokens.
        """

    def take(self, wait: bool) -> list[tuple[int, Completion]]:
        """Return the paused completions whose calls are over, with what the tools gave.

        wait: sleep until one is over, for 50 ms at most.
        """


class Tools(Protocol):
    """The tools that completions may call (grpo/tools/tools.py). ends: the tokens with which a call may end."""

    ends: Sequence[int]

    def begin(self) -> Calls:
        """Return the calls of the completions that are generated now."""


class Start(NamedTuple):
    """What a sequence continues. Two sequences with the same start share one prefill.

    continued: the number of a completion that goes on after a call, and so continues what it has said itself, too.
    """

    prompt_number: int
    continued: int | None


@dataclass
class Unfinished:
    """A completion that waits or is being generated."""

    number: int  # among the completions of the call
    prompt_number: int  # among its prompts
    limit: int  # tokens it may have
    seed: int
    so_far: Completion = field(default_factory=lambda: Completion([], [], [], "length"))  # what it had when it paused

    @property
    def start(self) -> Start:
        return Start(self.prompt_number, continued=self.number if self.so_far.ids else None)


class Running:
    """The sequences that are being decoded, in slots 0 ... B-1."""

    def __init__(
        self,
        sampler: "Sampler",
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        num_slots: int,
        head_VD: Packed,
    ):
        self.sampler, self.prompts, self.params = sampler, prompts, params
        self.model = sampler.model
        self.device = sampler.model.build.device
        longest_prompt = max(map(len, prompts), default=0)
        self.longest = longest_prompt + params.max_new_tokens
        self.steps = sampler.steps_for(num_slots, self.longest, params.max_new_tokens)
        self.slots = self.steps.slots
        self.cache = self.slots.cache
        self.head_VD = head_VD
        self.live: list[Unfinished] = []
        self.used: list[int] = []  # positions in use per slot, an upper bound
        self.prefilled: dict[Start, torch.Tensor] = {}  # keys and values [L, 2, K, S, E]
        self.paused: dict[int, Unfinished] = {}  # by their numbers
        self.calls: Calls | None = None
        if sampler.tools:
            self.calls = sampler.tools.begin()
            self.ends_V = torch.zeros(self.model.config.vocab_size, dtype=torch.bool, device=self.device)
            self.ends_V[list(sampler.tools.ends)] = True

    def admit(self, waiting: deque[Unfinished]) -> None:
        """Fill free slots from the queue, a complete group at a time if it fits."""
        while waiting and len(self.live) < self.cache.num_slots:
            free = self.cache.num_slots - len(self.live)
            start = waiting[0].start
            if start not in self.prefilled:
                self._prefill(waiting, free)
            entering: list[Unfinished] = []
            while waiting and waiting[0].start == start and len(entering) < free:
                entering.append(waiting.popleft())
            self._enter(entering)
            if not waiting or waiting[0].start != start:
                del self.prefilled[start]  # its last completion has entered

    def _ids(self, sequence: Unfinished) -> list[int]:
        """Return the tokens that a sequence continues."""
        return [*self.prompts[sequence.prompt_number], *sequence.so_far.ids]

    def _prefill(self, waiting: deque[Unfinished], free: int) -> None:
        """Run the next prompts, packed, without their last tokens: at most as many as the free slots need."""
        chosen: dict[Start, list[int]] = {}
        tokens = 0
        for sequence in islice(waiting, free):
            if sequence.start in self.prefilled or sequence.start in chosen:
                continue
            ids = self._ids(sequence)[:-1]
            tokens += len(ids)
            if chosen and tokens > self.sampler.prefill_tokens:
                break
            chosen[sequence.start] = ids
        found = prefill(self.model, list(chosen.values()))
        self.prefilled.update(zip(chosen, found, strict=True))

    def _enter(self, entering: list[Unfinished]) -> None:
        """Give the next slots to sequences with the same start, and copy its keys and values to each."""
        slots = self.slots
        ids = self._ids(entering[0])
        first = len(self.live)
        rows = slice(first, first + len(entering))
        self.cache.reserve(len(ids))
        prefilled_L2KSE = self.prefilled[entering[0].start]
        self.cache.kv_L2BKSE[:, :, rows, :, : len(ids) - 1] = prefilled_L2KSE[:, :, None]
        slots.last_id_B[rows] = ids[-1]
        slots.position_B[rows] = len(ids) - 1
        slots.count_B[rows] = len(entering[0].so_far.ids)  # 0, unless it goes on
        slots.ended_B[rows] = False
        limits = [sequence.limit for sequence in entering]
        seeds = [sequence.seed for sequence in entering]
        slots.limit_B[rows] = torch.tensor(limits, device=self.device)
        slots.seed_B[rows] = torch.tensor(seeds, device=self.device)
        self.live += entering
        self.used += [len(ids)] * len(entering)

    def resume(self, waiting: deque[Unfinished], wait: bool) -> list[tuple[Unfinished, Completion]]:
        """Put the sequences whose tools have answered before the waiting ones; return those whose tools have failed."""
        failed = []
        for number, completion in self.calls.take(wait) if self.calls else ():
            sequence = self.paused.pop(number)
            if completion.failure:
                failed.append((sequence, completion))
                continue
            waiting.appendleft(replace(sequence, so_far=completion))
        return failed

    def decode(self, steps: int) -> None:
        """Generate `steps` tokens for every live sequence, or fewer if it ends before that."""
        if self.live:
            self.steps.run(len(self.live), steps, self.params, self.head_VD)
            self.used = [positions + steps for positions in self.used]

    def collect(self) -> list[tuple[Unfinished, Completion]]:
        """Remove the sequences that have ended or called; return the former. The last live slot moves into each gap."""
        finished = []
        for slot, is_ended in reversed(self._stopping()):
            sequence, completion = self.live[slot], self.completion(slot)
            if self.calls and self.calls.pause(sequence.number, completion, sequence.limit):
                self.paused[sequence.number] = sequence
            elif is_ended:
                finished.append((sequence, completion))
            else:
                continue
            last = len(self.live) - 1
            if slot != last:
                self.slots.move(last, slot, min(self.used[last], self.longest))
                self.live[slot] = self.live[last]
                self.used[slot] = self.used[last]
            self.live.pop()
            self.used.pop()
        return finished[::-1]

    def _stopping(self) -> list[tuple[int, bool]]:
        """Return the slots that may stop, and whether they have ended: if not, a new token may end a call."""
        rows, slots = slice(len(self.live)), self.slots
        stops_B = ended_B = slots.ended_B[rows]
        if self.calls:
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
