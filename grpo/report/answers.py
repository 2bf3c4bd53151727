"""Completions worth reading: the best, the median, the worst, and the questions whose answers have flipped."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.errors import UserError
from grpo.run.record import Answer, Record
from knowledge.store.base import KnowledgeBase

NUM_FILES = 40  # of completions/ that are read from either end, to find questions that were asked twice
NUM_FLIPS = 6  # in each direction
MANY = 1000  # passages of a document


@dataclass(frozen=True)
class Fact:
    """A fact that was checked: what it says, the verdict, and the passage that decided, if there is one."""

    text: str
    verdict: str
    passage: str = ""
    passage_text: str = ""


@dataclass(frozen=True)
class Verdict:
    """What one reward says about a completion."""

    reward: str
    value: float | str | None
    reason: str
    facts: list[Fact]


@dataclass(frozen=True)
class Example:
    """A completion, and why it is shown."""

    label: str
    answer: Answer
    verdicts: list[Verdict]


@dataclass(frozen=True)
class Flips:
    """What became of the questions that were asked twice.

    num_questions: how many these are. outcomes: "wrong → refused" and so on, with their numbers. questions: those whose
    mean reward changed most.
    """

    num_questions: int
    outcomes: list[tuple[str, int]]
    questions: list["Flip"]


@dataclass(frozen=True)
class Flip:
    """A question with its first and its last answer. change: by how much its mean reward has risen."""

    first: Answer
    last: Answer
    change: float


def examples(record: Record, step: int) -> list[Example]:
    """Return the best, median and worst completion of a step, and one that could not be scored."""
    answers = record.answers(step)
    scored = _by_reward(answers)
    chosen = {}
    if scored:
        chosen = {"best": scored[0], "median": scored[len(scored) // 2], "worst": scored[-1]}
    unscorable = [answer for answer in answers if answer.reward is None]
    if unscorable:
        chosen["unscorable"] = unscorable[0]
    with Passages(record) as passages:
        return [Example(label, answer, _verdicts(answer, passages)) for label, answer in chosen.items()]


def _by_reward(answers: Sequence[Answer]) -> list[Answer]:
    """Return the scorable answers, the best one first."""
    return sorted((a for a in answers if a.reward is not None), key=lambda answer: answer.reward, reverse=True)


def _verdicts(answer: Answer, passages: "Passages") -> list[Verdict]:
    verdicts = []
    for name, value in answer.rewards.items():
        of_reward = answer.facts.get(name)
        facts = [passages.read(fact) for fact in of_reward or () if isinstance(fact, dict)]
        reason = str(answer.reasons.get(name, ""))
        if facts:  # the reason repeats them
            reason = reason.partition(f"; {facts[0].text[:60]}")[0]
        verdicts.append(Verdict(name, value, reason, facts))
    return verdicts


class Passages:
    """The texts of the passages that decided, from the run's knowledge base if that is still there."""

    def __init__(self, record: Record):
        self.base: KnowledgeBase | None = None
        path = record.config.get("knowledge_base")
        if isinstance(path, str) and Path(path).is_file():
            with suppress(UserError, OSError):  # a report does without
                self.base = KnowledgeBase.open(path)

    def __enter__(self) -> "Passages":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.base:
            self.base.close()

    def read(self, fact: dict[str, Any]) -> Fact:
        """Return a fact with the text of its passage."""
        text, verdict, passage = (str(fact.get(name) or "") for name in ("fact", "verdict", "passage"))
        return Fact(text, verdict, passage, self._text(text, passage))

    def _text(self, fact: str, passage: str) -> str:
        title = passage.rpartition("#")[0]
        if not self.base or not title:
            return ""
        try:
            found = self.base.search(fact, MANY, [title])
        except (UserError, OSError):
            return ""
        return next((candidate.text for candidate in found if candidate.id == passage), "")


def flips(record: Record) -> Flips:
    """Compare the first and the last answers to each question.

    They are the held-out questions, if their answers were written, else those that were trained on twice.
    """
    first, last = _first_and_last(record)
    both = sorted(first.keys() & last.keys())
    outcomes = Counter(_outcomes(first[row], last[row]) for row in both)
    del outcomes[""]
    return Flips(len(both), outcomes.most_common(), _most_changed(both, first, last))


def _outcomes(first: Sequence[Answer], last: Sequence[Answer]) -> str:
    """Say how the outcome has changed; "" if it has not, or is not known."""
    before, after = _typical(first), _typical(last)
    if not before or not after or before.outcome == after.outcome or not before.outcome or not after.outcome:
        return ""
    return f"{before.outcome} → {after.outcome}"


def _most_changed(rows: Sequence[int], first: dict[int, list[Answer]], last: dict[int, list[Answer]]) -> list[Flip]:
    """Return the questions that have lost most, and then those that have won most."""
    changed = []
    for row in rows:
        before, after = _mean_reward(first[row]), _mean_reward(last[row])
        if before is not None and after is not None and before != after:
            change = after - before
            changed.append(Flip(_typical(first[row]), _typical(last[row]), change))
    changed.sort(key=lambda flip: flip.change)
    lost = [flip for flip in changed[:NUM_FLIPS] if flip.change < 0]
    won = [flip for flip in reversed(changed[-NUM_FLIPS:]) if flip.change > 0]
    return lost + won


def _first_and_last(record: Record) -> tuple[dict[int, list[Answer]], dict[int, list[Answer]]]:
    """Return the first and the last answers to each question, by its row. A step answers a question once."""
    held_out = record.answer_steps("evaluation")
    if len(held_out) > 1:
        first, last = (_by_row(record.answers(step, "evaluation")) for step in (held_out[0], held_out[-1]))
        return first, last
    first, last = {}, {}
    steps = record.answer_steps()
    chosen = steps if len(steps) <= 2 * NUM_FILES else steps[:NUM_FILES] + steps[-NUM_FILES:]
    for step in chosen:
        of_step = _by_row(record.answers(step))
        last |= {row: answers for row, answers in of_step.items() if row in first}
        first = of_step | first
    return first, last


def _by_row(answers: Sequence[Answer]) -> dict[int, list[Answer]]:
    rows = defaultdict(list)
    for answer in answers:
        if answer.row is not None:
            rows[answer.row].append(answer)
    return dict(rows)


def _mean_reward(answers: Sequence[Answer]) -> float | None:
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return statistics.fmean(rewards) if rewards else None


def _typical(answers: Sequence[Answer]) -> Answer | None:
    """Return the answer of median reward; None if none could be scored."""
    scored = _by_reward(answers)
    return scored[len(scored) // 2] if scored else None
