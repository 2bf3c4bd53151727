r"""Call named functions, exactly where the result has a name: |-3| = 3, \binom52 = 10, \sinh x = (e^x - e^{-x})/2.

Otherwise the call becomes an atom. Sines and their kin are in trigonometry.py.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor

from rewards.mathematics import trigonometry
from rewards.mathematics.powers import logarithm, power
from rewards.mathematics.quotient import Quotient
from rewards.mathematics.rational import Unreadable

MAX_FACTORIAL = 300  # 300! has 2042 bits
MAX_BINOMIAL = 1000
MAX_CHOSEN = 6  # k of a binomial coefficient that is multiplied out

_ODD = frozenset(("arcsin", "arctan"))
_HYPERBOLIC = frozenset(("sinh", "cosh", "tanh", "coth"))
_ROUNDED: dict[str, Callable[[Fraction], int]] = {"floor": floor, "ceil": ceil}


def call(name: str, *arguments: Quotient) -> Quotient:
    """Return the named function of one argument (`binom`: of two)."""
    value, algebra = arguments[0], arguments[0].algebra
    if name in trigonometry.DIRECT:
        return trigonometry.of_angle(name, value)
    if name in trigonometry.INVERSE:
        return _arc(name, value)
    if name in _HYPERBOLIC:
        return _hyperbolic(name, value)
    if name in ("factorial", "binom"):
        return _counted(name, arguments)
    if name in _ROUNDED and value.number is not None:
        return algebra.number(_ROUNDED[name](value.number))
    if name == "ln":
        return logarithm(value)
    if name in ("log", "lg"):
        return logarithm(value, algebra.number(10))
    if name == "abs":
        return abs(value)
    if name == "exp":
        return power(algebra.atom("e"), value)
    return algebra.applied(name, *arguments)


def _arc(name: str, value: Quotient) -> Quotient:
    exact = trigonometry.inverse(name, value)
    if exact is not None:
        return exact
    if name in _ODD and value.leading < 0:
        return -value.algebra.applied(name, -value)
    return value.algebra.applied(name, value)


def _hyperbolic(name: str, value: Quotient) -> Quotient:
    growing = power(value.algebra.atom("e"), value)
    falling = 1 / growing
    twice_sinh, twice_cosh = growing - falling, growing + falling
    if name == "tanh":
        return twice_sinh / twice_cosh
    if name == "coth":
        return twice_cosh / twice_sinh
    return (twice_sinh if name == "sinh" else twice_cosh) / 2


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
