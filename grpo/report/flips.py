"""Questions that were asked twice, and whose answers have flipped."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.report.examples import by_reward
from grpo.run.record import Answer, Record

NUM_FILES = 40  # of completions/ that are read from either end
NUM_FLIPS = 6  # in each direction


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
    """A question with a typical first and last answer. change: by how much its mean reward has risen."""

    first: Answer
    last: Answer
    change: float


def flips(record: Record) -> Flips:
    """Compare the first and the last answers to each question.

    They are the held-out questions, if their answers were written, else those that were trained on twice.
    """
    first, last = _first_and_last(record)
    both = sorted(first.keys() & last.keys())
    outcomes = Counter(_outcomes(first[row], last[row]) for row in both)
    del outcomes[""]
    changes = _most_changed({row: _change(first[row], last[row]) for row in both})
    questions = [Flip(_typical(first[row]), _typical(last[row]), change) for row, change in changes]
    return Flips(len(both), outcomes.most_common(), questions)


def _outcomes(first: Sequence[Answer], last: Sequence[Answer]) -> str:
    """Say how the outcome has changed; "" if it has not, or is not known."""
    before, after = _typical(first), _typical(last)
    if not before or not after or before.outcome == after.outcome or not before.outcome or not after.outcome:
        return ""
    return f"{before.outcome} → {after.outcome}"


def _most_changed(changes: dict[int, float]) -> list[tuple[int, float]]:
    """Return the questions that have lost most, and then those that have won most, with their change."""
    changed = sorted(changes.items(), key=lambda item: item[1])
    lost = [item for item in changed[:NUM_FLIPS] if item[1] < 0]
    won = [item for item in reversed(changed[-NUM_FLIPS:]) if item[1] > 0]
    return lost + won


def _change(first: Sequence[Answer], last: Sequence[Answer]) -> float:
    """Return by how much the mean reward of a question has risen; 0 if it is not known."""
    before, after = _mean_reward(first), _mean_reward(last)
    return 0.0 if before is None or after is None else after - before


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
    scored = by_reward(answers)
    return scored[len(scored) // 2] if scored else None
