"""Batched generation over a slot cache: admit, decode, collect.

Counterpart of `sample` in minimal.py, which computes all earlier tokens again for each new one.

Each prompt is prefilled once for its group, up to its last token; that token is the first input of every completion's
decoding, so all sampling happens in one place. Sequences wait in a queue while all slots are taken, and enter as others
end. Log-probs are those of the distribution that was really sampled from.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import isfinite

import torch

from grpo.algorithm.schema import Completion
from grpo.base.errors import NON_FINITE, UserError
from grpo.engine.attention.select import KernelChoice, decode_choice
from grpo.engine.device.capture import CudaCapture
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.decoder import Decoder
from grpo.engine.sampling.cache import KVCache
from grpo.engine.sampling.cuda_graph import DecodeGraphs
from grpo.engine.sampling.decode_step import DecodeLoop, DecodeSteps, Slots
from grpo.engine.sampling.running import Running, Tools, Unfinished

OnFinish = Callable[[int, Completion], None]


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
        self.uses_graphs = self.on_cuda  # then slots are kept from one call to the next
        self.graphs: DecodeGraphs | None = None
        self.decode_kernel: KernelChoice | None = None  # of decode attention, chosen once, for the first graphs
        self.before_decoding = before_decoding

    @torch.inference_mode()
    def prepare(self, num_slots: int, num_positions: int, max_new_tokens: int) -> DecodeGraphs | None:
        """Allocate slots for this many sequences of these lengths, and keep them. Without graphs, do nothing."""
        if not self.uses_graphs:
            return None
        if self.graphs is not None and self.graphs.slots.holds(num_slots, num_positions, max_new_tokens):
            return self.graphs
        self.graphs = None  # frees its memory first
        self.decode_kernel = self.decode_kernel or decode_choice(self.model, num_slots, num_positions)
        cache = KVCache.of(self.model, num_slots, num_positions)
        slots = Slots.make(cache, max_new_tokens)
        capture = CudaCapture() if self.on_cuda else None
        self.graphs = DecodeGraphs(self.model, slots, self.eos_ids, self.decode_kernel.name, capture)
        return self.graphs

    def steps_for(self, num_slots: int, num_positions: int, max_new_tokens: int) -> DecodeSteps:
        """Return what makes the decode steps of one `sample`, with slots for its sequences."""
        graphs = self.prepare(num_slots, num_positions, max_new_tokens)
        if graphs:
            return graphs
        cache = KVCache.of(self.model, num_slots, 0)
        slots = Slots.make(cache, max_new_tokens)
        return DecodeLoop(self.model, slots, self.eos_ids)

    def release(self) -> None:
        """Free slots and graphs. Graphs that hold collectives must go before their group of processes does."""
        self.graphs = None

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
        waiting = deque(
            Unfinished(number, number // num_generations, limits[number], seeds[number]) for number in numbers
        )
        done: dict[int, Completion] = {}
        with self.model.sampling() as head_VD:
            running = Running(self, prompts, params, min(self.max_slots, len(numbers)), head_VD)
            # What one turn collects is handed over in the next one, once `decode` has given a GPU its work meanwhile.
            collected: list[tuple[Unfinished, Completion]] = []
            while waiting or running.live or collected or running.paused:
                self.before_decoding()
                if running.paused:
                    is_idle = not (waiting or running.live or collected)
                    collected += running.resume(waiting, wait=is_idle)
                running.admit(waiting)
                running.decode(self.check_every)
                for sequence, completion in collected:
                    done[sequence.number] = completion
                    if on_finish:
                        on_finish(sequence.number, completion)
                collected = running.collect()
        firsts = numbers[::num_generations]
        return [[done[number] for number in numbers[first : first + num_generations]] for first in firsts]

    @torch.inference_mode()
    def stream(
        self, prompt: Sequence[int], params: SamplingParams, seed: int, on_finish: OnFinish | None = None
    ) -> Iterator[int]:
        """Yield the tokens of one completion, also those that tools give, without its end token.

        on_finish: as in `sample`. UserError (exit 5) if logits are not finite.
        """
        with self.model.sampling() as head_VD:
            running = Running(self, [prompt], params, 1, head_VD)
            only = Unfinished(number=0, prompt_number=0, limit=params.max_new_tokens, seed=seed)
            waiting = deque([only])
            num_yielded = 0
            finished: list[tuple[Unfinished, Completion]] = []
            while not finished:
                finished = running.resume(waiting, wait=True) if running.paused else []
                running.admit(waiting)
                running.decode(1)
                if running.live:
                    ids, logps, _ = running.tokens(0, num_yielded)
                    check_finite(*logps)
                    yield from (token for token in ids if token not in self.eos_ids)
                    num_yielded += len(ids)
                finished += running.collect()
            if on_finish:
                on_finish(0, finished[0][1])


def check_finite(*logps: float) -> None:
    """Raise UserError (exit 5) if a log-prob is not finite: the logits were not either, and the tokens mean nothing."""
    if not all(map(isfinite, logps)):
        raise UserError(
            "the model's logits are not finite",
            "its weights are damaged or too large, or the numbers overflow in this dtype",
            "download the model again, or set torch_dtype to bfloat16 or float32",
            NON_FINITE,
        )
