"""Describe what a benchmark works on: prompts, completions per prompt, and the length of each completion."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from grpo.device.draw import SamplingParams
from grpo.schema import Group

GROUP = 12
NUM_SPECIAL = 4  # the first ids of models.write_tokenizer


@dataclass(frozen=True)
class Work:
    """Some prompts, the number of completions per prompt, and the tokens of each completion, prompt by prompt."""

    prompts: list[tuple[int, ...]]
    group: int
    lengths: list[int]

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max(self.lengths))

    @property
    def repeated(self) -> list[tuple[int, ...]]:
        """Return one prompt per completion."""
        return [prompt for prompt in self.prompts for _ in range(self.group)]


def random_prompts(number: int, shortest: int, longest: int, vocab: int) -> list[tuple[int, ...]]:
    """Make prompts of random token ids, none of them special."""
    rng = random.Random(0)
    prompts = []
    for _ in range(number):
        length = rng.randint(shortest, longest)
        prompts.append(tuple(rng.randrange(NUM_SPECIAL, vocab) for _ in range(length)))
    return prompts


def equal_work(batch: int, tokens: int, vocab: int, group: int = 1) -> Work:
    """Make completions that all have the same length, of prompts that have half of it."""
    prompts = random_prompts(batch // group, tokens // 2, tokens // 2, vocab)
    return Work(prompts, group, [tokens] * batch)


def variable_work(batch: int, tokens: int, vocab: int, group: int = GROUP) -> Work:
    """Draw completion lengths from a log-normal distribution: many short ones, and some cut off at the limit."""
    rng = random.Random(0)
    num_prompts = batch // group
    lengths = []
    for _ in range(num_prompts * group):
        length = round(tokens * 0.4 * math.exp(0.6 * rng.gauss(0, 1)))
        lengths.append(max(1, min(tokens, length)))
    return Work(random_prompts(num_prompts, tokens // 8, tokens * 3 // 4, vocab), group, lengths)


def work_of(groups: list[Group]) -> Work:
    """Describe groups that were sampled."""
    prompts = [group.prompt.ids for group in groups]
    return Work(prompts, len(groups[0].completions), completion_lengths(groups))


def completion_lengths(groups: Iterable[Group]) -> list[int]:
    """Return the tokens of each completion."""
    return [len(completion.ids) for group in groups for completion in group.completions]


def packed_tokens(groups: Iterable[Group]) -> int:
    """Count the packed tokens: each prompt once, and each completion without its last token."""
    total = 0
    for group in groups:
        total += len(group.prompt.ids) + sum(completion_lengths([group])) - len(group.completions)
    return total
