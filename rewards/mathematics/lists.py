r"""What belongs together in a list: `x = 3, 5`, `k\pi, k \in \mathbb{Z}`; and whether its order counts: `no, yes`."""

from collections.abc import Sequence
from typing import Final

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.relations import interval_without, reals_without
from rewards.mathematics.text import Tokens
from rewards.mathematics.value import Bag, Named, Row, Text, Value

VERDICT_LETTERS: Final = ("TF", "YN")
# words that answer one question each, even in "true and false"
_VERDICTS: Final = frozenset(
    "true false yes no right wrong correct incorrect odd even positive negative zero increasing decreasing "
    "always sometimes never converges diverges convergent divergent rational irrational prime composite up down left "
    "maximum minimum max min neither both acute obtuse male female".split()
)


def with_shared_label(items: list[Value]) -> list[Value]:
    """Write x = 3, 5 as x = 3, x = 5."""
    if len(items) < 2 or not isinstance(items[0], Named):
        return items
    label = items[0].label
    left_out = isinstance(items[0].value, Bag) and items[0].value.left_out  # x ≠ 3, 5
    return [
        Named(label, reals_without([item]) if left_out else item) if isinstance(item, Scalar) else item
        for item in items
    ]


def with_restrictions(items: list[Value]) -> list[Value]:
    """Write x > 0, x ≠ 1 as x in (0, 1) ∪ (1, ∞), and x ≠ 1, x ≠ 2 as one set."""
    if len(items) < 2 or not all(isinstance(item, Named) and item.label for item in items):
        return items
    points = [point for item in items if isinstance(item.value, Bag) for point in item.value.left_out]
    others = [item.value for item in items if not (isinstance(item.value, Bag) and item.value.left_out)]
    if not points or len(others) > 1 or len({item.label.key for item in items}) > 1:
        return items
    if not others:
        return [Named(items[0].label, reals_without(points))]
    (interval,) = others
    if not isinstance(interval, Row) or not all(map(_is_rational_bound, interval.items)):
        return items
    rows = interval_without(interval, points)
    return [Named(items[0].label, rows[0] if len(rows) == 1 else Bag(rows))]


def _is_rational_bound(bound: Value) -> bool:
    return not isinstance(bound, Scalar) or bound.value.number is not None


def bounds_twice(items: Sequence[Value]) -> bool:
    """Whether two items say which interval the same variable is in."""
    bounded = [item.label for item in items if isinstance(item, Named) and isinstance(item.value, (Row, Bag))]
    return len(set(bounded)) < len(bounded)


def is_series(items: Sequence[Value], separators: Sequence[str]) -> bool:
    """Whether a list answers one question after the other, so that its order counts: "true, false", "hot, cold",
    "T, F, T". But "red and blue" is one answer, the statements ①, ③ too, and "鸡3只, 兔5只" says what is what."""
    words = [item.key.casefold() for item in items if isinstance(item, Text)]
    words = [word for word in words if not any(map(str.isdigit, word))]
    is_one_answer = "and" in separators or "or" in separators
    if len(words) > 1 and not is_one_answer:
        return True
    if sum(word in _VERDICTS for word in words) > 1 or len(set(words)) < len(words):
        return True
    letters = {item.value.lone_atom for item in items if isinstance(item, Scalar)}
    return len(items) > 1 and bool(letters) and any(letters <= set(pair) for pair in VERDICT_LETTERS)


def without_integers(parts: list[Tokens]) -> list[Tokens]:
    r"""`k\pi, k \in \mathbb{Z}` without its last part, which only says what a k in an answer means; not so with x > 1,
    x \in \mathbb{Z}."""
    *answers, last = parts
    texts = [[token.text for token in part] for part in answers]
    if [token.text for token in last[1:]] != ["∈", r"\mathbbZ"]:
        return parts
    if any(sign in text for text in texts for sign in "<>≤≥≠∈≈"):
        return parts
    variable = last[0].text
    is_used = any(variable in _right_side(text) for text in texts)
    return answers if is_used and variable in ("k", "m", "n") else parts


def _right_side(texts: list[str]) -> list[str]:
    return texts[texts.index("=") + 1 :] if "=" in texts else texts
