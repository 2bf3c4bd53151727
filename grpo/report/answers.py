"""Answers worth reading, some of the last step; and how training has changed those to held-out questions."""

from collections import Counter
from dataclasses import dataclass

from grpo.diagnosis.record import Answer, Record
from grpo.evaluation.compare import compare, measure_answers

NUM_CHANGES = 6  # in each direction
HEADLINE = {"accuracy": "right", "incorrect": "wrong", "not_attempted": "declined", "reward": "mean reward"}


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


def _first_and_last(record: Record) -> tuple[list[Answer], list[Answer]]:
    """Return the first and the last answers to the held-out questions; none unless they were answered twice."""
    steps = record.answer_steps("evaluation")
    return (
        (record.answers(steps[0], "evaluation"), record.answers(steps[-1], "evaluation"))
        if len(steps) > 1
        else ([], [])
    )


def headline(record: Record) -> str:
    """Return what training has changed, in one sentence; "" if nothing was measured twice."""
    first, last = (measure_answers(map(vars, answers)) for answers in _first_and_last(record))
    if not any(first[name].keys() & last.get(name, {}).keys() for name in first):
        return ""
    compared, texts = compare(first, last), []
    for name, words in HEADLINE.items():
        of = compared.measures.get(name)
        if of and (of.a or of.b) and not (name == "reward" and texts):
            values = f"{of.a:.1%} → {of.b:.1%}" if name != "reward" else f"{of.a:.2f} → {of.b:.2f}"
            texts.append(f"{words} {values} ({'p < 0.001' if of.p < 0.001 else f'p = {of.p:.2g}'})")
    return f"On {compared.num_questions} held-out questions, before and after training: {', '.join(texts)}."


def changes(record: Record) -> tuple[list[Change], list[tuple[str, int]]]:
    """Return the held-out questions whose reward changed most, and how often an outcome changed: "wrong → refused"."""
    first, last = ({answer.row: answer for answer in answers} for answers in _first_and_last(record))
    both = sorted((first.keys() & last.keys()) - {None})
    found = [Change(first[row], last[row]) for row in both if None not in (first[row].reward, last[row].reward)]
    outcomes = [(change.first.outcome, change.last.outcome) for change in found]
    flipped = Counter(f"{before} → {after}" for before, after in outcomes if before and after and before != after)
    found.sort(key=lambda change: change.gain)
    lost = [change for change in found[:NUM_CHANGES] if change.gain < 0]
    won = [change for change in reversed(found[-NUM_CHANGES:]) if change.gain > 0]
    return lost + won, flipped.most_common()
