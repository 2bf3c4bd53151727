r"""Compute with values at sample points, and take two expressions that agree at all of them for the same.

An identity need not be proved: two expressions that differ almost surely differ at a random point (Schwartz-Zippel). So
a value holds its numbers at 17 points, each of which gives every variable a random number:

    2x + 1           at x = 0.83, -2.27, 3.41, ...        2.66, -3.54, 7.82, ...
    \frac12          one number for all points             1/2

Rational constants are exact. All other numbers have PRECISION bits; those that agree in AGREEING of them, 150 digits,
are equal, so 0.333 is not 1/3. A constant that agrees with a simple fraction becomes it: √2 · √2 is 2.

The first point has positive numbers only. In the next ones, one variable at a time is negative and the others stay, so
that √(x²) is |x| and not x, √(xy) is √x · √y, and it can be seen on which variables a value depends.

Where |…|, a root or a logarithm bends, far from these points, another sign of its argument is searched for: |x + 3| is
not x + 3. A power or a factorial that is too large to compute is a variable with its own name: 2025! - 1 is -1 + 2025!.
"""

import operator
import random
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import islice, product
from typing import Any

from mpmath import MPContext
from mpmath.libmp import to_rational

PRECISION = 1024
AGREEING = 500
AGREEING_DIGITS = 150
MAX_BITS = 2048  # of the numerator or denominator of a rational number: 616 digits
MAX_DENOMINATOR = 10**40  # of the fraction that a rounded constant can be
MAX_WORK = 20_000  # numbers that one comparison may compute, functions counting for more: about 0.3 s
NUM_FLIPS = 7
NUM_THIRDS = 30  # steps of a search for the least size of an argument
MAX_BENDS = 200  # places where the bends of |…|, roots and logarithms are looked for
SCALES = (0.8, 0.06, 0.3, 1.4, 2.4, 3.4, 5.5, 11, 40, 1e9)  # of the variables, at the first point and after the flips

mp = MPContext()
mp.prec = PRECISION  # never changed again: threads share it
NOT_REAL = mp.mpc("nan")  # the logarithm of a negative number, for one
_TOLERANCE = mp.mpf(2) ** -AGREEING

Number = Any  # Fraction, mp.mpf or mp.mpc
Rational = int | Fraction


class Unreadable(Exception):
    """The text has no value, or one beyond the limits."""


@dataclass(frozen=True, eq=False)
class Value:
    """The numbers of an expression: one of a constant, else one per point; None where it is too large.

    name: of the variable or constant, if it is nothing else. names: the variables that were met on the way.
    is_calculation: it was written with operations that can be carried out, 2 + 3 and not 5. made_of: a function and its
    arguments, if it depends on variables and is none itself.
    """

    at: tuple[Number | None, ...]
    points: "Points" = field(repr=False)
    names: frozenset[str] = frozenset()
    name: str = ""
    is_calculation: bool = False
    made_of: "tuple[Callable[..., Number], Sequence[Value]] | None" = None

    def __add__(self, other: "Value | Rational") -> "Value":
        return self.points.apply(_sum, self, other)

    def __mul__(self, other: "Value | Rational") -> "Value":
        return self.points.apply(_product, self, other)

    def __truediv__(self, other: "Value | Rational") -> "Value":
        return self.points.apply(_quotient, self, other)

    def __neg__(self) -> "Value":
        return self * -1

    def __sub__(self, other: "Value") -> "Value":
        return self + -other

    def equals(self, other: "Value") -> bool:
        """Tell whether both have the same numbers at all points, and are real numbers at the same flips."""
        columns = self.points.columns((self, other))
        pairs = zip(*columns, strict=True)
        if not all(_same_at(place, *numbers) for place, numbers in enumerate(pairs)):
            return False
        for place in islice(self.points.bends(), MAX_BENDS):
            if not _same_at(1, self.moved(*place), other.moved(*place)):
                return False
        return True

    def moved(self, name: str, number: Number) -> Number | None:
        """Return the number at the first point, but for this variable, which has another number."""
        if name not in self.names:
            return self.at[0]
        if not self.made_of:
            return number
        self.points.spend(1)
        function, arguments = self.made_of
        return _number_or_none(function, tuple(argument.moved(name, number) for argument in arguments))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.equals(other)

    def ratio_to(self, other: "Value") -> Number | None:
        """Return the real constant by which the other must be multiplied to get this value; None if there is none."""
        ratio = (self / other).at[0]
        if ratio is None or not _is_real(ratio):
            return None
        multiple = other * self.points.constant("", ratio)
        return ratio if self.equals(multiple) else None

    @property
    def is_zero(self) -> bool:
        return self.at == (0,)

    @property
    def number(self) -> Fraction | None:
        """Return the value of a rational constant, None for anything else."""
        if len(self.at) > 1 or type(self.at[0]) is not Fraction:
            return None
        return self.at[0]

    @property
    def whole(self) -> int | None:
        """Return the value of a whole constant, None for anything else."""
        return self.number.numerator if self.number is not None and self.number.denominator == 1 else None

    @property
    def constant(self) -> Number | None:
        """Return the value of a real constant, None for anything else."""
        return rounded(self.at[0]) if len(self.at) == 1 and _is_real(self.at[0]) else None

    @property
    def variables(self) -> frozenset[str]:
        """Return the names on which the value depends: none for x - x."""
        if len(self.at) == 1:
            return frozenset()
        found = set()
        for index, name in enumerate(self.points.variables):
            flip = self.at[_flip_of(index)]
            if name in self.names and not _agree(self.at[0], flip):
                found.add(name)
        return frozenset(found)


