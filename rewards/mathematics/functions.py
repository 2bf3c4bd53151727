r"""Call named functions, exactly where the result has a name: |-3| = 3, \binom52 = 10, \gcd(4, 6) = 2.

Otherwise the call becomes an atom. Sines and their kin are in trigonometry.py.
"""

from collections.abc import Callable
from math import ceil, comb, factorial, floor, gcd, lcm

from rewards.mathematics import trigonometry
from rewards.mathematics.algebra import Quotient
from rewards.mathematics.powers import logarithm, power
from rewards.mathematics.rational import Unreadable

MAX_FACTORIAL = 300  # 300! has 2042 bits
MAX_BINOMIAL = 1000
MAX_CHOSEN = 6  # k of a binomial coefficient that is multiplied out


def _remainder(n: int, m: int) -> int:
    """Return n mod m. If n is the remainder already, it is rather a class of numbers: 7 mod 10."""
    if not 0 < m <= n:
        raise Unreadable("a class of remainders")
    return n % m


_OF_NUMBERS: dict[str, Callable] = {"floor": floor, "ceil": ceil, "max": max, "min": min}
_OF_WHOLE_NUMBERS: dict[str, Callable] = {"gcd": gcd, "lcm": lcm, "mod": _remainder}


def call(name: str, *arguments: Quotient) -> Quotient:
    """Return the named function of one argument (`binom`, `mod`: of two; `gcd`, `lcm`, `max`, `min`: of any number)."""
    value, algebra = arguments[0], arguments[0].algebra
    if name in ("factorial", "binom"):
        return _counted(name, arguments)
    numbers = [argument.number for argument in arguments]
    if name in _OF_NUMBERS and None not in numbers:
        return algebra.number(_OF_NUMBERS[name](*numbers))
    if name in _OF_WHOLE_NUMBERS and all(argument.is_whole for argument in arguments):
        return algebra.number(_OF_WHOLE_NUMBERS[name](*map(int, numbers)))
    if len(arguments) > 1:
        return algebra.applied(name, *arguments)
    if name in trigonometry.DIRECT:
        return trigonometry.of_angle(name, value)
    if name in trigonometry.INVERSE:
        return trigonometry.inverse(name, value)
    if name == "ln":
        return logarithm(value)
    if name in ("log", "lg"):
        return logarithm(value, algebra.number(10))
    if name == "abs":
        return abs(value)
    if name == "exp":
        return power(algebra.atom("e"), value)
    return algebra.applied(name, value)


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
