r"""Compute with quotients of polynomials in atoms, such as (2x + √3) / y, exactly and within limits.

A monomial is a product of atoms with rational exponents, a polynomial is a sum of monomials with Fraction coefficients,
and two quotients are equal when their cross products are the same polynomial. This is enough to see that
\frac{\sqrt3}{3} = \frac{1}{\sqrt3} and (x+1)^2 = 1+2x+x^2. Atoms are strings:

    "x", "π", "ln(#2)"   free: any rational exponent
    "#3"                 the prime 3: (#3)^1 = 3, so √12 is 2·(#3)^(1/2)
    "i"                  i^2 = -1
    "(1+x)"              a sum under a root: (1+x)^1 is multiplied out
    "abs(x)"             abs(x)^2 = x^2, and √(x^2) = abs(x); otherwise √(xy) = √x·√y, as if variables were positive
    "sin(x)"             sin(x)^2 = 1 - cos(x)^2, see functions.py

Nothing is rounded. All work is limited: beyond the limits `Unreadable` is raised and the caller compares texts instead.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from math import e, gcd, lcm, pi

from rewards.mathematics.rational import Unreadable, checked, prime_powers, rational_power, size

Monomial = tuple[tuple[str, Fraction], ...]  # sorted by atom, no exponent 0
Polynomial = dict[Monomial, Fraction]  # no coefficient 0
Rational = int | Fraction

CONSTANTS = frozenset(("π", "e", "i"))
ONE: Polynomial = {(): Fraction(1)}
MAX_TERMS = 400  # of a polynomial
MAX_KEY_CHARS = 4000  # of what becomes the name of an atom; names of names of sums grow fast
MAX_EXPONENT_BITS = 64  # of an exponent that stays symbolic
MAX_WORK = 8_000  # products of terms in one comparison: about 0.1 s, 0.4 s on a busy core
MAX_FACTORED_BITS = 256  # of a number that is taken apart into primes


@dataclass(frozen=True)
class Quotient:
    """A value. Its operators are exact; each of them may raise `Unreadable`. `==` compares the form, `equals` the
    value."""

    top: Polynomial
    bottom: Polynomial
    algebra: "Algebra" = field(compare=False, repr=False)

    # --- arithmetic, with each other and with rational numbers -----------------------------------------------------
    def __add__(self, other: "Quotient | Rational") -> "Quotient":
        other = self._coerced(other)
        times, plus = self.algebra.product, self.algebra.sum
        if self.bottom == other.bottom:
            return self.algebra.quotient(plus(self.top, other.top), self.bottom)
        left = times(self.top, other.bottom)
        right = times(other.top, self.bottom)
        return self.algebra.quotient(plus(left, right), times(self.bottom, other.bottom))

    def __neg__(self) -> "Quotient":
        negated = {monomial: -c for monomial, c in self.top.items()}
        return self.algebra.quotient(negated, self.bottom)

    __radd__ = __add__

    def __sub__(self, other: "Quotient | Rational") -> "Quotient":
        return self + -other

    def __rsub__(self, other: Rational) -> "Quotient":
        return self.algebra.number(other) - self

    def __mul__(self, other: "Quotient | Rational") -> "Quotient":
        other = self._coerced(other)
        top = self.algebra.product(self.top, other.top)
        return self.algebra.quotient(top, self.algebra.product(self.bottom, other.bottom))

    def __truediv__(self, other: "Quotient | Rational") -> "Quotient":
        other = self._coerced(other)
        if not other.top:
            raise Unreadable("division by zero")
        if len(other.top) > 1:
            return self * self.algebra.quotient(other.bottom, other.top)
        ((monomial, coefficient),) = other.top.items()
        inverse = self.algebra.monomial_power(monomial, coefficient, Fraction(-1))
        return self * self.algebra.quotient(other.bottom) * inverse

    def __rtruediv__(self, other: Rational) -> "Quotient":
        return self.algebra.number(other) / self

    def __pow__(self, n: int) -> "Quotient":
        """Raise to an integer power, by repeated squaring; `powers.power` knows the others."""
        if n < 0:
            return 1 / self**-n
        if len(self.top) > 1 and n > MAX_TERMS:
            raise Unreadable("too large a power of a sum")
        result, square = self.algebra.number(1), self
        while n:
            if n & 1:
                result = result * square
            n >>= 1
            if n:
                square = square * square
        return result

    def __abs__(self) -> "Quotient":
        """Return the product of the absolute values of a product; for anything else an atom that |-a| shares."""
        if self.number is not None:
            return self.algebra.number(abs(self.number))
        if self.bottom != ONE or len(self.top) != 1:
            return self.algebra.absolute_atom(self)
        ((monomial, coefficient),) = self.top.items()
        result = self.algebra.number(abs(coefficient))
        for atom, power in monomial:
            is_positive = atom in ("π", "e") or atom.startswith(("#", "abs("))
            if not is_positive:
                atom = self.algebra.absolute_atom(self.algebra.single(atom)).lone_atom
            result = result * self.algebra.atom_power(atom, power)
        return result

    def equals(self, other: "Quotient") -> bool:
        """Tell whether both are the same value: their cross products are the same polynomial."""
        if self == other:
            return True
        left = self.algebra.product(self.top, other.bottom)
        return left == self.algebra.product(other.top, self.bottom)

    def _coerced(self, other: "Quotient | Rational") -> "Quotient":
        return other if isinstance(other, Quotient) else self.algebra.number(other)

    # --- looking ----------------------------------------------------------------------------------------------------
    @property
    def number(self) -> Fraction | None:
        """Return the value if this is a rational number."""
        if self.bottom == ONE and self.top.keys() <= {()}:
            return self.top.get((), Fraction(0))
        return None

    @property
    def approximate(self) -> float | None:
        """Return the value, rounded, if this is made of numbers, roots of these, π and e; None for anything else."""
        try:
            return _approximate(self.top) / _approximate(self.bottom)
        except (KeyError, OverflowError, ZeroDivisionError):
            return None

    @property
    def is_whole(self) -> bool:
        """Tell whether this is an integer."""
        return self.number is not None and self.number.denominator == 1

    @property
    def lone_atom(self) -> str | None:
        """Return the atom if this is nothing but one: "x" for x, None for 2x, x^2 and x + y."""
        if self.bottom != ONE or list(self.top.values()) != [1]:
            return None
        (monomial,) = self.top
        return monomial[0][0] if len(monomial) == 1 and monomial[0][1] == 1 else None

    @property
    def variables(self) -> frozenset[str]:
        """Return the names that the value depends on; none for √2 + π."""
        atoms = {atom for atom, _ in chain(*self.top, *self.bottom)}
        names = [self.algebra.variables_in.get(atom, frozenset()) for atom in atoms]
        return frozenset().union(*names)

    @property
    def leading(self) -> Fraction:
        """Return the coefficient that decides the sign under which `f(-x)` and `f(x)` meet; 0 for zero."""
        if not self.top:
            return Fraction(0)
        top = self.top[min(self.top)]
        return top / self.bottom[min(self.bottom)]

    @property
    def key(self) -> str:
        """Return a text that determines the value; equal values share it unless they are quotients of sums."""
        if self.bottom == ONE:
            return _print(self.top, Fraction(1))
        lead = self.bottom[min(self.bottom)]
        return f"{_print(self.top, lead)}/({_print(self.bottom, lead)})"


def _approximate(polynomial: Polynomial) -> float:
    """Return the rounded value of a polynomial in primes, π and e; KeyError if it has other atoms."""
    total = 0.0
    for monomial, c in polynomial.items():
        term = float(c)
        for atom, power in monomial:
            base = int(atom[1:]) if atom.startswith("#") else {"π": pi, "e": e}[atom]
            term *= base ** float(power)
        total += term
    return total


def _print(polynomial: Polynomial, lead: Fraction) -> str:
    terms, length = [], 0
    for monomial, c in sorted(polynomial.items()):
        factors = "".join(f"*{atom}^{power}" for atom, power in monomial)
        terms.append(f"{c / lead}{factors}")
        length += len(factors)
        if length > MAX_KEY_CHARS:
            raise Unreadable("too long a name")
    return "+".join(terms) or "0"


class Algebra:
    """What the values of one comparison share: the budget of work, and what the composite atoms stand for."""

    def __init__(self):
        self.work_left = MAX_WORK
        self.rules: dict[str, tuple[int, Polynomial]] = {"i": (2, {(): Fraction(-1)})}  # atom -> (n, what atom^n is)
        self.variables_in: dict[str, frozenset[str]] = {}  # atom -> variables that it depends on; absent: none
        self.exponents: dict[str, Quotient] = {}  # "pow(e,x)" -> x

    # --- making -----------------------------------------------------------------------------------------------------
    def quotient(self, top: Polynomial, bottom: Polynomial = ONE) -> Quotient:
        return Quotient(top, bottom, self)

    def term(self, monomial: Monomial, coefficient: Fraction = Fraction(1)) -> Quotient:
        return Quotient({monomial: coefficient}, ONE, self)

    def single(self, atom: str) -> Quotient:
        """Return the value that is this atom."""
        return self.term(((atom, Fraction(1)),))

    def number(self, value: Rational) -> Quotient:
        value = checked(Fraction(value))
        return self.quotient({(): value} if value else {})

    def atom(self, name: str, *depends_on: Quotient, exponent: Fraction = Fraction(1)) -> Quotient:
        """Make a free atom: a variable of that name, or (with `depends_on`) a function of these arguments."""
        if name not in CONSTANTS:
            names = frozenset().union(*(value.variables for value in depends_on))
            if not depends_on:
                names = frozenset((name,))
            if names:
                self.variables_in[name] = names
        return self.term(((name, exponent),))

    def applied(self, name: str, *arguments: Quotient) -> Quotient:
        """Make a function of these arguments, of which nothing more is known."""
        keys = [argument.key for argument in arguments]
        atom = f"{name}({','.join(keys)})"
        return self.atom(atom, *arguments)

    def prime(self, prime: int, exponent: Fraction) -> Quotient:
        atom = f"#{prime}"
        self.rules[atom] = 1, {(): Fraction(prime)}
        return self.atom_power(atom, exponent)

    def absolute_atom(self, a: Quotient) -> Quotient:
        a = -a if a.leading < 0 else a
        magnitude = self.applied("abs", a)
        if a.bottom == ONE:
            self.rules[magnitude.lone_atom] = 2, self.product(a.top, a.top)
        return magnitude

    # --- powers of parts --------------------------------------------------------------------------------------------
    def monomial_power(self, monomial: Monomial, coefficient: Fraction, exponent: Fraction) -> Quotient:
        """Return (coefficient · monomial)^exponent, the principal root where the exponent is a fraction."""
        result = self.number_power(coefficient, exponent)
        for atom, power in monomial:
            is_free = atom in self.variables_in and atom not in self.rules
            if is_free and power % 2 == 0 == exponent.denominator % 2:
                atom = self.absolute_atom(self.single(atom)).lone_atom  # √(x^2) = |x|
            result = result * self.atom_power(atom, power * exponent)
        return result

    def sum_power(self, a: Polynomial, exponent: Fraction) -> Quotient:
        """Return (a sum)^exponent.

        The integer part of the exponent is multiplied out, the rest is one atom, with its common factor before the
        root.
        """
        whole, rest = divmod(exponent, 1)
        result = self.quotient(a) ** whole
        if not rest:
            return result
        top = gcd(*(c.numerator for c in a.values()))
        bottom = lcm(*(c.denominator for c in a.values()))
        content = Fraction(top, bottom)
        primitive = self.quotient({monomial: c / content for monomial, c in a.items()})
        atom = f"({primitive.key})"
        self.rules[atom] = 1, primitive.top
        root = self.atom(atom, primitive, exponent=rest)
        return result * root * self.number_power(content, rest)

    def atom_power(self, atom: str, power: Fraction) -> Quotient:
        if size(power) > MAX_EXPONENT_BITS:
            raise Unreadable("too large an exponent")
        if atom == "i" and power.denominator != 1:
            raise Unreadable("a root of i")
        if atom not in self.rules:
            return self.term(((atom, power),))
        period, polynomial = self.rules[atom]
        whole, rest = divmod(power, period)
        alone = self.term(((atom, rest),) if rest else ())
        known = self.quotient(polynomial)
        if known.number:
            return alone * rational_power(known.number, whole)
        return alone * known**whole

    def number_power(self, base: Fraction, exponent: Fraction) -> Quotient:
        if not base and exponent <= 0:
            raise Unreadable("zero to a power that is not positive")
        if exponent.denominator == 1 or base == 1:
            return self.number(rational_power(base, int(exponent)))
        if max(size(base), exponent.denominator) > MAX_FACTORED_BITS:
            raise Unreadable("too large a root")
        if not base:
            return self.number(0)
        if base < 0:  # the real root if there is one: (-8)^(1/3) = -2, √-4 = 2i
            if exponent.denominator % 2:
                sign = self.number((-1) ** exponent.numerator)
            elif exponent.denominator == 2:
                sign = self.atom_power("i", Fraction(exponent.numerator))
            else:
                raise Unreadable("an even root of a negative number")
            return sign * self.number_power(-base, exponent)
        result = self.number(1)
        for prime, power in prime_powers(base):
            result = result * self.prime(prime, power * exponent)
        return result

    # --- polynomials ------------------------------------------------------------------------------------------------
    def sum(self, p: Polynomial, q: Polynomial) -> Polynomial:
        total = dict(p)
        for monomial, c in q.items():
            self._spend(c)
            c = checked(total.get(monomial, Fraction(0)) + c)
            if c:
                total[monomial] = c
            else:
                total.pop(monomial, None)
        if len(total) > MAX_TERMS:
            raise Unreadable("too many terms")
        return total

    def product(self, p: Polynomial, q: Polynomial) -> Polynomial:
        if p == ONE or q == ONE:
            return q if p == ONE else p
        total: Polynomial = {}
        for left, c in p.items():
            row: Polynomial = {}
            for right, d in q.items():
                merged = self._merge(left, right, checked(c * d))
                for monomial, coefficient in merged.items():
                    self._spend(c, d)
                    row[monomial] = row.get(monomial, Fraction(0)) + coefficient
            row = {monomial: coefficient for monomial, coefficient in row.items() if coefficient}
            total = self.sum(total, row)
        return total

    def _merge(self, left: Monomial, right: Monomial, coefficient: Fraction) -> Polynomial:
        """Return coefficient · left · right, with the powers of atoms that have a rule replaced by what they are."""
        if not left or not right:
            return {left or right: coefficient}
        powers, replaced = dict(left), []
        for atom, power in right:
            power += powers.pop(atom, 0)
            period, polynomial = self.rules.get(atom, (None, ONE))
            if period and power >= period:
                replaced.append(polynomial)
                power -= period
            if power:
                powers[atom] = power
        product: Polynomial = {tuple(sorted(powers.items())): coefficient}
        for polynomial in replaced:
            product = self.product(product, polynomial)
        return product

    def _spend(self, *coefficients: Fraction) -> None:
        bits = sum(c.numerator.bit_length() + c.denominator.bit_length() for c in coefficients)
        self.work_left -= 1 + bits // 256
        if self.work_left < 0:
            raise Unreadable("too much work")
