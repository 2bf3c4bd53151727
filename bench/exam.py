"""Ask a model for what it would say and how readily it would decline, from log-probs and not from draws."""

import math
from collections.abc import Sequence

from grpo.base.schema import Completion, Group, Prompt
from grpo.device.draw import SamplingParams
from grpo.evaluation.choices import sum_logprobs
from grpo.model.policy import Policy
from grpo.sampling.sampler import Sampler

MAX_SEQUENCES = 64


def encode(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer.encode(text, add_special_tokens=False))


def greedy(policy: Policy, stems: Sequence[str], max_tokens: int, ends: Sequence[int] = ()) -> list[Completion]:
    """Return the likeliest continuation of each stem, up to the end of the text, one of `ends` or the limit."""
    sampler = Sampler(policy.model, (*policy.eos_ids, *ends), MAX_SEQUENCES)
    prompts = [encode(policy, stem) for stem in stems]
    found = sampler.sample(prompts, 1, SamplingParams(max_tokens, 0.0), range(len(prompts)))
    return [completion for (completion,) in found]


def logprobs(policy: Policy, asked: Sequence[tuple[str, ...]]) -> list[float]:
    """Return the log-prob of each text after the prompt that begins its tuple."""
    groups = []
    for prompt, *texts in asked:
        answers = [Completion.given(list(encode(policy, text)), "stop", text, loss_weight=1.0) for text in texts]
        groups.append(Group(Prompt(0, prompt, encode(policy, prompt), {}), answers))
    return sum_logprobs(policy, groups)


def logit(logp: float) -> float:
    """Return log p / (1 - p).

    >>> logit(math.log(0.5))
    0.0
    """
    logp = min(logp, -1e-9)
    return logp - math.log(-math.expm1(logp))
