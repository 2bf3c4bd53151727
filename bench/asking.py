"""Ask a model of the exams: how does it go on after a start, and how probable is an ending that it is given?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_tokens, split_into_micro_batches
from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import Policy
from knowledge.almanac import Fact, is_right

MAX_SEQUENCES = 64  # decoded together
MICRO_BATCH_TOKENS = 8192
Ids = Sequence[int]


@dataclass(frozen=True)
class Thought:
    """The start of an answer that recalls a fact: `prompt` (a text), the beginning of a sentence, and what is `said`.

    >>> Thought("Well? ", Fact("capital", "Chad", ("N'Djamena",)), " Lima.").text
    'Well? <think>The capital of Chad is Lima.'
    """

    prompt: str
    fact: Fact
    said: str = ""

    @classmethod
    def about(cls, prompt: Prompt) -> "Thought":
        """Begin to recall the fact that a prompt asks for."""
        return cls(prompt.text, Fact.of_row(prompt.columns))

    @property
    def beginning(self) -> str:
        sentence = self.fact.sentence("").rstrip(" .")
        return f"<think>{sentence}"

    @property
    def start(self) -> str:
        return self.prompt + self.beginning

    @property
    def text(self) -> str:
        return self.start + self.said

    def saying(self, text: str) -> "Thought":
        """Return the thought that goes on with what a text says before the end of the think block."""
        said, _, _ = text.partition("</think>")
        return replace(self, said=said)

    def head(self, policy: Policy) -> Ids:
        """Return the tokens up to <think>."""
        return encode(policy, f"{self.prompt}<think>")

    def span(self, policy: Policy) -> slice:
        """Return which of the tokens after the head are those that are said."""
        head = len(self.head(policy))
        first = len(encode(policy, self.start))
        last = len(encode(policy, self.text))
        return slice(first - head, last - head)

    def row(self, name: str) -> dict[str, object]:
        """Return what is asked, the name that is recalled, and whether it is right."""
        fact = self.fact
        return {
            "question": fact.question,
            "title": fact.title,
            "familiarity": fact.familiarity,
            "said": name,
            "right": is_right(name, fact.answers),
        }


def encode(policy: Policy, text: str) -> tuple[int, ...]:
    """Return the token ids of a text without special tokens around it."""
    return tuple(policy.tokenizer.encode(text, add_special_tokens=False))


def go_on(policy: Policy, starts: Sequence[Ids], max_tokens: int, ends: Ids = ()) -> list[Completion]:
    """Return how a model goes on after each start, greedily, until it ends or says one of the tokens `ends`."""
    sampler = Sampler(policy.model, (*policy.eos_ids, *ends), MAX_SEQUENCES)
    greedy = SamplingParams(max_tokens, temperature=0.0)
    groups = sampler.sample(starts, 1, greedy, range(len(starts)))
    return [completion for (completion,) in groups]


def given(head: Ids, *endings: Ids) -> Group:
    """Return a start with endings that the model did not choose, to compute their log-probs."""
    completions = []
    for ids in endings:
        completion = Completion.given(list(ids), "stop", loss_weight=1.0)  # weight 0 is never packed
        completions.append(completion)
    return Group(Prompt(0, "", tuple(head), {}), completions)


@torch.no_grad()
def completion_logprobs(policy: Policy, groups: Sequence[Group]) -> list[np.ndarray]:
    """Return the log-probs (nats) of the tokens of each completion, in order."""
    found = []
    device = policy.model.build.device
    for number, parts in enumerate(split_into_micro_batches(groups, MICRO_BATCH_TOKENS)):
        tokens = pack_tokens(parts, number, device=device)
        logp_C, _ = batch_logprobs(policy.model, tokens)  # Eq. 3
        lengths = [len(completion.ids) for part in parts for completion in part.completions]
        ends = np.cumsum(lengths)
        found += np.split(logp_C.double().cpu().numpy(), ends[:-1])
    return found
