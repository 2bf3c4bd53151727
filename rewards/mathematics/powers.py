r"""Powers with any exponent, roots and logarithms on the quotients of `algebra.py`, exact where the result has a name:
8^{1/3} = 2, \log_2 8 = 3, \sqrt{3+2\sqrt2} = 1+\sqrt2. Otherwise the result is an atom."""

from fractions import Fraction
from math import isqrt

from rewards.mathematics.algebra import ONE, Algebra, Monomial, Polynomial, Quotient, Unreadable, prime_powers

_HALF = Fraction(1, 2)


def power(algebra: Algebra, base: Quotient, exponent: Quotient) -> Quotient:
    """base^exponent."""
    n = exponent.number
    if n is None:
        return _symbolic_power(algebra, base, exponent)
    if n.denominator == 1:
        return algebra.whole_power(base, int(n))
    nested = _denested(algebra, base) if n == _HALF else None
    if nested is not None:
        return nested
    return algebra.divide(_part_power(algebra, base.top, n), _part_power(algebra, base.bottom, n))


def root(algebra: Algebra, radicand: Quotient, degree: Quotient) -> Quotient:
    """The degree-th root of the radicand."""
    return power(algebra, radicand, algebra.divide(algebra.number(1), degree))


def square_root(algebra: Algebra, radicand: Quotient) -> Quotient:
    """The principal square root of the radicand."""
    return power(algebra, radicand, algebra.number(_HALF))


def logarithm(algebra: Algebra, value: Quotient, base: Quotient | None = None) -> Quotient:
    """log_base(value), natural without a base; a product becomes the sum of its factors' logarithms."""
    if base is not None:
        return algebra.divide(logarithm(algebra, value), logarithm(algebra, base))
    if value.bottom != ONE or len(value.top) != 1:
        return algebra.applied("ln", value)
    ((monomial, coefficient),) = value.top.items()
    if coefficient < 0:
        raise Unreadable("the logarithm of a negative number")
    result = algebra.number(0)
    primes = [(f"#{p}", Fraction(k)) for p, k in _signed_prime_powers(coefficient)]
    for factor, k in [*primes, *_absolute_together(algebra, monomial)]:
        term = algebra.number(1) if factor == "e" else algebra.applied("ln", _single(factor))
        result = algebra.add(result, algebra.multiply(algebra.number(k), term))
    return result


def _absolute_together(algebra: Algebra, monomial: Monomial) -> Monomial:
    """|x|·x^-2 as |x|^-1, so that ln(1/|x|) = -ln|x|."""
    powers = dict(monomial)
    for atom in [atom for atom in powers if atom.startswith("abs(")]:
        inside = algebra.arguments[atom].lone_atom
        if powers.get(inside, 1) % 2 == 0:
            powers[atom] += powers.pop(inside)
    return tuple(powers.items())


def _single(atom: str) -> Quotient:
    return Quotient({((atom, Fraction(1)),): Fraction(1)}, ONE)


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
        undone = _power_of_logarithm(algebra, term, times) if base.lone_atom == "e" else None
        if undone is not None:
            result = algebra.multiply(result, undone)
            continue
        term_alone = Quotient({term: Fraction(1)}, ONE)
        for factor, k in factors:
            atom = f"pow({factor.lstrip('#')},{algebra.key(term_alone)})"
            result = algebra.multiply(result, algebra.atom(atom, base, exponent, exponent=k * times))
    return result


def _power_of_logarithm(algebra: Algebra, term: Monomial, times: Fraction) -> Quotient | None:
    """e^(t · ln a) as a^t; None if the term has no logarithm or several."""
    logarithms = [atom for atom, k in term if atom.startswith("ln(") and k == 1]
    if len(logarithms) != 1:
        return None
    rest = tuple(part for part in term if part[0] != logarithms[0])
    argument = algebra.arguments[logarithms[0]]
    ((monomial, _),) = argument.top.items() if len(argument.top) == 1 else (((), None),)
    if len(monomial) == 1 and monomial[0][0].startswith("#"):
        argument = algebra.number(int(monomial[0][0][1:]))
    return power(algebra, argument, Quotient({rest: times}, ONE))


def _signed_prime_powers(value: Fraction) -> list[tuple[int, int]]:
    if not value or max(value.numerator.bit_length(), value.denominator.bit_length()) > 256:
        raise Unreadable("no factors")
    above = list(prime_powers(abs(value.numerator)))
    below = [(p, -k) for p, k in prime_powers(value.denominator)]
    sign = [(-1, 1)] if value < 0 else []
    return sign + above + below


def _denested(algebra: Algebra, radicand: Quotient) -> Quotient | None:
    r"""√(a ± b√c) as √x ± √y with x, y = (a ± √(a²-b²c))/2, where these are rational and a > 0; None otherwise."""
    if radicand.bottom != ONE or len(radicand.top) != 2 or () not in radicand.top:
        return None
    a = radicand.top[()]
    (surd,) = (monomial for monomial in radicand.top if monomial)
    b = radicand.top[surd]
    if any(atom[0] != "#" or k != _HALF for atom, k in surd):
        return None
    surd_squared = Fraction(1)
    for atom, _ in surd:
        surd_squared *= int(atom[1:])
    inner = a * a - b * b * surd_squared
    if inner < 0 or a <= 0 or not (_is_square(inner.numerator) and _is_square(inner.denominator)):
        return None
    inner_root = Fraction(isqrt(inner.numerator), isqrt(inner.denominator))
    large = algebra.monomial_power((), (a + inner_root) / 2, _HALF)
    small = algebra.monomial_power((), (a - inner_root) / 2, _HALF)
    return algebra.add(large, small) if b > 0 else algebra.subtract(large, small)


def _is_square(n: int) -> bool:
    return isqrt(n) ** 2 == n
