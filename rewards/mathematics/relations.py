r"""Read what sides and the signs between them say together: `x = 5`, `0 < x \le 1`, `x \ne 3`, `x^2+y^2 = 4`.

What has no other reading, `3+4 = 7`, is a chain, which equals only the same sides with the same signs: `7 = 4+3`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from string import ascii_lowercase

from rewards.mathematics.expression import expression_or_none
from rewards.mathematics.names import Label, read_label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.regions import complement, intersection
from rewards.mathematics.shapes import EMPTY, INFINITY, MINUS_INFINITY, Chain, Named, Relation, Row, Shape
from rewards.mathematics.tokens import Tokens, is_letter, is_mark, is_sum
from rewards.mathematics.value import Points, Value

_OF_FRACTIONS = frozenset((r"\frac", *"{}/+-"))
_JOINTS = frozenset((r"\frac", *"{}()/*"))
_BRACKETS = {"<": "()", "≤": "[]"}
_FLIPPED = {">": "<", "≥": "≤"}


class RelationReader:
    """Read relations; `read_side` reads what stands on one side."""

    def __init__(self, points: Points, read_side: Callable[[Tokens], Shape]):
        self.points, self.side = points, read_side

    def read(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Return what the sides say together. There is one more of them than signs."""
        if all(sign in _FLIPPED for sign in signs):
            sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
        if all(sign in "<≤" for sign in signs):
            return self.inequality(sides, signs) or self.chain(sides, signs)
        if len(signs) > 1:
            return self.calculation(sides, signs) or self.chain(sides, signs)
        if read_label(sides[0]) is None and read_label(sides[1]) is not None:  # 5 = x
            sides = sides[::-1]
        read_two = self.inequation if signs == ["≠"] else self.equation
        return read_two(*sides, *signs) or self.chain(sides, signs)

    # --- equalities -------------------------------------------------------------------------------------------------
    def equation(self, left: Tokens, right: Tokens, sign: str) -> Shape | None:
        """Read x = 5 and x + y = 5 under their names, and other equations in variables as relations."""
        label = read_label(left)
        names = self.side(left)
        if label is None and isinstance(names, Row):
            if all(isinstance(item, Scalar) and item.value.name for item in names.items):
                return self.point(left, right)
        value, other = self.value(left), self.value(right)
        if value is None or other is None:
            return Named(label, self.side(right)) if label else None
        difference = value - other
        is_condition = left[0].kind == "function" and other.is_zero  # \sin x = 0 for x
        if (label and not is_condition) or _is_term_with_value(left, value, other):
            return Named(label, self.side(right), Relation("=", difference))
        keeps_its_variables = difference.variables == value.variables | other.variables  # x + C = x does not
        if sign != "=" or not difference.variables or not keeps_its_variables:
            return None
        return Relation("=", difference)

    def point(self, left: Tokens, right: Tokens) -> Named:
        """Read (y, x) = (2, 1) as (x, y) = (1, 2); (m, b) has no order but its own."""
        value = self.side(right)
        letters = [token.text for token in left if is_letter(token)]
        are_neighbours = "".join(sorted(letters)) in ascii_lowercase
        if are_neighbours and isinstance(value, Row) and len(value.items) == len(letters):
            letters, items = zip(*sorted(zip(letters, value.items, strict=True)), strict=True)
            value = replace(value, items=items)
        return Named(Label(" ".join(letters)), value)

    def calculation(self, sides: list[Tokens], signs: list[str]) -> Named | None:
        """Read x = 3 + 4 = 7 as x = 7, if every link holds; None for any other."""
        label = read_label(sides[0])
        rest = self.chain(sides[1:], signs[1:])
        if label is None or signs[0] != "=" or not rest.holds:
            return None
        return Named(label, rest.sides[-1])

    def chain(self, sides: Sequence[Tokens], signs: Sequence[str]) -> Chain:
        """Return the sides and signs, what identities are made of, and whether all sides are equal."""
        first, *others = values = tuple(map(self.side, sides))
        are_scalars = all(isinstance(value, Scalar) for value in values)
        holds = are_scalars and set(signs) == {"="} and all(map(first.equals, others))
        parts = tuple(map(_parts, sides)) if are_scalars else ()
        return Chain(tuple(signs), values, parts, holds)

    # --- inequalities -----------------------------------------------------------------------------------------------
    def inequation(self, left: Tokens, right: Tokens, sign: str) -> Shape | None:
        """Read x ≠ 3 as the numbers without 3; any other as a relation."""
        label = read_label(left)
        others = complement(self.side(right))
        if label is not None and others is not None:
            return Named(label, others)
        return self.relation(left, right, sign)

    def inequality(self, sides: list[Tokens], signs: list[str]) -> Shape | None:
        """Read 0 < x ≤ 1 as x in (0, 1], and x < 3 as x in (-∞, 3); other two sides as a relation. signs: < or ≤."""
        relation = self.relation(*sides, *signs) if len(sides) == 2 else None
        halves = list(map(self.half_line, sides, signs, sides[1:]))
        if None in halves or len({half.label for half in halves}) > 1:
            return relation
        values = intersection(half.value for half in halves)
        if values in (None, EMPTY):  # x < y, 3 < x < 1
            return relation
        is_turned = any(side[0].text == "-" and is_letter(side[-1]) for side in sides)  # -2x < 4 is -x < 2 as well
        return Named(halves[0].label, values, relation if is_turned else None)

    def half_line(self, low: Tokens, sign: str, high: Tokens) -> Named | None:
        """Return the numbers that a variable may be, x < 3 or -x < 3; None for anything else."""
        is_upper = _is_variable(low)
        variable, other = (low, high) if is_upper else (high, low)
        bound = self.side(other)
        if not _is_variable(variable) or not isinstance(bound, Scalar):
            return None
        if len(variable) == 2:
            bound, is_upper = replace(bound, value=-bound.value, if_unit=None), not is_upper
        opener, closer = _BRACKETS[sign]
        row = Row("(", closer, (MINUS_INFINITY, bound)) if is_upper else Row(opener, ")", (bound, INFINITY))
        return Named(Label(variable[-1].text), row)

    def relation(self, left: Tokens, right: Tokens, sign: str) -> Relation | None:
        """Return the relation between two sides; None if a side has no value, or it is about no variable."""
        value, other = self.value(left), self.value(right)
        if value is None or other is None:
            return None
        difference = value - other
        return Relation(sign, difference) if difference.variables else None

    def value(self, side: Tokens) -> Value | None:
        """Return the value of a side; None if it has none."""
        return expression_or_none(side, self.points)


def _parts(side: Tokens) -> tuple[str, ...]:
    """Return the numbers, names and signs of a side, sorted; nothing for a number by itself: 3/2, -1.5."""
    is_number = all(token.kind == "number" or token.text in _OF_FRACTIONS for token in side)
    if is_number and not is_sum(side):
        return ()
    return tuple(sorted(token.text for token in side if token.text not in _JOINTS))


def _is_term_with_value(left: Tokens, value: Value, other: Value) -> bool:
    """Tell whether an equation gives the value of a term in several variables: x + y = 5."""
    is_plain = not any(token.kind in ("function", "applied") for token in left)  # sin x + y = 5
    return is_plain and len(value.variables) > 1 and not other.variables


def _is_variable(side: Tokens) -> bool:
    """Tell whether the side is x or -x."""
    name = side[1:] if is_mark(side[0], "-") else side
    return len(name) == 1 and is_letter(name[0]) and name[0].text not in ("π", "e", "i")
