"""Ask a model which facts of the almanac it declines, and measure whether those are the ones that it does not know.

Every fact is asked for twice: what does the model answer if it must, and how probable is it, exactly, that it declines?
A score, such as the log-odds of declining, should rank what would be answered wrong above what is known:

    auroc         the probability that a fact that would be answered wrong has a higher score than one that is known
    auroc_within  the same among facts of one kind: telling kinds apart does not count
    risk_at       the share of wrong answers if a model answers this share of the questions (its coverage), from the
                  lowest score on: models that decline more or less often can be compared at the same coverage
    mean_risk     the mean of this share over all coverages (AURC, 1805.08206)

None of them changes if a constant is added to the score. All take arrays with one entry per question.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_tokens, split_into_micro_batches
from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.data.almanac import first_words
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.policy import Policy
from grpo.engine.sampling.sampler import Sampler
from knowledge.almanac import Fact, is_right

AT_ONCE = "Nothing"  # how reasoning begins that declines
AFTER = "I don't know"  # an answer that declines, after recalling something
MICRO_BATCH_TOKENS = 8192
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)  # quantiles of Student's t, of 1, 2, … degrees of freedom
Row = Mapping[str, object]


# --- Asking --------------------------------------------------------------------------------------------------------


def examine(policy: Policy, sampler: Sampler, answers: Sequence[Group], max_tokens: int) -> list[dict]:
    """Return a row for each question: its data, what the model recalls (`said`), whether that is right, its log-prob
    (`sequence`), and the log-odds of declining, at once or after recalling (`declines`).

    answers: the greedy ones, of at most max_tokens.
    """
    prompts = [group.prompt for group in answers]
    facts = [Fact.of_row(prompt.columns) for prompt in prompts]
    starts = [beginning(fact) for fact in facts]
    thoughts = recall(policy, sampler, answers, starts, max_tokens)
    scores = score(policy, prompts, starts, thoughts)
    rows = []
    for fact, thought, scored in zip(facts, thoughts, scores, strict=True):
        said = first_words(thought)
        row = {"question": fact.question, "title": fact.title, "familiarity": fact.familiarity, "said": said}
        row["right"] = is_right(said, fact.answers)
        rows.append(row | scored)
    return rows


def beginning(fact: Fact) -> str:
    """Return how an answer begins that recalls something."""
    sentence = fact.sentence("").rstrip(" .")
    return f"<think>{sentence}"


def recall(
    policy: Policy, sampler: Sampler, answers: Sequence[Group], starts: Sequence[str], max_tokens: int
) -> list[str]:
    """Return what each answer thinks after its start. An answer that starts in another way is begun anew."""
    texts = [group.completions[0].text for group in answers]
    others, stems, limits = [], [], []
    for number, (group, start) in enumerate(zip(answers, starts, strict=True)):
        if texts[number].startswith(start):
            continue
        stem = encode(policy, group.prompt.text + start)
        left = len(group.prompt.ids) + max_tokens - len(stem)
        others.append(number)
        stems.append(stem)
        limits.append(max(left, 1))
    greedy = SamplingParams(max_tokens, temperature=0.0)
    begun = sampler.sample(stems, 1, greedy, others, limits=limits) if others else []
    for number, (completion,) in zip(others, begun, strict=True):
        texts[number] = starts[number] + policy.decode(completion.ids)
    thoughts = []
    for text, start in zip(texts, starts, strict=True):
        thought, _, _ = text.removeprefix(start).partition("</think>")
        thoughts.append(thought)
    return thoughts


def score(
    policy: Policy, prompts: Sequence[Prompt], starts: Sequence[str], thoughts: Sequence[str]
) -> list[dict[str, float]]:
    """Return the log-prob of each thought after the start of its answer, and the log-odds of declining."""
    groups, spans = [], []
    for prompt, start, thought in zip(prompts, starts, thoughts, strict=True):
        stem = prompt.text + start
        head = encode(policy, f"{prompt.text}<think>")
        text = encode(policy, f"{stem}{thought}</think><answer>{AFTER}")
        fitting = text[: policy.model.config.max_positions]
        answer = fitting[len(head) :]
        given = []
        for ids in (encode(policy, AT_ONCE), answer):
            given.append(Completion.given(list(ids), "stop", loss_weight=1.0))  # weight 0 is never packed
        groups.append(Group(Prompt(0, "", head, {}), given))
        first = len(encode(policy, stem)) - len(head)
        length = len(encode(policy, thought))
        spans.append(slice(first, first + length))
    logps = iter(completion_logprobs(policy, groups))
    refusal = len(encode(policy, AFTER))
    found = []
    for span in spans:
        at_once, answer = next(logps).sum(), next(logps)
        recalls = math.log1p(-math.exp(min(at_once, -1e-9)))
        after = recalls + answer[-refusal:].sum()
        declines = logit(np.logaddexp(at_once, after))
        sequence = float(answer[span].sum())
        found.append({"declines": round(declines, 4), "sequence": round(sequence, 4)})
    return found


def encode(policy: Policy, text: str) -> tuple[int, ...]:
    """Return the token ids of a text without special tokens around it."""
    return tuple(policy.tokenizer.encode(text, add_special_tokens=False))


@torch.no_grad()
def completion_logprobs(policy: Policy, groups: Sequence[Group]) -> list[np.ndarray]:
    """Return the log-probs of the tokens of each completion, in order."""
    found = []
    for number, parts in enumerate(split_into_micro_batches(groups, MICRO_BATCH_TOKENS)):
        tokens = pack_tokens(parts, number, device=policy.model.build.device)
        logp_C, _ = batch_logprobs(policy.model, tokens)  # Eq. 3
        lengths = [len(completion.ids) for part in parts for completion in part.completions]
        ends = np.cumsum(lengths)
        found += np.split(logp_C.double().cpu().numpy(), ends[:-1])
    return found


def logit(logp: float) -> float:
    """Return log p / (1 - p).

    >>> logit(math.log(0.5))
    0.0
    """
    logp = min(float(logp), -1e-9)
    return logp - math.log(-math.expm1(logp))


# --- Measures ------------------------------------------------------------------------------------------------------


def declining(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds of declining of each question, and whether its forced answer is right."""
    logits = [row["declines"] for row in rows]
    is_right = [row["right"] for row in rows]
    return np.array(logits), np.array(is_right, bool)


