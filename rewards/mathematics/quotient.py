r"""Define the values of the algebra: quotients of polynomials in atoms, such as (2x + √3) / y.

A monomial is a product of atoms with rational exponents, a polynomial is a sum of monomials with Fraction coefficients,
and two quotients are equal when their cross products are the same polynomial. Atoms are strings; algebra.py lists them.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

from rewards.mathematics.rational import Unreadable

if TYPE_CHECKING:
    from rewards.mathematics.algebra import Algebra

Monomial = tuple[tuple[str, Fraction], ...]  # sorted by atom, no exponent 0
Polynomial = dict[Monomial, Fraction]  # no coefficient 0
Rational = int | Fraction

MAX_TERMS = 400  # of a polynomial
MAX_KEY_CHARS = 4000  # of what becomes the name of an atom; names of names of sums grow fast
ONE: Polynomial = {(): Fraction(1)}


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
    def is_whole(self) -> bool:
        """Tell whether this is an integer."""
        return self.number is not None and self.number.denominator == 1

    @property
    def lone_atom(self) -> str | None:
        """Return the atom if this is nothing but one: "x" for x, None for 2x, x^2 and x + y."""
        if self.bottom != ONE or list(self.top.values()) != [1]:
            return None
        (monomial,) = self.top
        if len(monomial) != 1:
            return None
        ((atom, power),) = monomial
        return atom if power == 1 else None

    @property
    def atoms(self) -> set[str]:
        """Return all atoms in it."""
        return {atom for atom, _ in chain(*self.top, *self.bottom)}

    @property
    def variables(self) -> frozenset[str]:
        """Return the names that the value depends on; none for √2 + π."""
        names = [self.algebra.variables_in.get(atom, frozenset()) for atom in self.atoms]
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

    def without(self, unit: str) -> "Quotient | None":
        """Return the value with the factor `unit` taken from the terms that have it.

        None if no term has it, or one has a power of it, or it stands below the line.
        """
        if any(unit in dict(monomial) for monomial in self.bottom):
            return None
        kept: Polynomial = {}
        for monomial, c in self.top.items():
            powers = dict(monomial)
            if powers.pop(unit, 1) != 1:
                return None
            kept = self.algebra.sum(kept, {tuple(powers.items()): c})
        return None if kept == self.top else self.algebra.quotient(kept, self.bottom)


def _print(polynomial: Polynomial, lead: Fraction) -> str:
    terms, length = [], 0
    for monomial, c in sorted(polynomial.items()):
        factors = "".join(f"*{atom}^{power}" for atom, power in monomial)
        terms.append(f"{c / lead}{factors}")
        length += len(factors)
        if length > MAX_KEY_CHARS:
            raise Unreadable("too long a name")
    return "+".join(terms) or "0"
