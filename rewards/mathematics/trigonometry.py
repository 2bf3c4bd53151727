r"""Take sine and cosine, and the functions made of them, exactly where the angle has a name: \cos 75° is (√6-√2)/4.

Of any other angle, two atoms are all that is known: sin² = 1 - cos², sin(-x) = -sin x. Other identities are not.
"""

from collections.abc import Callable
from fractions import Fraction

from rewards.mathematics.algebra import DEGREE, ONE, Algebra, Monomial, Quotient
from rewards.mathematics.rational import Unreadable

_HALF = Fraction(1, 2)  # of π: a right angle
_TURN: Monomial = (("π", Fraction(1)),)
# (4 · sin(r·π))² where it is rational, else the a and b of (√a ± √b) / 4
_SINES = {
    Fraction(0): (0,),
    Fraction(1, 12): (6, -2),
    Fraction(1, 10): (5, -1),
    Fraction(1, 6): (4,),
    Fraction(1, 4): (8,),
    Fraction(3, 10): (5, 1),
    Fraction(1, 3): (12,),
    Fraction(5, 12): (6, 2),
    Fraction(1, 2): (16,),
}
_TURNS = {Fraction(roots[0], 16): turns for turns, roots in _SINES.items() if len(roots) == 1}  # of sin²
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
    angle = _in_radians(angle)
    is_turn = angle.bottom == ONE and angle.top.keys() <= {_TURN}
    pair = turned(angle.algebra, angle.top.get(_TURN, Fraction(0))) if is_turn else _atoms(angle)
    return _OF_SINE_AND_COSINE[name](*pair)


def turned(algebra: Algebra, turns: Fraction) -> Pair:
    """Return sine and cosine of turns · π."""
    return _sine(algebra, turns), _sine(algebra, turns + _HALF)


def inverse(name: str, value: Quotient) -> Quotient:
    """Return arcsin, arccos or arctan; an atom where the angle has no name."""
    squared = (value * value).number
    turns = (_TURNS_OF_TANGENT if name == "arctan" else _TURNS).get(squared)
    is_negative = value.leading < 0
    if turns is None:
        is_odd = name != "arccos"
        return -value.algebra.applied(name, -value) if is_negative and is_odd else value.algebra.applied(name, value)
    turns = -turns if is_negative else turns
    return value.algebra.atom("π") * (_HALF - turns if name == "arccos" else turns)


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


def _atoms(angle: Quotient) -> Pair:
    """Make two atoms for an angle about which nothing is known but that sin² = 1 - cos²."""
    algebra, is_negative = angle.algebra, angle.leading < 0
    sine, cosine = (algebra.applied(name, -angle if is_negative else angle) for name in ("sin", "cos"))
    algebra.rules[sine.lone_atom] = 2, (1 - cosine * cosine).top
    return (-sine if is_negative else sine), cosine


def _sine(algebra: Algebra, turns: Fraction) -> Quotient:
    """Return sin(turns · π), exactly where it is made of square roots of rational numbers; otherwise an atom."""
    half_turns, turns = divmod(turns, 1)
    turns = min(turns, 1 - turns)
    if turns not in _SINES:
        sine = algebra.applied("sin", algebra.term(_TURN, turns))
    else:
        sine = algebra.number(0)
        for root in _SINES[turns]:
            surd = algebra.number_power(Fraction(abs(root), 16), _HALF)
            sine = sine + (surd if root > 0 else -surd)
    return -sine if half_turns % 2 else sine
