r"""Sine and cosine of any angle, exact: by the rules for sums and multiples they become polynomials in the sines and
cosines of single angles, with sin² = 1 - cos². So \sin 2x = 2\sin x\cos x, and \cos 75° is (√6-√2)/4. All the other
functions of an angle are quotients of these two; the inverse ones know the angles that have a name.
"""

from collections.abc import Callable
from fractions import Fraction
from math import lcm
from typing import Final

from rewards.mathematics.algebra import DEGREE, ONE, Algebra, Monomial, Quotient, Unreadable
from rewards.mathematics.powers import square_root

MAX_MULTIPLE: Final = 12  # sin(12x) is written in sines of x; that of a larger multiple is left as it is
MAX_ANGLES: Final = 4  # that are added under one sine

_HALF: Final = Fraction(1, 2)  # of π: a right angle
_EIGHTH: Final = Fraction(1, 4)  # of π: an eighth of a full turn
_TURN: Final[Monomial] = (("π", Fraction(1)),)
# sin²(r·π) where it is rational, and the two sines that are (√5 ± 1)/4
_SINE_SQUARED: Final = {
    Fraction(0): Fraction(0),
    Fraction(1, 6): Fraction(1, 4),
    Fraction(1, 4): Fraction(1, 2),
    Fraction(1, 3): Fraction(3, 4),
    Fraction(1, 2): Fraction(1),
}
_GOLDEN_SINE: Final = {
    Fraction(1, 10): -1,
    Fraction(3, 10): 1,
}
_TANGENT_SQUARED: Final = {
    Fraction(0): Fraction(0),
    Fraction(1, 3): Fraction(1, 6),
    Fraction(1): Fraction(1, 4),
    Fraction(3): Fraction(1, 3),
}
_OF_SINE_AND_COSINE: Final[dict[str, Callable[[Algebra, Quotient, Quotient], Quotient]]] = {
    "sin": lambda algebra, sine, cosine: sine,
    "cos": lambda algebra, sine, cosine: cosine,
    "tan": lambda algebra, sine, cosine: algebra.divide(sine, cosine),
    "cot": lambda algebra, sine, cosine: algebra.divide(cosine, sine),
    "sec": lambda algebra, sine, cosine: algebra.divide(algebra.number(1), cosine),
    "csc": lambda algebra, sine, cosine: algebra.divide(algebra.number(1), sine),
}
DIRECT: Final = frozenset(_OF_SINE_AND_COSINE)
INVERSE: Final = frozenset(("arcsin", "arccos", "arctan"))

Pair = tuple[Quotient, Quotient]  # sine and cosine of one angle


def of_angle(algebra: Algebra, name: str, angle: Quotient) -> Quotient:
    """sin, cos, tan, cot, sec or csc of the angle."""
    return _OF_SINE_AND_COSINE[name](algebra, *_sine_and_cosine(algebra, _in_radians(algebra, angle)))


def inverse(algebra: Algebra, name: str, value: Quotient) -> Quotient | None:
    """arcsin, arccos or arctan where the angle has a name; None elsewhere."""
    squared = algebra.square(value).number
    if squared is None:
        return None
    if name == "arctan":
        turns = _TANGENT_SQUARED.get(squared)
    else:
        turns = next((turns for turns, known in _SINE_SQUARED.items() if known == squared), None)
    if turns is None:
        return None
    if algebra.leading(value) < 0:
        turns = -turns
    if name == "arccos":
        turns = _HALF - turns
    return algebra.multiply(algebra.number(turns), algebra.atom("π"))


def separate_angles(algebra: Algebra) -> dict[str, int]:
    """What `angle_parts` must be for x and x/2 to meet; empty if no angle was seen in two parts."""
    found = {}
    for angle, denominators in algebra.angles_seen.items():
        common = lcm(*denominators)
        if len(denominators) > 1 and common <= MAX_MULTIPLE:
            found[angle] = common
    return found


def _in_radians(algebra: Algebra, angle: Quotient) -> Quotient:
    """The angle with π/180 for every degree."""
    pi, half_turn = algebra.atom("π"), algebra.number(180)
    radian = algebra.divide(pi, half_turn)
    total = algebra.number(0)
    for monomial, c in angle.top.items():
        term = algebra.number(c)
        for atom, power in monomial:
            if atom == DEGREE and power.denominator != 1:
                raise Unreadable("a root of degrees")
            factor = Quotient({((atom, power),): Fraction(1)}, ONE)
            if atom == DEGREE:
                factor = algebra.whole_power(radian, int(power))
            term = algebra.multiply(term, factor)
        total = algebra.add(total, term)
    return algebra.multiply(total, Quotient(ONE, angle.bottom))


def _sine_and_cosine(algebra: Algebra, angle: Quotient) -> Pair:
    if angle.bottom != ONE or len(angle.top) > MAX_ANGLES:
        return _opaque(algebra, angle)
    total = algebra.number(0), algebra.number(1)
    for monomial, coefficient in angle.top.items():
        total = _of_sum(algebra, total, _of_term(algebra, monomial, coefficient))
    return total


