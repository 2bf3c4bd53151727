r"""Read one value with its unit, noun or currency.

It may be `\$1{,}234.50`, `12\text{ cm}^2`, `90^\circ`, `5\%`, `about 3 million`.

Currency, degrees, percent and units are dropped; a known unit is remembered, so that 12 cm and 12 m can be told apart,
and so is a noun, so that 3 cats and 4 dogs are not 4 cats and 3 dogs, and 20% off is not 20% more. Amounts in several
units are added: 5 hours 30 minutes. A percent sign is never a factor: 5\% is 5 and not 0.05. After a word that changes
the meaning ("5 or more", "12 pm") nothing is dropped.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from rewards.mathematics import units
from rewards.mathematics.expression import read_expression
from rewards.mathematics.tokens import Token, Tokens, is_mark, is_sum, text_of
from rewards.mathematics.value import Points, Unreadable, Value

MAX_UNIT_WORDS = 8
_PLAIN_UNITS = frozenset(("square", "sq", "cubic", "unit", "units", "degree", "degrees"))
# tokens as characters, see _shape: what may follow a number, and what letters alone may be (`20 m/s^2`)
_START = re.compile(r"[({/*^]*u")  # of the tail: 5 / (kg m), 5^{th}
_POWER = r"\^(?:\{-?n\}|-?n)"
_TAIL = re.compile(rf"(?:\^(?=\{{?u))?(?:u|-(?=[uc])|[/*](?=[({{]*[uc])|[(){{}}.]|{_POWER}|(?<=[-/*u])c)*")
_PAIR = re.compile("([0-9]{1,99}) - ([0-9]{1,99})")
_CODE = re.compile("[0-9]+(?:(?: - [0-9]+){2,}|(?: / [0-9]+){2,})")
_NUMERAL = re.compile("([0-9][0-9A-Z]*)(?:_|base)([0-9]{1,2})", re.IGNORECASE)
_SILENT = tuple("(){}.")
_MEASURE = re.compile(  # one word of a unit, as texts of tokens with spaces between them
    rf"(?<!\S)(?:(?P<before>/|per|-|\*) )?(?:(?P<square>{'|'.join(units.POWER_WORDS)}) )?(?!per |in [^\W\d])"
    rf"(?P<word>{'|'.join(units.OF_TWO_WORDS)}|[^\W\d]\S*|[{''.join(units.UNIT_MARKS)}])"
    r"(?: \^ (?P<exponent>(?:- )?[0-9]{1,2}))?(?!\S)(?: (?=(?P<after>[-*])))?"
)
_COMPOUND = re.compile("(?:n[uc]){2,}")  # 5 h 30 min
_LETTERS = re.compile(rf"c(?:{_POWER})?(?:[/*]c(?:{_POWER})?|c\^(?:\{{-n\}}|-n))*")


@dataclass(frozen=True)
class Scalar:
    value: Value
    unit: units.Unit | None = None  # both sides must agree if both have one
    if_unit: "Scalar | None" = None  # of `5 m`: the 5 in metres, should the m be no variable
    noun: frozenset[str] = frozenset()  # what is counted or measured, where it is no unit: {"duck", "egg"}
    base: int = 10  # in which the digits are written; the value is what they say in base ten

    def contradicts(self, other: "Scalar") -> bool:
        """Tell whether they cannot be the same whatever their numbers.

        5 cm and 5 kg cannot, nor 5 people and 5 cm, nor 5 more and 5 less. 5% salt contradicts 5% sugar, too. But 5
        students may be 5 children.
        """
        if units.are_opposed(self.noun, other.noun):
            return True
        if self.unit and other.unit:
            pairs = list(product(self.things, other.things))
            are_others = bool(pairs) and not any(one in noun or noun in one for one, noun in pairs)
            return are_others or self.unit.contradicts(other.unit)
        unit = (self.things and other.unit) or (other.things and self.unit)
        return bool(unit) and unit.excludes_counts

    @property
    def things(self) -> frozenset[str]:
        """Return the nouns without those that only say in which direction."""
        return self.noun.difference(*units.OPPOSITES)

    def in_unit_of(self, other: "Scalar") -> Value:
        """Return the value in the other's unit: 1000 for 1 km and 5 m."""
        if self.unit is None or other.unit is None or self.unit.powers != other.unit.powers:
            return self.value
        return self.value * (self.unit.size / other.unit.size)

    def equals(self, other: "Scalar") -> bool:
        """Tell whether both are the same amount, by the units that are known."""
        return not self.contradicts(other) and self.in_unit_of(other).equals(other.value)


