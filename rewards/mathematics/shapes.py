"""Define the shapes an answer can have, and tell when two of them are the same answer.

answer.py reads text into shapes; the numbers inside are values (value.py). Where a reader could doubt that two are the
same, they are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rewards.mathematics.names import Label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.value import Value


@dataclass(frozen=True)
class Text:
    key: str  # normal form, see tokens.text_key


@dataclass(frozen=True)
class Choice:
    letter: str  # A to J
    body: "Shape | None" = None  # the 12 of "(B) 12"


@dataclass(frozen=True)
class Bracketed:
    """Items in order, with their brackets: a tuple, an interval ("(1, 2)" is both), a difference "∖", a ratio ":".

    A matrix is a row of rows in square brackets.
    """

    opener: str
    closer: str
    items: "tuple[Shape, ...]"

    @property
    def brackets(self) -> str:
        return self.opener + self.closer

    @property
    def is_tuple(self) -> bool:
        """Tell whether the brackets may be those of a tuple."""
        return self.brackets in ("()", r"\langle\rangle")


@dataclass(frozen=True)
class Bag:
    """A bare list, a set in braces, both values of ±, a union of intervals. Without order unless said."""

    items: "tuple[Shape, ...]"
    is_set: bool = False  # repeated members count once
    is_ordered: bool = False  # answers to several questions: "true, false", "5; 10"

    @property
    def assigned(self) -> "dict[str, Shape]":
        """Return the value of each of several variables, as in x = 1, y = 2; {} of anything else, as x = 1, x = 2."""
        named = [item for item in self.items if isinstance(item, Named)]
        values = {item.label.key: item.value for item in named if item.label}
        return values if len(values) == len(self.items) else {}


@dataclass(frozen=True)
class Either:
    """What can be read in two ways: 1:2 is a ratio or a fraction, 2:30 a time or a ratio, a matrix of one column a
    tuple. Not both sides are read in the second way."""

    readings: "tuple[Shape, Shape]"


@dataclass(frozen=True)
class Named:
    """A name and its value: x = 5, f(x) = 2x, the area is 12, x in [0, 1), 0 < x < 1."""

    label: Label | None  # None for x + y = 5: the left side is more than a name
    value: "Shape"
    relation: "Relation | None" = None  # of its sides, where these may be written in another way


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that names no value: x^2 + y^2 = 4, x < y."""

    sign: str  # = ≠ < ≤
    difference: Value


@dataclass(frozen=True)
class Calculation:
    """An equality of numbers that holds: 3 + 4 = 7. As an answer it is each side, as a truth only its text."""

    sides: "tuple[Shape, ...]"


Shape = Scalar | Text | Choice | Bracketed | Bag | Either | Named | Relation | Calculation

EMPTY, INFINITY, MINUS_INFINITY = Text("∅"), Text("∞"), Text("-∞")
REALS = Bracketed("(", ")", (MINUS_INFINITY, INFINITY))
Shapes = Sequence[Shape]


def union(sets: Shapes) -> Bag:
    """Return a set of the members and intervals of several sets."""
    members: list[Shape] = []
    for one in sets:
        members += one.items if isinstance(one, Bag) else [one]
    return Bag(tuple(members), is_set=True)


def all_but(number: Scalar) -> Bag:
    """Return the real numbers without one: (-∞, 3) ∪ (3, ∞)."""
    return union([Bracketed("(", ")", (MINUS_INFINITY, number)), Bracketed("(", ")", (number, INFINITY))])


# --- equality ---------------------------------------------------------------------------------------------------------
def same(answer: Shape, truth: Shape) -> bool:
    """Tell whether the answer is the truth.

    It is not symmetric: an answer may say more, so x + y = 5 and 3 + 2 = 5 answer 5, and 5 answers neither. It must not
    leave a number to be worked out: 3 + 2 does not answer 5, and 5 answers 3 + 2. A question
    may give the base of its answer, so 664 answers 664_7, and 664_7 does not answer 664.
    """
    match answer, truth:
        case Either(), Either():  # a column is no row, 3:45 is not 2:30
            return same(answer.readings[0], truth) or same(answer, truth.readings[0])
        case Either(), _:
            return any(same(reading, truth) for reading in answer.readings)
        case _, Either():
            return any(same(answer, reading) for reading in truth.readings)
        case (Named(), _) | (_, Named()):
            return _same_value(answer, truth) or _same_equation(answer, truth)
        case (Choice(), _) | (_, Choice()):
            return _same_choice(answer, truth)
        case Calculation(), _:
            return any(same(side, truth) for side in answer.sides)
        case (Bag(), _) | (_, Bag()):
            return _same_list(answer, truth)
        case Scalar(), Scalar():  # bare digits answer a truth with a base, and bare truths are decimal
            return answer.base in (10, truth.base) and not _is_left_open(answer, truth) and answer.equals(truth)
        case Bracketed(), Bracketed():
            are_alike = answer.brackets == truth.brackets or (answer.is_tuple and truth.is_tuple)
            return are_alike and _in_order(answer.items, truth.items)
        case Relation(), Relation():
            return _same_relation(answer, truth)
    return answer == truth


