r"""Take powers with any exponent, roots and logarithms, exactly where the result has a name.

8^{1/3} = 2, \log_2 8 = 3, \sqrt{3+2\sqrt2} = 1+\sqrt2. Otherwise the result is an atom.
"""

from fractions import Fraction

from rewards.mathematics.algebra import MAX_FACTORED_BITS, Algebra
from rewards.mathematics.quotient import ONE, Monomial, Polynomial, Quotient, Rational
from rewards.mathematics.rational import Unreadable, prime_powers, size

_HALF = Fraction(1, 2)


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
    for factor, k in [*primes, *_absolute_together(algebra, monomial)]:
        term = algebra.number(k)
        if factor.startswith("pow(e,") and factor in algebra.arguments:
            term = term * algebra.arguments[factor]
        elif factor != "e":
            term = term * algebra.applied("ln", algebra.single(factor))
        result = result + term
    return result


def _absolute_together(algebra: Algebra, monomial: Monomial) -> Monomial:
    """Write |x|·x^-2 as |x|^-1, so that ln(1/|x|) = -ln|x|."""
    powers = dict(monomial)
    for atom in [atom for atom in powers if atom.startswith("abs(")]:
        inside = algebra.arguments[atom].lone_atom
        if powers.get(inside, 1) % 2 == 0:
            powers[atom] += powers.pop(inside)
    return tuple(powers.items())


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
        known = _known_power(base, term, times)
        if known is not None:
            result = result * known
            continue
        single_term = algebra.term(term)
        for factor, k in factors:
            atom = f"pow({factor.lstrip('#')},{single_term.key})"
            part = algebra.atom(atom, base, exponent, exponent=k * times)
            if factor == "e" and not any(symbol == "i" for symbol, _ in term):  # the logarithm has one value
                algebra.arguments[atom] = single_term
            result = result * part
    return result


def _known_power(base: Quotient, term: Monomial, times: Fraction) -> Quotient | None:
    """Return base^(times · term) where the term is a number, or undone by the base; None elsewhere."""
    if not term:
        return power(base, base.algebra.number(times))
    return _power_of_logarithm(base.algebra, term, times) if base.lone_atom == "e" else None


def _power_of_logarithm(algebra: Algebra, term: Monomial, times: Fraction) -> Quotient | None:
    """Return e^(t · ln a) as a^t; None if the term has no logarithm or several."""
    logarithms = [atom for atom, k in term if atom.startswith("ln(") and k == 1]
    if len(logarithms) != 1:
        return None
    rest = tuple(part for part in term if part[0] != logarithms[0])
    argument = algebra.arguments[logarithms[0]]
    atom = argument.lone_atom
    if atom and atom.startswith("#"):  # ln 2 holds the prime as an atom
        argument = algebra.number(int(atom[1:]))
    return power(argument, algebra.term(rest, times))


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
