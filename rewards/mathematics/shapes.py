"""Define the shapes an answer can have.

answer.py reads text into shapes, equality.py compares them; the numbers inside are values (value.py).
"""

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
class Row:
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
    def is_assignment(self) -> bool:
        """Tell whether this gives each of several variables its value: x = 1, y = 2, but not x = 1, x = 2."""
        labels = [item.label for item in self.items if isinstance(item, Named)]
        return len({label.key for label in labels if label}) == len(self.items)


@dataclass(frozen=True)
class Either:
    """What can be read in two ways: 1:2 is a ratio or a fraction, a matrix of one column a tuple."""

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
    """An equality of numbers that holds: 3 + 4 = 7. As an answer it is its sides, as a truth only its text."""

    key: str
    sides: "tuple[Shape, ...]"


Shape = Scalar | Text | Choice | Row | Bag | Either | Named | Relation | Calculation

EMPTY, INFINITY, MINUS_INFINITY = Text("∅"), Text("∞"), Text("-∞")
REALS = Row("(", ")", (MINUS_INFINITY, INFINITY))
