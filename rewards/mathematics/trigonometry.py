r"""Take sine and cosine of any angle, exactly.

By the rules for sums and multiples they become polynomials in the sines and cosines of single angles, with sin² = 1 -
cos². So \sin 2x = 2\sin x\cos x, and \cos 75° is (√6-√2)/4. All the other functions of an angle are quotients of these
two; the inverse ones know the angles that have a name.
"""

from collections.abc import Callable
from fractions import Fraction
from math import lcm

from rewards.mathematics.algebra import DEGREE, Algebra
from rewards.mathematics.powers import root
from rewards.mathematics.quotient import ONE, Monomial, Quotient
from rewards.mathematics.rational import Unreadable

MAX_MULTIPLE = 12  # sin(12x) is written in sines of x; that of a larger multiple becomes an atom
MAX_ANGLES = 4  # that are added under one sine

_HALF = Fraction(1, 2)  # of π: a right angle
_TURN: Monomial = (("π", Fraction(1)),)
# sin²(r·π) where it is rational, and the sines that are (√a ± √b)/4
_SINE_SQUARED = {
    Fraction(0): Fraction(0),
    Fraction(1, 6): Fraction(1, 4),
    Fraction(1, 4): Fraction(1, 2),
    Fraction(1, 3): Fraction(3, 4),
    Fraction(1, 2): Fraction(1),
}
_ROOTS = {
    Fraction(1, 12): (6, -2),
    Fraction(1, 10): (5, -1),
    Fraction(3, 10): (5, 1),
    Fraction(5, 12): (6, 2),
}
_TURNS = {square: turns for turns, square in _SINE_SQUARED.items()}
_TURNS_OF_TANGENT = {square / (1 - square): turns for square, turns in _TURNS.items() if square < 1}
_OF_SINE_AND_COSINE: dict[str, Callable[[Quotient, Quotient], Quotient]] = {
    "sin": lambda sine, cosine: sine,
    "cos": lambda sine, cosine: cosine,
    "tan": lambda sine, cosine: sine / cosine,
    "cot": lambda sine, cosine: cosine / sine,
    "sec": lambda sine, cosine: 1 / cosine,
    "csc": lambda sine, cosine: 1 / sine,
}
DIRECT = frozenset(_OF_SINE_AND_COSINE)
INVERSE = frozenset(("arcsin", "arccos", "arctan"))

Pair = tuple[Quotient, Quotient]  # sine and cosine of one angle


def of_angle(name: str, angle: Quotient) -> Quotient:
    """Return sin, cos, tan, cot, sec or csc of the angle."""
    return _OF_SINE_AND_COSINE[name](*_sine_and_cosine(_in_radians(angle)))


def inverse(name: str, value: Quotient) -> Quotient | None:
    """Return arcsin, arccos or arctan where the angle has a name; None elsewhere."""
    squared = (value * value).number
    if squared is None:
        return None
    turns = (_TURNS_OF_TANGENT if name == "arctan" else _TURNS).get(squared)
    if turns is None:
        return None
    if value.leading < 0:
        turns = -turns
    if name == "arccos":
        turns = _HALF - turns
    return value.algebra.atom("π") * turns


def separate_angles(algebra: Algebra) -> dict[str, int]:
    """Return what `angle_parts` must be for x and x/2 to meet; empty if no angle was seen in two parts."""
    found = {}
    for angle, denominators in algebra.angles_seen.items():
        common = lcm(*denominators)
        if len(denominators) > 1 and common <= MAX_MULTIPLE:
            found[angle] = common
    return found


def _in_radians(angle: Quotient) -> Quotient:
    """Return the angle with π/180 for every degree."""
    algebra = angle.algebra
    radian = algebra.atom("π") / 180
    total = algebra.number(0)
    for monomial, c in angle.top.items():
        powers = dict(monomial)
        degrees = powers.pop(DEGREE, Fraction(0))
        if degrees.denominator != 1:
            raise Unreadable("a root of degrees")
        total = total + algebra.term(tuple(powers.items()), c) * radian ** int(degrees)
    return total * algebra.quotient(ONE, angle.bottom)


def _sine_and_cosine(angle: Quotient) -> Pair:
    if angle.bottom != ONE or len(angle.top) > MAX_ANGLES:
        return _opaque(angle)
    total = _of_nothing(angle.algebra)
    for monomial, coefficient in angle.top.items():
        total = _of_sum(total, _of_term(angle.algebra, monomial, coefficient))
    return total


