"""Ask a model which facts of the almanac it declines. Are those the ones that it does not know?

Every fact is asked for twice: what does the model answer if it must, and how probable is it, exactly, that it declines?
A score, such as the log-odds of declining, should rank what would be answered wrong above what is known
(bench/measures.py).
"""

import math
from collections.abc import Sequence

import numpy as np

from bench.asking import Thought, completion_logprobs, encode, given
from bench.measures import Row, column
from grpo.algorithm.schema import Group
from grpo.data.almanac import first_words
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import Policy

AT_ONCE = "Nothing"  # how reasoning begins that declines
AFTER = "I don't know"  # an answer that declines, after recalling something


def examine(policy: Policy, sampler: Sampler, answers: Sequence[Group], max_tokens: int) -> list[dict]:
    """Return a row for each question: its data, what the model recalls (`said`), whether that is right, its log-prob
    (`sequence`), and the log-odds of declining, at once or after recalling (`declines`).

    answers: the greedy ones, of at most max_tokens.
    """
    thoughts = recall(policy, sampler, answers, max_tokens)
    scores = score(policy, thoughts)
    rows = []
    for thought, scored in zip(thoughts, scores, strict=True):
        name = first_words(thought.said)
        rows.append(thought.row(name) | scored)
    return rows


def recall(policy: Policy, sampler: Sampler, answers: Sequence[Group], max_tokens: int) -> list[Thought]:
    """Return what each answer recalls. An answer that starts in another way is begun anew."""
    thoughts, others = [], []
    for number, group in enumerate(answers):
        thought = Thought.about(group.prompt)
        text = group.completions[0].text
        if text.startswith(thought.beginning):
            thought = thought.saying(text.removeprefix(thought.beginning))
        else:
            others.append(number)
        thoughts.append(thought)
    if not others:
        return thoughts
    starts, limits = [], []
    for number in others:
        start = encode(policy, thoughts[number].start)
        end = len(answers[number].prompt.ids) + max_tokens
        starts.append(start)
        limits.append(max(end - len(start), 1))
    greedy = SamplingParams(max_tokens, temperature=0.0)
    begun = sampler.sample(starts, 1, greedy, others, limits=limits)
    for number, (completion,) in zip(others, begun, strict=True):
        text = policy.decode(completion.ids)
        thoughts[number] = thoughts[number].saying(text)
    return thoughts


def score(policy: Policy, thoughts: Sequence[Thought]) -> list[dict[str, float]]:
    """Return the log-prob of what each thought says, and the log-odds of declining."""
    at_once = encode(policy, AT_ONCE)
    refusal = encode(policy, AFTER)
    limit = policy.model.config.max_positions
    groups = []
    for thought in thoughts:
        head = thought.head(policy)
        text = encode(policy, f"{thought.text}</think><answer>{AFTER}")
        answer = text[len(head) : limit]
        groups.append(given(head, at_once, answer))
    logps = iter(completion_logprobs(policy, groups))
    found = []
    for thought in thoughts:
        declines_at_once = next(logps).sum()
        answer = next(logps)
        sequence = float(answer[thought.span(policy)].sum())
        recalls = math.log1p(-math.exp(min(declines_at_once, -1e-9)))
        declines_after = recalls + answer[-len(refusal) :].sum()
        declines = logit(np.logaddexp(declines_at_once, declines_after))
        found.append({"declines": round(declines, 4), "sequence": round(sequence, 4)})
    return found


def logit(logp: float) -> float:
    """Return log p / (1 - p).

    >>> logit(math.log(0.5))
    0.0
    """
    logp = min(float(logp), -1e-9)
    return logp - math.log(-math.expm1(logp))


def declining(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds of declining of each question, and whether its forced answer is right."""
    return column(rows, "declines"), column(rows, "right")


def answered(logits: np.ndarray) -> np.ndarray:
    """Return the probability that each question is answered, from the log-odds of declining."""
    return 1 / (1 + np.exp(logits))
