"""Compare two models on the same questions, paired: what differs, and whether chance alone would explain it.

- The interval of a difference is a bootstrap interval (Efron, 1979): questions are resampled together with both models'
  answers, so that the difficulty of a question cancels. It lies between percentiles of 2,000 resamples with a fixed
  seed: another seed would move an end by about 0.07 standard errors, which is 1.8 % of the interval's width.
- p: the share of 10,000 random exchanges of the two models' answers to each question after which the means differ at
  least as much (Fisher, 1935). For a rate, with one answer per question, this is McNemar's test (1947).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean

import numpy as np

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.storage import Json
from grpo.base.text import in_words
from grpo.data.files import read_records
from grpo.evaluation.measures import CHECKED

RATES = {"accuracy": "correct", "incorrect": "wrong", "not_attempted": "refused"}
NUM_RESAMPLES = 2_000  # of the bootstrap
NUM_EXCHANGES = 10_000  # of the test
LARGEST = 1e100  # in size, of a number in a record
NUM_BLOCKS = 100  # in which the signs are drawn
Question = tuple[int | str, str]  # its row and its text
Measured = Mapping[str, Mapping[Question, list[float]]]  # measure -> question -> the value of each answer


@dataclass(frozen=True)
class Difference:
    """A mean of both models over questions, the difference b - a with its 95 % interval, and its p-value."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """Two models on the questions that both answered. num_left_out: those that only one has an answer to."""

    num_questions: int
    num_left_out: int
    measures: dict[str, Difference]


def compare(a: Measured, b: Measured, subject_of: Callable[..., object] = tuple) -> Comparison:
    """Compare two models by each measure. UserError (exit 3) if there is no question that both have answered.

    subject_of: questions about one subject are resampled together, since they are not independent.
    """
    shared = {name: [question for question in a[name] if question in b.get(name, ())] for name in a}
    of_a = set().union(*a.values())
    of_b = set().union(*b.values())
    number = max(map(len, shared.values()), default=0)
    if not number:
        raise UserError(
            "there is nothing to compare",
            f"of {len(of_a)} and {len(of_b)} questions none was answered, and graded, by both",
            "evaluate both models on the same file, with the same reward",
            PREFLIGHT,
        )
    measures = {
        name: difference(
            [a[name][question] for question in questions],
            [b[name][question] for question in questions],
            map(subject_of, questions),
        )
        for name, questions in shared.items()
        if questions
    }
    return Comparison(number, len(of_a | of_b) - number, measures)


def difference(a: Iterable[list[float]], b: Iterable[list[float]], subjects: Iterable[object]) -> Difference:
    """Compare a measure of two models. a, b: the values of the answers to each question. subjects: of the questions."""
    of_a = list(map(fmean, a))
    of_b = list(map(fmean, b))
    changes = np.subtract(of_b, of_a)
    mean_a = fmean(of_a)
    mean_b = fmean(of_b)
    numbers: dict[object, int] = defaultdict(count().__next__)
    places = [numbers[subject] for subject in subjects]
    sizes = np.bincount(places)
    sums = np.bincount(places, changes)
    ends = interval(lambda chosen: sums[chosen].sum() / sizes[chosen].sum(), len(sizes))
    return Difference(mean_a, mean_b, mean_b - mean_a, *ends, exchange_test(changes))


def exchange_test(changes: np.ndarray) -> float:
    """Return the two-sided p-value of a mean change, one value per question: an exchange gives it a random sign."""
    generator = np.random.default_rng(0)
    least = abs(changes.sum()) * (1 - 1e-12)
    changed = changes[changes != 0]
    shape = NUM_EXCHANGES // NUM_BLOCKS, len(changed)
    num_as_large = 0
    for _ in range(NUM_BLOCKS):
        signs = 2 * generator.integers(0, 2, shape, dtype=np.int8) - 1
        num_as_large += int((abs(signs @ changed) >= least).sum())
    return (num_as_large + 1) / (NUM_EXCHANGES + 1)


def interval(measure: Callable[[np.ndarray], float], count: int) -> tuple[float, float]:
    """Return the 95 % interval of a measure of chosen questions, by bootstrap over `count` of them."""
    rng = np.random.default_rng(0)
    values = [measure(rng.integers(count, size=count)) for _ in range(NUM_RESAMPLES)]
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


def read_answers(path: Path) -> Measured:
    """Read the answers that an evaluation has written to FILE.jsonl. path: FILE.jsonl or FILE.json."""
    answers = path.with_suffix(".jsonl")
    if not answers.exists():
        raise UserError(
            f"cannot compare {path}",
            f"there is no file {answers if path.exists() else path}",
            "give a file that `python -m grpo.evaluate ... --output FILE.json` has written; "
            "the answers are next to it, in FILE.jsonl",
            PREFLIGHT,
        )
    return collect(read_records(answers), str(answers))


def collect(records: Iterable[Json], source: str) -> Measured:
    """Return the values of each measure. UserError (exit 3) if a record is not an answer of an evaluation."""
    answers = list(records)
    for number, record in enumerate(answers, 1):
        is_answer = {"row", "question", "outcome"} <= record.keys() and isinstance(record["row"], int | str)
        if not is_answer or record["outcome"] not in (None, *RATES.values()):
            raise UserError(
                f"{source}: row {number} is not an answer of an evaluation",
                f"it needs row, question and outcome as evaluations write them; it has {', '.join(record)}"[:200],
                "give a file that `python -m grpo.evaluate ... --output FILE.json` has written",
                PREFLIGHT,
            )
    return measure_answers(answers)


def measure_answers(answers: Iterable[Json]) -> Measured:
    """Return the values of each measure, by question."""
    measured: dict[str, dict[Question, list[float]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        for name, value in _values(answer):
            question = answer["row"], str(answer["question"])
            measured[name][question].append(value)
    return measured


def _values(answer: Json) -> Iterator[tuple[str, float]]:
    """Yield the measures of an answer: whether it is right, wrong, declined; its facts; its reward, each of several."""
    if answer["outcome"] in RATES.values():
        yield from ((name, float(answer["outcome"] == wanted)) for name, wanted in RATES.items())
    yield from _facts(answer.get("details"))
    values = {"reward": answer.get("reward")}
    rewards = answer.get("rewards")
    if isinstance(rewards, dict) and len(rewards) > 1:
        values |= {f"rewards/{name}": value for name, value in rewards.items()}
    for name, value in values.items():
        if is_usable(value):
            yield name, value


def is_usable(value: object) -> bool:
    """Return whether a record holds a number, with which means and squares can be computed."""
    return isinstance(value, int | float) and abs(value) <= LARGEST


def _facts(details: object) -> Iterator[tuple[str, float]]:
    """Yield how many facts of an answer are supported and refuted, by the first reward that has checked them."""
    of_rewards = details.values() if isinstance(details, dict) else ()
    for counts in of_rewards:
        if isinstance(counts, dict) and all(is_usable(counts.get(name)) for name in CHECKED):
            yield from ((f"{name}_facts", float(counts[name])) for name in CHECKED)
            return


def comparison_text(found: Comparison, a: str, b: str) -> str:
    """Return a comparison as a table."""
    width = max(map(len, map(in_words, found.measures))) + 2
    lines = [f"a: {a}", f"b: {b}", f"{found.num_questions} questions, paired"]
    lines.append(f"{'':<{width}}{'a':>8}{'b':>10}{'b - a':>11}        95 % interval{'p':>11}")
    for name, of in found.measures.items():
        scale, digits, unit = (100, 1, " %") if name in RATES else (1, 3, "  ")
        cells = f"{scale * of.a:>8.{digits}f}{unit}{scale * of.b:>8.{digits}f}{unit}"
        change = f"{scale * of.difference:>+9.{digits}f}{' points' if name in RATES else '       '}"
        interval = f"({scale * of.low:+.{digits}f} to {scale * of.high:+.{digits}f})"
        lines.append(f"{in_words(name):<{width}}{cells}{change}  {interval:<18}{of.p:>7.2g}")
    return "\n".join(lines)
