r"""Read what sides and the signs between them say together: `x = 5`, `0 < x \le 1`, `x \ne 3`, `x^2+y^2 = 4`.

What has no other reading, `3+4 = 7`, is a chain, which equals only the same sides with the same signs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter

from rewards.mathematics.algebra import Algebra, Quotient
from rewards.mathematics.expression import expression_or_none
from rewards.mathematics.labels import Label, read_label
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.regions import complement
from rewards.mathematics.shapes import INFINITY, MINUS_INFINITY, Chain, Named, Relation, Row, Shape
from rewards.mathematics.tokens import Token, Tokens, is_letter, is_mark

_FLIPPED = {">": "<", "≥": "≤", "<": ">", "≤": "≥"}


class RelationReader:
    """Read relations; `read_side` reads what stands on one side."""

    def __init__(self, algebra: Algebra, read_side: Callable[[Tokens], Shape]):
        self.algebra, self.side = algebra, read_side

    def read(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Return what the sides say together. There is one more of them than signs."""
        if any(sign in _FLIPPED for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.equalities(sides, signs)
        if signs[0] == "≠":
            return self.inequation(*sides)
        return self.equation(sides[0], signs[0], sides[1])

    # --- equalities -------------------------------------------------------------------------------------------------
    def equation(self, left: Tokens, sign: str, right: Tokens) -> Shape:
        """Read x = 5 and x + y = 5 under their names, other equations in variables as relations, the rest as sides."""
        left, right = _label_first(left, right)
        label = read_label(left)
        if label is None and _is_point(self.side(left)):  # (x, y) = (1, 2)
            return self.point(left, right)
        value, other = self.value(left), self.value(right)
        if value is None or other is None:
            if label:
                return Named(label, self.side(right))
            return self.chain([left, right], [sign])
        difference = value - other
        is_condition = left[0].kind == "function" and not other.top  # \sin x = 0 for x
        if (label and not is_condition) or _is_term_with_value(value, other):
            return Named(label, self.side(right), Relation("=", difference))
        if sign == "=" and _keeps_its_variables(difference, value, other):
            return Relation("=", difference)
        return self.chain([left, right], [sign])

    def point(self, left: Tokens, right: Tokens) -> Named:
        """Read (y, x) = (2, 1) as (x, y) = (1, 2); (m, b) has no order but its own."""
        value = self.side(right)
        names = [token.text for token in left if is_letter(token)]
        is_as_long = isinstance(value, Row) and len(value.items) == len(names)
        if is_as_long and _are_neighbours(names):
            pairs = sorted(zip(names, value.items, strict=True), key=itemgetter(0))
            names = [name for name, _ in pairs]
            value = replace(value, items=tuple(item for _, item in pairs))
        return Named(Label(" ".join(names)), value)

    def equalities(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Read x = 3 + 4 = 7 as x = 7 if every link holds; otherwise a chain."""
        label = read_label(sides[0])
        if label is not None and set(signs) == {"="}:
            rest = self.chain(sides[1:], signs[1:])
            if rest.holds:
                return Named(label, rest.sides[-1])
        return self.chain(sides, signs)

    def chain(self, sides: Sequence[Tokens], signs: Sequence[str]) -> Chain:
        """Return the sides and signs unchanged, and whether all of them are equal."""
        values = tuple(map(self.side, sides))
        written = tuple(map(_leaves, sides))
        first, *others = values
        are_equal = all(_is_equal(first, other) for other in others)
        return Chain(tuple(signs), values, written, holds=are_equal and set(signs) == {"="})

    # --- inequalities -----------------------------------------------------------------------------------------------
    def inequation(self, left: Tokens, right: Tokens) -> Shape:
        """Read x ≠ 3 as the numbers without 3; any other as a relation, or a chain if it has no value."""
        left, right = _label_first(left, right)
        label, others = read_label(left), complement(self.side(right))
        if label is not None and others is not None:
            return Named(label, others)
        return self.relation(left, "≠", right) or self.chain([left, right], ["≠"])

    def inequality(self, sides: list[Tokens], signs: list[str]) -> Shape:
        """Read 0 < x ≤ 1 as x in (0, 1]; x > 3 as x in (3, ∞); any other as one relation or a chain."""
        if all(sign in ">≥" for sign in signs):
            sides = sides[::-1]
            signs = [_FLIPPED[sign] for sign in reversed(signs)]
        if not all(sign in "<≤" for sign in signs):
            return self.chain(sides, signs)
        relation = self.relation(sides[0], signs[0], sides[1]) if len(sides) == 2 else None
        interval = self.interval(sides, signs)
        if interval is not None:
            return interval
        if any(map(_is_negative_variable, sides)):
            mirrored = self.interval(list(map(_negated, reversed(sides))), signs[::-1])
            if mirrored is not None:  # -x < 2 is x > -2, and -2x < 4 is just as near to it
                return replace(mirrored, relation=relation)
        return relation or self.chain(sides, signs)

    def interval(self, sides: list[Tokens], signs: list[str]) -> Named | None:
        """Return the interval of the one variable between numbers, 0 < x ≤ 1 or x < 3; None for anything else.

        signs: < and ≤ only.
        """
        places = [at for at, side in enumerate(sides) if _is_variable(side)]
        if (len(sides), places) not in ((2, [0]), (2, [1]), (3, [1])):
            return None
        (at,) = places
        low = self.bound(sides[at - 1]) if at else MINUS_INFINITY
        high = self.bound(sides[at + 1]) if sides[at + 1 :] else INFINITY
        if low is None or high is None:
            return None
        before, after = ["<", *signs, "<"][at : at + 2]
        opener = "[" if before == "≤" else "("
        closer = "]" if after == "≤" else ")"
        return Named(Label(sides[at][0].text), Row(opener, closer, (low, high)))

    def bound(self, tokens: Tokens) -> Scalar | None:
        """Return the number that bounds an interval; None for anything else."""
        side = self.side(tokens)
        is_number = isinstance(side, Scalar) and not side.value.variables
        return side if is_number else None

    def relation(self, left: Tokens, sign: str, right: Tokens) -> Relation | None:
        """Return the relation between two sides; None if a side has no value, or it is about no variable."""
        value, other = self.value(left), self.value(right)
        if value is None or other is None:
            return None
        difference = value - other
        return Relation(sign, difference) if difference.variables else None

    def value(self, side: Tokens) -> Quotient | None:
        """Return the value of a side; None if it has none."""
        return expression_or_none(side, self.algebra)


def _label_first(left: Tokens, right: Tokens) -> tuple[Tokens, Tokens]:
    """Write 5 = x as x = 5."""
    is_turned = read_label(left) is None and read_label(right) is not None
    return (right, left) if is_turned else (left, right)


def _is_term_with_value(left: Quotient, right: Quotient) -> bool:
    """Tell whether an equation gives the value of a term in several variables: x + y = 5."""
    is_plain = "(" not in left.key  # sin x + y = 5
    return is_plain and len(left.variables) > 1 and not right.variables


def _keeps_its_variables(difference: Quotient, left: Quotient, right: Quotient) -> bool:
    """Tell whether no variable cancels: x + C = x has no more to say than its two sides."""
    return bool(difference.variables) and difference.variables == left.variables | right.variables


def _are_neighbours(names: list[str]) -> bool:
    """Tell whether letters follow one another in the alphabet, in whatever order: y, x, z."""
    pairs = pairwise(sorted(names))
    return all(len(name) == len(later) == 1 and ord(later) - ord(name) == 1 for name, later in pairs)


def _is_equal(one: Shape, other: Shape) -> bool:
    """Tell whether an equation of two values holds whatever the variables are."""
    return isinstance(one, Scalar) and isinstance(other, Scalar) and one.equals(other)


def _is_point(side: Shape) -> bool:
    """Tell whether the side is a tuple of variables."""
    return isinstance(side, Row) and all(map(_is_variable_value, side.items))


def _is_variable_value(item: Shape) -> bool:
    atom = item.value.lone_atom if isinstance(item, Scalar) else None
    return atom is not None and "(" not in atom


def _is_variable(side: Tokens) -> bool:
    return len(side) == 1 and is_letter(side[0]) and side[0].text not in "πei"


def _is_negative_variable(side: Tokens) -> bool:
    return is_mark(side[0], "-") and _is_variable(side[1:])


def _negated(side: Tokens) -> Tokens:
    """Negate a side: -x becomes x, and 3 becomes -(3)."""
    if _is_negative_variable(side):
        return side[1:]
    return [Token("mark", "-"), Token("open", "("), *side, Token("close", ")")]


def _leaves(tokens: Tokens) -> tuple[str, ...]:
    """Return the numbers, names and functions of a side, sorted; nothing for a number by itself."""
    kept = [token for token in tokens if token.text not in ("{", "}", "(", ")")]
    has_sign_inside = any(is_mark(token, "+-") for token in kept[1:])
    is_number = all(token.kind == "number" or token.text in (r"\frac", "/", "-", "+") for token in kept)
    if is_number and not has_sign_inside:
        return ()
    return tuple(sorted(token.text for token in kept if token.text not in ("*", "/", r"\frac")))
