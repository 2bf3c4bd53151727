r"""Exact algebra on quotients of polynomials: enough to see that \frac{\sqrt3}{3} = \frac{1}{\sqrt3} and (x+1)^2 =
1+2x+x^2.

A monomial is a product of atoms with rational exponents, a polynomial a sum of monomials with Fraction coefficients,
and two quotients are equal when their cross products are the same polynomial. Atoms are strings:

    "x", "π", "ln(#2)"   free: any rational exponent
    "#3"                 the prime 3: (#3)^1 = 3, so √12 is 2·(#3)^(1/2)
    "i"                  i^2 = -1
    "(1+x)"              a sum under a root: (1+x)^1 is multiplied out
    "abs(x)"             abs(x)^2 = x^2, and √(x^2) = abs(x); otherwise √(xy) = √x·√y, as if variables were positive
    "sin(x)"             sin(x)^2 = 1 - cos(x)^2, see trigonometry.py

Nothing is rounded. All work is limited: beyond the limits `Unreadable` is raised and the caller compares texts instead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, isqrt, lcm
from typing import Final

Monomial = tuple[tuple[str, Fraction], ...]  # sorted by atom, no exponent 0
Polynomial = dict[Monomial, Fraction]  # no coefficient 0

DEGREE: Final = "°"
CONSTANTS: Final = frozenset(("π", "e", "i"))
MAX_BITS: Final = 2048  # of a coefficient's numerator or denominator: 616 digits
MAX_EXPONENT_BITS: Final = 64  # of an exponent that stays symbolic
MAX_TERMS: Final = 400
MAX_WORK: Final = 8_000  # products of terms in one comparison: about 0.1 s, 0.4 s on a busy core
MAX_KEY_CHARS: Final = 4000  # of what becomes the name of an atom; names of names of sums grow fast
MAX_FACTORED_BITS: Final = 256  # of a number that is taken apart into primes
MAX_TRIAL_PRIME: Final = 3000


class Unreadable(Exception):
    """The text has no exact value, or one beyond the limits."""


@dataclass(frozen=True)
class Quotient:
    top: Polynomial
    bottom: Polynomial

    @property
    def number(self) -> Fraction | None:
        """The value if this is a rational number."""
        if self.bottom == ONE and self.top.keys() <= {()}:
            return self.top.get((), Fraction(0))
        return None

    @property
    def lone_atom(self) -> str | None:
        """The atom if this is nothing but one: "x" for x, None for 2x, x^2 and x + y."""
        if self.bottom != ONE or list(self.top.values()) != [1]:
            return None
        (monomial,) = self.top
        if len(monomial) != 1:
            return None
        ((atom, power),) = monomial
        return atom if power == 1 else None

    @property
    def atoms(self) -> set[str]:
        """All atoms in it."""
        monomials = [*self.top, *self.bottom]
        return {atom for monomial in monomials for atom, _ in monomial}


ONE: Final[Polynomial] = {(): Fraction(1)}


def single(atom: str) -> Quotient:
    """The value that is this atom."""
    monomial = ((atom, Fraction(1)),)
    return Quotient({monomial: Fraction(1)}, ONE)


def size(value: Fraction) -> int:
    """The bits of the longer one of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _primes_below(limit: int) -> list[int]:
    found: list[int] = []
    for n in range(2, limit):
        if all(n % p for p in found if p * p <= n):
            found.append(n)
    return found


TRIAL_PRIMES: Final = _primes_below(MAX_TRIAL_PRIME)


def prime_powers(n: int) -> Iterator[tuple[int, int]]:
    """(prime, exponent) of n >= 1. A cofactor without small primes stays whole, or as the square it is: an equality
    found with it is still exact, one may only be missed."""
    for p in TRIAL_PRIMES:
        if p * p > n:
            break
        power = 0
        while n % p == 0:
            n, power = n // p, power + 1
        if power:
            yield p, power
    if n > 1:
        root = isqrt(n)
        yield (root, 2) if root * root == n else (n, 1)


