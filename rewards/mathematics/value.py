"""The shapes an answer can have, and when two of them are the same answer.

Reading text into shapes is `read.py`; the numbers inside are quotients of `algebra.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rewards.mathematics.algebra import ONE, Algebra, Quotient
from rewards.mathematics.quantity import Scalar


@dataclass(frozen=True)
class Text:
    key: str  # normal form, see mathtext.text_key


@dataclass(frozen=True)
class Choice:
    letter: str  # A to J
    body: "Value | None" = None  # the Paris of "A. Paris"


@dataclass(frozen=True)
class Row:
    """In order, with the brackets: a tuple, an interval ("(1, 2)" is both), a ratio (":"), a difference of sets
    ("∖")."""

    opener: str
    closer: str
    items: "tuple[Value, ...]"


@dataclass(frozen=True)
class Bag:
    """Without order: a bare list, a set in braces, both values of ±, a union of intervals."""

    items: "tuple[Value, ...]"
    is_set: bool = False  # repeated members count once


@dataclass(frozen=True)
class Grid:
    rows: "tuple[tuple[Value, ...], ...]"
    is_determinant: bool = False


@dataclass(frozen=True)
class Named:
    """x = 5, f(x) = 2x, the area is 12, x in [0, 1), 0 < x < 1."""

    name: str
    value: "Value"
    is_label: bool = True  # False for x + y = 5: the left side is more than a name
    difference: Quotient | None = None  # left side minus right side


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that names no value: x^2 + y^2 = 4, x < y."""

    sign: str  # = ≠ < ≤
    difference: Quotient


@dataclass(frozen=True)
class Chain:
    """41 = 42, 1/3 ≈ 0.333, a < b = c: never one value."""

    signs: tuple[str, ...]
    sides: "tuple[Value, ...]"


Value = Scalar | Text | Choice | Row | Bag | Grid | Named | Relation | Chain

REALS, INFINITY, MINUS_INFINITY = Text("ℝ"), Text("∞"), Text("-∞")
_TUPLE_BRACKETS = ("(", ")"), (r"\langle", r"\rangle")


def same(answer: Value, truth: Value, algebra: Algebra) -> bool:
    """Whether the answer is the truth. Symmetric but for one case: x + y = 5 answers 5, and 5 does not answer x + y =
    5."""
    answer, truth = _plain(answer), _plain(truth)
    if isinstance(answer, Named) or isinstance(truth, Named):
        return _same_named(answer, truth, algebra)
    if isinstance(answer, Choice) or isinstance(truth, Choice):
        return _same_choice(answer, truth, algebra)
    if isinstance(answer, Grid) != isinstance(truth, Grid):
        answer, truth = _as_row(answer), _as_row(truth)
    for one, other in ((answer, truth), (truth, answer)):
        values = _assigned(one)
        if values and isinstance(other, (Row, Bag)) and not _assigned(other):
            return _is_plain_list(other) and _same_in_order(values, other.items, algebra)
    if type(answer) is not type(truth):
        return False
    match answer, truth:
        case Scalar(), Scalar():
            return _same_scalar(answer, truth, algebra)
        case Row(), Row():
            brackets = [(row.opener, row.closer) for row in (answer, truth)]
            return (brackets[0] == brackets[1] or all(pair in _TUPLE_BRACKETS for pair in brackets)) and _same_in_order(
                answer.items, truth.items, algebra
            )
        case Bag(), Bag():
            return _same_in_any_order(answer, truth, algebra)
        case Grid(), Grid():
            return (
                answer.is_determinant == truth.is_determinant
                and len(answer.rows) == len(truth.rows)
                and all(_same_in_order(a, t, algebra) for a, t in zip(answer.rows, truth.rows, strict=True))
            )
        case Relation(), Relation():
            return answer.sign == truth.sign and _proportional(answer, truth, algebra)
        case Chain(), Chain():
            return answer.signs == truth.signs and _same_in_order(answer.sides, truth.sides, algebra)
    return answer == truth


def _plain(value: Value) -> Value:
    """A set of one member is that member; the whole line is the real numbers, and without some points it is a union."""
    if isinstance(value, Bag) and value.is_set and len(value.items) == 1:
        return _plain(value.items[0])
    if value == Row("(", ")", (MINUS_INFINITY, INFINITY)):
        return REALS
    if isinstance(value, Row) and value.opener == "∖" and value.items[0] == REALS and len(value.items) == 2:
        removed = value.items[1].items if isinstance(value.items[1], Bag) else value.items[1:]
        points = [item for item in removed if isinstance(item, Scalar) and item.value.number is not None]
        if len(points) == len(removed):
            bounds = [MINUS_INFINITY, *sorted(points, key=lambda point: point.value.number), INFINITY]
            return Bag(tuple(Row("(", ")", pair) for pair in pairwise(bounds)))
    return value


