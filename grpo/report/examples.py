"""Completions worth reading: the best, the median, the worst, and one that could not be scored."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.errors import UserError
from grpo.run.record import Answer, Record
from knowledge.store.base import KnowledgeBase

MANY = 1000  # passages of a document


@dataclass(frozen=True)
class Fact:
    """A fact that was checked: what it says, the verdict, and the passage that decided, if there is one."""

    text: str
    verdict: str
    passage: str = ""
    passage_text: str = ""


@dataclass(frozen=True)
class ExplainedScore:
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
    scores: list[ExplainedScore]


def examples(record: Record, step: int) -> list[Example]:
    """Return the best, median and worst completion of a step, and one that could not be scored."""
    answers = record.answers(step)
    scored = by_reward(answers)
    chosen = {}
    if scored:
        chosen = {"best": scored[0], "median": scored[len(scored) // 2], "worst": scored[-1]}
    unscorable = [answer for answer in answers if answer.reward is None]
    if unscorable:
        chosen["unscorable"] = unscorable[0]
    with Passages(record) as passages:
        return [Example(label, answer, _scores(answer, passages)) for label, answer in chosen.items()]


def by_reward(answers: Sequence[Answer]) -> list[Answer]:
    """Return the scorable answers, the best one first."""
    return sorted((a for a in answers if a.reward is not None), key=lambda answer: answer.reward, reverse=True)


def _scores(answer: Answer, passages: "Passages") -> list[ExplainedScore]:
    scores = []
    for name, value in answer.rewards.items():
        of_reward = answer.facts.get(name)
        facts = [passages.read(fact) for fact in of_reward or () if isinstance(fact, dict)]
        reason = str(answer.reasons.get(name, ""))
        if facts:  # the reason repeats them
            reason = reason.partition(f"; {facts[0].text[:60]}")[0]
        scores.append(ExplainedScore(name, value, reason, facts))
    return scores


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