class Algebra:
    """The operations, for the lifetime of one comparison: it holds the budget of work and what the composite atoms
    stand for."""

    def __init__(self, max_work: int = MAX_WORK, angle_parts: Mapping[str, int] | None = None) -> None:
        self.work_left = max_work
        self.rules: dict[str, tuple[int, Polynomial]] = {"i": (2, {(): Fraction(-1)})}  # atom -> (n, what atom^n is)
        self.variables_in: dict[str, frozenset[str]] = {}  # atom -> variables that it depends on; absent: none
        self.arguments: dict[str, Quotient] = {}  # atom of a function of one argument -> that argument
        self.angle_parts = dict(angle_parts or {})  # "x" -> n where sines are written in those of x/n
        self.angles_seen: dict[str, set[int]] = {}  # "x" -> denominators of its multiples under sines

    # --- making -----------------------------------------------------------------------------------------------------
    def number(self, value: Fraction | int) -> Quotient:
        value = self._checked(Fraction(value))
        return Quotient({(): value} if value else {}, ONE)

    def atom(self, name: str, *depends_on: Quotient, exponent: Fraction = Fraction(1)) -> Quotient:
        """A free atom: a variable of that name, or (with `depends_on`) a function of these arguments."""
        if name not in CONSTANTS:
            names = frozenset().union(*map(self.variables, depends_on))
            if not depends_on:
                names = frozenset((name,))
            if names:
                self.variables_in[name] = names
        return Quotient({((name, exponent),): Fraction(1)}, ONE)

    def applied(self, name: str, *arguments: Quotient) -> Quotient:
        """A function of these arguments, of which nothing more is known."""
        atom = f"{name}({','.join(map(self.key, arguments))})"
        if len(arguments) == 1:
            self.arguments[atom] = arguments[0]
        return self.atom(atom, *arguments)

    def prime(self, prime: int, exponent: Fraction) -> Quotient:
        atom = f"#{prime}"
        self.rules[atom] = 1, {(): Fraction(prime)}
        return self._atom_power(atom, exponent)

    def absolute(self, a: Quotient) -> Quotient:
        """|a|, of a product the product of each factor's; of anything else an atom that |-a| shares."""
        if a.number is not None:
            return self.number(abs(a.number))
        if a.bottom != ONE or len(a.top) != 1:
            return self._absolute_atom(a)
        ((monomial, coefficient),) = a.top.items()
        result = self.number(abs(coefficient))
        for atom, power in monomial:
            is_positive = atom in ("π", "e") or atom.startswith(("#", "abs("))
            if not is_positive:
                atom = self._absolute_atom(single(atom)).lone_atom
            result = self.multiply(result, self._atom_power(atom, power))
        return result

    def _absolute_atom(self, a: Quotient) -> Quotient:
        a = self.negate(a) if self.leading(a) < 0 else a
        magnitude = self.applied("abs", a)
        if a.bottom == ONE:
            self.rules[magnitude.lone_atom] = 2, self._product(a.top, a.top)
        return magnitude

    # --- arithmetic -------------------------------------------------------------------------------------------------
    def add(self, a: Quotient, b: Quotient) -> Quotient:
        if a.bottom == b.bottom:
            return Quotient(self._sum(a.top, b.top), a.bottom)
        left = self._product(a.top, b.bottom)
        right = self._product(b.top, a.bottom)
        return Quotient(self._sum(left, right), self._product(a.bottom, b.bottom))

    def negate(self, a: Quotient) -> Quotient:
        return Quotient({monomial: -c for monomial, c in a.top.items()}, a.bottom)

    def subtract(self, a: Quotient, b: Quotient) -> Quotient:
        return self.add(a, self.negate(b))

    def multiply(self, a: Quotient, b: Quotient) -> Quotient:
        top = self._product(a.top, b.top)
        return Quotient(top, self._product(a.bottom, b.bottom))

    def square(self, a: Quotient) -> Quotient:
        return self.multiply(a, a)

    def divide(self, a: Quotient, b: Quotient) -> Quotient:
        if not b.top:
            raise Unreadable("division by zero")
        if len(b.top) > 1:
            return self.multiply(a, Quotient(b.bottom, b.top))
        ((monomial, coefficient),) = b.top.items()
        inverse = self.monomial_power(monomial, coefficient, Fraction(-1))
        whole = self.multiply(a, Quotient(b.bottom, ONE))
        return self.multiply(whole, inverse)

    def equal(self, a: Quotient, b: Quotient) -> bool:
        if a == b:
            return True
        left = self._product(a.top, b.bottom)
        return left == self._product(b.top, a.bottom)

    def whole_power(self, a: Quotient, n: int) -> Quotient:
        """a^n for an integer n, by repeated squaring."""
        if n < 0:
            return self.divide(self.number(1), self.whole_power(a, -n))
        if len(a.top) > 1 and n > MAX_TERMS:
            raise Unreadable("too large a power of a sum")
        result = self.number(1)
        while n:
            if n & 1:
                result = self.multiply(result, a)
            n >>= 1
            if n:
                a = self.multiply(a, a)
        return result

    def monomial_power(self, monomial: Monomial, coefficient: Fraction, exponent: Fraction) -> Quotient:
        """(coefficient · monomial)^exponent, the principal root where the exponent is a fraction."""
        result = self._number_power(coefficient, exponent)
        for atom, power in monomial:
            is_free = atom in self.variables_in and atom not in self.rules
            if is_free and power % 2 == 0 == exponent.denominator % 2:
                atom = self._absolute_atom(single(atom)).lone_atom  # √(x^2) = |x|
            result = self.multiply(result, self._atom_power(atom, power * exponent))
        return result

    def sum_power(self, a: Polynomial, exponent: Fraction) -> Quotient:
        """(a sum)^exponent: the whole part multiplied out, the rest one atom, its common factor before the root."""
        whole, rest = divmod(exponent, 1)
        result = self.whole_power(Quotient(a, ONE), whole)
        if not rest:
            return result
        top = gcd(*(c.numerator for c in a.values()))
        bottom = lcm(*(c.denominator for c in a.values()))
        content = Fraction(top, bottom)
        primitive = {monomial: c / content for monomial, c in a.items()}
        atom = f"({self.key(Quotient(primitive, ONE))})"
        self.rules[atom] = 1, primitive
        root = self.atom(atom, Quotient(primitive, ONE), exponent=rest)
        result = self.multiply(result, root)
        return self.multiply(result, self._number_power(content, rest))

    # --- looking ----------------------------------------------------------------------------------------------------
    def variables(self, a: Quotient) -> frozenset[str]:
        """The names that the value depends on; none for √2 + π."""
        names = [self.variables_in.get(atom, frozenset()) for atom in a.atoms]
        return frozenset().union(*names)

    def is_opaque(self, a: Quotient) -> bool:
        """Whether anything in the value is more than a number or a name."""
        return any("(" in atom for atom in a.atoms)

    def without(self, unit: str, a: Quotient) -> Quotient | None:
        """The value with the factor `unit` taken from the terms that have it; None if no term has it, or one has a
        power of it, or it stands below the line."""
        if any(atom == unit for monomial in a.bottom for atom, _ in monomial):
            return None
        factor = (unit, Fraction(1))
        kept: Polynomial = {}
        for monomial, c in a.top.items():
            rest = tuple(part for part in monomial if part != factor)
            if any(atom == unit for atom, _ in rest):
                return None
            kept = self._sum(kept, {rest: c})
        return None if kept == a.top else Quotient(kept, a.bottom)

    def key(self, a: Quotient) -> str:
        """A text that determines the value; equal values share it unless they are quotients of sums."""
        if a.bottom != ONE:
            lead = a.bottom[min(a.bottom)]
            return f"{self._print(a.top, lead)}/({self._print(a.bottom, lead)})"
        return self._print(a.top, Fraction(1))

    def leading(self, a: Quotient) -> Fraction:
        """The coefficient that decides the sign under which `f(-x)` and `f(x)` meet; 0 for zero."""
        if not a.top:
            return Fraction(0)
        top = a.top[min(a.top)]
        return top / a.bottom[min(a.bottom)]

    # --- inside -----------------------------------------------------------------------------------------------------
    def _print(self, polynomial: Polynomial, lead: Fraction) -> str:
        terms, length = [], 0
        for monomial, c in sorted(polynomial.items()):
            factors = "".join(f"*{atom}^{power}" for atom, power in monomial)
            terms.append(f"{c / lead}{factors}")
            length += len(factors)
            if length > MAX_KEY_CHARS:
                raise Unreadable("too long a name")
        return "+".join(terms) or "0"

    def _checked(self, value: Fraction) -> Fraction:
        if size(value) > MAX_BITS:
            raise Unreadable("too large a number")
        return value

    def _sum(self, p: Polynomial, q: Polynomial) -> Polynomial:
        total = dict(p)
        for monomial, c in q.items():
            self._spend(c)
            c = self._checked(total.get(monomial, Fraction(0)) + c)
            if c:
                total[monomial] = c
            else:
                total.pop(monomial, None)
        if len(total) > MAX_TERMS:
            raise Unreadable("too many terms")
        return total

    def _product(self, p: Polynomial, q: Polynomial) -> Polynomial:
        if p == ONE or q == ONE:
            return q if p == ONE else p
        total: Polynomial = {}
        for left, c in p.items():
            row: Polynomial = {}
            for right, d in q.items():
                merged = self._merge(left, right, self._checked(c * d))
                for monomial, e in merged.items():
                    self._spend(c, d)
                    row[monomial] = row.get(monomial, Fraction(0)) + e
            row = {monomial: e for monomial, e in row.items() if e}
            total = self._sum(total, row)
        return total

    def _merge(self, left: Monomial, right: Monomial, coefficient: Fraction) -> Polynomial:
        """coefficient · left · right, with the whole powers of atoms that have a rule replaced by what they are."""
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
            product = self._product(product, polynomial)
        return product

    def _atom_power(self, atom: str, power: Fraction) -> Quotient:
        if size(power) > MAX_EXPONENT_BITS:
            raise Unreadable("too large an exponent")
        if atom == "i" and power.denominator != 1:
            raise Unreadable("a root of i")
        if atom not in self.rules:
            return Quotient({((atom, power),): Fraction(1)}, ONE)
        period, polynomial = self.rules[atom]
        whole, rest = divmod(power, period)
        monomial = ((atom, rest),) if rest else ()
        alone = Quotient({monomial: Fraction(1)}, ONE)
        known = Quotient(polynomial, ONE)
        if known.number:
            power_of_number = self._rational_power(known.number, whole)
            return self.multiply(alone, self.number(power_of_number))
        return self.multiply(alone, self.whole_power(known, whole))

    def _rational_power(self, base: Fraction, n: int) -> Fraction:
        if abs(base) == 1:
            return base ** (n % 2)
        if abs(n) * (size(base) - 1) > MAX_BITS:
            raise Unreadable("too large a power")
        return self._checked(base**n)

    def _number_power(self, base: Fraction, exponent: Fraction) -> Quotient:
        if not base and exponent <= 0:
            raise Unreadable("zero to a power that is not positive")
        if exponent.denominator == 1 or base == 1:
            return self.number(self._rational_power(base, int(exponent)))
        if max(size(base), exponent.denominator) > MAX_FACTORED_BITS:
            raise Unreadable("too large a root")
        if not base:
            return self.number(0)
        if base < 0:  # the real root if there is one: (-8)^(1/3) = -2, √-4 = 2i
            if exponent.denominator % 2:
                sign = self.number((-1) ** exponent.numerator)
            elif exponent.denominator == 2:
                sign = self._atom_power("i", Fraction(exponent.numerator))
            else:
                raise Unreadable("an even root of a negative number")
            return self.multiply(sign, self._number_power(-base, exponent))
        result = self.number(1)
        for part, direction in ((base.numerator, 1), (base.denominator, -1)):
            for prime, power in prime_powers(part):
                result = self.multiply(result, self.prime(prime, direction * power * exponent))
        return result

    def _spend(self, *coefficients: Fraction) -> None:
        bits = sum(c.numerator.bit_length() + c.denominator.bit_length() for c in coefficients)
        self.work_left -= 1 + bits // 256
        if self.work_left < 0:
            raise Unreadable("too much work")
