r"""Read one value with its unit, noun or currency: `\$1{,}234.50`, `12\text{ cm}^2`, `90^\circ`, `about 3 apples`.

The unit and the noun are remembered, so that 12 cm is not 12 m and 3 cats are not 3 dogs, but either side may leave
them out: 12 cm answers 12. A percent sign is never a factor: 5\% is 5 and not 0.05. After a word that changes the
meaning ("5 or more", "12 pm", "6 pi") nothing is left out, and the whole has no value.
"""

import re
from dataclasses import dataclass

from rewards.mathematics import units
from rewards.mathematics.expression import read_expression
from rewards.mathematics.tokens import Token, Tokens, is_mark, text_of
from rewards.mathematics.value import Points, Unreadable, Value

MAX_UNIT_WORDS = 6
Unit = frozenset[tuple[str, int]]  # the units in it and their powers: {("km", 1), ("hour", -1)}

_POWER = r"\^(?:\{-?n\}|-?n)"
_ONE_UNIT = rf"(?:u|(?<=[/*])c)(?:{_POWER})?"  # `20 km/h`: only behind a sign is a letter a unit
_TAIL = re.compile(rf"[/*]?u(?:{_POWER})?(?:[-/*.]?{_ONE_UNIT})*\.?")
_MEASURE = re.compile(  # one word of a tail, as texts of tokens with spaces between them
    rf"(?<!\S)(?:(?P<before>/|per|-|\*) )?(?:(?P<power>{'|'.join(units.POWERS)}) )?(?!per )"
    rf"(?P<word>[^\W\d]\S*|[{''.join(units.UNIT_MARKS)}])"
    r"(?: \^ (?P<exponent>(?:- )?[0-9]{1,2}))?(?!\S)(?: (?=(?P<after>[-*])))?"
)
_NUMERAL = re.compile("([0-9][0-9A-Z]*) (?:_|BASE) ([0-9]{1,2})")
# numbers that hyphens or slashes join to no difference and no fraction: 3-5, 2020-12-25
_RANGE = re.compile("([0-9]{1,99}) - ([0-9]{1,99})")
_CODE = re.compile("[0-9]+(?:(?: - [0-9]+){2,}|(?: / [0-9]+){2,})")


@dataclass(frozen=True)
class Scalar:
    """A value, what it measures, and what it counts; all that is unknown is empty."""

    value: Value
    unit: Unit = frozenset()
    nouns: frozenset[str] = frozenset()  # {"duck", "egg"}
    base: int = 10  # in which the digits are written; the value is what they say in base ten

    def equals(self, other: "Scalar") -> bool:
        """Tell whether both are the same amount, as far as both say of what."""
        return not self.contradicts(other) and self.value.equals(other.value)

    def contradicts(self, other: "Scalar") -> bool:
        """Tell whether they say different things of what they are: 5 cm and 5 kg, 5 people and 5 cm, 5 up and 5 down.

        One of them may say more: 5 duck eggs are 5 eggs.
        """
        if self.unit != other.unit and (self.unit or self.nouns) and (other.unit or other.nouns):
            return True
        return not (self.nouns <= other.nouns or other.nouns <= self.nouns)


def read_quantity(tokens: Tokens, points: Points) -> Scalar:
    """Return the value and the unit of all the tokens together. Raise `Unreadable` if there is no such reading."""
    numeral = _numeral(tokens, points)
    if numeral:
        return numeral
    number, currency = _without_lead(tokens)
    number, tail = _split_tail(number)
    text = text_of(number)
    pair = _RANGE.fullmatch(text)
    if _CODE.fullmatch(text) or (pair and int(pair[1]) < int(pair[2])):
        raise Unreadable("a range, a date or a code")
    value = read_expression(number, points)
    unit, nouns = _unit_and_nouns(tail)
    holds_degrees = any(is_mark(token, "°") for token in number) and not _holds_function(number)
    if holds_degrees and not unit:
        unit = {"degree": 1}
    if nouns and not unit and not any(token.kind == "number" for token in number):
        raise Unreadable("a noun behind something that counts nothing: n odd")
    if points.nouns is not None and not nouns <= points.nouns:
        raise Unreadable("it counts what nobody asked for")
    if currency and unit.get(currency) is None:  # $5 dollars
        unit[currency] = 1
    return Scalar(value, frozenset(unit.items()), nouns)


