"""Completions worth reading: the best, the median, the worst, and one of each outcome that these do not have."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.diagnosis.record import Answer, Record


@dataclass(frozen=True)
class Example:
    """A completion, and why it is shown."""

    label: str
    answer: Answer


def examples(record: Record, step: int) -> list[Example]:
    """Return completions of a step, by reward: the best, the median, the worst, and those of other outcomes.

    The typical completion of an outcome is that of median reward. A completion that could not be scored comes last.
    """
    answers = record.answers(step)
    scored = by_reward(answers)
    chosen: list[Example] = []
    if scored:
        places = {"The best": 0, "The median": len(scored) // 2, "The worst": -1}
        chosen = [Example(label, scored[place]) for label, place in places.items()]
    shown = {example.answer.outcome for example in chosen}
    for outcome in sorted({answer.outcome for answer in scored} - shown - {""}):
        of_outcome = [answer for answer in scored if answer.outcome == outcome]
        chosen.append(Example("A typical one", of_outcome[len(of_outcome) // 2]))
    unscorable = [answer for answer in answers if answer.reward is None]
    return chosen + [Example("One that could not be scored", answer) for answer in unscorable[:1]]


def by_reward(answers: Sequence[Answer]) -> list[Answer]:
    """Return the scorable answers, the best one first."""
    return sorted((a for a in answers if a.reward is not None), key=lambda answer: answer.reward, reverse=True)
