"""When two shapes are the same answer. Where a reader could doubt it, they are not."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from rewards.mathematics.algebra import ONE, Algebra, Quotient
from rewards.mathematics.colon import Clock
from rewards.mathematics.numeral import Numeral
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.value import (
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Bag,
    Chain,
    Choice,
    Grid,
    Named,
    Ratio,
    Relation,
    Row,
    Value,
)

_TUPLE_BRACKETS: Final = (("(", ")"), (r"\langle", r"\rangle"))
_LINE: Final = Row("(", ")", (MINUS_INFINITY, INFINITY))


def same(answer: Value, truth: Value, algebra: Algebra) -> bool:
    """Whether the answer is the truth. Symmetric but where only the answer may say more: x + y = 5 and 3 + 2 = 5 answer
    5, and 5 answers neither; 664 answers 664_7, and 664_7 does not answer 664."""
    answer, truth = _plain(answer), _plain(truth)
    if isinstance(answer, Named) or isinstance(truth, Named):
        return _same_named(answer, truth, algebra)
    if isinstance(answer, Choice) or isinstance(truth, Choice):
        return _same_choice(answer, truth, algebra)
    if isinstance(answer, Chain) and answer.holds and not isinstance(truth, Chain):
        return any(same(side, truth, algebra) for side in answer.sides)
    if isinstance(answer, Ratio) or isinstance(truth, Ratio):
        return _same_ratio(answer, truth, algebra)
    if isinstance(answer, Numeral) or isinstance(truth, Numeral):
        return _same_numeral(answer, truth)
    if isinstance(answer, Grid) != isinstance(truth, Grid):
        answer, truth = _as_row(answer), _as_row(truth)
    for one, other in ((answer, truth), (truth, answer)):
        values = _assigned(one)
        if values and isinstance(other, (Row, Bag)) and not any(isinstance(item, Named) for item in other.items):
            return _is_plain_list(other) and _same_in_order(values, other.items, algebra)
    return type(answer) is type(truth) and _same_shape(answer, truth, algebra)


def _same_shape(answer: Value, truth: Value, algebra: Algebra) -> bool:
    match answer, truth:
        case Scalar(), Scalar():
            return _same_scalar(answer, truth, algebra)
        case Row(), Row():
            return _same_brackets(answer, truth) and _same_in_order(answer.items, truth.items, algebra)
        case Bag(), Bag():
            return _same_list(answer, truth, algebra)
        case Grid(), Grid():
            return _same_grid(answer, truth, algebra)
        case Relation(), Relation():
            return answer.sign == truth.sign and _proportional(answer, truth, algebra)
        case Chain(), Chain():
            return _same_chain(answer, truth, algebra)
        case Clock(), Clock():
            return replace(answer, is_certain=True) == replace(truth, is_certain=True)
    return answer == truth


def _plain(value: Value) -> Value:
    """A set of one member is that member; the whole line is the real numbers, and without some points it is a union."""
    if isinstance(value, Bag) and value.is_set and len(value.items) == 1:
        return _plain(value.items[0])
    if value == _LINE:
        return REALS
    if isinstance(value, Row) and value.opener == "∖" and value.items[0] == REALS and len(value.items) == 2:
        return _punctured_line(value)
    return value


def _punctured_line(value: Row) -> Value:
    """ℝ without some numbers as the intervals between them."""
    removed = value.items[1].items if isinstance(value.items[1], Bag) else value.items[1:]
    if not all(isinstance(item, Scalar) and item.value.number is not None for item in removed):
        return value
    points = sorted(removed, key=lambda point: point.value.number)
    bounds = [MINUS_INFINITY, *points, INFINITY]
    return Bag(tuple(Row("(", ")", pair) for pair in pairwise(bounds)))


# ---- numbers ---------------------------------------------------------------------------------------------------------
def _same_scalar(answer: Scalar, truth: Scalar, algebra: Algebra) -> bool:
    if answer.contradicts(truth):
        return False
    if algebra.equal(answer.value, truth.value):
        return True
    for one, other in ((answer, truth), (truth, answer)):
        if one.if_unit is not None and not algebra.variables(other.value):
            if _same_scalar(one.if_unit, other, algebra):
                return True
    return False


def _same_numeral(answer: Value, truth: Value) -> bool:
    """Whether digits and base agree. A truth with a base is answered by the bare digits: the base was given with the
    question; a bare truth only by base ten."""
    if isinstance(answer, Numeral) and isinstance(truth, Numeral):
        return answer == truth
    numeral, other = (answer, truth) if isinstance(answer, Numeral) else (truth, answer)
    if numeral is answer and numeral.base != 10:
        return False
    if not isinstance(other, Scalar) or other.unit or not numeral.digits.isdigit():
        return False
    return other.value.number == int(numeral.digits)


def _same_ratio(answer: Value, truth: Value, algebra: Algebra) -> bool:
    """2:4 is 1:2 and ½; times of day are the same to the minute, and nothing that may be a time is a fraction."""
    clocks = [value.clock if isinstance(value, Ratio) else value for value in (answer, truth)]
    if all(isinstance(clock, Clock) for clock in clocks):
        return _same_shape(*clocks, algebra)
    if any(isinstance(clock, Clock) and clock.is_certain for clock in clocks):
        return False
    if isinstance(answer, Ratio) and isinstance(truth, Ratio):
        return _same_parts(answer.parts, truth.parts, algebra)
    ratio, other = (answer, truth) if isinstance(answer, Ratio) else (truth, answer)
    if ratio.clock or ratio.is_range or len(ratio.parts) != 2 or not isinstance(other, Scalar):
        return False
    number = other.value.number
    if other.unit or number is None or number.denominator == 1:
        return False
    return _same_parts(ratio.parts, (Scalar(algebra.number(number)), Scalar(algebra.number(1))), algebra)


def _same_parts(ones: Sequence[Value], others: Sequence[Value], algebra: Algebra) -> bool:
    """Whether the parts of two ratios are in proportion."""
    if len(ones) != len(others) or not all(isinstance(part, Scalar) and part.value.top for part in (*ones, *others)):
        return False
    if any(one.contradicts(other) for one, other in zip(ones, others, strict=True)):
        return False
    for one, other in zip(ones[1:], others[1:], strict=True):
        left = algebra.multiply(ones[0].value, other.value)
        right = algebra.multiply(others[0].value, one.value)
        if not algebra.equal(left, right):
            return False
    return True


# ---- lists -----------------------------------------------------------------------------------------------------------
def _same_in_order(answers: Sequence[Value], truths: Sequence[Value], algebra: Algebra) -> bool:
    if len(answers) != len(truths):
        return False
    return all(same(a, t, algebra) for a, t in zip(answers, truths, strict=True))


def _same_list(answer: Bag, truth: Bag, algebra: Algebra) -> bool:
    if answer.is_set or truth.is_set:
        forwards = all(any(same(a, t, algebra) for t in truth.items) for a in answer.items)
        return forwards and all(any(same(a, t, algebra) for a in answer.items) for t in truth.items)
    if answer.is_ordered or truth.is_ordered:
        return _same_in_order(answer.items, truth.items, algebra)
    nouns = [_distinct_nouns(bag) for bag in (answer, truth)]
    if all(nouns):
        return _same_counts(answer, truth, *nouns, algebra)
    if any(nouns):  # 342, 236 for 342 adults, 236 children
        return _same_in_order(answer.items, truth.items, algebra)
    return _same_in_any_order(answer.items, truth.items, algebra)


def _same_in_any_order(answers: Sequence[Value], truths: Sequence[Value], algebra: Algebra) -> bool:
    left = list(truths)
    for a in answers:
        found = next((at for at, t in enumerate(left) if same(a, t, algebra)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _distinct_nouns(bag: Bag) -> list[frozenset[str]]:
    """What each number counts, without the words that are the same for all; nothing unless they count different
    things."""
    nouns = [item.noun if isinstance(item, Scalar) else frozenset() for item in bag.items]
    if len(set(nouns)) < 2:
        return []
    shared = frozenset.intersection(*nouns)
    return [noun - shared for noun in nouns]


def _same_counts(
    answer: Bag, truth: Bag, ours: list[frozenset[str]], theirs: list[frozenset[str]], algebra: Algebra
) -> bool:
    """Whether each thing is counted alike: 3 cats, 4 dogs."""
    left = list(zip(theirs, truth.items, strict=True))
    for noun, item in zip(ours, answer.items, strict=True):
        found = next((at for at, (other, t) in enumerate(left) if noun == other and same(item, t, algebra)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_brackets(answer: Row, truth: Row) -> bool:
    brackets = [(row.opener, row.closer) for row in (answer, truth)]
    return brackets[0] == brackets[1] or all(pair in _TUPLE_BRACKETS for pair in brackets)


def _same_grid(answer: Grid, truth: Grid, algebra: Algebra) -> bool:
    if answer.is_determinant != truth.is_determinant or len(answer.rows) != len(truth.rows):
        return False
    return all(_same_in_order(a, t, algebra) for a, t in zip(answer.rows, truth.rows, strict=True))


def _as_row(value: Value) -> Value:
    """A column or row matrix as the tuple of its entries."""
    if not isinstance(value, Grid) or value.is_determinant:
        return value
    if len(value.rows) == 1:
        return Row("(", ")", value.rows[0])
    if all(len(row) == 1 for row in value.rows):
        return Row("(", ")", tuple(row[0] for row in value.rows))
    return value


def scaled(grid: Grid, factor: Quotient, algebra: Algebra) -> Grid | None:
    """The matrix times a number, None if not all its entries are plain values."""
    entries = [entry for row in grid.rows for entry in row]
    if grid.is_determinant or not all(isinstance(entry, Scalar) and entry.unit is None for entry in entries):
        return None
    return Grid(tuple(tuple(Scalar(algebra.multiply(factor, entry.value)) for entry in row) for row in grid.rows))


def _assigned(value: Value) -> list[Value]:
    """The values of x = 1, y = 2 by the order of their names; none of x = 1, x = 2."""
    if not isinstance(value, Bag):
        return []
    named = [item for item in value.items if isinstance(item, Named) and item.label]
    names = {item.label.key for item in named}
    if len(names) < len(value.items):
        return []
    return [item.value for item in sorted(named, key=lambda item: item.label.key)]


def _is_plain_list(value: Row | Bag) -> bool:
    """Whether the members can be the values of several variables: "1, 2" or (1, 2)."""
    return not value.is_set if isinstance(value, Bag) else (value.opener, value.closer) in _TUPLE_BRACKETS


# ---- letters of multiple choice --------------------------------------------------------------------------------------
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


# ---- equations -------------------------------------------------------------------------------------------------------
def _same_named(answer: Value, truth: Value, algebra: Algebra) -> bool:
    if isinstance(answer, Named) and isinstance(truth, Named):
        if _same_label(answer, truth, algebra) and same(answer.value, truth.value, algebra):
            return True
    elif isinstance(truth, Named):
        if truth.label and _says_value(truth, answer) and same(answer, truth.value, algebra):
            return True
    elif _says_value(answer, truth) and same(answer.value, truth, algebra):
        return True
    return _same_equation(_as_equation(answer), _as_equation(truth), algebra)


def _says_value(named: Named, other: Value) -> bool:
    """Whether the value alone may stand for the equation: C for "the answer is C", but not for z = c."""
    is_symbol = named.label is not None and not named.label.is_words
    return not (is_symbol and isinstance(other, Choice))


def _same_label(answer: Named, truth: Named, algebra: Algebra) -> bool:
    if answer.label is None or truth.label is None:
        return False
    if answer.label.key == truth.label.key:
        return True
    has_variable = isinstance(answer.value, Scalar) and bool(algebra.variables(answer.value.value))
    return has_variable and answer.label.agrees(truth.label)


def _as_equation(value: Value) -> Value:
    return Relation("=", value.difference) if isinstance(value, Named) and value.difference else value


def _same_equation(answer: Value, truth: Value, algebra: Algebra) -> bool:
    """Whether both are one equation in several variables: y = 2x + 3 and 2x - y + 3 = 0."""
    for side in (answer, truth):
        if not isinstance(side, Relation) or side.sign != "=" or len(algebra.variables(side.difference)) < 2:
            return False
    return _proportional(answer, truth, algebra)


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


def _same_chain(answer: Chain, truth: Chain, algebra: Algebra) -> bool:
    r"""Whether both say the same of the same things: \log_4 8 = 3/2 is not \log_{36} 216 = 3/2."""
    if answer.signs != truth.signs:
        return False
    is_of_numbers = all(isinstance(side, Scalar) for side in answer.sides)
    sides = list(zip(answer.sides, answer.written, strict=True))
    orders = [sides, sides[::-1]] if set(answer.signs) <= {"=", "≠"} else [sides]
    for order in orders:
        values, written = zip(*order, strict=True)
        if (written == truth.written or not is_of_numbers) and _same_in_order(values, truth.sides, algebra):
            return True
    return False
