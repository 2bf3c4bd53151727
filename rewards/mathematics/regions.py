r"""Write sets of real numbers in one normal form: disjoint intervals and points, in order, each as long as possible.

So (0,1] ∪ [1,2) is (0,2), ℝ without 3 is (-∞,3) ∪ (3,∞), and x > 0 together with x ≠ 1 is (0,1) ∪ (1,∞). A set is the
list of its cuts: the places where the number line enters it and leaves it, in turns.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import EMPTY, INFINITY, MINUS_INFINITY, Bag, Row, Shape


@dataclass(frozen=True, order=True)
class Cut:
    """A place on the number line, before or behind the number that is there."""

    place: Fraction | float
    is_behind: bool
    number: Shape = field(compare=False)


_LINE = [Cut(-inf, True, MINUS_INFINITY), Cut(inf, False, INFINITY)]


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
    cuts = _cuts(shape) or []
    return any(start.place < end.place for start, end in zip(cuts[::2], cuts[1::2], strict=True))


def _combined(shapes: Iterable[Shape], contains: Callable[[Iterable[bool]], bool]) -> Shape | None:
    """Return the numbers that are in it by `contains`, which is told for each of the sets whether it has a number."""
    sets = list(map(_cuts, shapes))
    return None if None in sets else _shape(_cuts_of(sets, contains))


def _cuts_of(sets: Sequence[Sequence[Cut]], contains: Callable[[Iterable[bool]], bool]) -> list[Cut]:
    kept = []
    for cut in sorted(set().union(_LINE, *sets)):
        is_inside = cut != _LINE[1] and contains(bisect_right(cuts, cut) % 2 == 1 for cuts in sets)
        if is_inside != len(kept) % 2:
            kept.append(cut)
    return kept


def _cuts(shape: Shape) -> list[Cut] | None:
    """Return where a set begins and ends; None if it is no set of known numbers."""
    if shape == EMPTY:
        return []
    if isinstance(shape, Bag):
        sets = list(map(_cuts, shape.items))
        return None if None in sets else _cuts_of(sets, any)
    is_pair = isinstance(shape, Row) and len(shape.items) == 2 and shape.opener in "(["
    if not is_pair and not isinstance(shape, Scalar):
        return None
    low, high = shape.items if is_pair else (shape, shape)
    start, end = _place(low), _place(high)
    if start is None or end is None or (is_pair and start >= end):
        return None
    opens, closes = (shape.opener == "(", shape.closer == "]") if is_pair else (False, True)
    return [Cut(start, opens, low), Cut(end, closes, high)]


def _place(bound: Shape) -> Fraction | float | None:
    """Return where a bound is on the number line, rounded if it is irrational; None if that is unknown."""
    if bound in (INFINITY, MINUS_INFINITY):
        return inf if bound == INFINITY else -inf
    return bound.value.constant if isinstance(bound, Scalar) and bound.base == 10 else None


def _shape(cuts: Sequence[Cut]) -> Shape:
    """Return the simplest shape of a set: one interval, one number, or the union of several."""
    items = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        brackets = "(" if start.is_behind else "[", "]" if end.is_behind else ")"
        items.append(start.number if start.place == end.place else Row(*brackets, (start.number, end.number)))
    if len(items) == 1:
        return items[0]
    return Bag(tuple(items), is_set=True) if items else EMPTY