def _of_term(algebra: Algebra, monomial: Monomial, coefficient: Fraction) -> Pair:
    """Sine and cosine of coefficient · monomial."""
    if monomial == _TURN:
        return _pair_of_turns(algebra, coefficient)
    name = algebra.key(Quotient({monomial: Fraction(1)}, ONE))
    algebra.angles_seen.setdefault(name, set()).add(coefficient.denominator)
    parts = algebra.angle_parts.get(name, coefficient.denominator)
    multiple = coefficient * parts
    if multiple.denominator != 1 or abs(multiple) > MAX_MULTIPLE:
        return _opaque(algebra, Quotient({monomial: coefficient}, ONE))
    single = _of_single(algebra, Quotient({monomial: Fraction(1, parts)}, ONE))
    sine, cosine = _of_multiple(algebra, single, abs(int(multiple)))
    return (algebra.negate(sine) if multiple < 0 else sine), cosine


def _of_sum(algebra: Algebra, one: Pair, other: Pair) -> Pair:
    """sin(A+B) = sin A cos B + cos A sin B, cos(A+B) = cos A cos B - sin A sin B."""
    times = algebra.multiply
    sine_a, cosine_a = one
    sine_b, cosine_b = other
    sine = algebra.add(times(sine_a, cosine_b), times(cosine_a, sine_b))
    cosine = algebra.subtract(times(cosine_a, cosine_b), times(sine_a, sine_b))
    return sine, cosine


def _of_multiple(algebra: Algebra, single: Pair, times: int) -> Pair:
    total = algebra.number(0), algebra.number(1)
    for _ in range(times):
        total = _of_sum(algebra, total, single)
    return total


def _of_single(algebra: Algebra, angle: Quotient) -> Pair:
    """Of one angle that is no sum: known for arcs, otherwise two atoms with one rule between them."""
    name, _, _ = (angle.lone_atom or "").partition("(")
    if name not in INVERSE:
        return _opaque(algebra, angle)
    value = algebra.arguments[angle.lone_atom]
    square = algebra.square(value)
    one = algebra.number(1)
    if name == "arctan":
        hypotenuse = square_root(algebra, algebra.add(one, square))
        return algebra.divide(value, hypotenuse), algebra.divide(one, hypotenuse)
    other = square_root(algebra, algebra.subtract(one, square))
    return (value, other) if name == "arcsin" else (other, value)


def _opaque(algebra: Algebra, angle: Quotient) -> Pair:
    """Two atoms for an angle about which nothing is known but that sin² = 1 - cos²."""
    is_negative = algebra.leading(angle) < 0
    positive = algebra.negate(angle) if is_negative else angle
    sine, cosine = algebra.applied("sin", positive), algebra.applied("cos", positive)
    _link(algebra, sine, cosine)
    return (algebra.negate(sine) if is_negative else sine), cosine


def _link(algebra: Algebra, sine: Quotient, cosine: Quotient) -> None:
    """Makes sin² = 1 - cos² a rule of the algebra."""
    rest = algebra.subtract(algebra.number(1), algebra.square(cosine))
    algebra.rules[sine.lone_atom] = 2, rest.top


def _sine_of_turns(algebra: Algebra, turns: Fraction) -> Quotient:
    """sin(turns · π)."""
    turns %= 2
    is_negative = turns > 1
    turns %= 1
    sine = _first_quadrant(algebra, min(turns, 1 - turns))
    return algebra.negate(sine) if is_negative else sine


def _first_quadrant(algebra: Algebra, turns: Fraction) -> Quotient:
    """sin(turns · π) for 0 ≤ turns ≤ 1/2: exact where it is made of square roots of rational numbers, else an atom."""
    number = algebra.number
    if turns in _SINE_SQUARED:
        return square_root(algebra, number(_SINE_SQUARED[turns])) if turns else number(0)
    if turns in _GOLDEN_SINE:
        root = square_root(algebra, number(5))
        top = algebra.add(root, number(_GOLDEN_SINE[turns]))
        return algebra.divide(top, number(4))
    if turns in (Fraction(1, 12), Fraction(5, 12)):  # 15° = 45° - 30°, 75° = 45° + 30°
        rest = turns - _EIGHTH
        return _of_sum(algebra, _pair_of_turns(algebra, _EIGHTH), _pair_of_turns(algebra, rest))[0]
    if turns in (Fraction(1, 5), Fraction(2, 5)):  # 36° and 72°, from the cosines that are golden sines
        cosine = _first_quadrant(algebra, _HALF - turns)
        squared = algebra.subtract(number(1), algebra.square(cosine))
        return square_root(algebra, squared)
    return _turn_atom(algebra, turns)


def _pair_of_turns(algebra: Algebra, turns: Fraction) -> Pair:
    return _sine_of_turns(algebra, turns), _sine_of_turns(algebra, turns + _HALF)


def _turn_atom(algebra: Algebra, turns: Fraction) -> Quotient:
    """An atom for the sine of an angle below 90°; of two that add up to 90°, the smaller one's square is replaced."""
    rest = _HALF - turns
    sine = algebra.applied("sin", Quotient({_TURN: turns}, ONE))
    if turns < rest:
        cosine = algebra.applied("sin", Quotient({_TURN: rest}, ONE))
        _link(algebra, sine, cosine)
    return sine
