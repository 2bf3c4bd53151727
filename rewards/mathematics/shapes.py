"""Define the shapes an answer can have.

answer.py reads text into shapes, equality.py compares them; the numbers inside are values (value.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rewards.mathematics.names import Label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.value import Value


@dataclass(frozen=True)
class Text:
    key: str  # normal form, see key.text_key


@dataclass(frozen=True)
class Choice:
    letter: str  # A to J
    body: "Shape | None" = None  # the Paris of "A. Paris"


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
    """What can be read in several ways: 1:2 is a ratio or a fraction, C(5,2) a point or a number, a column a tuple."""

    readings: "tuple[Shape, ...]"


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
class Chain:
    """Sides and their signs: 41 = 42, 1/3 ≈ 0.333, a < b = c. One value only if all links are equalities that hold."""

    signs: tuple[str, ...]
    sides: "tuple[Shape, ...]"
    parts: tuple[tuple[str, ...], ...]  # what each side is made of, where all are numbers: log, 4, 8
    holds: bool = False


Shape = Scalar | Text | Choice | Row | Bag | Either | Named | Relation | Chain

EMPTY, INFINITY, MINUS_INFINITY = Text("∅"), Text("∞"), Text("-∞")
REALS = Row("(", ")", (MINUS_INFINITY, INFINITY))


def matrix(rows: Sequence[Sequence[Shape]], brackets: str = "[]") -> Shape:
    """Return a matrix or, in bars, a determinant. A matrix of a single row or column is a tuple as well."""
    whole = Row(*brackets, tuple(Row("[", "]", tuple(row)) for row in rows))
    is_vector = brackets == "[]" and (len(rows) == 1 or all(len(row) == 1 for row in rows))
    return Either((whole, Row("(", ")", tuple(chain(*rows))))) if is_vector else whole
