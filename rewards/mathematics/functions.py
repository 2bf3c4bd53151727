r"""Call functions at sample points: powers, roots, logarithms and all that have a name, such as \gcd and \sin."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor, gcd, lcm

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
_ROUNDING = mp.mpf(2) ** -900


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
def _real(function: Callable[[Number], Number]) -> Callable[[Number], Number]:
    """Return a function that has no value where its result is not real: the logarithm of -1, the arcsine of 2."""

    def compute(number: Number) -> Number:
        found = function(number)
        if isinstance(found, mp.mpc):
            raise ValueError
        return found

    return compute


def _of_angle(function: Callable[[Number], Number]) -> Callable[[Number], Number]:
    """Return a sine or cosine that is 0 where only rounding has left anything: at a multiple of π."""

    def compute(angle: Number) -> Number:
        found = function(_small(angle))
        return found * 0 if abs(found) <= _ROUNDING * (1 + abs(angle)) else found

    return compute


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


def _remainder(n: int, m: int) -> int:
    """Return n mod m. If n is the remainder already, it is rather a class of numbers: 7 mod 10."""
    if not 0 < m <= n:
        raise Unreadable("a class of remainders")
    return n % m


_logarithm, _sine, _cosine = _real(mp.ln), _of_angle(mp.sin), _of_angle(mp.cos)
_OF_NUMBERS: dict[str, Callable] = {"floor": floor, "ceil": ceil, "max": max, "min": min}
_OF_WHOLE_NUMBERS: dict[str, Callable] = {"gcd": gcd, "lcm": lcm, "mod": _remainder}
_OF_ONE: dict[str, Callable[[Number], Number]] = {
    "abs": abs,
    "factorial": _factorial,
    "exp": _exponential,
    "ln": _logarithm,
    "log": lambda x: _logarithm(x) / mp.ln(10),
    "lg": lambda x: _logarithm(x) / mp.ln(10),
    "sin": _sine,
    "cos": _cosine,
    "tan": lambda x: _sine(x) / _cosine(x),
    "cot": lambda x: _cosine(x) / _sine(x),
    "sec": lambda x: 1 / _cosine(x),
    "csc": lambda x: 1 / _sine(x),
    "sinh": lambda x: mp.sinh(_small(x)),
    "cosh": lambda x: mp.cosh(_small(x)),
    "tanh": lambda x: mp.tanh(_small(x)),
    "arcsin": _real(mp.asin),
    "arccos": _real(mp.acos),
    "arctan": mp.atan,
}


def call(name: str, *arguments: Value) -> Value:
    """Return the named function of one argument (`mod`: of two; `gcd`, `lcm`, `max`, `min`: of any number)."""
    points = arguments[0].points
    numbers = [argument.number for argument in arguments]
    if name in _OF_NUMBERS and None not in numbers:
        return points.number(_OF_NUMBERS[name](*numbers))
    if name in _OF_WHOLE_NUMBERS and all(argument.is_whole for argument in arguments):
        return points.number(_OF_WHOLE_NUMBERS[name](*map(int, numbers)))
    if name in _OF_ONE and len(arguments) == 1:
        return points.apply(_OF_ONE[name], *arguments, work=WORK)
    return points.unknown(name, *arguments)
