r"""Write sets of real numbers in one normal form: disjoint intervals and points, in order, each as long as possible.

So (0,1] ∪ [1,2) is (0,2), ℝ without 3 is (-∞,3) ∪ (3,∞), and x > 0 together with x ≠ 1 is (0,1) ∪ (1,∞).
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf
from operator import itemgetter
from typing import NamedTuple

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import EMPTY, INFINITY, MINUS_INFINITY, REALS, Bag, Row, Shape

LINE = Row("(", ")", (MINUS_INFINITY, INFINITY))


class Cut(NamedTuple):
    """Where a set begins or ends. Cuts are sorted by place, and a set is the list of its cuts."""

    place: Fraction | float
    is_behind: bool  # the number itself lies before the cut
    number: Shape


_LINE = [Cut(-inf, True, MINUS_INFINITY), Cut(inf, False, INFINITY)]


def union(shapes: Iterable[Shape]) -> Shape | None:
    """Return all that is in any of these sets; None if one of them is no set of known numbers."""
    sets = list(map(_cuts, shapes))
    return None if None in sets else _shape(_merged(sets))


def intersection(shapes: Iterable[Shape]) -> Shape | None:
    """Return what is in all of these sets; None if one of them is no set of known numbers."""
    sets = list(map(_cuts, shapes))
    return None if None in sets else _shape(_others(_merged(map(_others, sets))))


def complement(shape: Shape) -> Shape | None:
    """Return the real numbers that are not in the set; None if this is no set of known numbers."""
    cuts = _cuts(shape)
    return None if cuts is None else _shape(_others(cuts))


def is_interval(shape: Shape) -> bool:
    """Tell whether this is a set of known numbers that goes on between two of them."""
    return any(start.place < end.place for start, end in _pairs(_cuts(shape) or []))


def _cuts(shape: Shape) -> list[Cut] | None:
    if shape in (REALS, EMPTY):
        return _LINE if shape == REALS else []
    if isinstance(shape, Bag):
        sets = list(map(_cuts, shape.items))
        return None if None in sets else _merged(sets)
    is_pair = isinstance(shape, Row) and len(shape.items) == 2 and shape.opener in "(["
    if not is_pair and not isinstance(shape, Scalar):
        return None
    low, high = shape.items if is_pair else (shape, shape)
    start, end = _place(low), _place(high)
    if start is None or end is None or (is_pair and start >= end):
        return None
    opens, closes = (shape.opener == "(", shape.closer == "]") if is_pair else (False, True)
    return [Cut(start, opens, low), Cut(end, closes, high)]


def _merged(sets: Iterable[Sequence[Cut]]) -> list[Cut]:
    """Return the cuts of the union: where the number of open sets leaves zero, and where it comes back."""
    steps = [(cut, at % 2) for cuts in sets for at, cut in enumerate(cuts)]
    steps.sort(key=lambda step: (step[0].place, step[0].is_behind, step[1]))  # where two sets touch none ends
    kept, num_open = [], 0
    for cut, is_end in steps:
        if num_open == is_end:
            kept.append(cut)
        num_open += -1 if is_end else 1
    return kept


def _others(cuts: Sequence[Cut]) -> list[Cut]:
    """Return the cuts of the complement: the same, but for the ends of the line."""
    inner = [cut for cut in cuts if cut not in _LINE]
    ends = [cut for cut in _LINE if cut not in cuts]
    return sorted([*inner, *ends], key=itemgetter(0, 1))


def _pairs(cuts: Sequence[Cut]) -> Iterable[tuple[Cut, Cut]]:
    return zip(cuts[::2], cuts[1::2], strict=True)


def _shape(cuts: Sequence[Cut]) -> Shape:
    """Return the simplest shape of a set: one interval, one number, or the union of several."""
    if cuts == _LINE:
        return REALS
    items = [_piece(start, end) for start, end in _pairs(cuts)]
    if len(items) == 1:
        return items[0]
    return Bag(tuple(items), is_set=True) if items else EMPTY


def _piece(start: Cut, end: Cut) -> Shape:
    if start.place == end.place:
        return start.number
    return Row("(" if start.is_behind else "[", "]" if end.is_behind else ")", (start.number, end.number))


def _place(bound: Shape) -> Fraction | float | None:
    """Return where a bound is on the number line, rounded if it is irrational; None if that is unknown."""
    if bound in (INFINITY, MINUS_INFINITY):
        return inf if bound == INFINITY else -inf
    if not isinstance(bound, Scalar):
        return None
    return bound.value.constant
