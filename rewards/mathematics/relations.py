r"""Read what sides and the signs between them say together: `x = 5`, `0 < x \le 1`, `x \ne 3`, `x^2+y^2 = 4`.

What has no reading, such as `1/3 = 0.333`, is a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from rewards.mathematics.expression import CONSTANTS, expression_or_none
from rewards.mathematics.names import Label, read_label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import INFINITY, MINUS_INFINITY, Bracketed, Calculation, Named, Relation, Shape, all_but
from rewards.mathematics.tokens import Tokens, enclosed, is_letter, text_of
from rewards.mathematics.value import Number, Points, Value

_TURNED = {">": "<", "≥": "≤"}
_OPENERS = {"<": "(", "≤": "["}
_CLOSERS = {"<": ")", "≤": "]"}


@dataclass(frozen=True)
class RelationReader:
    """Read relations; `side` reads what stands on one side."""

    points: Points
    side: Callable[[Tokens], Shape]

    def read(self, sides: Sequence[Tokens], signs: list[str]) -> Shape | None:
        """Return what the sides say together; None if nothing is known. There is one more of them than signs."""
        if all(sign in _TURNED for sign in signs):
            sides = sides[::-1]
            signs = [_TURNED[sign] for sign in reversed(signs)]
        if all(sign in "<≤" for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.calculation(sides, signs)
        left, right = sides
        is_named = read_label(left) is not None
        if not is_named and read_label(right) is not None:  # 5 = x
            left, right = right, left
        if signs == ["≠"]:
            return self.inequation(left, right)
        return self.equation(left, right, *signs)

    # --- equalities -------------------------------------------------------------------------------------------------
    def equation(self, left: Tokens, right: Tokens, sign: str) -> Shape | None:
        """Read x = 5 and x + y = 5 under their names, other equations in variables as relations, 3 + 4 = 7."""
        label = read_label(left) or _name_of_point(left)
        value = expression_or_none(left, self.points)
        other = expression_or_none(right, self.points)
        if value is None or other is None:
            return Named(label, self.side(right)) if label else None
        relation = Relation("=", value - other)
        is_condition = left[0].kind == "function" and other.is_zero  # \sin x = 0 for x
        if label and not is_condition:
            return Named(label, self.side(right), relation)
        if _is_term_with_value(left, value, other):
            return Named(None, self.side(right), relation)
        variables = value.variables | other.variables
        if not variables:
            return self.calculation([left, right], [sign])
        keeps_variables = relation.difference.variables == variables  # x + C = x does not
        return relation if sign == "=" and keeps_variables else None

    def calculation(self, sides: Sequence[Tokens], signs: list[str]) -> Shape | None:
        """Read 3 + 4 = 7 as a calculation, x = 3 + 4 = 7 and m + n = 3 + 4 = 7 as 7 under its name.

        None unless all the numbers are equal.
        """
        label = read_label(sides[0])
        term = expression_or_none(sides[0], self.points)
        is_named = label is not None or (term is not None and bool(term.variables))
        found = list(map(self.side, sides[is_named:]))
        numbers = [number for number in found if isinstance(number, Scalar)]
        if set(signs) != {"="} or len(numbers) < len(found):
            return None
        first, *others = numbers
        if not all(first.equals(number) for number in others):
            return None
        if not is_named:
            return Calculation(tuple(numbers))
        if label is None and not (term and _is_term_with_value(sides[0], term, first.value)):
            return None
        worked_out = [number for number in numbers if not number.value.is_calculation]
        return Named(label, (worked_out or numbers)[-1])

    # --- inequalities -----------------------------------------------------------------------------------------------
    def inequation(self, left: Tokens, right: Tokens) -> Shape | None:
        """Read x ≠ 3 as the numbers without 3; any other as a relation."""
        label = read_label(left)
        other = self.side(right)
        if label is not None and isinstance(other, Scalar) and _known(other):
            return Named(label, all_but(other))
        return self.difference(left, right, "≠")

    def inequality(self, sides: Sequence[Tokens], signs: list[str]) -> Shape | None:
        """Read 0 < x ≤ 1 as x in (0, 1], and x < 3 as x in (-∞, 3); other two sides as a relation. signs: < or ≤."""
        if len(sides) != 2:
            return self.interval(sides, signs) if len(sides) == 3 else None
        left, right = sides
        bounded = [[], left, right] if _is_variable(left) else [left, right, []]
        return self.interval(bounded, signs) or self.difference(left, right, signs[0])

    def interval(self, sides: Sequence[Tokens], signs: list[str]) -> Named | None:
        """Return the numbers between two bounds, of which one may be empty, that a variable may be."""
        below, variable, above = sides
        low = self.side(below) if below else None
        high = self.side(above) if above else None
        bounds = [bound for bound in (low, high) if bound]
        known = [number for bound in bounds for number in _known(bound)]
        if not _is_variable(variable) or len(known) < len(bounds) or known != sorted(set(known)):
            return None
        opener = _OPENERS[signs[0]] if low else "("
        closer = _CLOSERS[signs[-1]] if high else ")"
        row = Bracketed(opener, closer, (low or MINUS_INFINITY, high or INFINITY))
        return Named(Label(variable[0].text), row)

    def difference(self, left: Tokens, right: Tokens, sign: str) -> Relation | None:
        """Return the relation between two sides; None if a side has no value, or it is about no variable."""
        value = expression_or_none(left, self.points)
        other = expression_or_none(right, self.points)
        if value is None or other is None:
            return None
        relation = Relation(sign, value - other)
        return relation if relation.difference.variables else None


def _name_of_point(tokens: Tokens) -> Label | None:
    """Return (x, y) as a label, and (m, b); not (y, x), which has an order of its own."""
    letters = text_of(tokens[1:-1]).split(" , ")
    if not enclosed(tokens) or len(letters) < 2 or any(len(letter) > 1 for letter in letters):
        return None
    in_order = sorted(letters)
    is_turned = letters != in_order and "".join(in_order) in ascii_lowercase
    return None if is_turned else Label(" ".join(letters))


def _is_term_with_value(left: Tokens, value: Value, other: Value) -> bool:
    """Tell whether an equation gives the value of a term in several variables: x + y = 5."""
    kinds = {token.kind for token in left}
    is_plain = kinds.isdisjoint(("function", "applied"))  # sin x + y = 5
    return is_plain and len(value.variables) > 1 and not other.variables


def _is_variable(side: Tokens) -> bool:
    return len(side) == 1 and is_letter(side[0]) and side[0].text not in CONSTANTS


def _known(bound: Shape) -> list[Number]:
    """Return the number that a bound is, alone; nothing if it is no known one."""
    if not isinstance(bound, Scalar) or bound.base != 10 or bound.value.constant is None:
        return []
    return [bound.value.constant]
