"""Held-out questions whose answers have flipped."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo.diagnosis.record import Answer, Record
from grpo.report.examples import by_reward

NUM_FLIPS = 6  # in each direction


@dataclass(frozen=True)
class Flips:
    """Changes in the answers to the held-out questions.

    num_questions: how many were asked twice. outcomes: changes such as "wrong → refused", and how often each
    happened. questions: those whose mean reward changed most.
    """

    num_questions: int
    outcomes: list[tuple[str, int]]
    questions: list["Flip"]


@dataclass(frozen=True)
class Flip:
    """A question with its first and last answers of median reward. change: by how much its mean reward has risen."""

    first: Answer
    last: Answer
    change: float


def flips(record: Record) -> Flips:
    """Compare the first answers to the held-out questions with the last ones."""
    steps = record.answer_steps("evaluation")
    if len(steps) < 2:
        return Flips(0, [], [])
    first, last = (_by_row(record.answers(step, "evaluation")) for step in steps[:1] + steps[-1:])
    both = sorted(first.keys() & last.keys())
    found = [flip for row in both for flip in _compare(first[row], last[row])]
    outcomes = [(flip.first.outcome, flip.last.outcome) for flip in found]
    flipped = Counter(f"{before} → {after}" for before, after in outcomes if before and after and before != after)
    found.sort(key=lambda flip: flip.change)
    lost = [flip for flip in found[:NUM_FLIPS] if flip.change < 0]
    won = [flip for flip in reversed(found[-NUM_FLIPS:]) if flip.change > 0]
    return Flips(len(both), flipped.most_common(), lost + won)


def _compare(first: Sequence[Answer], last: Sequence[Answer]) -> Iterator[Flip]:
    """Yield the change of a question, if some of its first answers and some of its last ones could be scored."""
    before, after = by_reward(first), by_reward(last)
    if before and after:
        means = [statistics.fmean(answer.reward for answer in answers) for answers in (before, after)]
        yield Flip(before[len(before) // 2], after[len(after) // 2], means[1] - means[0])


def _by_row(answers: Sequence[Answer]) -> dict[int, list[Answer]]:
    rows = defaultdict(list)
    for answer in answers:
        if answer.row is not None:
            rows[answer.row].append(answer)
    return dict(rows)
