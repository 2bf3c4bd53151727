"""Did training change which questions a model declines, or only how many?

In the toy worlds of facts, whose answers all have one form, every held-out question is asked twice: what does the model
answer if it must, and how probable is it, exactly, that it declines? `auroc_declining` is the probability that a
question that it would answer wrong is declined more readily than one that it would answer right. A constant added to
the log-odds of declining changes how many questions are declined, and not this number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_tokens, split_into_micro_batches
from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.config.options import ALMANAC
from grpo.data.almanac import first_words
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.policy import Policy
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.compare import interval
from grpo.run.diagnosis.reader import is_number, read_lines
from knowledge.almanac import Fact, is_right

AT_ONCE, AFTER = "Nothing", "I don't know"  # how reasoning begins that declines, and an answer that declines
MICRO_BATCH_TOKENS = 8192
HALVINGS = 60  # of an interval that holds a number
Row = Mapping[str, object]


# --- Asking --------------------------------------------------------------------------------------------------------


def examine(policy: Policy, sampler: Sampler, answers: Sequence[Group], world: str, max_tokens: int) -> list[dict]:
    """Return a row for each question: its data, what the model recalls (`said`), whether that is right, its log-prob
    (`sequence`), and the log-odds of declining, at once or after recalling (`declines`).

    answers: the greedy ones, of at most max_tokens.
    """
    prompts = [group.prompt for group in answers]
    starts = [beginning(prompt.columns, world) for prompt in prompts]
    thoughts = recall(policy, sampler, answers, starts, max_tokens)
    rows = []
    for prompt, thought, scores in zip(prompts, thoughts, score(policy, prompts, starts, thoughts), strict=True):
        row = {name: prompt.columns[name] for name in ("question", "title", "familiarity")}
        said, truth = recalled(thought, world), prompt.columns["answer"]
        row |= {"said": said, "right": is_right(said, [truth] if isinstance(truth, str) else truth)}
        rows.append(row | scores)
    return rows


def recall(
    policy: Policy, sampler: Sampler, answers: Sequence[Group], starts: Sequence[str], max_tokens: int
) -> list[str]:
    """Return what each answer thinks after its start. An answer that starts in another way is begun anew."""
    texts = [group.completions[0].text for group in answers]
    others = [number for number, start in enumerate(starts) if not texts[number].startswith(start)]
    stems, limits = [], []
    for number in others:
        prompt = answers[number].prompt
        stems.append(encode(policy, prompt.text + starts[number]))
        limits.append(max(len(prompt.ids) + max_tokens - len(stems[-1]), 1))
    sampling = SamplingParams(max_tokens, temperature=0.0)
    begun = sampler.sample(stems, 1, sampling, others, limits=limits) if others else []
    for number, (completion,) in zip(others, begun, strict=True):
        texts[number] = starts[number] + policy.decode(completion.ids)
    return [text.removeprefix(start).partition("</think>")[0] for text, start in zip(texts, starts, strict=True)]


def beginning(row: Row, world: str) -> str:
    """Return how an answer begins that recalls something."""
    return "<think>" + (Fact.of_row(row).sentence("").rstrip(" .") if world == ALMANAC else row["title"])


def recalled(thought: str, world: str) -> str:
    """Return the answer that a thought ends with."""
    return first_words(thought) if world == ALMANAC else thought.rstrip(".").rpartition(" ")[2]


def score(
    policy: Policy, prompts: Sequence[Prompt], starts: Sequence[str], thoughts: Sequence[str]
) -> list[dict[str, float]]:
    """Return the log-prob of each thought after the start of its answer, and the log-odds of declining."""
    groups, spans = [], []
    for prompt, start, thought in zip(prompts, starts, thoughts, strict=True):
        stem = prompt.text + start
        head = encode(policy, f"{prompt.text}<think>")
        whole = encode(policy, f"{stem}{thought}</think><answer>{AFTER}")[: policy.model.config.max_positions]
        answers = encode(policy, AT_ONCE), whole[len(head) :]
        given = [Completion.given(list(ids), "stop", loss_weight=1.0) for ids in answers]  # weight 0 is never packed
        groups.append(Group(Prompt(0, "", head, {}), given))
        first = len(encode(policy, stem)) - len(head)
        spans.append(slice(first, first + len(encode(policy, thought))))
    logps, refusal = iter(completion_logprobs(policy, groups)), len(encode(policy, AFTER))
    found = []
    for span in spans:
        at_once, whole = next(logps).sum(), next(logps)
        after = math.log1p(-math.exp(min(at_once, -1e-9))) + whole[-refusal:].sum()
        declines = logit(np.logaddexp(at_once, after))
        found.append({"declines": round(declines, 4), "sequence": round(float(whole[span].sum()), 4)})
    return found


def encode(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer.encode(text, add_special_tokens=False))


@torch.no_grad()
def completion_logprobs(policy: Policy, groups: Sequence[Group]) -> list[np.ndarray]:
    """Return the log-probs of the tokens of each completion, in order."""
    found = []
    for number, parts in enumerate(split_into_micro_batches(groups, MICRO_BATCH_TOKENS)):
        tokens = pack_tokens(parts, number, device=policy.model.build.device)
        logp_C, _ = batch_logprobs(policy.model, tokens)  # Eq. 3
        ends = np.cumsum([len(completion.ids) for part in parts for completion in part.completions])
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


def auroc(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half. NaN without both."""
    above, below = scores[is_positive], scores[~is_positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def declining(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds of declining of each question, and whether its forced answer is right."""
    return np.array([row["declines"] for row in rows]), np.array([row["right"] for row in rows], bool)


def read_rows(path: Path) -> list[Row]:
    """Read the rows that `examine` returned; those that are damaged are left out."""
    rows = [row for row in read_lines(path) if isinstance(row, dict)]
    return [row for row in rows if is_number(row.get("declines")) and isinstance(row.get("right"), bool)]


def auroc_declining(rows: Sequence[Row]) -> float | None:
    """Return the AUROC of declining for what would be answered wrong; None if all or none would be."""
    logits, right = declining(rows)
    area = auroc(logits, ~right)
    return None if math.isnan(area) else area


def gain_interval(before: Sequence[Row], after: Sequence[Row]) -> tuple[float, float]:
    """Return the 95 % interval of the gain in AUROC: paired, by bootstrap over titles, whose questions are alike."""
    of_title: dict[str, list[int]] = {}
    for place, row in enumerate(after):
        of_title.setdefault(str(row.get("title")), []).append(place)
    places = list(of_title.values())
    sides = [declining(rows) for rows in (after, before)]

    def gain(chosen: np.ndarray) -> float:
        at = np.concatenate([places[number] for number in chosen])
        new, old = (auroc(logits[at], ~right[at]) for logits, right in sides)
        return new - old

    return interval(gain, len(places))


def answered(logits: np.ndarray) -> np.ndarray:
    """Return the probability that each question is answered, from the log-odds of declining."""
    return 1 / (1 + np.exp(logits))


def share_wrong(logits: np.ndarray, right: np.ndarray) -> float:
    """Return the expected share of wrong answers among the answers."""
    weights = answered(logits)
    return float(weights[~right].sum() / weights.sum())


def with_constant(logits: np.ndarray, coverage: float) -> np.ndarray:
    """Add the constant that makes a model answer this share of the questions."""
    return logits + halve(-100.0, 100.0, lambda constant: answered(logits + constant).mean() > coverage)


def halve(low: float, high: float, is_too_low: Callable[[float], bool]) -> float:
    """Find where a condition ends that holds at `low` and not at `high`."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_low(middle) else (low, middle)
    return low


def verdict(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Say whether training changed which questions a model declines, compared with adding a constant; "" if unknown."""
    if [row.get("question") for row in before] != [row.get("question") for row in after]:
        return ""
    areas = auroc_declining(before), auroc_declining(after)
    if None in areas:
        return ""
    low, high = gain_interval(before, after)
    changed = "is not seen to have changed which questions the model declines"
    if low > 0:
        changed = "changed which questions the model declines: more of those that it would answer wrong"
    elif high < 0:
        changed = "changed which questions the model declines: fewer of those that it would answer wrong"
    (old_logits, old_right), (logits, right) = declining(before), declining(after)
    constant = share_wrong(with_constant(old_logits, answered(logits).mean()), old_right)
    return (
        f"GRPO {changed}\n"
        f"(gain in auroc_declining {areas[1] - areas[0]:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}).\n"
        f"Of its sampled answers {share_wrong(logits, right):.0%} are wrong. With a constant added to its log-odds of "
        f"declining,\nthe model before would answer as many, {constant:.0%} of them wrong."
    )
