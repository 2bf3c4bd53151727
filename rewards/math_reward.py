"""Grade the last boxed answer against the truth; the configuration says what each kind of answer is worth."""

from fractions import Fraction
from itertools import count
from math import isfinite
from typing import Any

import numpy as np

from grpo.algorithm.schema import Score
from rewards import boxed, exact
from rewards.registry import Columns, Options, Reward

OUTCOMES = {"correct": "correct", "wrong": "wrong", "no_answer": "wrong", "unscorable": None}


def _fractions(answer: Any) -> list[str]:
    """Return for each float among the truths the fraction that it is a rounded form of: a column cannot hold 1/3."""
    found = answer if isinstance(answer, list) else [answer]
    broken = [item for item in found if isinstance(item, float) and isfinite(item) and item % 1]
    return [str(simplest(item)) for item in broken]


def simplest(value: float) -> Fraction:
    """Return the simplest fraction that rounds to this float, or to this float32 if it is one: 1/3, 0.1."""
    is_float32 = float(np.float32(value)) == value
    kind = np.float32 if is_float32 else np.float64
    candidates = (Fraction(value).limit_denominator(10**digits) for digits in count(1))
    return next(found for found in candidates if kind(float(found)) == value)


def build(name: str, options: Options) -> Reward:
    """Build the reward `math`."""
    values = {
        "correct": options["math_reward_correct"],
        "wrong": options["math_reward_wrong"],
        "no_answer": options["math_reward_no_answer"],
        "unscorable": None,
    }

    def grade(completion: str, columns: Columns) -> Score:
        answer = columns.get("answer")
        accepted = exact.truths(answer) + _fractions(answer)
        verdicts = [boxed.verdict(completion, truth) for truth in accepted or [""]]
        right = [verdict for verdict in verdicts if verdict[0] == "correct"]
        readable = [verdict for verdict in verdicts if verdict[0] != "unscorable"]  # of truths that hold something
        kind, reason = (right or readable or verdicts)[0]
        return Score(values[kind], reason, OUTCOMES[kind])

    return Reward(name, grade)
