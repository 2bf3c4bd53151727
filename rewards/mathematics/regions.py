r"""Write sets of real numbers in one normal form: disjoint intervals and points, in order, each as long as possible.

So (0,1] ∪ [1,2) is (0,2), ℝ without 3 is (-∞,3) ∪ (3,∞), and x > 0 together with x ≠ 1 is (0,1) ∪ (1,∞).
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from math import inf

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import EMPTY, INFINITY, MINUS_INFINITY, REALS, Bag, Row, Shape

LINE = Row("(", ")", (MINUS_INFINITY, INFINITY))
_OTHER_SIDE = {"(": "]", "[": ")", ")": "[", "]": "("}  # the bracket of the neighbour that begins where this one ends

Pieces = list[Row]  # intervals; [a, a] is a point


def union(shapes: Sequence[Shape]) -> Shape | None:
    """Return all that is in any of these sets; None if one of them is no set of known numbers."""
    pieces = _pieces(Bag(tuple(shapes)))
    return None if pieces is None else _shape(_merged(pieces))


def intersection(shapes: Sequence[Shape]) -> Shape | None:
    """Return what is in all of these sets; None if one of them is no set of known numbers."""
    others = list(map(complement, shapes))
    outside = None if None in others else union(others)
    return None if outside is None else complement(outside)


def complement(shape: Shape) -> Shape | None:
    """Return the real numbers that are not in the set; None if this is no set of known numbers."""
    pieces = _pieces(shape)
    if pieces is None:
        return None
    others, low, opener = [], MINUS_INFINITY, "("
    for piece in _merged(pieces):
        if piece.items[0] != MINUS_INFINITY:
            others.append(Row(opener, _OTHER_SIDE[piece.opener], (low, piece.items[0])))
        low, opener = piece.items[1], _OTHER_SIDE[piece.closer]
    if low != INFINITY:
        others.append(Row(opener, ")", (low, INFINITY)))
    return _shape(others)


def is_interval(shape: Shape) -> bool:
    """Tell whether this is a set of known numbers that goes on between two of them."""
    return not isinstance(shape, Scalar) and any(not _is_point(piece) for piece in _pieces(shape) or ())


def _pieces(shape: Shape) -> Pieces | None:
    if shape in (REALS, EMPTY):
        return [LINE] if shape == REALS else []
    if isinstance(shape, Scalar):
        return None if _place(shape) is None else [Row("[", "]", (shape, shape))]
    if isinstance(shape, Bag):
        found = list(map(_pieces, shape.items))
        return None if None in found else list(chain(*found))
    if not isinstance(shape, Row) or len(shape.items) != 2 or shape.opener not in "([":
        return None
    low, high = map(_place, shape.items)
    return [shape] if low is not None and high is not None and low < high else None


def _merged(pieces: Pieces) -> Pieces:
    """Return the pieces in order, and those that touch as one."""
    merged: Pieces = []
    for piece in sorted(pieces, key=_start):
        if merged and _touch(merged[-1], piece):
            first = merged.pop()
            last = max(first, piece, key=_end)
            piece = replace(first, closer=last.closer, items=(first.items[0], last.items[1]))
        merged.append(piece)
    return merged


def _start(piece: Row) -> tuple[Fraction | float | None, bool]:
    return _place(piece.items[0]), piece.opener == "("


def _end(piece: Row) -> tuple[Fraction | float | None, bool]:
    return _place(piece.items[1]), piece.closer == "]"


def _touch(left: Row, right: Row) -> bool:
    end, start = _place(left.items[1]), _place(right.items[0])
    return start < end or (start == end and (left.closer == "]" or right.opener == "["))


def _shape(pieces: Pieces) -> Shape:
    """Return the simplest shape of a set: one interval, one number, or the union of several."""
    if pieces == [LINE]:
        return REALS
    items = tuple(piece.items[0] if _is_point(piece) else piece for piece in pieces)
    if len(items) == 1:
        return items[0]
    return Bag(items, is_set=True) if items else EMPTY


def _is_point(piece: Row) -> bool:
    return piece.items[0] is piece.items[1]


def _place(bound: Shape) -> Fraction | float | None:
    """Return where a bound is on the number line, rounded if it is irrational; None if that is unknown."""
    if bound in (INFINITY, MINUS_INFINITY):
        return inf if bound == INFINITY else -inf
    if not isinstance(bound, Scalar):
        return None
    if bound.value.number is not None:
        return bound.value.number
    rounded = bound.value.approximate
    return None if rounded is None else float(f"{rounded:.12g}")