def _numeral(tokens: Tokens, points: Points) -> Scalar | None:
    """Read a whole number in another base: `101_2`, `{20}_{5}`, `1A_{16}`, `101 base 2`; None if this is none."""
    kept = [token for token in tokens if token.text not in ("{", "}", "(", ")")]
    digits = "".join(token.text for token in kept[:-2])
    found = _NUMERAL.fullmatch(f"{digits} {text_of(kept[-2:])}".upper())
    base = int(found[2]) if found else 0
    if not found or not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in found[1]):
        return None
    capitals = [token._replace(text=token.text.upper()) for token in kept[:-2]]
    return Scalar(read_expression(capitals, points), base=base)


def _without_lead(tokens: Tokens) -> tuple[list[Token], str]:
    """Return the tokens without "about", `\\approx`, `\\$` in front, and the currency found there. A sign stays."""
    sign: list[Token] = []
    currency = ""
    at = 0
    while at < len(tokens) - 1:
        token = tokens[at]
        unit = units.unit_named(token.text)
        if unit in units.CURRENCIES:
            currency = unit
        elif is_mark(token, "+-") and not sign:
            sign = [token]
        elif not is_mark(token, "≈~") and token.word not in units.HARMLESS_BEFORE:
            break
        at += 1
    return [*sign, *tokens[at:]], currency


def _split_tail(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """Split off the unit and the nouns behind an expression; no tail if something in it has a meaning of its own."""
    shape = "".join(map(_character, tokens))
    start = shape.find("u", 1)
    if start < 1:
        return tokens, []
    if start > 1 and shape[start - 1] in "/*":
        start -= 1
    tail = tokens[start:]
    words = [token.word for token in tail if token.word]
    is_angle = tail[0].text == "°" and _holds_function(tokens)  # sin 30°
    are_harmless = len(words) <= MAX_UNIT_WORDS and all(map(units.may_be_left_out, words))
    is_unit_too = shape[:start].endswith("nc") and tokens[start - 1].spaced  # 5 m kg
    if is_angle or is_unit_too or not are_harmless or not _TAIL.fullmatch(shape, start):
        return tokens, []
    return tokens[:start], tail


def _character(token: Token) -> str:
    """Write a token as one character: u for a unit or noun, c for a letter that can be a unit, n for a number.

    Signs stand for themselves, anything else is a question mark.
    """
    if token.kind == "word" and (len(token.text) > 1 or token.text in units.UNIT_LETTERS or not token.text.isascii()):
        return "u"
    if token.kind == "mark" and token.text in units.UNIT_MARKS:
        return "u"
    if token.kind == "number":
        return "n"
    if token.text in tuple("^/*{}-."):
        return token.text
    return "c" if token.text in units.UNIT_LETTERS else "?"


def _holds_function(tokens: Tokens) -> bool:
    return any(token.kind == "function" for token in tokens)


def _unit_and_nouns(tail: Tokens) -> tuple[dict[str, int], frozenset[str]]:
    """Return the powers of the units that the tokens name, and the other words, each in the singular.

    A word of a compound is a unit of its own: the man of man-hours, the widget of "per widget".
    """
    unit: dict[str, int] = {}
    nouns = set()
    words = [token.text for token in tail if token.text not in ("{", "}", ".")]
    text = " ".join(map(units.in_one_case, words))
    for found in _MEASURE.finditer(text):
        name = units.unit_named(found["word"])
        if not name and not found["before"] and not found["after"]:
            nouns.add(units.noun(found["word"]))
            continue
        name = name or units.noun(found["word"])
        power = int((found["exponent"] or "1").replace(" ", "")) * units.POWERS.get(found["power"], 1)
        sign = -1 if found["before"] in ("/", "per") else 1
        unit[name] = unit.get(name, 0) + sign * power
    return unit, frozenset(nouns)
