"""Recognise answers that offer several: alternatives, or the candidates that the question itself names."""

import re
from collections.abc import Sequence

from knowledge.facts.replies import num_words
from knowledge.store.tokens import UNSPACED
from knowledge.text import fold
from rewards.exact import ARTICLES

MAX_ALTERNATIVE_WORDS = 12
_ALTERNATIVES = {  # how answers list alternatives: what separates them, and how often at least
    "or": (re.compile(r"\bor\b|或者", re.IGNORECASE), 1),  # 还是 is "still", too
    "slash": (re.compile(r"\s/\s|(?<=[^\W\d_]{3})/(?=[^\W\d_]{3})"), 1),  # "km/h" and "AC/DC" list none
    "semicolon": (re.compile(r"[;；|](?=\s*\w)"), 1),
    "list": (re.compile(r"^[ \t]*[-*•][ \t]+(?=\S)|(?<!\S)\d{1,2}[.)]\s+(?=\S)", re.MULTILINE), 2),
}
_WORD = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+")
_BETWEEN = re.compile(r"\b(?:and|or|nor|versus|vs)\b|还是|或者?|以及|[和与跟及]|[^\w\s'’.-]", re.IGNORECASE)
_SAY_NOTHING = ARTICLES | {"both", "either", "all", "neither"}
_NAME_NOTHING = set("is are was were be did does do has have had of in which who whom what when where".split())
_MOST_WORDS = 40  # of an answer that consists of candidates


def lists_alternatives(answer: str, accepted: Sequence[str]) -> str:
    """Say in which way an answer consists of alternatives, unless a truth lists some in that way; "" if it does not.

    All parts must be short: in a longer text an "or" or a list is nearly always incidental, and the judge grades
    alternatives.
    """
    for kind, (separator, min_separators) in _ALTERNATIVES.items():
        parts = separator.split(answer)
        if len(parts) <= min_separators or any(separator.search(truth) for truth in accepted):
            continue
        if all(num_words(part) <= MAX_ALTERNATIVE_WORDS for part in parts):
            return kind
    return ""


def num_candidates(question: str, answer: str) -> int:
    """Count the candidates of the question of which an answer consists; 0 if it says anything else.

    A candidate stands next to a comma, an "or" and the like in the question.

    >>> num_candidates("Who was born first, Tom Hanks or Brad Pitt?", "Brad Pitt, Tom Hanks")
    2
    """
    offered = " | ".join(map(" ".join, _parts(question)))
    words = [word for part in _parts(answer) for word in part]
    if not 0 < len(words) <= _MOST_WORDS or set(words) - set(offered.split()):
        return 0

    count, start = 0, 0
    while start < len(words):
        longest_first = range(len(words), start, -1)
        start = next((end for end in longest_first if _is_offered(words[start:end], offered)), 0)
        if not start:
            return 0
        count += 1
    return count


def _is_offered(words: list[str], offered: str) -> bool:
    """Tell whether words stand next to a separator of the question."""
    piece = re.escape(" ".join(words))
    return words[0] not in _NAME_NOTHING and bool(re.search(rf"\| {piece}(?!\S)|(?<!\S){piece} \|", offered))


def _parts(text: str) -> list[list[str]]:
    """Return the words between the commas, "or" and the like of a text, without articles."""
    parts = []
    for part in _BETWEEN.split(text):
        words = [word for word in _WORD.findall(fold(part)) if word not in _SAY_NOTHING]
        if words:
            parts.append(words)
    return parts