def _is_left_open(answer: Scalar, truth: Scalar) -> bool:
    """Tell whether the answer leaves a number to be worked out, as the question does: 3 + 4 for 7."""
    return answer.value.is_calculation and truth.value.number is not None and not truth.value.is_calculation


# --- lists -----------------------------------------------------------------------------------------------------------
def _in_order(answers: Shapes, truths: Shapes) -> bool:
    return len(answers) == len(truths) and all(map(same, answers, truths))


def _in_any_order(answers: Shapes, truths: Shapes) -> bool:
    """Tell whether each answer has its own partner among the truths, and none is left."""
    left = list(truths)
    for answer in answers:
        found = next((at for at, truth in enumerate(left) if same(answer, truth)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_set(answers: Shapes, truths: Shapes) -> bool:
    """Tell whether each member of the one is in the other."""
    are_right = all(any(same(answer, truth) for truth in truths) for answer in answers)
    return are_right and all(any(same(answer, truth) for answer in answers) for truth in truths)


def _same_list(answer: Shape, truth: Shape) -> bool:
    ours, theirs = (side.assigned if isinstance(side, Bag) else {} for side in (answer, truth))
    if bool(ours) != bool(theirs):
        return _same_assigned(ours or theirs, truth if ours else answer)
    if not isinstance(answer, Bag) or not isinstance(truth, Bag):
        return False
    if answer.is_set or truth.is_set:
        return _same_set(answer.items, truth.items)
    names_the_rest = _has_nouns(answer) != _has_nouns(truth)  # 342, 236 for 342 adults, 236 children
    if answer.is_ordered or truth.is_ordered or names_the_rest:
        return _in_order(answer.items, truth.items)
    return _in_any_order(answer.items, truth.items)


def _has_nouns(bag: Bag) -> bool:
    """Tell whether the items say which is which."""
    measures = [(item.unit, item.nouns) for item in bag.items if isinstance(item, Scalar)]
    return len(set(measures)) > 1


def _same_assigned(named: dict[str, Shape], other: Shape) -> bool:
    """Tell whether x = 1, y = 2 has the values of a tuple or a bare list in this order."""
    values = [named[name] for name in sorted(named)]
    if isinstance(other, Bracketed):
        return other.is_tuple and _in_order(values, other.items)
    if not isinstance(other, Bag) or other.is_set or any(isinstance(item, Named) for item in other.items):
        return False
    return _in_order(values, other.items)


# --- letters of multiple choice --------------------------------------------------------------------------------------
def _same_choice(answer: Shape, truth: Shape) -> bool:
    """Compare the letters, and the bodies where both have one; without two letters, a body with the other side."""
    letters = _letter(answer), _letter(truth)
    ours, theirs = (getattr(side, "body", None) for side in (answer, truth))
    if all(letters):
        return letters[0] == letters[1] and (ours is None or theirs is None or same(ours, theirs))
    if ours is not None:
        return same(ours, truth)
    return theirs is not None and same(answer, theirs)


def _letter(value: Shape) -> str | None:
    """Return the letter of a choice, or of the C in "the answer is C"."""
    if isinstance(value, Choice):
        return value.letter
    return value.value.name if isinstance(value, Scalar) else None


# --- equations -------------------------------------------------------------------------------------------------------
def _same_value(answer: Shape, truth: Shape) -> bool:
    """Tell whether the values agree, and the labels too where both have one."""
    if not isinstance(truth, Named):
        return isinstance(answer, Named) and _says_value(answer, truth) and same(answer.value, truth)
    if truth.label is None:
        return False
    if isinstance(answer, Named):
        return answer.label == truth.label and same(answer.value, truth.value)
    return _says_value(truth, answer) and same(answer, truth.value)


def _says_value(named: Named, other: Shape) -> bool:
    """Tell whether the value alone may stand for the equation: C for "the answer is C", but not for z = C."""
    is_symbol = named.label is not None and not named.label.is_words
    return not (is_symbol and isinstance(other, Choice))


def _same_equation(answer: Shape, truth: Shape) -> bool:
    """Tell whether both are one equation in several variables, y = 2x + 3 and 2x - y + 3 = 0, or one inequality."""
    ours, theirs = (side.relation if isinstance(side, Named) else side for side in (answer, truth))
    if not isinstance(ours, Relation) or not isinstance(theirs, Relation):
        return False
    if any(one.sign == "=" and len(one.difference.variables) < 2 for one in (ours, theirs)):
        return False
    return _same_relation(ours, theirs)


def _same_relation(answer: Relation, truth: Relation) -> bool:
    """Tell whether one difference is a constant multiple of the other, a positive one for < and ≤."""
    if answer.sign != truth.sign:
        return False
    ratio = answer.difference.ratio_to(truth.difference)
    return ratio is not None and (answer.sign in "=≠" or ratio > 0)
