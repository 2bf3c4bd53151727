r"""Call functions at sample points: powers, roots, logarithms, factorials, absolute values.

Any other function, such as \sin, is a symbol of its own for each argument.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor

from rewards.mathematics.value import (
    AGREEING,
    MAX_BITS,
    MAX_MAGNITUDE,
    Number,
    Rational,
    Unreadable,
    Value,
    mp,
    rounded,
)

MAX_EXPONENT_BITS = 64
MAX_FACTORIAL = 300  # 300! has 2042 bits
MAX_BINOMIAL = 1000
WORK = 12  # of a power or a function of irrational numbers, compared with a sum


def power(base: Value, exponent: Value) -> Value:
    """Return base^exponent, real if it can be: (-8)^{1/3} = -2."""
    return base.points.apply(_power, base, exponent, work=WORK)


def root(radicand: Value, degree: Value | Rational = 2) -> Value:
    """Return the degree-th root of the radicand, the principal one."""
    return power(radicand, radicand.points.number(1) / degree)


def logarithm(value: Value, base: Value | None = None) -> Value:
    """Return log_base(value), natural without a base."""
    result = call("ln", value)
    return result if base is None else result / logarithm(base)


def binomial(n: Value, k: Value) -> Value:
    """Return the binomial coefficient, n over k."""
    return n.points.apply(_binomial, n, k, work=WORK)


def _power(base: Number, exponent: Number) -> Number:
    if type(exponent) is not Fraction or exponent.numerator.bit_length() > MAX_EXPONENT_BITS:
        return _exponential(rounded(exponent) * mp.ln(rounded(base)))
    if base == 0 and exponent <= 0:
        raise Unreadable("zero to a power that is not positive")
    if exponent.denominator == 1:
        return _whole_power(base, int(exponent))
    if not isinstance(base, mp.mpc) and base < 0 and exponent.denominator % 2:
        return (-1) ** exponent.numerator * _power(-base, exponent)
    return rounded(base) ** rounded(exponent)


def _whole_power(base: Number, n: int) -> Number:
    if type(base) is not Fraction:
        return base**n
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(n) * (bits - 1) > MAX_BITS:
        raise Unreadable("too large a power")
    return base**n


def _small(number: Number) -> Number:
    """Return the number, rounded, unless it is too large for what grows with it."""
    if mp.mag(rounded(number)) > MAX_MAGNITUDE:
        raise OverflowError
    return rounded(number)


def _exponential(number: Number) -> Number:
    if number and mp.mag(number) < -AGREEING:  # it would be lost beside 1
        raise OverflowError
    return mp.exp(_small(number))


# --- functions with a name ------------------------------------------------------------------------------------------
def _logarithm(number: Number) -> Number:
    """Return the natural logarithm; that of a negative number has no value."""
    found = mp.ln(number)
    if isinstance(found, mp.mpc):
        raise ValueError
    return found


def _factorial(n: Number) -> Number:
    if type(n) is not Fraction:
        return mp.gamma(_small(n) + 1)
    if n.denominator != 1 or not 0 <= n <= MAX_FACTORIAL:
        raise Unreadable("the factorial of a number that is negative, broken or too large")
    return Fraction(factorial(int(n)))


def _binomial(n: Number, k: Number) -> Number:
    if type(n) is Fraction and type(k) is Fraction:
        if n.denominator != 1 or k.denominator != 1 or min(n, k) < 0 or n > MAX_BINOMIAL:
            raise Unreadable("a binomial coefficient of numbers that are negative, broken or too large")
        return Fraction(comb(int(n), int(k)))
    n, k = _small(n), _small(k)
    return mp.gamma(n + 1) / (mp.gamma(k + 1) * mp.gamma(n - k + 1))


_OF_NUMBERS: dict[str, Callable[[Fraction], int]] = {"floor": floor, "ceil": ceil}
_OF_ANY: dict[str, Callable[[Number], Number]] = {
    "abs": abs,
    "factorial": _factorial,
    "exp": _exponential,
    "ln": _logarithm,
    "log": lambda x: _logarithm(x) / mp.ln(10),
    "lg": lambda x: _logarithm(x) / mp.ln(10),
}


def call(name: str, argument: Value) -> Value:
    """Return the named function of a value; a symbol of that argument if nothing is known about the function."""
    points = argument.points
    if name in _OF_NUMBERS and argument.number is not None:
        return points.number(_OF_NUMBERS[name](argument.number))
    if name in _OF_ANY:
        return points.apply(_OF_ANY[name], argument, work=WORK)
    return points.unknown(name, argument)
