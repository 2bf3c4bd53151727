r"""Read what sides and the signs between them say together: `x = 5`, `0 < x \le 1`, `x \ne 3`, `x^2+y^2 = 4`.

What has no reading, such as `1/3 = 0.333`, is a text.
"""

from collections.abc import Callable
from fractions import Fraction
from string import ascii_lowercase

from rewards.mathematics.expression import expression_or_none
from rewards.mathematics.names import Label, read_label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import (
    INFINITY,
    MINUS_INFINITY,
    Calculation,
    Named,
    Relation,
    Row,
    Shape,
    all_but,
)
from rewards.mathematics.tokens import Tokens, enclosed, is_letter, text_of
from rewards.mathematics.value import Points, Value

_CONSTANTS = ("π", "e", "i")
_TURNED = {">": "<", "≥": "≤"}
_OPENERS = {"<": "(", "≤": "["}
_CLOSERS = {"<": ")", "≤": "]"}


class RelationReader:
    """Read relations; `read_side` reads what stands on one side."""

    def __init__(self, points: Points, read_side: Callable[[Tokens], Shape]):
        self.points, self.side = points, read_side

    def read(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        """Return what the sides say together; None if nothing is known. There is one more of them than signs."""
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
        label = read_label(left) or _name_of_point(left)
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

    def calculation(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        """Read 3 + 4 = 7 as a calculation, x = 3 + 4 = 7 and m + n = 3 + 4 = 7 as 7 under its name.

        None unless all the numbers are equal.
        """
        label = read_label(sides[0])
        term = self.value(sides[0])
        is_named = label is not None or (term is not None and bool(term.variables))
        first, *others = shapes = tuple(map(self.side, sides[is_named:]))
        if set(signs) != {"="} or not isinstance(first, Scalar):
            return None
        if not all(isinstance(other, Scalar) and first.equals(other) for other in others):
            return None
        if not is_named:
            return Calculation(shapes)
        has_name = label is not None or _is_term_with_value(sides[0], term, first.value)
        return Named(label, shapes[-1]) if has_name else None

    # --- inequalities -----------------------------------------------------------------------------------------------
    def inequation(self, left: Tokens, right: Tokens) -> Shape | None:
        """Read x ≠ 3 as the numbers without 3; any other as a relation."""
        label = read_label(left)
        other = self.side(right)
        if label is not None and _known(other) is not None:
            return Named(label, all_but(other))
        return self.difference(left, right, "≠")

    def inequality(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        """Read 0 < x ≤ 1 as x in (0, 1], and x < 3 as x in (-∞, 3); other two sides as a relation. signs: < or ≤."""
        if len(sides) == 2:
            return self.half_line(*sides, *signs) or self.difference(*sides, *signs)
        first, variable, *_, last = sides
        low, high = self.side(first), self.side(last)
        lower, upper = _known(low), _known(high)
        if len(sides) > 3 or not _is_variable(variable) or None in (lower, upper) or lower >= upper:
            return None
        interval = Row(_OPENERS[signs[0]], _CLOSERS[signs[1]], (low, high))
        return Named(Label(variable[0].text), interval)

    def half_line(self, left: Tokens, right: Tokens, sign: str) -> Named | None:
        """Return the numbers that a variable may be, x < 3 or 3 < x; None for anything else."""
        is_upper = _is_variable(left)
        variable, other = (left, right) if is_upper else (right, left)
        bound = self.side(other)
        if not _is_variable(variable) or _known(bound) is None:
            return None
        if is_upper:
            row = Row("(", _CLOSERS[sign], (MINUS_INFINITY, bound))
        else:
            row = Row(_OPENERS[sign], ")", (bound, INFINITY))
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


def _name_of_point(tokens: Tokens) -> Label | None:
    """Return (x, y) as a label, and (m, b); not (y, x), which has an order of its own."""
    letters = text_of(tokens[1:-1]).split(" , ")
    is_turned = letters != sorted(letters) and "".join(sorted(letters)) in ascii_lowercase
    if not enclosed(tokens) or len(letters) < 2 or is_turned or not all(len(letter) == 1 for letter in letters):
        return None
    return Label(" ".join(letters))


def _is_term_with_value(left: Tokens, value: Value, other: Value) -> bool:
    """Tell whether an equation gives the value of a term in several variables: x + y = 5."""
    is_plain = not any(token.kind in ("function", "applied") for token in left)  # sin x + y = 5
    return is_plain and len(value.variables) > 1 and not other.variables


def _is_variable(side: Tokens) -> bool:
    return len(side) == 1 and is_letter(side[0]) and side[0].text not in _CONSTANTS


def _known(bound: Shape) -> Fraction | float | None:
    """Return the number that a bound is, rounded if it is irrational; None if it is no known one."""
    return bound.value.constant if isinstance(bound, Scalar) and bound.base == 10 else None
