"""Held-out questions whose answers have flipped."""

from collections import Counter
from dataclasses import dataclass

from grpo.diagnosis.record import Answer, Record

NUM_FLIPS = 6  # in each direction


@dataclass(frozen=True)
class Flips:
    """Changes in the answers to the held-out questions.

    num_questions: how many were asked twice. outcomes: changes such as "wrong → refused", and how often each
    happened. questions: those whose reward changed most.
    """

    num_questions: int
    outcomes: list[tuple[str, int]]
    questions: list["Flip"]


@dataclass(frozen=True)
class Flip:
    """A question with its first and last answer."""

    first: Answer
    last: Answer

    @property
    def change(self) -> float:
        """Return by how much the reward has risen."""
        return self.last.reward - self.first.reward


def flips(record: Record) -> Flips:
    """Compare the first answers to the held-out questions with the last ones."""
    steps = record.answer_steps("evaluation")
    if len(steps) < 2:
        return Flips(0, [], [])
    first, last = ({a.row: a for a in record.answers(step, "evaluation")} for step in (steps[0], steps[-1]))
    both = sorted((first.keys() & last.keys()) - {None})
    found = [Flip(first[row], last[row]) for row in both if None not in (first[row].reward, last[row].reward)]
    outcomes = [(flip.first.outcome, flip.last.outcome) for flip in found]
    flipped = Counter(f"{before} → {after}" for before, after in outcomes if before and after and before != after)
    found.sort(key=lambda flip: flip.change)
    lost = [flip for flip in found[:NUM_FLIPS] if flip.change < 0]
    won = [flip for flip in reversed(found[-NUM_FLIPS:]) if flip.change > 0]
    return Flips(len(both), flipped.most_common(), lost + won)
