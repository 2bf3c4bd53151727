"""Answers worth reading: some of the last step, and those to held-out questions that training has changed most."""

from collections import Counter
from dataclasses import dataclass

from grpo.diagnosis.record import Answer, Record

NUM_CHANGES = 6  # in each direction


def examples(record: Record, step: int) -> list[tuple[str, Answer]]:
    """Return the best, the median and the worst completion of a step, by reward, and one that could not be scored."""
    answers = record.answers(step)
    scored = sorted((a for a in answers if a.reward is not None), key=lambda answer: answer.reward, reverse=True)
    places = {"The best": 0, "The median": len(scored) // 2, "The worst": -1} if scored else {}
    unscored = [answer for answer in answers if answer.reward is None][:1]
    return [
        *((label, scored[place]) for label, place in places.items()),
        *(("One that could not be scored", answer) for answer in unscored),
    ]


@dataclass(frozen=True)
class Change:
    """A held-out question with its first and its last answer."""

    first: Answer
    last: Answer

    @property
    def gain(self) -> float:
        """Return by how much the reward has risen."""
        return self.last.reward - self.first.reward


def changes(record: Record) -> tuple[list[Change], list[tuple[str, int]]]:
    """Return the held-out questions whose reward changed most, and how often an outcome changed: "wrong → refused"."""
    steps = record.answer_steps("evaluation")
    if len(steps) < 2:
        return [], []
    first, last = ({a.row: a for a in record.answers(step, "evaluation")} for step in (steps[0], steps[-1]))
    both = sorted((first.keys() & last.keys()) - {None})
    found = [Change(first[row], last[row]) for row in both if None not in (first[row].reward, last[row].reward)]
    outcomes = [(change.first.outcome, change.last.outcome) for change in found]
    flipped = Counter(f"{before} → {after}" for before, after in outcomes if before and after and before != after)
    found.sort(key=lambda change: change.gain)
    lost = [change for change in found[:NUM_CHANGES] if change.gain < 0]
    won = [change for change in reversed(found[-NUM_CHANGES:]) if change.gain > 0]
    return lost + won, flipped.most_common()