class Points:
    """The points of one comparison: the numbers of its variables, and how much may still be computed."""

    def __init__(self, nouns: Set[str] | None = None):
        self.nouns = nouns  # that may be counted; None: all
        self.variables: dict[str, Value] = {}
        self.work_left = MAX_WORK
        self.bending: list[Value] = []  # the arguments of |…|, roots and logarithms

    def spend(self, work: int) -> None:
        self.work_left -= work
        if self.work_left < 0:
            raise Unreadable("too much work")

    def bends(self) -> Iterator[tuple[str, Number]]:
        """Yield names of variables, each with a number for which an argument of |…| may have another sign."""
        for value in self.bending:
            for name in sorted(value.names):
                yield from product((name,), _places_of_bends(value, name))

    def number(self, value: Rational) -> Value:
        return Value((_checked(Fraction(value)),), self)

    def constant(self, name: str, number: Number) -> Value:
        return Value((number,), self, name=name)

    def variable(self, name: str) -> Value:
        """Return the variable of this name, with the same numbers whenever it is met."""
        if name not in self.variables:
            numbers = _numbers_of_variable(len(self.variables))
            self.variables[name] = Value(numbers, self, frozenset((name,)), name)
        return self.variables[name]

    def unknown(self, name: str, *arguments: Value) -> Value:
        """Return a function of which nothing is known: a random number for each name and arguments."""

        def number(*numbers: Number) -> Number:
            written = [mp.nstr(rounded(number), AGREEING_DIGITS) for number in numbers]  # the same if they agree
            rng = random.Random(f"{name}{written}")
            sign = rng.choice((1, 1, 1, -1))
            return sign * _random(rng, 2.0)

        return self.apply(number, *arguments)

    def apply(self, function: Callable[..., Number], *arguments: "Value | Rational", work: int = 1) -> Value:
        """Return a function of values, computed at each point. work: the cost of one number."""
        values = [one if isinstance(one, Value) else self.number(one) for one in arguments]
        columns = self.columns(values)
        self.spend(work * len(columns[0]))
        at = [_number_or_none(function, numbers) for numbers in zip(*columns, strict=True)]
        if all(number is None or mp.isnan(number) for number in at):
            raise Unreadable("no value at any point")
        first, *others = at
        has_all = all(number is not None for number in at)  # mpmath is slow to compare with None
        if has_all and all(_agree(first, other) for other in others):
            return Value((_simplest(first),), self)
        names = frozenset().union(*(value.names for value in values))
        return Value(tuple(at), self, names, made_of=(function, values))

    def columns(self, values: Sequence[Value]) -> list[tuple[Number | None, ...]]:
        """Return the numbers of each value: one per point, if one of them has so many."""
        num_points = max(len(value.at) for value in values)
        return [value.at if len(value.at) == num_points else value.at * num_points for value in values]


def _flip_of(index: int) -> int:
    """Return the point at which the variable of this index is negative and most others are as at the first point."""
    return 1 + index % NUM_FLIPS


@cache
def _numbers_of_variable(index: int) -> tuple[Number, ...]:
    rng = random.Random(index)
    at = [_random(rng, SCALES[0])] * (1 + NUM_FLIPS)
    at += [_random(rng, scale) for scale in SCALES[1:]]
    at[_flip_of(index)] = -_random(rng, 2.0)
    return tuple(at)


