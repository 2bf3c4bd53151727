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
_FLIPPED = {">": "<", "≥": "≤", "<": ">", "≤": "≥"}


class RelationReader:
    """Read relations; `read_side` reads what stands on one side."""

    def __init__(self, points: Points, read_side: Callable[[Tokens], Shape]):
        self.points, self.side = points, read_side

    def read(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Return what the sides say together. There is one more of them than signs."""
        if any(sign in _FLIPPED for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.equalities(sides, signs)
        left, right = sides
        if read_label(left) is None and read_label(right) is not None:
            left, right = right, left  # 5 = x
        if signs == ["≠"]:
            found = self.inequation(left, right)
        else:
            found = self.equation(left, signs[0], right)
        return found or self.chain([left, right], signs)

    # --- equalities -------------------------------------------------------------------------------------------------
    def equation(self, left: Tokens, sign: str, right: Tokens) -> Shape | None:
        """Read x = 5 and x + y = 5 under their names, and other equations in variables as relations."""
        label, names = read_label(left), self.side(left)
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
        return Relation("=", difference) if sign == "=" and difference.variables and keeps_its_variables else None

    def point(self, left: Tokens, right: Tokens) -> Named:
        """Read (y, x) = (2, 1) as (x, y) = (1, 2); (m, b) has no order but its own."""
        value = self.side(right)
        letters = [token.text for token in left if is_letter(token)]
        are_neighbours = "".join(sorted(letters)) in ascii_lowercase
        if are_neighbours and isinstance(value, Row) and len(value.items) == len(letters):
            letters, items = zip(*sorted(zip(letters, value.items, strict=True)), strict=True)
            value = replace(value, items=items)
        return Named(Label(" ".join(letters)), value)

    def equalities(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Read x = 3 + 4 = 7 as x = 7 if every link holds; otherwise a chain."""
        label = read_label(sides[0])
        rest = self.chain(sides[1:], signs[1:])
        if label and rest.holds and signs[0] == "=":
            return Named(label, rest.sides[-1])
        return self.chain(sides, signs)

    def chain(self, sides: Sequence[Tokens], signs: Sequence[str]) -> Chain:
        """Return the sides and signs, what identities are made of, and whether all sides are equal."""
        first, *others = values = tuple(map(self.side, sides))
        are_scalars = all(isinstance(value, Scalar) for value in values)
        holds = are_scalars and set(signs) == {"="} and all(map(first.equals, others))
        return Chain(tuple(signs), values, tuple(map(_parts, sides)) if are_scalars else (), holds)

    # --- inequalities -----------------------------------------------------------------------------------------------
    def inequation(self, left: Tokens, right: Tokens) -> Shape | None:
        """Read x ≠ 3 as the numbers without 3; any other as a relation."""
        label, others = read_label(left), complement(self.side(right))
        if label is not None and others is not None:
            return Named(label, others)
        return self.relation(left, "≠", right)

    def inequality(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Read 0 < x ≤ 1 as x in (0, 1]; x > 3 as x in (3, ∞); any other as one relation or a chain."""
        if all(sign in ">≥" for sign in signs):
            sides = sides[::-1]
            signs = [_FLIPPED[sign] for sign in reversed(signs)]
        if not all(sign in "<≤" for sign in signs):
            return self.chain(sides, signs)
        halves = list(map(self.half_line, sides, signs, sides[1:]))
        relation = self.relation(sides[0], signs[0], sides[1]) if len(halves) == 1 else None
        if None in halves or len({half.label for half in halves}) > 1:
            return relation or self.chain(sides, signs)
        values = intersection(half.value for half in halves)
        if values == EMPTY:  # 3 < x < 1
            return self.chain(sides, signs)
        is_turned = any(side[0].text == "-" and is_letter(side[-1]) for side in sides)  # -2x < 4 is -x < 2 as well
        return Named(halves[0].label, values, relation if is_turned else None)

    def half_line(self, low: Tokens, sign: str, high: Tokens) -> Named | None:
        """Return the numbers that a variable may be, x < 3 or -x < 3; None for anything else. sign: < or ≤."""
        is_upper = _is_variable(low)
        variable, other = (low, high) if is_upper else (high, low)
        bound = self.side(other)
        if not _is_variable(variable) or not isinstance(bound, Scalar) or bound.value.constant is None:
            return None
        if bound.base != 10:
            return None
        if len(variable) == 2:
            bound, is_upper = replace(bound, value=-bound.value, if_unit=None), not is_upper
        if is_upper:
            row = Row("(", "]" if sign == "≤" else ")", (MINUS_INFINITY, bound))
        else:
            row = Row("[" if sign == "≤" else "(", ")", (bound, INFINITY))
        return Named(Label(variable[-1].text), row)

    def relation(self, left: Tokens, sign: str, right: Tokens) -> Relation | None:
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
    return len(name) == 1 and is_letter(name[0]) and name[0].text not in "πei"
