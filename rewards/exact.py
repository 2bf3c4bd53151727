"""The answer equals the truth after normalisation: the measure of SQuAD and TriviaQA, "exact match"."""

import string
import unicodedata
from collections.abc import Mapping
from typing import Any

from grpo.schema import Score
from rewards.format import parse

_ARTICLES = {"a", "an", "the"}
_PUNCTUATION = str.maketrans("", "", string.punctuation + "“”‘’«»、。，！？：；（）《》·…")


def normalise(text: str) -> str:
    """Compatibility characters unified, lower case, no punctuation, no articles, single spaces."""
    text = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(word for word in text.split() if word not in _ARTICLES)


def truths(answer: Any) -> list[str]:
    """The acceptable answers of a row, as texts: it holds one or a list of them. Empty if it holds none."""
    found = answer if isinstance(answer, list) else [answer]
    return [str(item) for item in found if item is not None and str(item).strip()]


def grade(completion: str, columns: Mapping[str, Any]) -> Score:
    """1 if the answer block (the whole completion, if it has none) equals a truth, else 0; unscorable without a
    truth."""
    accepted = [
        truth.rpartition("####")[2].strip() for truth in truths(columns.get("answer"))
    ]  # GSM8K: `solution #### answer`
    if not accepted:
        return Score(None, "the row has no answer to compare with")
    block = parse(completion).answer
    said = completion if block is None else block
    match = normalise(said)
    right = bool(match) and match in {normalise(truth) for truth in accepted}
    return Score(
        float(right),
        f"{said.strip()[:80]!r} {'equals' if right else 'is not'} {accepted[0][:80]!r}",
        "correct" if right else "wrong",
    )
