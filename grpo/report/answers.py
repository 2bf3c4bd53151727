"""Answers worth reading, some of the last step; and how training has changed those to held-out questions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter

from grpo.base.errors import UserError
from grpo.base.text import in_words
from grpo.evaluation.compare import RATES, Comparison, compare, measure_answers
from grpo.evaluation.measures import Summary
from grpo.run.diagnosis.record import Answer, Record
from grpo.run.diagnosis.rules import History, says_nothing

Pairs = Sequence[tuple[Answer, Answer]]  # the first and the last answer to each held-out question
NUM_CHANGES = 6  # in each direction
HEADLINE = {
    "accuracy": "right",
    "incorrect": "wrong",
    "not_attempted": "declined",
    "supported_facts": "supported facts per answer",
    "refuted_facts": "refuted ones",
    "reward": "mean reward",
}


def examples(record: Record, step: int) -> list[tuple[str, Answer]]:
    """Return the best, the median and the worst completion of a step, by reward, and one that could not be scored."""
    answers = record.answers(step)
    scored = [answer for answer in answers if answer.reward is not None]
    unscored = [answer for answer in answers if answer.reward is None]
    scored.sort(key=lambda answer: answer.reward, reverse=True)
    shown = {
        "The best": scored[:1],
        "The median": scored[len(scored) // 2 :][:1],
        "The worst": scored[-1:],
        "One that could not be scored": unscored[:1],
    }
    return [(label, answer) for label, found in shown.items() for answer in found]


def before_and_after(pairs: Pairs) -> Comparison | None:
    """Compare the answers before and after training; None if none of them is graded."""
    first = measure_answers(vars(answer) for answer, _ in pairs)
    last = measure_answers(vars(answer) for _, answer in pairs)
    with suppress(UserError):  # there is nothing to compare
        return compare(first, last)
    return None


def headline(compared: Comparison, pairs: Pairs, model: str) -> str:
    """Return what training has changed, in one sentence. Of a model that says nothing, this is what matters."""
    if silent := says_nothing(History(answers=[(first.completion, last.completion) for first, last in pairs])):
        paid = [name for name, of in compared.measures.items() if name.startswith("rewards/") and of.difference > 0]
        return f"{model}: {silent}{'; only these have paid more: ' * bool(paid)}{', '.join(paid)}."
    texts = []
    for name, words in HEADLINE.items():
        of = compared.measures.get(name)
        if of and (of.a or of.b) and not (name == "reward" and texts):
            form = ".1%" if name in RATES else ".2f"
            chance = "p < 0.001" if of.p < 0.001 else f"p = {of.p:.2g}"
            texts.append(f"{words} {of.a:{form}} → {of.b:{form}} ({chance})")
    return f"{model}, on {compared.num_questions} held-out questions, before and after training: {', '.join(texts)}."


def draw_bars(summaries: Mapping[str, Mapping[str, Summary]]) -> dict[str, dict[str, float]]:
    """Return the shares right, wrong and declined of each moment; {} if no reward knows them."""
    bars = {}
    for moment, parts in summaries.items():
        known = {HEADLINE[measure]: parts.get("", {}).get(measure) for measure in RATES}
        if None not in known.values():
            bars[moment] = known
    return bars


def most_changed(pairs: Pairs) -> tuple[list[tuple[float, Answer, Answer]], list[tuple[str, int]]]:
    """Return the gains that are largest, with both answers, and how often an outcome changed: "wrong → declined"."""
    changes = []
    flipped: Counter[str] = Counter()
    for first, last in pairs:
        if None in (first.reward, last.reward):
            continue
        changes.append((last.reward - first.reward, first, last))
        if first.outcome and last.outcome and first.outcome != last.outcome:
            flipped[f"{in_words(first.outcome)} → {in_words(last.outcome)}"] += 1
    changes.sort(key=itemgetter(0))
    lost = [change for change in changes[:NUM_CHANGES] if change[0] < 0]
    won = [change for change in reversed(changes[-NUM_CHANGES:]) if change[0] > 0]
    return lost + won, flipped.most_common()
