"""Tell when two shapes are the same answer. Where a reader could doubt it, they are not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from rewards.mathematics.clock import Clock
from rewards.mathematics.numeral import Numeral
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import Bag, Chain, Choice, Either, Grid, Named, Ratio, Relation, Row, Shape

Shapes = Sequence[Shape]
Member = tuple[frozenset[str], Shape]  # what it counts, how many


def same(answer: Shape, truth: Shape) -> bool:
    """Tell whether the answer is the truth.

    It is not symmetric: an answer may say more, so x + y = 5 and 3 + 2 = 5 answer 5, and 5 answers neither. A question
    may give the base of its answer, so 664 answers 664_7, and 664_7 does not answer 664.
    """
    kinds = (type(answer), type(truth))
    for kind, compare in _OF_EITHER.items():
        if kind in kinds:
            return compare(answer, truth)
    if kinds.count(Grid) == 1:
        answer, truth = _as_row(answer), _as_row(truth)
    for one, other in ((answer, truth), (truth, answer)):
        if _is_assignment(one) and _is_nameless_list(other):
            return _same_assigned(one, other)
    if type(answer) is not type(truth):
        return False
    compare = _OF_BOTH.get(type(answer))
    return compare(answer, truth) if compare else answer == truth


def _same_in_some_way(answer: Shape, truth: Shape) -> bool:
    """Compare every reading of the one with the other; of two with several, the first: C(5,2) is no C(5,3)."""
    if isinstance(answer, Either) and isinstance(truth, Either):
        return same(answer.readings[0], truth.readings[0])
    if isinstance(answer, Either):
        return any(same(reading, truth) for reading in answer.readings)
    return any(same(answer, reading) for reading in truth.readings)


# --- numbers ---------------------------------------------------------------------------------------------------------
def _same_amount(answer: Scalar, truth: Scalar) -> bool:
    """Tell whether two amounts are the same, if need be with the letters behind a number as its unit: 5 m and 5."""
    answers = filter(None, (answer, answer.if_unit))
    truths = filter(None, (truth, truth.if_unit))
    return any(one.equals(other) for one, other in product(answers, truths))


def _same_ratio(answer: Shape, truth: Shape) -> bool:
    """Compare ratios, times of day and fractions.

    2:4 is 1:2 and ½. Times are the same to the minute, and nothing that may be a time is a fraction.
    """
    clocks = [_clock(answer), _clock(truth)]
    if all(clocks):
        return clocks[0] == clocks[1]
    if any(clock and clock.is_certain for clock in clocks):
        return False
    ratio, other = (answer, truth) if isinstance(answer, Ratio) else (truth, answer)
    if isinstance(other, Ratio):
        return _in_proportion(ratio.parts, other.parts)
    return _is_fraction(ratio, other)


def _is_fraction(ratio: Ratio, other: Shape) -> bool:
    """Tell whether 3:4 is 3/4; a range is no fraction, and 4:2 is not 2."""
    if ratio.clock or ratio.is_range or not isinstance(other, Scalar) or other.unit:
        return False
    one = Scalar(other.value.algebra.number(1))
    return not other.value.is_whole and _in_proportion(ratio.parts, (other, one))


def _in_proportion(ones: Shapes, others: Shapes) -> bool:
    """Tell whether the parts of two ratios are the same but for a factor."""
    if len(ones) != len(others):
        return False
    if not all(map(_is_nonzero, [*ones, *others])):
        return False
    pairs = list(zip(ones, others, strict=True))
    if any(one.contradicts(other) or one.noun != other.noun for one, other in pairs):
        return False
    values = [(one.in_unit_of(other), other.value) for one, other in pairs]
    first, first_other = values[0]
    return all((first * other).equals(first_other * one) for one, other in values)


def _is_nonzero(value: Shape) -> bool:
    return isinstance(value, Scalar) and bool(value.value.top)


def _clock(value: Shape) -> Clock | None:
    if isinstance(value, Ratio):
        return value.clock
    return value if isinstance(value, Clock) else None


def _same_numeral(answer: Shape, truth: Shape) -> bool:
    """Tell whether digits and base agree.

    The bare digits answer a truth with a base, since the question gave the base. A bare truth is answered in base ten
    only.
    """
    if isinstance(answer, Numeral) and isinstance(truth, Numeral):
        return answer == truth
    if isinstance(answer, Numeral):
        return answer.base == 10 and _has_digits(truth, answer)
    return _has_digits(answer, truth)


def _has_digits(value: Shape, numeral: Numeral) -> bool:
    return isinstance(value, Scalar) and not value.unit and value.value.equals(numeral.bare)


# --- lists -----------------------------------------------------------------------------------------------------------
def _in_order(answers: Shapes, truths: Shapes) -> bool:
    if len(answers) != len(truths):
        return False
    return all(map(_same_member, _with_nouns(answers), _with_nouns(truths)))


def _in_any_order(answers: Shapes, truths: Shapes) -> bool:
    """Tell whether each answer has its own partner among the truths, and none is left."""
    left = _with_nouns(truths)
    for answer in _with_nouns(answers):
        found = next((at for at, truth in enumerate(left) if _same_member(answer, truth)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_member(answer: Member, truth: Member) -> bool:
    """Tell whether the values are the same, and both count the same thing: 3 cats."""
    (noun, value), (other_noun, other) = answer, truth
    if noun and other_noun and noun != other_noun:
        return False
    return same(value, other)


def _with_nouns(values: Shapes) -> list[Member]:
    """Return each value with what it counts.

    Words that are the same for all are left out; so are all words where all count the same.
    """
    nouns = [value.noun if isinstance(value, Scalar) else frozenset() for value in values]
    shared = frozenset.intersection(*nouns) if nouns else frozenset()
    return [(noun - shared, value) for noun, value in zip(nouns, values, strict=True)]


def _same_row(answer: Row, truth: Row) -> bool:
    if answer.brackets != truth.brackets and not (answer.is_tuple and truth.is_tuple):
        return False
    return _in_order(answer.items, truth.items)


def _same_grid(answer: Grid, truth: Grid) -> bool:
    if answer.is_determinant != truth.is_determinant or len(answer.rows) != len(truth.rows):
        return False
    return all(map(_in_order, answer.rows, truth.rows))


def _as_row(value: Shape) -> Shape:
    """Return a column or row matrix as the tuple of its entries."""
    if not isinstance(value, Grid) or value.is_determinant:
        return value
    is_vector = len(value.rows) == 1 or all(len(row) == 1 for row in value.rows)
    return Row("(", ")", sum(value.rows, ())) if is_vector else value


def _same_list(answer: Bag, truth: Bag) -> bool:
    if answer.is_set or truth.is_set:
        return _same_set(answer.items, truth.items)
    names_the_rest = _has_nouns(answer) != _has_nouns(truth)  # 342, 236 for 342 adults, 236 children
    if answer.is_ordered or truth.is_ordered or names_the_rest:
        return _in_order(answer.items, truth.items)
    return _in_any_order(answer.items, truth.items)


def _has_nouns(bag: Bag) -> bool:
    return any(noun for noun, _ in _with_nouns(bag.items))


def _same_set(answers: Shapes, truths: Shapes) -> bool:
    """Tell whether each member of the one is in the other."""
    answers, truths = _with_nouns(answers), _with_nouns(truths)
    are_right = all(any(_same_member(answer, truth) for truth in truths) for answer in answers)
    are_complete = all(any(_same_member(answer, truth) for answer in answers) for truth in truths)
    return are_right and are_complete


def _is_assignment(value: Shape) -> bool:
    """Tell whether the list gives each of several variables its value: x = 1, y = 2, but not x = 1, x = 2."""
    if not isinstance(value, Bag):
        return False
    names = {item.label.key for item in value.items if isinstance(item, Named) and item.label}
    return len(names) == len(value.items)


def _is_nameless_list(value: Shape) -> bool:
    if not isinstance(value, (Row, Bag)):
        return False
    return not any(isinstance(item, Named) for item in value.items)


def _same_assigned(named: Bag, other: Row | Bag) -> bool:
    """Tell whether x = 1, y = 2 has the values of the other in this order; x_1 = 1, x_2 = 2 also those of a set."""
    ordered = sorted(named.items, key=lambda item: item.label.key)
    values = [item.value for item in ordered]
    if isinstance(other, Row):
        return other.is_tuple and _in_order(values, other.items)
    if not other.is_set:
        return _in_order(values, other.items)
    letters = {item.label.key.partition("_")[0] for item in ordered}
    return len(letters) == 1 and _same_set(values, other.items)


# --- letters of multiple choice --------------------------------------------------------------------------------------
def _same_choice(answer: Shape, truth: Shape) -> bool:
    """Compare the letters; without two letters, compare the body of the one with the other.

    A lone "b" is the letter B.
    """
    letters = _letter(answer), _letter(truth)
    ours, theirs = _body(answer), _body(truth)
    if all(letters):
        agree = ours is None or theirs is None or same(ours, theirs)
        return letters[0] == letters[1] and agree
    if ours is not None:
        return same(ours, truth)
    return theirs is not None and same(answer, theirs)


def _letter(value: Shape) -> str | None:
    if isinstance(value, Choice):
        return value.letter
    name = value.value.lone_atom if isinstance(value, Scalar) else None
    return name.upper() if name and name not in "ei" else None


def _body(value: Shape) -> Shape | None:
    return value.body if isinstance(value, Choice) else None


# --- equations -------------------------------------------------------------------------------------------------------
def _same_named(answer: Shape, truth: Shape) -> bool:
    return _same_value(answer, truth) or _same_equation(_as_equation(answer), _as_equation(truth))


def _same_value(answer: Shape, truth: Shape) -> bool:
    """Tell whether the values agree, and the labels too where both have one."""
    if isinstance(answer, Named) and isinstance(truth, Named):
        return _same_label(answer, truth) and same(answer.value, truth.value)
    if isinstance(answer, Named):
        return _says_value(answer, truth) and same(answer.value, truth)
    if truth.label is None:
        return False
    return _says_value(truth, answer) and same(answer, truth.value)


def _same_label(answer: Named, truth: Named) -> bool:
    if answer.label is None or truth.label is None:
        return False
    if answer.label.key == truth.label.key:
        return True
    has_variable = isinstance(answer.value, Scalar) and bool(answer.value.value.variables)
    return has_variable and answer.label.defines_with(truth.label)


def _says_value(named: Named, other: Shape) -> bool:
    """Tell whether the value alone may stand for the equation: C for "the answer is C", but not for z = c."""
    is_symbol = named.label is not None and not named.label.is_words
    return not (is_symbol and isinstance(other, Choice))


def _as_equation(value: Shape) -> Shape:
    return value.relation or value if isinstance(value, Named) else value


def _same_equation(answer: Shape, truth: Shape) -> bool:
    """Tell whether both are one equation in several variables, y = 2x + 3 and 2x - y + 3 = 0, or one inequality."""
    for side in (answer, truth):
        if not isinstance(side, Relation):
            return False
        if side.sign == "=" and len(side.difference.variables) < 2:
            return False
    return _same_relation(answer, truth)


def _same_relation(answer: Relation, truth: Relation) -> bool:
    """Tell whether one difference is a constant multiple of the other, a positive one for < and ≤.

    In an equation the denominators do not matter.
    """
    if answer.sign != truth.sign:
        return False
    ours, theirs = answer.difference, truth.difference
    is_equation = answer.sign in "=≠"
    if is_equation:
        ours, theirs = (side.algebra.quotient(side.top) for side in (ours, theirs))
    factor = ours.leading / theirs.leading
    if factor < 0 and not is_equation:
        return False
    return ours.equals(theirs * factor)


def _same_chain(answer: Shape, truth: Shape) -> bool:
    r"""Tell whether both say the same of the same things.

    \log_4 8 = 3/2 is not \log_{36} 216 = 3/2. A chain that holds answers each of its sides.
    """
    if not isinstance(truth, Chain):
        return answer.holds and any(same(side, truth) for side in answer.sides)
    if not isinstance(answer, Chain) or answer.signs != truth.signs:
        return False
    if _same_sides(answer, truth):
        return True
    turned = replace(answer, sides=answer.sides[::-1], written=answer.written[::-1])
    return set(answer.signs) <= {"=", "≠"} and _same_sides(turned, truth)


def _same_sides(answer: Chain, truth: Chain) -> bool:
    is_of_numbers = all(isinstance(side, Scalar) for side in answer.sides)
    if is_of_numbers and answer.written != truth.written:
        return False
    return _in_order(answer.sides, truth.sides)


Comparison = Callable[..., bool]
# the first of these that either side is, decides
_OF_EITHER: dict[type, Comparison] = {
    Either: _same_in_some_way,
    Named: _same_named,
    Choice: _same_choice,
    Chain: _same_chain,
    Ratio: _same_ratio,
    Numeral: _same_numeral,
}
_OF_BOTH: dict[type, Comparison] = {
    Scalar: _same_amount,
    Row: _same_row,
    Bag: _same_list,
    Grid: _same_grid,
    Relation: _same_relation,
}
