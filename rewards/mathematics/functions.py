r"""Call named functions, exactly where the result has a name: |-3| = 3, \binom52 = 10, \gcd(4, 6) = 2, \sin 30° = 1/2.

Otherwise the call becomes an atom. Sine and cosine are known at multiples of 30° and 45°; of other angles it is known
that sin² = 1 - cos² and sin(-x) = -sin x. Tangents and their kin are quotients of these two.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor, gcd, lcm

from rewards.mathematics.algebra import Algebra, Quotient
from rewards.mathematics.powers import logarithm, power
from rewards.mathematics.rational import Unreadable

MAX_FACTORIAL = 300  # 300! has 2042 bits
MAX_BINOMIAL = 1000
MAX_CHOSEN = 6  # k of a binomial coefficient that is multiplied out

_HALF = Fraction(1, 2)
# sin²(r·π) by r
_SQUARES = {
    Fraction(sixths, 12): Fraction(quarters, 4) for sixths, quarters in ((0, 0), (2, 1), (3, 2), (4, 3), (6, 4))
}
_OF_SINE_AND_COSINE: dict[str, Callable[[Quotient, Quotient], Quotient]] = {
    "sin": lambda sine, cosine: sine,
    "cos": lambda sine, cosine: cosine,
    "tan": lambda sine, cosine: sine / cosine,
    "cot": lambda sine, cosine: cosine / sine,
    "sec": lambda sine, cosine: 1 / cosine,
    "csc": lambda sine, cosine: 1 / sine,
}
OF_ANGLES = frozenset(_OF_SINE_AND_COSINE)
_ODD = ("arcsin", "arctan")


def _remainder(n: int, m: int) -> int:
    """Return n mod m. If n is the remainder already, it is rather a class of numbers: 7 mod 10."""
    if not 0 < m <= n:
        raise Unreadable("a class of remainders")
    return n % m


_OF_NUMBERS: dict[str, Callable] = {"floor": floor, "ceil": ceil, "max": max, "min": min}
_OF_WHOLE_NUMBERS: dict[str, Callable] = {"gcd": gcd, "lcm": lcm, "mod": _remainder}
_OF_ONE: dict[str, Callable[[Quotient], Quotient]] = {
    "ln": logarithm,
    "log": lambda value: logarithm(value, value.algebra.number(10)),
    "lg": lambda value: logarithm(value, value.algebra.number(10)),
    "abs": abs,
    "exp": lambda value: power(value.algebra.atom("e"), value),
}


def call(name: str, *arguments: Quotient) -> Quotient:
    """Return the named function of one argument (`binom`, `mod`: of two; `gcd`, `lcm`, `max`, `min`: of any number)."""
    value, algebra = arguments[0], arguments[0].algebra
    numbers = [argument.number for argument in arguments]
    if name in ("factorial", "binom"):
        return _counted(name, arguments)
    if name in _OF_NUMBERS and None not in numbers:
        return algebra.number(_OF_NUMBERS[name](*numbers))
    if name in _OF_WHOLE_NUMBERS and all(argument.is_whole for argument in arguments):
        return algebra.number(_OF_WHOLE_NUMBERS[name](*map(int, numbers)))
    if len(arguments) > 1:
        return algebra.applied(name, *arguments)
    if name in OF_ANGLES:
        return _OF_SINE_AND_COSINE[name](*_sine_and_cosine(value))
    if name in _OF_ONE:
        return _OF_ONE[name](value)
    return -algebra.applied(name, -value) if name in _ODD and value.leading < 0 else algebra.applied(name, value)


def _counted(name: str, arguments: tuple[Quotient, ...]) -> Quotient:
    """Return a factorial or a binomial coefficient."""
    algebra, numbers = arguments[0].algebra, [argument.number for argument in arguments]
    if None in numbers:
        return _chosen(*arguments) or algebra.applied(name, *arguments)
    limit = MAX_FACTORIAL if name == "factorial" else MAX_BINOMIAL
    if any(n.denominator != 1 or not 0 <= n <= limit for n in numbers):
        raise Unreadable(f"{name} of a number that is negative, broken or too large")
    whole = [int(n) for n in numbers]
    return algebra.number(factorial(*whole) if name == "factorial" else comb(*whole))


def _chosen(total: Quotient, size: Quotient | None = None) -> Quotient | None:
    r"""Return \binom{n}{k} = n(n-1)…(n-k+1)/k! for a small number k; None for anything else."""
    if size is None or size.number not in range(MAX_CHOSEN + 1):
        return None
    result = total.algebra.number(1)
    for step in range(int(size.number)):
        result = result * ((total - step) / (step + 1))
    return result


def _sine_and_cosine(angle: Quotient) -> tuple[Quotient, Quotient]:
    algebra, is_negative = angle.algebra, angle.leading < 0
    turns = (angle / algebra.atom("π")).number
    if turns is not None:
        return _sine(algebra, turns), _sine(algebra, turns + _HALF)
    sine, cosine = (algebra.applied(name, -angle if is_negative else angle) for name in ("sin", "cos"))
    algebra.rules[sine.lone_atom] = 2, (1 - cosine * cosine).top
    return (-sine if is_negative else sine), cosine


def _sine(algebra: Algebra, turns: Fraction) -> Quotient:
    """Return sin(turns · π)."""
    half_turns, turns = divmod(turns, 1)
    turns = min(turns, 1 - turns)
    if turns in _SQUARES:
        sine = algebra.number_power(_SQUARES[turns], _HALF)
    else:
        sine = algebra.applied("sin", algebra.atom("π") * turns)
    return -sine if half_turns % 2 else sine