def _random(rng: random.Random, scale: float) -> Number:
    """Return a random number between 1 and 2 times the scale."""
    return mp.mpf(scale) * (1 + mp.ldexp(rng.getrandbits(PRECISION), -PRECISION))


POWERS_OF_2 = range(-120, 361, 40)
FAR = sorted(mp.mpf(sign * 1.37 * 2.0**power) for power in POWERS_OF_2 for sign in (1, -1))


def _places_of_bends(value: Value, name: str) -> Iterator[Number]:
    """Yield numbers of a variable that lie far apart, and some around those of a value's least sizes."""
    sizes = []
    for place in FAR:
        number = value.moved(name, place)
        if number:
            yield place
            sizes.append((place, abs(number)))
    for (low, one), (_, least), (high, other) in zip(sizes, sizes[1:], sizes[2:], strict=False):
        if least <= min(one, other) and low * high > 0:
            yield from _towards_least(value, name, low, high)


def _towards_least(value: Value, name: str, low: Number, high: Number) -> Iterator[Number]:
    """Yield numbers of a variable that approach, from both sides, the one of a value's least size between two."""
    for _ in range(NUM_THIRDS):
        third = (high / low) ** (1 / 3)
        left = low * third
        right = high / third
        yield from (left, right)
        one, other = (abs(value.moved(name, x) or 0) for x in (left, right))
        if one < other:
            high = right
        else:
            low = left


def _number_or_none(function: Callable[..., Number], numbers: tuple[Number | None, ...]) -> Number | None:
    if any(number is None for number in numbers):
        return None
    try:
        found = _real(_checked(function(*numbers)))
    except ArithmeticError:  # too large a number
        return None
    except ValueError:
        return NOT_REAL
    return found if mp.isfinite(found) else NOT_REAL


def _checked(number: Number) -> Number:
    if type(number) is Fraction and num_bits(number) > MAX_BITS:
        raise Unreadable("too large a number")
    return number


def num_bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def rounded(number: Number) -> Number:
    """Return the number with PRECISION bits."""
    return mp.mpf(number.numerator) / number.denominator if type(number) is Fraction else number


def _real(number: Number) -> Number:
    """Drop a real or imaginary part that only rounding has left."""
    if not isinstance(number, mp.mpc):
        return number
    if abs(number.imag) <= abs(number.real) * _TOLERANCE:
        return number.real
    if abs(number.real) <= abs(number.imag) * _TOLERANCE:
        return mp.mpc(0, number.imag)
    return number


def _simplest(number: Number) -> Number:
    """Return the simple fraction with which a constant agrees, otherwise the number."""
    if not isinstance(number, mp.mpf) or not -AGREEING < mp.mag(number) < AGREEING:
        return Fraction(0) if number == 0 else number
    found = Fraction(*to_rational(number._mpf_)).limit_denominator(MAX_DENOMINATOR)
    return found if _agree(number, found) else number


def _agree(one: Number | None, other: Number | None) -> bool:
    if one is None or other is None:
        return True
    if type(one) is Fraction and type(other) is Fraction:
        return one == other
    one = rounded(one)
    other = rounded(other)
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other))


def _same_at(place: int, one: Number | None, other: Number | None) -> bool:
    """Tell whether two numbers at a point agree; where a variable is negative, all that is not real does."""
    if _agree(one, other):
        return True
    if _is_real(one) or _is_real(other):
        return False
    return mp.isnan(one) or mp.isnan(other) or 1 <= place <= NUM_FLIPS


def _is_real(number: Number) -> bool:
    return not isinstance(number, mp.mpc)


# --- arithmetic of two numbers --------------------------------------------------------------------------------------
def _exactly_or_rounded(operation: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    def compute(one: Number, other: Number) -> Number:
        if type(one) is Fraction and type(other) is Fraction:
            return operation(one, other)
        return operation(rounded(one), rounded(other))

    return compute


def _added(one: Number, other: Number) -> Number:
    """Add two numbers; a difference that only rounding has left is zero. No number may be lost beside the other."""
    if type(one) is Fraction or not one or not other:
        return one + other
    if abs(mp.mag(one) - mp.mag(other)) > AGREEING:
        raise OverflowError
    total = one + other
    return Fraction(0) if abs(total) <= (abs(one) + abs(other)) * _TOLERANCE else total


_sum = _exactly_or_rounded(_added)
_product = _exactly_or_rounded(operator.mul)
_quotient = _exactly_or_rounded(operator.truediv)
