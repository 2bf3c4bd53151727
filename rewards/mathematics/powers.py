r"""Take powers with any exponent, roots and logarithms, exactly where the result has a name.

8^{1/3} = 2, \log_2 8 = 3, \sqrt{3+2\sqrt2} = 1+\sqrt2, e^{iπ} = -1. Otherwise the result is an atom. What holds on a
part of the domain only is no equality: \ln x^2 is 2\ln|x|.
"""

from fractions import Fraction

from rewards.mathematics.algebra import MAX_FACTORED_BITS, ONE, Algebra, Monomial, Polynomial, Quotient, Rational
from rewards.mathematics.rational import Unreadable, prime_powers, size

_HALF = Fraction(1, 2)
_I_PI: Monomial = (("i", Fraction(1)), ("π", Fraction(1)))


def power(base: Quotient, exponent: Quotient) -> Quotient:
    """Return base^exponent."""
    n = exponent.number
    if n is None:
        return _symbolic_power(base, exponent)
    if n.denominator == 1:
        return base ** int(n)
    nested = _denested(base) if n == _HALF else None
    if nested is not None:
        return nested
    above, below = (_part_power(base.algebra, part, n) for part in (base.top, base.bottom))
    return above / below


def root(radicand: Quotient, degree: Rational | Quotient = 2) -> Quotient:
    """Return the degree-th root of the radicand, the principal one."""
    return power(radicand, radicand.algebra.number(1) / degree)


def logarithm(value: Quotient, base: Quotient | None = None) -> Quotient:
    """Return log_base(value), natural without a base; a product becomes the sum of its factors' logarithms."""
    if base is not None:
        return logarithm(value) / logarithm(base)
    algebra = value.algebra
    if value.bottom != ONE or len(value.top) != 1:
        return algebra.applied("ln", value)
    ((monomial, coefficient),) = value.top.items()
    if coefficient < 0:
        raise Unreadable("the logarithm of a negative number")
    result = algebra.number(0)
    primes = [(f"#{p}", Fraction(k)) for p, k in _signed_prime_powers(coefficient)]
    for factor, k in [*primes, *monomial]:
        result = result + _logarithm_of_atom(algebra, factor, is_even=k % 2 == 0) * k
    return result


def _logarithm_of_atom(algebra: Algebra, atom: str, *, is_even: bool) -> Quotient:
    """Return ln(atom), or ln|atom| of an atom with an even power, which may be negative."""
    if atom == "e":
        return algebra.number(1)
    if atom in algebra.exponents:
        return algebra.exponents[atom]
    value = algebra.single(atom)
    return algebra.applied("ln", abs(value) if is_even else value)


def _part_power(algebra: Algebra, polynomial: Polynomial, exponent: Fraction) -> Quotient:
    if not polynomial:
        return algebra.monomial_power((), Fraction(0), exponent)
    if len(polynomial) > 1:
        return algebra.sum_power(polynomial, exponent)
    ((monomial, coefficient),) = polynomial.items()
    return algebra.monomial_power(monomial, coefficient, exponent)


def _symbolic_power(base: Quotient, exponent: Quotient) -> Quotient:
    """Make one atom for each factor of the base and term of the exponent.

    2^{n+1} is 2·pow(#2,n), and 4^n is pow(#2,n)^2.
    """
    algebra = base.algebra
    if exponent.bottom != ONE or base.bottom != ONE or len(base.top) != 1:
        return algebra.atom(f"pow({base.key},{exponent.key})", base, exponent)
    ((monomial, coefficient),) = base.top.items()
    factors = [(str(prime), Fraction(k)) for prime, k in _signed_prime_powers(coefficient)]
    factors += monomial
    result = algebra.number(1)
    for term, times in exponent.top.items():
        if not term:
            result = result * power(base, algebra.number(times))
        elif term == _I_PI and base.lone_atom == "e" and (2 * times).denominator == 1:
            result = result * algebra.atom_power("i", 2 * times)
        else:
            result = result * _power_of_factors(algebra, factors, base, algebra.term(term), times)
    return result


def _power_of_factors(
    algebra: Algebra, factors: list[tuple[str, Fraction]], base: Quotient, term: Quotient, times: Fraction
) -> Quotient:
    """Return base^(times · term) as a product with one atom for each factor of the base."""
    result = algebra.number(1)
    for factor, k in factors:
        atom = f"pow({factor.lstrip('#')},{term.key})"
        result = result * algebra.atom(atom, base, term, exponent=k * times)
        if factor == "e" and "i" not in dict(next(iter(term.top))):  # the logarithm has one value
            algebra.exponents[atom] = term
    return result


def _signed_prime_powers(value: Fraction) -> list[tuple[int, int]]:
    if not value or size(value) > MAX_FACTORED_BITS:
        raise Unreadable("no factors")
    sign = [(-1, 1)] if value < 0 else []
    return [*sign, *prime_powers(abs(value))]


def _denested(radicand: Quotient) -> Quotient | None:
    r"""Return √(a ± b√c) as √x ± √y; None unless a > 0, and x, y = (a ± √(a²-b²c))/2 are rational."""
    a = radicand.top.get((), Fraction(0))
    if radicand.bottom != ONE or len(radicand.top) != 2 or a <= 0:
        return None
    number, surd = radicand.algebra.number, radicand - a
    inner = (a * a - surd * surd).number
    if inner is None or inner < 0:
        return None
    try:
        inner_root = root(number(inner)).number
        if inner_root is None:
            return None
        large = root(number((a + inner_root) / 2))
        small = root(number((a - inner_root) / 2))
    except Unreadable:  # numbers too large to factor
        return None
    return large + small if surd.leading > 0 else large - small
