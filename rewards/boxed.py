"""Grade the last boxed answer against the truth; the configuration says what each kind of answer is worth.

What a box holds, and what equals it, mathematics/ tells. A box in the thoughts is no answer.
"""

import re
from fractions import Fraction
from itertools import count
from math import isfinite

import numpy as np

from grpo.algorithm.schema import Outcome, Score
from rewards import exact
from rewards.format import after_thoughts
from rewards.mathematics.boxes import equivalent, gold_answer, grade_box
from rewards.registry import Columns, Options, Reward

OUTCOMES: dict[str, Outcome | None] = {"correct": "correct", "wrong": "wrong", "no_answer": "wrong", "unscorable": None}
MAX_WORDS = 6  # of an answer that is no sentence, unless a full stop ends it
_WORD = re.compile(r"[\u4e00-\u9fff]{2}|(?<![\\\w])[^\W\d_\u4e00-\u9fff]{2,}")
_NUMBER = re.compile(r"[0-9][0-9.,]*")
_STOPS = tuple(".!?…。！？")


def _fractions(answer: object) -> list[str]:
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


def is_prose(truth: str) -> bool:
    r"""Tell whether a ground truth is a sentence, which no answer will equal: a solution that holds no box, for one.

    A sentence that a number answers is none, and neither are a few words.

    >>> [is_prose(text) for text in ("First we add 3 and 4.", "The sum is 7.", r"First we add. It is \boxed{7}.")]
    [True, False, False]
    """
    gold = gold_answer(exact.after_solution(truth))
    num_words = len(_WORD.findall(gold))
    is_sentence = num_words > MAX_WORDS or (num_words > 2 and gold.endswith(_STOPS))
    return is_sentence and not any(equivalent(number, gold) for number in _NUMBER.findall(gold)[-1:])


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
        said = after_thoughts(completion, columns)
        question = str(columns.get("question") or "")
        grades = [grade_box(said, truth, question) for truth in accepted or [""]]
        right = [found for found in grades if found[0] == "correct"]
        readable = [found for found in grades if found[0] != "unscorable"]  # of truths that hold something
        kind, reason = (right or readable or grades)[0]
        reason += ", after its thoughts" * (kind == "no_answer" and said != completion)
        return Score(values[kind], reason, OUTCOMES[kind])

    return Reward(name, grade)
