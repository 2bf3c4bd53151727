"""Ask a model for what it would say and how readily it would decline, from log-probs and not from draws."""

import math
from collections.abc import Sequence

import torch

from grpo.base.schema import Completion, Group, Prompt
from grpo.device.draw import SamplingParams
from grpo.logprobs import batch_logprobs
from grpo.model.policy import Policy
from grpo.packing import pack_batch, split_into_micro_batches
from grpo.sampling.sampler import Sampler

MAX_SEQUENCES = 64
MICRO_BATCH_TOKENS = 8192


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


@torch.inference_mode()
def sum_logprobs(policy: Policy, groups: Sequence[Group]) -> list[float]:
    """Return the sum of the log-probs of each completion, in order."""
    sums = []
    for number, parts in enumerate(split_into_micro_batches(groups, MICRO_BATCH_TOKENS)):
        batch = pack_batch(parts, number, device=policy.model.build.device)
        logp_C, _ = batch_logprobs(policy.model, batch)  # Eq. 3
        sum_N = torch.zeros(len(batch.completions), dtype=torch.float64, device=logp_C.device)
        sums += sum_N.index_add_(0, batch.completion_C, logp_C.double()).tolist()
    return sums


def logit(logp: float) -> float:
    """Return log p / (1 - p).

    >>> logit(math.log(0.5))
    0.0
    """
    logp = min(logp, -1e-9)
    return logp - math.log(-math.expm1(logp))
