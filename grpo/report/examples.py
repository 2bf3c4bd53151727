"""Completions worth reading: the best, the median, the worst, and one of each outcome that these do not have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo.run.record import Answer, Record


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
    """Return completions of a step, by reward: the best, the median, the worst, and those of other outcomes.

    Of an outcome the one of median reward is typical. One that could not be scored comes last.
    """
    answers = record.answers(step)
    scored = by_reward(answers)
    chosen: list[tuple[str, Answer]] = []
    if scored:
        chosen = [("The best", scored[0]), ("The median", scored[len(scored) // 2]), ("The worst", scored[-1])]
    shown = {answer.outcome for _, answer in chosen}
    for outcome in sorted({answer.outcome for answer in scored} - shown - {""}):
        of_outcome = [answer for answer in scored if answer.outcome == outcome]
        chosen.append(("A typical one", of_outcome[len(of_outcome) // 2]))
    unscorable = [answer for answer in answers if answer.reward is None]
    if unscorable:
        chosen.append(("One that could not be scored", unscorable[0]))
    return [Example(label, answer, explain_scores(answer)) for label, answer in chosen]


def by_reward(answers: Sequence[Answer]) -> list[Answer]:
    """Return the scorable answers, the best one first."""
    return sorted((a for a in answers if a.reward is not None), key=lambda answer: answer.reward, reverse=True)


def explain_scores(answer: Answer) -> list[ExplainedScore]:
    """Return what each reward says about an answer."""
    scores = []
    for name, value in answer.rewards.items():
        of_reward = answer.facts.get(name)
        facts = [_fact(fact) for fact in of_reward or () if isinstance(fact, dict)]
        reason = str(answer.reasons.get(name, ""))
        if facts:  # the reason repeats them
            reason = reason.partition(f"; {facts[0].text[:60]}")[0]
        scores.append(ExplainedScore(name, value, reason, facts))
    return scores


def _fact(recorded: dict[str, Any]) -> Fact:
    """Return a fact as completions/ holds it; see grpo.schema.Score."""
    return Fact(*(str(recorded.get(name) or "") for name in ("fact", "verdict", "passage", "text")))
