r"""Write sets of real numbers in one normal form: disjoint intervals and points, in order, each as long as possible.

So (0,1] ∪ [1,2) is (0,2), ℝ without 3 is (-∞,3) ∪ (3,∞), and x > 0 together with x ≠ 1 is (0,1) ∪ (1,∞). A set is the
list of its stretches of the number line, each from one border to another.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, pairwise
from math import inf

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import EMPTY, INFINITY, MINUS_INFINITY, Bag, Row, Shape


@dataclass(frozen=True, order=True)
class Border:
    """A place on the number line, before or behind the number that is there."""

    place: Fraction | float
    is_behind: bool
    bound: Shape = field(compare=False)  # the number as it was written


Stretches = list[tuple[Border, Border]]
Contains = Callable[[Iterable[bool]], bool]
_LINE = Border(-inf, True, MINUS_INFINITY), Border(inf, False, INFINITY)


def union(sets: Iterable[Shape]) -> Shape | None:
    """Return all that is in any of these sets; None if one of them is no set of known numbers."""
    return _combined(sets, any)


def intersection(sets: Iterable[Shape]) -> Shape | None:
    """Return what is in all of these sets; None if one of them is no set of known numbers."""
    return _combined(sets, all)


def complement(shape: Shape) -> Shape | None:
    """Return the real numbers that are not in the set; None if this is no set of known numbers."""
    return _combined([shape], lambda are_inside: not any(are_inside))


def is_interval(shape: Shape) -> bool:
    """Tell whether this is a set of known numbers that goes on between two of them."""
    return any(start.place < end.place for start, end in _stretches(shape) or [])


def _combined(shapes: Iterable[Shape], contains: Contains) -> Shape | None:
    """Return the numbers that are in it by `contains`, which is told for each of the sets whether it has a number."""
    sets = list(map(_stretches, shapes))
    if None in sets:
        return None
    borders = sorted({*_LINE, *chain(*chain(*sets))})
    found: Stretches = []
    for start, end in pairwise(borders):
        are_inside = [any(low <= start < high for low, high in stretches) for stretches in sets]
        if not contains(are_inside):
            continue
        if found and found[-1][1] == start:
            start, _ = found.pop()
        found.append((start, end))
    return _shape(found)


def _stretches(shape: Shape) -> Stretches | None:
    """Return the stretches of a set; None if it is no set of known numbers."""
    match shape:
        case Bag(items):
            sets = list(map(_stretches, items))
            return None if None in sets else sorted(chain(*sets))
        case Scalar():
            place = _place(shape)
            return None if place is None else [(Border(place, False, shape), Border(place, True, shape))]
        case Row("(" | "[" as opener, closer, (low, high)):
            start, end = _place(low), _place(high)
            if start is None or end is None or start >= end:
                return None
            return [(Border(start, opener == "(", low), Border(end, closer == "]", high))]
    return [] if shape == EMPTY else None


def _place(bound: Shape) -> Fraction | float | None:
    """Return where a bound is on the number line, rounded if it is irrational; None if that is unknown."""
    if bound in (INFINITY, MINUS_INFINITY):
        return inf if bound == INFINITY else -inf
    return bound.value.constant if isinstance(bound, Scalar) and bound.base == 10 else None


def _shape(stretches: Stretches) -> Shape:
    """Return the simplest shape of a set: one interval, one number, or the union of several."""
    items = []
    for start, end in stretches:
        opener = "(" if start.is_behind else "["
        closer = "]" if end.is_behind else ")"
        if start.place == end.place:
            items.append(start.bound)
        else:
            items.append(Row(opener, closer, (start.bound, end.bound)))
    if len(items) == 1:
        return items[0]
    return Bag(tuple(items), is_set=True) if items else EMPTY
