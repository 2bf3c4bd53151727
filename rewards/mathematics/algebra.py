r"""Make quotients of polynomials and multiply them out, by the rules of their atoms. This is enough to see that
\frac{\sqrt3}{3} = \frac{1}{\sqrt3} and (x+1)^2 = 1+2x+x^2. Atoms are strings:

    "x", "π", "ln(#2)"   free: any rational exponent
    "#3"                 the prime 3: (#3)^1 = 3, so √12 is 2·(#3)^(1/2)
    "i"                  i^2 = -1
    "(1+x)"              a sum under a root: (1+x)^1 is multiplied out
    "abs(x)"             abs(x)^2 = x^2, and √(x^2) = abs(x); otherwise √(xy) = √x·√y, as if variables were positive
    "sin(x)"             sin(x)^2 = 1 - cos(x)^2, see trigonometry.py

Nothing is rounded. All work is limited: beyond the limits `Unreadable` is raised and the caller compares texts instead.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm

from rewards.mathematics.quotient import MAX_TERMS, ONE, Monomial, Polynomial, Quotient, Rational
from rewards.mathematics.rational import Unreadable, checked, prime_powers, rational_power, size

DEGREE = "°"
CONSTANTS = frozenset(("π", "e", "i"))
MAX_EXPONENT_BITS = 64  # of an exponent that stays symbolic
MAX_WORK = 8_000  # products of terms in one comparison: about 0.1 s, 0.4 s on a busy core
MAX_FACTORED_BITS = 256  # of a number that is taken apart into primes


class Algebra:
    """What the values of one comparison share: the budget of work, and what the composite atoms stand for."""

    def __init__(self, angle_parts: Mapping[str, int] | None = None):
        self.work_left = MAX_WORK
        self.rules: dict[str, tuple[int, Polynomial]] = {"i": (2, {(): Fraction(-1)})}  # atom -> (n, what atom^n is)
        self.variables_in: dict[str, frozenset[str]] = {}  # atom -> variables that it depends on; absent: none
        self.arguments: dict[str, Quotient] = {}  # atom of a function of one argument -> that argument
        self.angle_parts = dict(angle_parts or {})  # "x" -> n where sines are written in those of x/n
        self.angles_seen: dict[str, set[int]] = {}  # "x" -> denominators of its multiples under sines

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
        if len(arguments) == 1:
            self.arguments[atom] = arguments[0]
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
        result = self._number_power(coefficient, exponent)
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
        return result * root * self._number_power(content, rest)

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

    def _number_power(self, base: Fraction, exponent: Fraction) -> Quotient:
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
            return sign * self._number_power(-base, exponent)
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
                for monomial, e in merged.items():
                    self._spend(c, d)
                    row[monomial] = row.get(monomial, Fraction(0)) + e
            row = {monomial: e for monomial, e in row.items() if e}
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
