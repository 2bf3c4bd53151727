r"""Read what a list is: choices "A. Paris"; `x = 3, 5` and `k\pi, k \in \mathbb{Z}`; whether its order counts."""

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

from rewards.mathematics import regions
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import EMPTY, Named, Shape, Text
from rewards.mathematics.tokens import Token, Tokens, is_mark, stripped, text_of

_LETTERS = frozenset("ABCDEFGHIJ")
_LEADS = "option choice answer 选 故选 选项 选择 答案选 故答案选 应选".split()
_VERDICT_LETTERS = (set("TF"), set("YN"))
# words that answer one question each, even in "true and false"
_VERDICTS = frozenset(
    "true false yes no right wrong correct incorrect odd even positive negative zero increasing decreasing "
    "always sometimes never converges diverges convergent divergent rational irrational prime composite up down left "
    "maximum minimum max min neither both acute obtuse male female".split()
)


def split_choice(tokens: list[Token]) -> tuple[str, list[Token]] | None:
    """Return the letter, A to J, and what follows it; None if this is no choice.

    No choice has no letter in front, or several ("A) 5 B) 6", "(A) (B)"), or is a term ("(B) + 1").
    """
    if len(tokens) > 1 and tokens[0].word in _LEADS:
        tokens = [token for token in tokens[1:] if not is_mark(token, ":")]
    in_brackets = len(tokens) > 1 and tokens[0].text == "("
    if not tokens or tokens[in_brackets].text not in _LETTERS:
        return None
    letter, *rest = tokens[in_brackets:]
    if not rest:
        return letter.text, []
    end, *behind = rest
    has_point = is_mark(end, ".:") and bool(behind) and behind[0].spaced
    if end.text != ")" and (in_brackets or not has_point):
        return None
    body = stripped(behind)
    return None if _names_choice(body) or _goes_on(behind) else (letter.text, body)


def _names_choice(tokens: Tokens) -> bool:
    r"""Tell whether a choice is named: B alone, or with a bracket, a point or a colon behind it. It may be \B."""
    if len(tokens) == 1:
        return tokens[0].text in _LETTERS
    for token, after in pairwise(tokens):
        if token.text.removeprefix("\\") in _LETTERS and after.text in (")", ".", ":"):
            return True
    return False


def _goes_on(tokens: Tokens) -> bool:
    """Tell whether the letter is a factor or a term in what follows: (B)+1, (B)x, (B)^2. "(B) -1" is B, minus one."""
    if not tokens:
        return False
    first = tokens[0]
    if is_mark(first, "+-±∓"):
        return not first.spaced or len(tokens) == 1 or tokens[1].spaced
    if first.kind in ("name", "open"):
        return not first.spaced
    return is_mark(first, "*/^_!'=<>≤≥≠≈∈∪∖")


def with_shared_label(items: list[Shape]) -> list[Shape]:
    """Write x = 3, 5 as x = 3, x = 5, and x ≠ 3, 5 as x ≠ 3, x ≠ 5."""
    if len(items) < 2 or not isinstance(items[0], Named):
        return items
    first = items[0]
    is_inequation = isinstance(regions.complement(first.value), Scalar)
    labelled = []
    for item in items:
        value = (is_inequation and regions.complement(item)) or item
        labelled.append(Named(first.label, value) if isinstance(item, Scalar) else item)
    return labelled


def joined(items: list[Shape], separators: Sequence[str]) -> list[Shape]:
    """Write conditions on one variable as one: x > 0 and x ≠ 1 must both hold, of x < 0 or x > 1 one is enough.

    A comma means "and" unless nothing would be left.
    """
    if len(items) < 2 or not all(isinstance(item, Named) and item.label == items[0].label for item in items):
        return items
    values = [item.value for item in items]
    enough = any if "or" in separators else all
    if not enough(map(regions.is_interval, values)):
        return items
    value = regions.union(values) if "or" in separators else regions.intersection(values)
    if value == EMPTY and "and" not in separators:
        value = regions.union(values)
    return items if value is None else [replace(items[0], value=value, relation=None)]


def is_series(items: Sequence[Shape], separators: Sequence[str]) -> bool:
    """Tell whether a list answers one question after the other, so that its order counts.

    It does in "true, false", "hot, cold", "T, F, T". But "red and blue" is one answer, the statements ①, ③ too, and
    "鸡3只, 兔5只" says what is what.
    """
    texts = [item.key for item in items if isinstance(item, Text)]
    words = [text.casefold() for text in texts if not re.search("[0-9]", text)]
    num_verdicts = sum(word in _VERDICTS for word in words)
    is_one_answer = "and" in separators or "or" in separators
    if (len(words) > 1 and not is_one_answer) or num_verdicts > 1 or len(set(words)) < len(words):
        return True
    letters = {item.value.name for item in items if isinstance(item, Scalar)}
    return bool(letters) and are_verdicts(letters)


def are_verdicts(letters: Set[str | None]) -> bool:
    """Tell whether all letters are T or F, or all are Y or N."""
    return any(map(letters.issubset, _VERDICT_LETTERS))


def without_integers(parts: list[Tokens]) -> list[Tokens]:
    r"""Return `k\pi, k \in \mathbb{Z}` without its last part, which only says what a k in an answer means.

    x > 1, x \in \mathbb{Z} keeps its last part.
    """
    *answers, last = parts
    if len(last) != 3 or last[0].text not in ("k", "m", "n") or text_of(last[1:]) != r"∈ \mathbbZ":
        return parts
    texts = [[token.text for token in answer] for answer in answers]
    if any(map(set("<>≤≥≠∈≈").intersection, texts)):
        return parts
    right_sides = [text[text.index("=") + 1 :] if "=" in text else text for text in texts]
    return answers if any(last[0].text in side for side in right_sides) else parts
