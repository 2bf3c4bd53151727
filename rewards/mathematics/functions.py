r"""Powers with any exponent, logarithms and named functions on the quotients of `algebra.py`, exact where the result
has a name: 8^{1/3} = 2, \log_2 8 = 3, \sqrt{3+2\sqrt2} = 1+\sqrt2, |-3| = 3, \sin(-x) = -\sin x. Otherwise the call
becomes an atom."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, factorial, floor, isqrt
from typing import Final

from rewards.mathematics.algebra import ONE, Algebra, Polynomial, Quotient, Unreadable, prime_powers

MAX_FACTORIAL: Final = 300  # 300! has 2042 bits
MAX_BINOMIAL: Final = 1000

_ODD: Final = frozenset(["sin", "tan", "cot", "csc", "sinh", "tanh", "coth", "arcsin", "arctan"])
_EVEN: Final = frozenset(("cos", "sec", "cosh"))
_SINE_SQUARED: Final = {Fraction(n, 12): Fraction(k, 4) for n, k in ((0, 0), (2, 1), (3, 2), (4, 3), (6, 4))}
_OF_NUMBERS: Final[dict[str, Callable[[Fraction], Fraction]]] = {
    "floor": lambda x: Fraction(floor(x)),
    "ceil": lambda x: Fraction(ceil(x)),
}


def power(algebra: Algebra, base: Quotient, exponent: Quotient) -> Quotient:
    """base^exponent."""
    n = exponent.number
    if n is None:
        return _symbolic_power(algebra, base, exponent)
    if n.denominator == 1:
        return algebra.whole_power(base, int(n))
    nested = _denested(algebra, base) if n == Fraction(1, 2) else None
    if nested is not None:
        return nested
    return algebra.divide(_part_power(algebra, base.top, n), _part_power(algebra, base.bottom, n))


def root(algebra: Algebra, radicand: Quotient, degree: Quotient) -> Quotient:
    """The degree-th root of the radicand."""
    return power(algebra, radicand, algebra.divide(algebra.number(1), degree))


def _part_power(algebra: Algebra, polynomial: Polynomial, exponent: Fraction) -> Quotient:
    if not polynomial:
        return algebra.monomial_power((), Fraction(0), exponent)
    if len(polynomial) > 1:
        return algebra.sum_power(polynomial, exponent)
    ((monomial, coefficient),) = polynomial.items()
    return algebra.monomial_power(monomial, coefficient, exponent)


def _symbolic_power(algebra: Algebra, base: Quotient, exponent: Quotient) -> Quotient:
    """2^{n+1} is 2·pow(#2,n), and 4^n is pow(#2,n)^2: one atom for each factor of the base and term of the exponent."""
    if exponent.bottom != ONE or base.bottom != ONE or len(base.top) != 1:
        key = f"pow({algebra.key(base)},{algebra.key(exponent)})"
        return algebra.atom(key, base, exponent)
    ((monomial, coefficient),) = base.top.items()
    factors = [(f"{prime}", Fraction(k)) for prime, k in _signed_prime_powers(coefficient)] + list(monomial)
    result = algebra.number(1)
    for term, times in exponent.top.items():
        if not term:
            result = algebra.multiply(result, power(algebra, base, algebra.number(times)))
            continue
        term_alone = Quotient({term: Fraction(1)}, ONE)
        for factor, k in factors:
            atom = f"pow({factor.lstrip('#')},{algebra.key(term_alone)})"
            result = algebra.multiply(result, algebra.atom(atom, base, exponent, exponent=k * times))
    return result


def _signed_prime_powers(value: Fraction) -> list[tuple[int, int]]:
    if not value or max(value.numerator.bit_length(), value.denominator.bit_length()) > 256:
        raise Unreadable("no factors")
    powers = [*prime_powers(abs(value.numerator)), *((p, -k) for p, k in prime_powers(value.denominator))]
    return [(-1, 1), *powers] if value < 0 else powers


def _denested(algebra: Algebra, radicand: Quotient) -> Quotient | None:
    r"""√(a ± b√c) as √x ± √y with x, y = (a ± √(a²-b²c))/2, where these are rational and a > 0; None otherwise."""
    if radicand.bottom != ONE or len(radicand.top) != 2 or () not in radicand.top:
        return None
    a = radicand.top[()]
    (surd,) = (monomial for monomial in radicand.top if monomial)
    b = radicand.top[surd]
    if any(atom[0] != "#" or k != Fraction(1, 2) for atom, k in surd):
        return None
    surd_squared = Fraction(1)
    for atom, _ in surd:
        surd_squared *= int(atom[1:])
    inner = a * a - b * b * surd_squared
    if inner < 0 or a <= 0 or any(isqrt(part) ** 2 != part for part in (inner.numerator, inner.denominator)):
        return None
    inner_root = Fraction(isqrt(inner.numerator), isqrt(inner.denominator))
    half = Fraction(1, 2)
    large, small = (algebra.monomial_power((), (a + sign * inner_root) / 2, half) for sign in (1, -1))
    return algebra.add(large, small if b > 0 else algebra.negate(small))


def logarithm(algebra: Algebra, value: Quotient, base: Quotient | None = None) -> Quotient:
    """log_base(value), natural without a base; a product becomes the sum of its factors' logarithms."""
    if base is not None:
        return algebra.divide(logarithm(algebra, value), logarithm(algebra, base))
    if value.bottom != ONE or len(value.top) != 1:
        return algebra.atom(f"ln({algebra.key(value)})", value)
    ((monomial, coefficient),) = value.top.items()
    if coefficient < 0:
        raise Unreadable("the logarithm of a negative number")
    result = algebra.number(0)
    for factor, k in [*((f"#{p}", Fraction(k)) for p, k in _signed_prime_powers(coefficient)), *monomial]:
        term = (
            algebra.number(1)
            if factor == "e"
            else algebra.atom(f"ln({factor})", Quotient({((factor, Fraction(1)),): Fraction(1)}, ONE))
        )
        result = algebra.add(result, algebra.multiply(algebra.number(k), term))
    return result


def _angle(value: Quotient) -> Fraction | None:
    """The angle as a multiple of π, if it is a rational number of π or of degrees."""
    if value == Quotient({}, ONE):
        return Fraction(0)
    if value.bottom != ONE or len(value.top) != 1:
        return None
    ((monomial, coefficient),) = value.top.items()
    return {(("π", 1),): coefficient, (("°", 1),): coefficient / 180}.get(monomial)


def _sine(algebra: Algebra, angle: Fraction) -> Quotient | None:
    """sin(angle · π) for the multiples of 30° and 45°."""
    angle %= 2
    sign = -1 if angle > 1 else 1
    angle %= 1
    squared = _SINE_SQUARED.get(min(angle, 1 - angle))
    return (
        None
        if squared is None
        else algebra.multiply(
            algebra.number(sign), algebra.monomial_power((), squared, Fraction(1, 2)) if squared else algebra.number(0)
        )
    )


def _at_angle(algebra: Algebra, name: str, angle: Fraction) -> Quotient | None:
    """sin, cos or tan where they have an exact value."""
    sine, cosine = _sine(algebra, angle), _sine(algebra, angle + Fraction(1, 2))
    if name == "tan":
        return None if None in (sine, cosine) else algebra.divide(sine, cosine)
    return sine if name == "sin" else cosine


def call(algebra: Algebra, name: str, *arguments: Quotient) -> Quotient:
    """The named function of one argument (`binom`: of two)."""
    value = arguments[0]
    numbers = [argument.number for argument in arguments]
    if name in ("ln", "log", "lg"):
        return logarithm(algebra, value, None if name == "ln" else algebra.number(10))
    if name == "abs":
        return algebra.absolute(value)
    if name == "exp":
        return power(algebra, algebra.atom("e"), value)
    if name in _OF_NUMBERS and numbers[0] is not None:
        return algebra.number(_OF_NUMBERS[name](numbers[0]))
    if name in ("factorial", "binom") and None not in numbers:
        return algebra.number(_count(name, numbers))
    angle = _angle(value) if name in ("sin", "cos", "tan") else None
    exact = _at_angle(algebra, name, angle) if angle is not None else None
    if exact is not None:
        return exact
    sign = algebra.number(1)
    if name in _ODD | _EVEN and algebra.leading(value) < 0:
        arguments = (algebra.negate(value),)
        sign = algebra.number(-1 if name in _ODD else 1)
    return algebra.multiply(sign, algebra.atom(f"{name}({','.join(map(algebra.key, arguments))})", *arguments))


def _count(name: str, numbers: list[Fraction]) -> int:
    limit = MAX_FACTORIAL if name == "factorial" else MAX_BINOMIAL
    if any(n.denominator != 1 or not 0 <= n <= limit for n in numbers):
        raise Unreadable(f"{name} of a number that is negative, broken or too large")
    return factorial(int(numbers[0])) if name == "factorial" else comb(*map(int, numbers))
