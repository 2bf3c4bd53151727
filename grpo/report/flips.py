"""Questions that were asked twice, and whose answers have flipped."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo.diagnosis.record import Answer, Record
from grpo.report.examples import by_reward

NUM_FILES = 40  # of completions/ that are read from either end
NUM_FLIPS = 6  # in each direction


@dataclass(frozen=True)
class Flips:
    """Changes in the answers to questions that were asked twice.

    num_questions: the number of such questions. outcomes: changes such as "wrong → refused", and how often each
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
    """Compare the first and the last answers to each question.

    The questions are the held-out ones if their answers were written, else those that were trained on twice.
    """
    first, last = _first_and_last(record)
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