def _same_scalar(answer: Scalar, truth: Scalar, algebra: Algebra) -> bool:
    if answer.contradicts(truth):
        return False
    if algebra.equal(answer.value, truth.value):
        return True
    return any(
        one.if_unit is not None and not algebra.variables(other.value) and _same_scalar(one.if_unit, other, algebra)
        for one, other in ((answer, truth), (truth, answer))
    )


def _same_in_order(answers: Sequence[Value], truths: Sequence[Value], algebra: Algebra) -> bool:
    return len(answers) == len(truths) and all(same(a, t, algebra) for a, t in zip(answers, truths, strict=True))


def _same_in_any_order(answer: Bag, truth: Bag, algebra: Algebra) -> bool:
    if answer.is_set or truth.is_set:
        return all(any(same(a, t, algebra) for t in truth.items) for a in answer.items) and all(
            any(same(a, t, algebra) for a in answer.items) for t in truth.items
        )
    left = list(truth.items)
    for a in answer.items:
        found = next((i for i, t in enumerate(left) if same(a, t, algebra)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_choice(answer: Value, truth: Value, algebra: Algebra) -> bool:
    """The letters decide; without two letters, the body of the one against the whole other. A lone "b" is the letter
    B."""
    letters = [_letter(value) for value in (answer, truth)]
    bodies = [value.body if isinstance(value, Choice) else None for value in (answer, truth)]
    if all(letters):
        return letters[0] == letters[1] and (None in bodies or same(bodies[0], bodies[1], algebra))
    if isinstance(answer, Choice) and bodies[0] is not None:
        return same(bodies[0], truth, algebra)
    return bodies[1] is not None and same(answer, bodies[1], algebra)


def _letter(value: Value) -> str | None:
    if isinstance(value, Choice):
        return value.letter
    name = value.value.lone_atom if isinstance(value, Scalar) else None
    return name.upper() if name and name not in "ei" else None


def _as_row(value: Value) -> Value:
    """A column or row matrix as the tuple of its entries."""
    if isinstance(value, Grid) and not value.is_determinant:
        if len(value.rows) == 1:
            return Row("(", ")", value.rows[0])
        if all(len(row) == 1 for row in value.rows):
            return Row("(", ")", tuple(row[0] for row in value.rows))
    return value


def scaled(grid: Grid, factor: Quotient, algebra: Algebra) -> Grid | None:
    """The matrix times a number, None if not all its entries are plain values."""
    if grid.is_determinant or not all(
        isinstance(entry, Scalar) and entry.unit is None for row in grid.rows for entry in row
    ):
        return None
    return Grid(tuple(tuple(Scalar(algebra.multiply(factor, entry.value)) for entry in row) for row in grid.rows))


def _assigned(value: Value) -> list[Value]:
    """The values of x = 1, y = 2 by the order of their names; none of x = 1, x = 2."""
    named = [item for item in value.items if isinstance(item, Named)] if isinstance(value, Bag) else []
    names = {item.name for item in named}
    if not named or len(names) < len(value.items):
        return []
    return [item.value for item in sorted(named, key=lambda item: item.name)]


def _is_plain_list(value: Row | Bag) -> bool:
    """Whether the members can be the values of several variables: "1, 2" or (1, 2)."""
    return not value.is_set if isinstance(value, Bag) else (value.opener, value.closer) in _TUPLE_BRACKETS


def _same_named(answer: Value, truth: Value, algebra: Algebra) -> bool:
    if isinstance(answer, Named) and isinstance(truth, Named):
        names_agree = answer.name == truth.name or (_is_function(answer, algebra) and _is_function(truth, algebra))
        if names_agree and same(answer.value, truth.value, algebra):
            return True
    elif isinstance(truth, Named):
        if truth.is_label and same(answer, truth.value, algebra):
            return True
    elif same(answer.value, truth, algebra):
        return True
    equations = [
        Relation("=", side.difference) if isinstance(side, Named) and side.difference else side
        for side in (answer, truth)
    ]
    return all(
        isinstance(side, Relation) and side.sign == "=" and len(algebra.variables(side.difference)) > 1
        for side in equations
    ) and _proportional(*equations, algebra)


def _is_function(named: Named, algebra: Algebra) -> bool:
    """y = 2x + 3 and f(x) = 2x + 3 name the same function; x = 5 and y = 5 are different."""
    return (
        (named.name == "y" or named.name.endswith(")"))
        and isinstance(named.value, Scalar)
        and bool(algebra.variables(named.value.value))
    )


def _proportional(answer: Relation, truth: Relation, algebra: Algebra) -> bool:
    """Whether one difference is a constant multiple of the other (a positive one for < and ≤); in an equation the
    denominators do not matter."""
    a, t = answer.difference, truth.difference
    if answer.sign in "=≠":
        a, t = Quotient(a.top, ONE), Quotient(t.top, ONE)
    if not a.top or not t.top:
        return a.top == t.top
    factor = algebra.leading(a) / algebra.leading(t)
    return (factor > 0 or answer.sign in "=≠") and algebra.equal(a, algebra.multiply(t, algebra.number(factor)))
