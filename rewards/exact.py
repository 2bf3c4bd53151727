"""Compare the answer with the truth after normalisation: "exact match", the measure of SQuAD and TriviaQA."""

import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any

from grpo.schema import Score
from rewards.format import parse
from rewards.registry import Reward

ARTICLES = {"a", "an", "the"}
_MARK = f"[{re.escape(string.punctuation)}“”‘’«»、。，！？：；（）《》·…]"
# 1,000 is 1000; but 1.5 is not 15, 1/2 is not 12, and -5 is not 5
_DROPPED = re.compile(rf"(?<=\d),(?=\d{{3}}(?!\d))|(?!(?<!\w)-\d)(?:(?<!\d){_MARK}|{_MARK}(?!\d))")


def normalise(text: str) -> str:
    """Unify compatibility characters and case; drop articles, extra spaces, and punctuation outside of numbers."""
    text = _DROPPED.sub("", unicodedata.normalize("NFKC", text).lower().replace("−", "-"))
    words = text.split()
    return " ".join([word for word in words if word not in ARTICLES] or words)  # a choice may be "A"


def truths(answer: Any) -> list[str]:
    """Return the acceptable answers of a row, which holds one or a list of them, as texts; [] if it holds none."""
    found = answer if isinstance(answer, list) else [answer]
    return [str(item) for item in found if item is not None and str(item).strip()]


def grade(completion: str, columns: Mapping[str, Any]) -> Score:
    """Give 1 if the answer block equals a truth, else 0. Without such a block, compare the whole completion."""
    solutions = truths(columns.get("answer"))
    if not solutions:
        return Score(None, "the row has no answer to compare with")
    accepted = [solution.rpartition("####")[2].strip() for solution in solutions]  # GSM8K: `solution #### answer`
    block = parse(completion).answer
    said = completion if block is None else block
    is_right = normalise(said) in {normalise(truth) for truth in accepted} - {""}
    verb = "equals" if is_right else "is not"
    reason = f"{said.strip()[:80]!r} {verb} {accepted[0][:80]!r}"
    return Score(float(is_right), reason, "correct" if is_right else "wrong")


def build(options: Mapping[str, Any]) -> Reward:
    """Build the reward `exact`."""
    return Reward("exact", grade, needs=("answer",))
