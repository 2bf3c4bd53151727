r"""One value with what may stand around it: `\$1{,}234.50`, `12\text{ cm}^2`, `90^\circ`, `5\%`, `about 3 million
people`.

Currency, degrees, percent and units are dropped; a known unit is remembered, so that 12 cm and 12 m can be told apart.
A percent sign is never a factor: 5\% is 5 and not 0.05. After a word that changes the meaning ("5 or more", "12 pm")
nothing is dropped.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rewards.mathematics import units
from rewards.mathematics.algebra import Algebra, Quotient, Unreadable
from rewards.mathematics.parse import read_expression
from rewards.mathematics.text import Token, is_mark

MAX_UNIT_WORDS: Final = 8
_PLAIN_UNITS: Final = frozenset(("square", "sq", "cubic", "unit", "units", "degree", "degrees"))
# tokens as characters, see _shape: what may follow a number, and what letters alone may be (`20 m/s^2`)
_POWER: Final = r"\^\{?-?n\}?"
_TAIL: Final = re.compile(rf"(?:\^(?=\{{?u))?(?:u|-(?=u)|[/*](?=[({{]*[uc])|[(){{}}.]|{_POWER}|(?<=[/*u])c)*")
_LETTERS: Final = re.compile(rf"c(?:{_POWER})?(?:[/*]c(?:{_POWER})?|c\^\{{?-n\}}?)*")


@dataclass(frozen=True)
class Scalar:
    value: Quotient
    unit: str | None = None  # the one spelling of a unit that both sides must share if both have one
    if_unit: "Scalar | None" = None  # of `5 m`: the 5 in metres, should the m be no variable
    direction: str | None = None  # "up" of a gain, "down" of a loss, "north": like the unit

    def contradicts(self, other: "Scalar") -> bool:
        """Whether both have a unit or a direction, and not the same; 5° may be 5°C."""
        units_differ = bool(self.unit and other.unit) and self.unit != other.unit
        is_temperature = "degree" in (self.unit, other.unit) and not units.TEMPERATURES.isdisjoint(
            (self.unit, other.unit)
        )
        directions_differ = bool(self.direction and other.direction) and self.direction != other.direction
        return (units_differ and not is_temperature) or directions_differ


def read_quantity(tokens: Sequence[Token], algebra: Algebra) -> Scalar:
    """The value and the unit of all the tokens together; `Unreadable` if there is no such reading."""
    number, unit_before = _without_lead(tokens)
    number, tail = _split_tail(number)
    if is_range_or_code(number):
        raise Unreadable("a range, a date or a code")
    value = read_expression(number, algebra)
    while tail and units.magnitude_named(tail[0].text):
        value = algebra.multiply(value, algebra.number(units.magnitude_named(tail.pop(0).text)))
    letters = None if tail else _start_of_unit_letters(number)
    if letters:
        without = read_expression(number[:letters], algebra)
        if not algebra.variables(without):
            return Scalar(value, unit_before, Scalar(without, _unit_of(number[letters:])))
    unit = _unit_of(tail)
    if tail and not unit and not _counts(number, tail):
        raise Unreadable("a noun after something that counts nothing")
    direction = next(
        (units.DIRECTIONS[word] for word in (token.text.casefold() for token in tail) if word in units.DIRECTIONS), None
    )
    return Scalar(value, unit_before or unit, direction=direction)


def is_range_or_code(tokens: Sequence[Token]) -> bool:
    """Whether whole numbers joined by hyphens or slashes are a range (`3-5`), a date or a code (`2020-12-25`) and not a
    difference or a fraction."""
    numbers, joints = tokens[::2], tokens[1::2]
    if (
        len(numbers) < 2
        or len(numbers) == len(joints)
        or not all(n.kind == "number" and n.text.isdigit() for n in numbers)
        or not (all(is_mark(j, "-") for j in joints) or all(is_mark(j, "/") for j in joints))
    ):
        return False
    first, second = numbers[0].text, numbers[1].text
    ascending = (len(first), first) < (len(second), second)
    return len(numbers) > 2 or (joints[0].text == "-" and ascending)


def _without_lead(tokens: Sequence[Token]) -> tuple[list[Token], str | None]:
    """The tokens without "about", "\\approx", "\\$", "Rs" in front, and the currency found there; a sign stays."""
    kept, unit, at = [], None, 0
    while at < len(tokens) - 1:
        token = tokens[at]
        currency = units.UNIT_MARKS.get(token.text) if token.kind == "mark" else units.unit_named(token.text)
        if currency in units.CURRENCIES and token.kind in ("mark", "word"):
            unit = currency
        elif is_mark(token, "+-") and not kept:
            kept.append(token)
        elif token.kind == "word" and token.text.casefold() in ("negative", "minus") and not kept:
            kept.append(Token("mark", "-"))
        elif not (
            is_mark(token, "≈~")
            or (unit and is_mark(token, "."))
            or (token.kind == "word" and token.text.casefold() in units.HARMLESS_BEFORE)
        ):
            break
        at += 1
    return kept + list(tokens[at:]), unit


def _split_tail(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """(expression, what follows it from the first unit or noun on); no tail if something in it carries meaning."""
    first = start = next((at for at, token in enumerate(tokens) if at and _is_unit(token)), len(tokens))
    if start == len(tokens) or (
        tokens[start].text == "°" and any(token.kind == "function" for token in tokens)
    ):  # sin 30°
        return tokens, []
    joints = "({/*^" if tokens[start].text.casefold() in units.ORDINAL_ENDINGS else "({/*"
    while start > 1 and tokens[start - 1].text in joints:
        start -= 1
    tail = [token for token in tokens[start:first] if token.text == "/"] + tokens[first:]
    shape = _shape(tokens[start:])
    is_whole = _TAIL.fullmatch(shape) and shape.count("(") == shape.count(")") and shape.count("{") == shape.count("}")
    return (tokens[:start], tail) if is_whole and _is_harmless(tail) else (tokens, [])


def _is_unit(token: Token) -> bool:
    """Whether a unit or a noun may start with the token."""
    if token.kind == "word":
        return len(token.text) > 1 or not token.text.isascii() or token.text in units.UNIT_LETTERS
    return token.kind == "mark" and token.text in units.UNIT_MARKS


def _shape(tokens: Sequence[Token]) -> str:
    """One character for each token: u unit or noun, c letter that can be a unit, n number, ? something else, or
    itself."""
    return "".join(
        "u"
        if _is_unit(token)
        else "n"
        if token.kind == "number"
        else token.text
        if token.text in tuple("^/*(){}-.")
        else "c"
        if token.kind in ("name", "word") and token.text in units.UNIT_LETTERS | {"C", "F"}
        else "?"
        for token in tokens
    )


def _is_harmless(tail: Sequence[Token]) -> bool:
    """Whether the words after a number only say what it counts or measures."""
    words = [token.text.casefold() for token in tail if token.kind == "word"]
    while words and tail[0].text.casefold() == words[0] and units.magnitude_named(words[0]):
        words, tail = words[1:], tail[1:]
    return (
        len(words) <= MAX_UNIT_WORDS
        and units.MEANING_AFTER.isdisjoint(words)
        and units.MEANING_CHARACTERS.isdisjoint("".join(words))
    )


def _start_of_unit_letters(tokens: Sequence[Token]) -> int | None:
    """Where the letters that can be the unit of the one term before them start: `-5 m`, `\\frac12 s`, `20 m/s`; None if
    there are none: `5m` is taken for a product, `2 + 3 m` for a sum, \\sin 2 m for the sine of one."""
    shape, after_sign = _shape(tokens), int(bool(tokens) and is_mark(tokens[0], "+-"))
    at = next((at for at in range(after_sign + 1, len(tokens)) if _LETTERS.fullmatch(shape, at)), None)
    if at is None or not (tokens[at].spaced or (at == after_sign + 1 and "/" in shape)):
        return None
    depth = 0
    for i, token in enumerate(tokens[:at]):
        depth += (token.kind == "open") - (token.kind == "close")
        if token.kind == "function" or (depth == 0 and i and is_mark(token, "+-") and not is_mark(tokens[i - 1], "^")):
            return None
    return at if "n" in shape[:at] else None


def _counts(number: Sequence[Token], tail: Sequence[Token]) -> bool:
    """Whether a noun may follow: "18 eggs" and "x units", but "n odd" is not n."""
    return any(token.kind == "number" for token in number) or not any(
        token.kind == "word" and token.text.casefold() not in _PLAIN_UNITS for token in tail
    )


def _unit_of(tail: Sequence[Token]) -> str | None:
    """The unit in one spelling ("cm ^ 2" for "square centimeters"), None without one or if a word is not a known
    unit."""
    parts: list[str] = []
    power = ""
    for token in tail:
        word = token.text.casefold()
        temperature = {"c": "celsius", "f": "fahrenheit"}.get(word) if parts[-1:] == ["degree"] else None
        unit = temperature or units.UNIT_MARKS.get(token.text) or units.unit_named(word)
        if word in ("square", "sq", "cubic"):
            power = "^ 3" if word == "cubic" else "^ 2"
        elif token.text in ("(", ")", "{", "}", "."):
            continue
        elif unit:
            if unit in ("celsius", "fahrenheit") and parts[-1:] == ["degree"]:
                parts.pop()
            parts += [unit, power] if power else [unit]
            power = ""
        elif (token.kind == "word" and word != "per") or word == "-":
            return None
        else:
            parts.append("/" if word == "per" else word)
    return " ".join(parts) or None
