"""Describe what a benchmark works on: prompts, completions per prompt, and the length of each completion."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from grpo.algorithm.schema import Group, completions_of

GROUP = 12
NUM_SPECIAL = 4  # the first ids of models.write_tokenizer
Ids = Sequence[int]


@dataclass(frozen=True)
class Work:
    """Some prompts, the number of completions per prompt, and the tokens of each completion, prompt by prompt."""

    prompts: list[Ids]
    group: int
    lengths: list[int]

    @property
    def steps(self) -> int:
        """Return the number of decode steps."""
        return max(self.lengths)

    @property
    def repeated(self) -> list[Ids]:
        """Return one prompt per completion."""
        return [prompt for prompt in self.prompts for _ in range(self.group)]

    def behind(self, step: int) -> list[int]:
        """Return how many tokens lie behind each sequence that still decodes in this step."""
        rows = zip(self.repeated, self.lengths, strict=True)
        return [len(prompt) + step for prompt, length in rows if length > step]


def random_rows(lengths: Iterable[int], vocab: int) -> list[Ids]:
    """Make rows of random token ids, none of them special."""
    rng = random.Random(0)
    return [tuple(rng.choices(range(NUM_SPECIAL, vocab), k=length)) for length in lengths]


def equal_work(batch: int, tokens: int, vocab: int, group: int = 1) -> Work:
    """Make completions that all have the same length, of prompts that have half of it."""
    return Work(random_rows([tokens // 2] * (batch // group), vocab), group, lengths=[tokens] * batch)


def variable_work(batch: int, tokens: int, vocab: int, group: int = GROUP) -> Work:
    """Draw completion lengths from a log-normal distribution: many short ones, and some cut off at the limit."""
    rng = random.Random(0)
    num_prompts = batch // group
    drawn = [round(tokens * 0.4 * math.exp(0.6 * rng.gauss(0, 1))) for _ in range(num_prompts * group)]
    of_prompts = [rng.randint(tokens // 8, tokens * 3 // 4) for _ in range(num_prompts)]
    return Work(
        random_rows(of_prompts, vocab),
        group,
        lengths=[max(1, min(tokens, length)) for length in drawn],
    )


KINDS = {"equal": equal_work, "variable": variable_work}


def work_of(groups: list[Group]) -> Work:
    """Describe groups that were sampled."""
    return Work(
        [group.prompt.ids for group in groups],
        len(groups[0].completions),
        completion_lengths(groups),
    )


def completion_lengths(groups: Iterable[Group]) -> list[int]:
    """Return the tokens of each completion."""
    return [len(completion.ids) for completion in completions_of(groups)]


def packed_tokens(groups: Iterable[Group]) -> int:
    """Count the packed tokens: each prompt once, and each completion without its last token."""
    return sum(len(group.prompt.ids) + sum(length - 1 for length in completion_lengths([group])) for group in groups)


def padded(rows: Sequence[Ids], side: str, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad random rows with zeros on one side, and return them with a mask that is 0 on the padding and else 1."""
    ids = [torch.tensor(row, device=device) for row in rows]
    ids_NS = pad_sequence(ids, batch_first=True, padding_side=side)
    return ids_NS, (ids_NS != 0).long()  # no row holds a special id


def plain_logprobs(logits_CV: torch.Tensor, targets_C: torch.Tensor) -> torch.Tensor:
    """Compute the log-probs of the targets by log_softmax and gather, as peers do."""
    logp_CV = logits_CV.log_softmax(-1)
    logp_C1 = logp_CV.gather(1, targets_C[:, None])
    return logp_C1[:, 0]
