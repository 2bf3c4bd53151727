"""Compute with rational numbers, exactly and within limits: beyond these `Unreadable` is raised."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from math import isqrt

import numpy as np

MAX_BITS = 2048  # of a numerator or denominator: 616 digits
MAX_TRIAL_PRIME = 3000


class Unreadable(Exception):
    """The text has no exact value, or one beyond the limits."""


def size(value: Fraction) -> int:
    """Return the bits of the longer one of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def checked(value: Fraction) -> Fraction:
    if size(value) > MAX_BITS:
        raise Unreadable("too large a number")
    return value


def rational_power(base: Fraction, n: int) -> Fraction:
    if abs(base) == 1:
        return base ** (n % 2)
    if abs(n) * (size(base) - 1) > MAX_BITS:
        raise Unreadable("too large a power")
    return checked(base**n)


def simplest(value: float) -> Fraction:
    """Return the simplest fraction that rounds to this float, or to this float32 if it is one: 1/3, 0.1."""
    kind = np.float32 if float(np.float32(value)) == value else np.float64
    candidates = (Fraction(value).limit_denominator(10**digits) for digits in count(1))
    return next(found for found in candidates if kind(float(found)) == value)


def _primes_below(limit: int) -> list[int]:
    found = []
    for n in range(2, limit):
        if all(n % p for p in found if p * p <= n):
            found.append(n)
    return found


TRIAL_PRIMES = _primes_below(MAX_TRIAL_PRIME)


def prime_powers(value: Fraction) -> Iterator[tuple[int, int]]:
    """Yield each prime of a positive number with its exponent; those of its denominator are negative."""
    for part, sign in ((value.numerator, 1), (value.denominator, -1)):
        for prime, power in _factors(part):
            yield prime, sign * power


def _factors(n: int) -> Iterator[tuple[int, int]]:
    """Yield each prime of n >= 1 with its exponent.

    A cofactor without small primes counts as a prime, or as the square of one. An equality found with it is still
    exact; one may only be missed.
    """
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