def read_quantity(tokens: Tokens, points: Points) -> Scalar:
    """Return the value and the unit of all the tokens together. Raise `Unreadable` if there is no such reading."""
    if not _COMPOUND.fullmatch(_shape(tokens)):
        return _numeral(tokens, points) or _amount(tokens, points)
    amounts = []
    for at in range(0, len(tokens), 2):
        amounts.append(_amount(tokens[at : at + 2], points))
    total = sum_of(amounts)
    if total is None:
        raise Unreadable("several amounts")
    return total


def sum_of(parts: Sequence[Scalar]) -> Scalar | None:
    """Return 5 hours and 30 minutes as 5.5 hours; None unless each part is less than one of the unit before it."""
    parts = [part.if_unit or part for part in parts]
    unit = parts[0].unit
    total, limit = 0, math.inf
    for part in parts:
        if unit is None or part.unit is None or part.unit.powers != unit.powers or part.noun:
            return None
        size = (part.value.number or 0) * part.unit.size
        if not 0 < size < limit:
            return None
        total, limit = total + size, part.unit.size
    return Scalar(parts[0].value.points.number(total / unit.size), unit)


def _numeral(tokens: Tokens, points: Points) -> Scalar | None:
    """Read a whole number in another base: `101_2`, `{20}_{5}`, `1A_{16}`, `101 base 2`; None if this is none."""
    kept = [token._replace(text=token.text.upper()) for token in tokens if token.text not in ("{", "}", "(", ")", "in")]
    found = _NUMERAL.fullmatch("".join(token.text for token in kept))
    base = int(found[2]) if found else 0
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in found[1]):
        return None
    return Scalar(read_expression(kept[:-2], points), base=base)


def _amount(tokens: Tokens, points: Points) -> Scalar:
    """Read one number and its unit."""
    number, currency = _without_lead(tokens)
    number, tail = _split_tail(number)
    if is_range_or_code(number):
        raise Unreadable("a range, a date or a code")
    value = read_expression(number, points)
    if not tail:
        return _with_letters(number, value, units.product_of(currency), points)
    while tail and units.magnitude_named(tail[0].text):
        value = value * units.magnitude_named(tail.pop(0).text)
    unit, noun = _unit_and_noun(tail, currency)
    counts = unit or any(token.kind == "number" for token in number)  # "18 eggs" and "x units", but "n odd" is not n
    if not counts and any(token.word and token.word not in _PLAIN_UNITS for token in tail):
        raise Unreadable("a noun after something that counts nothing")
    return Scalar(value, unit, noun=noun)


def _with_letters(number: list[Token], value: Value, unit: units.Unit | None, points: Points) -> Scalar:
    """Read a value without words behind it: letters may be its unit, and degrees inside a sum are its unit."""
    letters = _start_of_unit_letters(number)
    if letters:
        without = read_expression(number[:letters], points)
        if not without.variables:
            return Scalar(value, unit, Scalar(without, _unit_and_noun(number[letters:])[0]))
    if any(is_mark(token, "°") for token in number) and not _holds_function(number):
        unit = unit or units.product_of([("degree", 1)])
    return Scalar(value, unit)


def is_range_or_code(tokens: Tokens) -> bool:
    """Tell whether whole numbers joined by hyphens or slashes are no difference and no fraction.

    They may be a range (`3-5`), a date or a code (`2020-12-25`).
    """
    text = text_of(tokens)
    pair = _PAIR.fullmatch(text)
    return int(pair[1]) < int(pair[2]) if pair else _CODE.fullmatch(text) is not None


def _without_lead(tokens: Tokens) -> tuple[list[Token], units.Factors]:
    """Return the tokens without "about", "\\approx", "\\$", "Rs" in front, and the currency found there.

    A sign stays.
    """
    kept = []
    unit = []
    at = 0
    while at < len(tokens) - 1:
        token = tokens[at]
        named = units.UNIT_MARKS.get(token.text) or units.unit_named(token.text)
        if named in units.CURRENCIES:
            unit = [(named, 1)]
        elif is_mark(token, "+-") and not kept:
            kept.append(token)
        elif token.word in ("negative", "minus") and not kept:
            kept.append(Token("mark", "-"))
        elif not is_mark(token, "≈~." if unit else "≈~") and token.word not in units.HARMLESS_BEFORE:
            break
        at += 1
    return [*kept, *tokens[at:]], unit


