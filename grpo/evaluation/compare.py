"""Compare two models on the same questions, paired: what differs, and whether chance alone would explain it.

- McNemar's exact test (1947) takes the questions that only one of the two models answers right. By chance alone, each
  model is that one equally often; the p-value is the two-sided binomial one. It needs one answer per question.
- Bootstrap interval of a difference (Efron, 1979): questions are resampled together with both models' answers, so that
  the difficulty of a question cancels. Percentiles of 10,000 resamples with a fixed seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.storage import Json
from grpo.data.files import read_records

RATES = {"accuracy": "correct", "incorrect": "wrong", "not_attempted": "refused"}
NUM_DRAWS = 10_000
CHUNK = 500  # draws at a time
Outcomes = dict[tuple[int, str], list[str]]  # row and text of a question -> the outcomes of its answers


@dataclass(frozen=True)
class Difference:
    """A rate of both models and the difference b - a, with its 95 % interval."""

    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Two models on the questions that both answered. mcnemar_p is None if a question has several answers."""

    num_questions: int
    num_left_out: int  # questions to which one of the two has no scorable answer
    rates: dict[str, Difference]
    only_a_right: int | None
    only_b_right: int | None
    mcnemar_p: float | None


def compare(a: Outcomes, b: Outcomes) -> Comparison:
    """Compare two models. UserError (exit 3) if there is no question that both have answered."""
    shared = [key for key in a if a[key] and b.get(key)]
    if not shared:
        raise UserError(
            "there is nothing to compare",
            f"of {len(a)} and {len(b)} questions none was answered, and graded, by both",
            "evaluate both models on the same file, with a reward that tells right from wrong",
            PREFLIGHT,
        )
    is_single = all(len(a[key]) == len(b[key]) == 1 for key in shared)
    only_a = only_b = p_value = None
    if is_single:
        pairs = [(a[key][0] == "correct", b[key][0] == "correct") for key in shared]
        only_a, only_b = pairs.count((True, False)), pairs.count((False, True))
        p_value = mcnemar_exact(only_a, only_b)
    rates = {name: _difference([a[key] for key in shared], [b[key] for key in shared], RATES[name]) for name in RATES}
    num_left_out = len(a.keys() | b.keys()) - len(shared)
    return Comparison(len(shared), num_left_out, rates, only_a, only_b, p_value)


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Return the two-sided p-value. only_a, only_b: numbers of questions that only this model answers right."""
    n, fewer = only_a + only_b, min(only_a, only_b)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)


def _difference(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]], outcome: str) -> Difference:
    """Compare the mean share of an outcome. a, b: the outcomes of the answers to each question."""
    shares = np.array([[found.count(outcome) / len(found) for found in of_model] for of_model in (a, b)])
    means = shares.mean(axis=1)
    low, high = bootstrap_interval(shares[1] - shares[0])
    return Difference(float(means[0]), float(means[1]), float(means[1] - means[0]), low, high)


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of some values, one per question."""
    generator = np.random.default_rng(0)
    means = []
    for _ in range(NUM_DRAWS // CHUNK):
        drawn = generator.integers(len(values), size=(CHUNK, len(values)))
        means.append(values[drawn].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def read_outcomes(path: Path) -> Outcomes:
    """Read the answers that an evaluation has written to FILE.jsonl. path: FILE.jsonl or FILE.json."""
    answers = path.with_suffix(".jsonl")
    if not answers.exists():
        raise UserError(
            f"cannot compare {path}",
            f"there is no file {answers if path.exists() else path}",
            "give a model, or a file that `python -m grpo.evaluate ... --output FILE.json` has written; "
            "the answers are next to it, in FILE.jsonl",
            PREFLIGHT,
        )
    return collect_outcomes(read_records(answers), str(answers))


def collect_outcomes(records: Sequence[Mapping[str, Any]], source: str) -> Outcomes:
    """Return the outcomes of each question. UserError (exit 3) if a record is not an answer of an evaluation."""
    outcomes: Outcomes = {}
    for number, record in enumerate(records, 1):
        if not {"row", "question", "outcome"} <= record.keys():
            raise UserError(
                f"{source}: row {number} is not an answer of an evaluation",
                f"it needs row, question and outcome; its columns are {', '.join(record)}"[:200],
                "give a file that `python -m grpo.evaluate ... --output FILE.json` has written",
                PREFLIGHT,
            )
        known = outcomes.setdefault((record["row"], str(record["question"])), [])
        if record["outcome"] is not None:
            known.append(record["outcome"])
    return outcomes


def comparison_text(found: Comparison, a: str, b: str) -> str:
    """Return a comparison as a table."""
    lines = [
        f"a: {a}",
        f"b: {b}",
        f"{found.num_questions} questions, paired",
        f"{'':<16}{'a':>8}{'b':>10}{'b - a':>11}",
    ]
    for name, rate in found.rates.items():
        interval = f"({100 * rate.low:+.1f} to {100 * rate.high:+.1f})"
        values = f"{100 * rate.a:>8.1f} %{100 * rate.b:>8.1f} %{100 * rate.difference:>+9.1f} %"
        lines.append(f"{name:<16}{values}  {interval}")
    if found.mcnemar_p is not None:
        lines.append(
            f"only a right: {found.only_a_right}, only b: {found.only_b_right}; McNemar p = {found.mcnemar_p:.3g}"
        )
    return "\n".join(lines)


def to_json(found: Comparison, a: str, b: str) -> Json:
    """Return a comparison as JSON."""
    rates = {name: vars(rate) for name, rate in found.rates.items()}
    return {"a": a, "b": b, **vars(found), "rates": rates}