def answered(logits: np.ndarray) -> np.ndarray:
    """Return the probability that each question is answered, from the log-odds of declining."""
    return 1 / (1 + np.exp(logits))


def auroc(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half. NaN without both."""
    above, below = scores[is_positive], scores[~is_positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below
    is_higher, is_equal = differences > 0, differences == 0
    return float((is_higher + 0.5 * is_equal).mean())


def auroc_within(scores: np.ndarray, is_positive: np.ndarray, kinds: np.ndarray) -> float:
    """Return the AUROC within each kind of question, weighted by its pairs. NaN if no kind has both."""
    total = weights = 0.0
    for kind in np.unique(kinds):
        chosen = kinds == kind
        positive = is_positive[chosen]
        pairs = float(positive.sum() * (~positive).sum())
        if pairs:
            total += pairs * auroc(scores[chosen], positive)
            weights += pairs
    return total / weights if weights else math.nan


def risk_at(scores: np.ndarray, is_right: np.ndarray, coverage: float) -> float:
    """Return the share of wrong answers if this share of the questions is answered, those of the lowest scores."""
    number = max(1, round(coverage * len(scores)))
    answered = np.argsort(scores, kind="stable")[:number]
    return float(1 - is_right[answered].mean())


def mean_risk(scores: np.ndarray, is_right: np.ndarray) -> float:
    """Return the mean of the risk over all coverages."""
    order = np.argsort(scores, kind="stable")
    num_wrong = np.cumsum(~is_right[order])
    num_answered = np.arange(1, len(order) + 1)
    return float((num_wrong / num_answered).mean())


def over_seeds(values: Sequence[float]) -> str:
    """Write the mean over seeds with its 95 % interval, by Student's t; with more than eight, a little wider than that.

    >>> over_seeds([0.2, 0.4])
    '0.300 [-0.971, 1.571]'
    """
    mean, number = np.mean(values), len(values)
    if number == 1:
        return f"{mean:.3f}"
    quantile = T95[min(number, len(T95) + 1) - 2]
    reach = quantile * np.std(values, ddof=1) / math.sqrt(number)
    return f"{mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}]"
