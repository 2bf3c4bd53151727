r"""What belongs together in a list: `x = 3, 5`, `k\pi, k \in \mathbb{Z}`; and whether its order counts: `no, yes`."""

from collections.abc import Sequence

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.relations import LINE, interval_without, reals_without
from rewards.mathematics.text import Tokens, texts_of
from rewards.mathematics.value import INFINITY, MINUS_INFINITY, REALS, Bag, Named, Row, Text, Value

VERDICT_LETTERS = ("TF", "YN")
# words that answer one question each, even in "true and false"
_VERDICTS = frozenset(
    "true false yes no right wrong correct incorrect odd even positive negative zero increasing decreasing "
    "always sometimes never converges diverges convergent divergent rational irrational prime composite up down left "
    "maximum minimum max min neither both acute obtuse male female".split()
)


def with_shared_label(items: list[Value]) -> list[Value]:
    """Write x = 3, 5 as x = 3, x = 5, and x ≠ 3, 5 as x ≠ 3, x ≠ 5."""
    if len(items) < 2 or not isinstance(items[0], Named):
        return items
    label, is_taken = items[0].label, bool(_left_out(items[0]))
    if is_taken and not all(map(_is_rational, items[1:])):
        return items
    values = [reals_without([item]) if is_taken and isinstance(item, Scalar) else item for item in items]
    return [
        Named(label, value) if isinstance(item, Scalar) else item for item, value in zip(items, values, strict=True)
    ]


def with_restrictions(items: list[Value]) -> list[Value]:
    """Write x > 0, x ≠ 1 as x in (0, 1) ∪ (1, ∞), and x ≠ 1, x ≠ 2 as one set."""
    points = [point for item in items for point in _left_out(item)]
    labels = {item.label for item in items if isinstance(item, Named)}
    others = [item.value for item in items if isinstance(item, Named) and not _left_out(item)]
    if not points or None in labels or len(labels) > 1 or len(items) != len(points) + len(others):
        return items
    (label,) = labels
    if not others:
        return [Named(label, reals_without(points))]
    interval = LINE if others[0] == REALS else others[0]
    if len(others) > 1 or not isinstance(interval, Row) or not _has_rational_bounds(interval):
        return items
    rows = interval_without(interval, points)
    return [Named(label, rows[0] if len(rows) == 1 else Bag(rows))]


def _left_out(item: Value) -> tuple[Value, ...]:
    """The 3 of x ≠ 3."""
    is_inequation = isinstance(item, Named) and isinstance(item.value, Bag)
    return item.value.left_out if is_inequation else ()


def _is_rational(value: Value) -> bool:
    return isinstance(value, Scalar) and value.value.number is not None


def _has_rational_bounds(interval: Row) -> bool:
    is_bound = [item in (INFINITY, MINUS_INFINITY) or _is_rational(item) for item in interval.items]
    return is_bound == [True, True]


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
    return bool(letters) and any(letters <= set(pair) for pair in VERDICT_LETTERS)


def without_integers(parts: list[Tokens]) -> list[Tokens]:
    r"""`k\pi, k \in \mathbb{Z}` without its last part, which only says what a k in an answer means; not so with x > 1,
    x \in \mathbb{Z}."""
    *answers, last = parts
    texts = list(map(texts_of, answers))
    if texts_of(last[1:]) != ["∈", r"\mathbbZ"]:
        return parts
    if any(sign in text for text in texts for sign in "<>≤≥≠∈≈"):
        return parts
    variable = last[0].text
    is_used = any(variable in _right_side(text) for text in texts)
    return answers if is_used and variable in ("k", "m", "n") else parts


def _right_side(texts: list[str]) -> list[str]:
    return texts[texts.index("=") + 1 :] if "=" in texts else texts
