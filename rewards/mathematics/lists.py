r"""Join what belongs together in a list, `x = 3, 5` or `k\pi, k \in \mathbb{Z}`; tell whether its order counts."""

from collections.abc import Sequence, Set

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.relations import LINE, interval_without, reals_without
from rewards.mathematics.shapes import INFINITY, MINUS_INFINITY, REALS, Bag, Named, Row, Shape, Text
from rewards.mathematics.tokens import Tokens, texts_of

_VERDICT_LETTERS = (set("TF"), set("YN"))
# words that answer one question each, even in "true and false"
_VERDICTS = frozenset(
    "true false yes no right wrong correct incorrect odd even positive negative zero increasing decreasing "
    "always sometimes never converges diverges convergent divergent rational irrational prime composite up down left "
    "maximum minimum max min neither both acute obtuse male female".split()
)


def with_shared_label(items: list[Shape]) -> list[Shape]:
    """Write x = 3, 5 as x = 3, x = 5, and x ≠ 3, 5 as x ≠ 3, x ≠ 5."""
    if len(items) < 2 or not isinstance(items[0], Named):
        return items
    first, *others = items
    is_inequation = bool(_left_out(first))
    if is_inequation and not all(map(_is_rational, others)):
        return items
    labelled = [first]
    for item in others:
        if isinstance(item, Scalar):
            item = Named(first.label, reals_without([item]) if is_inequation else item)
        labelled.append(item)
    return labelled


def with_restrictions(items: list[Shape]) -> list[Shape]:
    """Write x > 0, x ≠ 1 as x in (0, 1) ∪ (1, ∞), and x ≠ 1, x ≠ 2 as one set."""
    points = sum(map(_left_out, items), ())
    named = [item for item in items if isinstance(item, Named)]
    others = [item.value for item in named if not _left_out(item)]
    labels = {item.label for item in named}
    if not points or None in labels or len(labels) > 1:
        return items
    if len(items) != len(points) + len(others):
        return items
    (label,) = labels
    if not others:
        return [Named(label, reals_without(points))]
    interval = LINE if others[0] == REALS else others[0]
    if len(others) > 1 or not _is_rational_interval(interval):
        return items
    rows = interval_without(interval, points)
    return [Named(label, rows[0] if len(rows) == 1 else Bag(rows))]


def _left_out(item: Shape) -> tuple[Shape, ...]:
    """Return the 3 of x ≠ 3."""
    is_bag = isinstance(item, Named) and isinstance(item.value, Bag)
    return item.value.left_out if is_bag else ()


def _is_rational(value: Shape) -> bool:
    return isinstance(value, Scalar) and value.value.number is not None


def _is_rational_interval(shape: Shape) -> bool:
    """Tell whether this is an interval (or a pair) of two rational or infinite bounds."""
    return isinstance(shape, Row) and len(shape.items) == 2 and all(map(_is_bound, shape.items))


def _is_bound(item: Shape) -> bool:
    return item in (INFINITY, MINUS_INFINITY) or _is_rational(item)


def bounds_twice(items: Sequence[Shape]) -> bool:
    """Tell whether two items say which interval the same variable is in."""
    bounded = [item.label for item in items if isinstance(item, Named) and isinstance(item.value, (Row, Bag))]
    return len(set(bounded)) < len(bounded)


def is_series(items: Sequence[Shape], separators: Sequence[str]) -> bool:
    """Tell whether a list answers one question after the other, so that its order counts.

    It does in "true, false", "hot, cold", "T, F, T". But "red and blue" is one answer, the statements ①, ③ too, and
    "鸡3只, 兔5只" says what is what.
    """
    words = [item.key.casefold() for item in items if isinstance(item, Text)]
    words = [word for word in words if not any(map(str.isdigit, word))]
    is_one_answer = "and" in separators or "or" in separators
    if len(words) > 1 and not is_one_answer:
        return True
    num_verdicts = sum(word in _VERDICTS for word in words)
    is_repeated = len(set(words)) < len(words)
    if num_verdicts > 1 or is_repeated:
        return True
    letters = {item.value.lone_atom for item in items if isinstance(item, Scalar)}
    return bool(letters) and are_verdicts(letters)


def are_verdicts(letters: Set[str | None]) -> bool:
    """Tell whether all letters are T or F, or all are Y or N."""
    return any(map(letters.issubset, _VERDICT_LETTERS))


def without_integers(parts: list[Tokens]) -> list[Tokens]:
    r"""Return `k\pi, k \in \mathbb{Z}` without its last part, which only says what a k in an answer means.

    x > 1, x \in \mathbb{Z} keeps its last part.
    """
    *answers, last = parts
    texts = list(map(texts_of, answers))
    if texts_of(last[1:]) != ["∈", r"\mathbbZ"]:
        return parts
    if any(map(set("<>≤≥≠∈≈").intersection, texts)):
        return parts
    variable = last[0].text
    is_used = any(variable in _right_side(text) for text in texts)
    return answers if is_used and variable in ("k", "m", "n") else parts


def _right_side(texts: list[str]) -> list[str]:
    return texts[texts.index("=") + 1 :] if "=" in texts else texts
