"""Compute powers, logarithms, factorials and the like of values: exactly where that is possible, else rounded."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor

from rewards.mathematics.value import AGREEING, MAX_BITS, Number, Unreadable, Value, mp, num_bits, rounded

MAX_MAGNITUDE = 200  # bits before the point of what is raised to a power of e, or has a sine
MAX_EXPONENT_BITS = 64
MAX_FACTORIAL = 300  # 300! has 2042 bits
MAX_BINOMIAL = 1000
WORK = 12  # of a power or a function of irrational numbers, compared with a sum


def power(base: Value, exponent: Value) -> Value:
    """Return base^exponent, real if it can be: (-8)^{1/3} = -2."""
    whole = exponent.whole
    if whole is None:
        base.points.bending.append(base)
    elif base.number and abs(whole) * (num_bits(base.number) - 1) > MAX_BITS:
        return base.points.variable(f"{base.number} ^ {whole}")
    return base.points.apply(_power, base, exponent, work=WORK)


def binomial(n: Value, k: Value) -> Value:
    """Return the binomial coefficient, n over k."""
    return n.points.apply(_binomial, n, k, work=WORK)


def _power(base: Number, exponent: Number) -> Number:
    if type(exponent) is not Fraction or exponent.numerator.bit_length() > MAX_EXPONENT_BITS:
        return _exponential(rounded(exponent) * mp.ln(rounded(base)))
    if base == 0 and exponent <= 0:
        raise Unreadable("zero to a power that is not positive")
    if exponent.denominator == 1:
        return base ** int(exponent)
    if not isinstance(base, mp.mpc) and base < 0 and exponent.denominator % 2:
        return (-1) ** exponent.numerator * _power(-base, exponent)
    return rounded(base) ** rounded(exponent)


def _small(number: Number) -> Number:
    """Return the number, rounded, unless it is too large for what grows with it."""
    if mp.mag(rounded(number)) > MAX_MAGNITUDE:
        raise OverflowError
    return rounded(number)


def _exponential(number: Number) -> Number:
    if number and mp.mag(number) < -AGREEING:  # it would be lost beside 1
        raise OverflowError
    return mp.exp(_small(number))


def _logarithm(number: Number) -> Number:
    """Return the natural logarithm; that of a negative number has no value."""
    found = mp.ln(number)
    if isinstance(found, mp.mpc):
        raise ValueError
    return found


def _factorial(n: Number) -> Number:
    if type(n) is not Fraction:
        return mp.factorial(_small(n))
    if n.denominator != 1 or not 0 <= n <= MAX_FACTORIAL:
        raise Unreadable("the factorial of a number that is negative, broken or too large")
    return Fraction(factorial(int(n)))


def _binomial(n: Number, k: Number) -> Number:
    if type(n) is Fraction and type(k) is Fraction:
        if n.denominator != 1 or k.denominator != 1 or min(n, k) < 0 or n > MAX_BINOMIAL:
            raise Unreadable("a binomial coefficient of numbers that are negative, broken or too large")
        return Fraction(comb(int(n), int(k)))
    return mp.binomial(_small(n), _small(k))


_ROUNDED: dict[str, Callable[[Fraction], int]] = {"floor": floor, "ceil": ceil}
_FUNCTIONS: dict[str, Callable[[Number], Number]] = {
    "abs": abs,
    "factorial": _factorial,
    "exp": _exponential,
    "ln": _logarithm,
    **dict.fromkeys(("log", "lg"), lambda x: _logarithm(x) / mp.ln(10)),
}
_BENT = _FUNCTIONS.keys() - {"factorial", "exp"}


def call(name: str, argument: Value) -> Value:
    """Return the named function of a value; a symbol of that argument if nothing is known about the function."""
    if name in _ROUNDED and argument.number is not None:
        return argument.points.number(_ROUNDED[name](argument.number))
    if name == "factorial" and (argument.whole or 0) > MAX_FACTORIAL:
        return argument.points.variable(f"{argument.whole} !")
    if name in _BENT:
        argument.points.bending.append(argument)
    if name in _FUNCTIONS:
        return argument.points.apply(_FUNCTIONS[name], argument, work=WORK)
    return argument.points.unknown(name, argument)
