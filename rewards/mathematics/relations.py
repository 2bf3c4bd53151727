r"""Read what sides and the signs between them say together: `x = 5`, `0 < x \le 1`, `x \ne 3`, `x^2+y^2 = 4`.

What has no reading, such as `1/3 = 0.333`, is a text.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from string import ascii_lowercase

from rewards.mathematics.expression import expression_or_none
from rewards.mathematics.names import Label, read_label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.regions import complement, intersection
from rewards.mathematics.shapes import (
    EMPTY,
    INFINITY,
    MINUS_INFINITY,
    Calculation,
    Named,
    Relation,
    Row,
    Shape,
    Text,
)
from rewards.mathematics.tokens import Token, Tokens, is_letter, text_key
from rewards.mathematics.value import Points, Value

_CONSTANTS = ("π", "e", "i")
_TURNED = {">": "<", "≥": "≤"}


class RelationReader:
    """Read relations; `read_side` reads what stands on one side."""

    def __init__(self, points: Points, read_side: Callable[[Tokens], Shape]):
        self.points, self.side = points, read_side

    def read(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Return what the sides say together. There is one more of them than signs."""
        return self.relation(sides, signs) or Text(_text(sides, signs))

    def relation(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        if all(sign in _TURNED for sign in signs):
            sides = sides[::-1]
            signs = [_TURNED[sign] for sign in reversed(signs)]
        if all(sign in "<≤" for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.calculation(sides, signs)
        left, right = sides
        if read_label(left) is None and read_label(right) is not None:  # 5 = x
            left, right = right, left
        if signs == ["≠"]:
            return self.inequation(left, right)
        return self.equation(left, right, *signs)

    # --- equalities -------------------------------------------------------------------------------------------------
    def equation(self, left: Tokens, right: Tokens, sign: str) -> Shape | None:
        """Read x = 5 and x + y = 5 under their names, other equations in variables as relations, 3 + 4 = 7."""
        label = read_label(left) or self.name_of_point(left)
        value, other = self.value(left), self.value(right)
        if value is None or other is None:
            return Named(label, self.side(right)) if label else None
        difference = value - other
        is_condition = left[0].kind == "function" and other.is_zero  # \sin x = 0 for x
        if (label and not is_condition) or _is_term_with_value(left, value, other):
            return Named(label, self.side(right), Relation("=", difference))
        if not value.variables | other.variables:
            return self.calculation([left, right], [sign])
        keeps_its_variables = difference.variables == value.variables | other.variables  # x + C = x does not
        if sign != "=" or not difference.variables or not keeps_its_variables:
            return None
        return Relation("=", difference)

    def name_of_point(self, left: Tokens) -> Label | None:
        """Return (x, y) as a label, and (m, b); not (y, x), which has an order of its own."""
        names = self.side(left)
        if not isinstance(names, Row) or not all(isinstance(item, Scalar) and item.value.name for item in names.items):
            return None
        letters = [token.text for token in left if is_letter(token)]
        is_turned = letters != sorted(letters) and "".join(sorted(letters)) in ascii_lowercase
        return None if is_turned else Label(" ".join(letters))

    def calculation(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        """Read x = 3 + 4 = 7 and m + n = 3 + 4 = 7 as 7 under its name, 3 + 4 = 7 as a calculation.

        None unless all the numbers are equal.
        """
        label = read_label(sides[0])
        value = self.value(sides[0])
        is_term = value is not None and bool(value.variables)
        numbers = sides[1:] if label or is_term else sides
        first, *others = shapes = tuple(map(self.side, numbers))
        are_equal = isinstance(first, Scalar) and all(isinstance(shape, Scalar) and first.equals(shape) for shape in others)
        if set(signs) != {"="} or not are_equal:
            return None
        if label or is_term:
            is_plain = label or _is_term_with_value(sides[0], value, first.value)
            return Named(label, shapes[-1]) if is_plain else None
        return Calculation(_text(sides, signs), shapes)

    # --- inequalities -----------------------------------------------------------------------------------------------
    def inequation(self, left: Tokens, right: Tokens) -> Shape | None:
        """Read x ≠ 3 as the numbers without 3; any other as a relation."""
        label = read_label(left)
        others = complement(self.side(right))
        if label is not None and others is not None:
            return Named(label, others)
        return self.difference(left, right, "≠")

    def inequality(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        """Read 0 < x ≤ 1 as x in (0, 1], and x < 3 as x in (-∞, 3); other two sides as a relation. signs: < or ≤."""
        halves = list(map(self.half_line, sides, signs, sides[1:]))
        if None not in halves and len({half.label for half in halves}) == 1:
            values = intersection(half.value for half in halves)
            if values not in (None, EMPTY):  # 3 < x < 1
                return Named(halves[0].label, values)
        return self.difference(*sides, *signs) if len(sides) == 2 else None

    def half_line(self, low: Tokens, sign: str, high: Tokens) -> Named | None:
        """Return the numbers that a variable may be, x < 3; None for anything else."""
        is_upper = _is_variable(low)
        variable, other = (low, high) if is_upper else (high, low)
        bound = self.side(other)
        if not _is_variable(variable) or not isinstance(bound, Scalar):
            return None
        if is_upper:
            row = Row("(", ")" if sign == "<" else "]", (MINUS_INFINITY, bound))
        else:
            row = Row("(" if sign == "<" else "[", ")", (bound, INFINITY))
        return Named(Label(variable[0].text), row)

    def difference(self, left: Tokens, right: Tokens, sign: str) -> Relation | None:
        """Return the relation between two sides; None if a side has no value, or it is about no variable."""
        value, other = self.value(left), self.value(right)
        if value is None or other is None:
            return None
        difference = value - other
        return Relation(sign, difference) if difference.variables else None

    def value(self, side: Tokens) -> Value | None:
        """Return the value of a side; None if it has none."""
        return expression_or_none(side, self.points)


def _text(sides: Sequence[Tokens], signs: Sequence[str]) -> str:
    pieces = [[*side, Token("mark", sign)] for side, sign in zip(sides, [*signs, ""], strict=True)]
    return text_key(chain(*pieces))


def _is_term_with_value(left: Tokens, value: Value, other: Value) -> bool:
    """Tell whether an equation gives the value of a term in several variables: x + y = 5."""
    is_plain = not any(token.kind in ("function", "applied") for token in left)  # sin x + y = 5
    return is_plain and len(value.variables) > 1 and not other.variables


def _is_variable(side: Tokens) -> bool:
    return len(side) == 1 and is_letter(side[0]) and side[0].text not in _CONSTANTS