def _split_tail(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """Split off what follows an expression, from the first unit or noun on; no tail if something in it has meaning."""
    shape = _shape(tokens)
    found = _START.search(shape, 1)
    if found is None:
        return tokens, []
    start, first = found.start(), tokens[found.end() - 1]
    is_angle = first.text == "°" and _holds_function(tokens)  # sin 30°
    is_exponent = tokens[start].text == "^" and first.word not in units.ORDINAL_ENDINGS
    if is_angle or is_exponent:
        return tokens, []
    tail = [token for token in tokens[start:] if token.text not in _SILENT]
    is_balanced = all(shape.count(one, start) == shape.count(other, start) for one, other in ("()", "{}"))
    if not is_balanced or not _TAIL.fullmatch(shape, start) or not _is_harmless(tail):
        return tokens, []
    letter = tokens[start - 1]
    if letter.text in units.UNIT_LETTERS and letter.spaced and tokens[start - 2].kind == "number":  # 5 m of rope
        return tokens[: start - 1], [letter, *tail]
    return tokens[:start], tail


def _holds_function(tokens: Tokens) -> bool:
    return any(token.kind == "function" for token in tokens)


def _is_unit(token: Token) -> bool:
    """Tell whether a unit or a noun may start with the token."""
    if token.kind == "word":
        return len(token.text) > 1 or not token.text.isascii() or token.text in units.UNIT_LETTERS
    return token.kind == "mark" and token.text in units.UNIT_MARKS


def _shape(tokens: Tokens) -> str:
    """Write one character for each token.

    u is a unit or noun, c a letter that can be a unit, n a number, ? something else; other marks stand for themselves.
    """
    return "".join(map(_character, tokens))


def _character(token: Token) -> str:
    if _is_unit(token):
        return "u"
    if token.kind == "number":
        return "n"
    if token.text in tuple("^/*(){}-."):
        return token.text
    can_be_unit = token.kind in ("name", "word") and token.text in units.UNIT_LETTERS | {"C", "F"}
    return "c" if can_be_unit else "?"


def _is_harmless(tail: Tokens) -> bool:
    """Tell whether the words after a number only say what it counts or measures."""
    words = [token.word for token in tail if token.word]
    while words and tail[0].kind == "word" and units.magnitude_named(words[0]):
        del words[0]
    others = "".join(word for word in words if not units.unit_named(word))
    return (
        len(words) <= MAX_UNIT_WORDS
        and units.MEANING_AFTER.isdisjoint(words)
        and units.MEANING_CHARACTERS.isdisjoint(others)
    )


def _start_of_unit_letters(tokens: Tokens) -> int | None:
    """Return where the letters start that can be the unit of the one term before them: `-5 m`, `20 m/s`.

    None if there are none: `5m` is taken for a product, `2 + 3 m` for a sum, \\sin 2 m for the sine of one.
    """
    shape = _shape(tokens)
    first = 2 if tokens and is_mark(tokens[0], "+-") else 1
    starts = (at for at in range(first, len(tokens)) if _LETTERS.fullmatch(shape, at))
    at = next(starts, None)
    if at is None:
        return None
    term = tokens[:at]
    if "n" not in shape[:at] or is_sum(term) or _holds_function(term):
        return None
    is_apart = tokens[at].spaced or (at == first and "/" in shape)
    return at if is_apart else None


def _unit_and_noun(tail: Tokens, currency: units.Factors = ()) -> tuple[units.Unit | None, frozenset[str]]:
    """Return the unit that the tokens name, None without one, and the other words, each in the singular.

    A word of a compound is a unit of its own: the man of man-hours, the widget of "per widget".
    """
    factors = list(currency)
    nouns: set[str] = set()
    for word, power, is_part in _measures(tail):
        temperature = units.TEMPERATURES.get(word)
        if temperature and factors[-1:] == [("degree", 1)]:
            factors.pop()
        name = temperature or units.UNIT_MARKS.get(word) or units.unit_named(word)
        if name or is_part:
            factor = (name or units.stem(word), power)
            if factor not in currency:  # $5 dollars
                factors.append(factor)
        elif word not in units.HARMLESS_AFTER or (factors and word in units.EXTENTS):
            nouns.add(units.stem(word))
    return units.product_of(factors), frozenset(nouns)


def _measures(tail: Tokens) -> Iterator[tuple[str, int, bool]]:
    """Yield each word, its power, and whether it is part of a compound: kg, m and s^-2 of "kg m per s^2"."""
    text = " ".join(token.text.casefold() for token in tail if token.text not in _SILENT)
    for found in _MEASURE.finditer(text):
        exponent = (found["exponent"] or "1").replace(" ", "")
        power = units.POWER_WORDS.get(found["square"], 1) * int(exponent)
        is_part = bool(found["before"] or found["after"])
        yield found["word"], -power if found["before"] in ("/", "per") else power, is_part