def _of_nothing(algebra: Algebra) -> Pair:
    return algebra.number(0), algebra.number(1)


def _of_term(algebra: Algebra, monomial: Monomial, coefficient: Fraction) -> Pair:
    """Return sine and cosine of coefficient · monomial."""
    if monomial == _TURN:
        return _sine_of_turns(algebra, coefficient), _sine_of_turns(algebra, coefficient + _HALF)
    name = algebra.term(monomial).key
    algebra.angles_seen.setdefault(name, set()).add(coefficient.denominator)
    parts = algebra.angle_parts.get(name, coefficient.denominator)
    multiple = coefficient * parts
    if multiple.denominator != 1 or abs(multiple) > MAX_MULTIPLE:
        return _opaque(algebra.term(monomial, coefficient))
    single = _of_single(algebra.term(monomial, Fraction(1, parts)))
    sine, cosine = _of_nothing(algebra)
    for _ in range(abs(int(multiple))):
        sine, cosine = _of_sum((sine, cosine), single)
    return (-sine if multiple < 0 else sine), cosine


def _of_sum(one: Pair, other: Pair) -> Pair:
    """Add two angles: sin(A+B) = sin A cos B + cos A sin B, cos(A+B) = cos A cos B - sin A sin B."""
    sine_a, cosine_a = one
    sine_b, cosine_b = other
    sine = sine_a * cosine_b + cosine_a * sine_b
    return sine, cosine_a * cosine_b - sine_a * sine_b


def _of_single(angle: Quotient) -> Pair:
    """Return the pair of an angle that is no sum: known for arcs, otherwise two atoms with one rule between them."""
    name, _, _ = (angle.lone_atom or "").partition("(")
    if name not in INVERSE:
        return _opaque(angle)
    value = angle.algebra.arguments[angle.lone_atom]
    square = value * value
    if name == "arctan":
        hypotenuse = root(1 + square)
        return value / hypotenuse, 1 / hypotenuse
    other = root(1 - square)
    return (value, other) if name == "arcsin" else (other, value)


def _opaque(angle: Quotient) -> Pair:
    """Make two atoms for an angle about which nothing is known but that sin² = 1 - cos²."""
    is_negative = angle.leading < 0
    positive = -angle if is_negative else angle
    sine, cosine = (angle.algebra.applied(name, positive) for name in ("sin", "cos"))
    _link(sine, cosine)
    return (-sine if is_negative else sine), cosine


def _link(sine: Quotient, cosine: Quotient) -> None:
    """Make sin² = 1 - cos² a rule of the algebra."""
    rest = 1 - cosine * cosine
    sine.algebra.rules[sine.lone_atom] = 2, rest.top


def _sine_of_turns(algebra: Algebra, turns: Fraction) -> Quotient:
    """Return sin(turns · π)."""
    half_turns, turns = divmod(turns, 1)
    sine = _first_quadrant(algebra, min(turns, 1 - turns))
    return -sine if half_turns % 2 else sine


def _first_quadrant(algebra: Algebra, turns: Fraction) -> Quotient:
    """Return sin(turns · π) for 0 ≤ turns ≤ 1/2, exactly where it is made of square roots of rational numbers.

    Otherwise it is an atom.
    """
    if turns in _SINE_SQUARED:
        return root(algebra.number(_SINE_SQUARED[turns]))
    if turns in _ROOTS:
        a, b = _ROOTS[turns]
        small = root(algebra.number(abs(b)))
        return (root(algebra.number(a)) + (small if b > 0 else -small)) / 4
    if turns in (Fraction(1, 5), Fraction(2, 5)):  # 36° and 72°, from their cosines
        cosine = _first_quadrant(algebra, _HALF - turns)
        return root(1 - cosine * cosine)
    return _turn_atom(algebra, turns)


def _turn_atom(algebra: Algebra, turns: Fraction) -> Quotient:
    """Make an atom for the sine of an angle below 90°; of two that add up to 90°, replace the smaller one's square."""
    rest = _HALF - turns
    sine, cosine = (algebra.applied("sin", algebra.term(_TURN, angle)) for angle in (turns, rest))
    if turns < rest:
        _link(sine, cosine)
    return sine
