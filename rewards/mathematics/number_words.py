r"""Write numbers in words as figures. `twenty-one` is 21, `two thirds` \frac{2}{3}, `two and a half` 2\frac{1}{2}."""

import re

from knowledge.words import BELOW_100, NUMBERS

_THOUSANDS = (
    "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
).split()
_PARTS = "half third fourth fifth sixth seventh eighth ninth tenth".split()

MAGNITUDES = {"dozen": 12, "hundred": 100} | {word: 1000**n for n, word in enumerate(_THOUSANDS, 1)}
_SINGULAR = {word: n for n, word in enumerate(_PARTS, 2)} | {
    "halve": 2,
    "quarter": 4,
    "twelfth": 12,
    "sixteenth": 16,
    "hundredth": 100,
    "thousandth": 1000,
}
DENOMINATORS = _SINGULAR | {f"{word}s": n for word, n in _SINGULAR.items()}

_LARGE = f"(?:{'|'.join(_THOUSANDS)})"
_REST = rf"(?:(?: and)? {BELOW_100}(?![A-Za-z]| hundred))"
_GROUP = f"(?:{BELOW_100}(?: hundred{_REST}?)?)"
_NUMBER = f"{_GROUP}(?: {_LARGE}(?:{_REST}(?! {_LARGE})| {_GROUP})?)*"
_PART = f"(?:{'|'.join(_SINGULAR)})"
_WORDS = re.compile(
    r"(?<![A-Za-z0-9\\])(?<![0-9][.,])"
    rf"(?:(?:(?P<whole>{_NUMBER}|[0-9]+) and )?"
    rf"(?:(?P<one>an?|one|1)[- ](?P<part>{_PART})|(?P<count>{_NUMBER}|[0-9]+)[- ](?P<parts>{_PART}s))"
    rf"|(?P<number>{_NUMBER}))(?![A-Za-z])",
    re.IGNORECASE,
)


def in_figures(text: str) -> str:
    """Return the text with figures for its number words."""
    return _WORDS.sub(_figures, text)


def _figures(found: re.Match) -> str:
    if found["number"]:
        return _value(found["number"])
    part = (found["part"] or found["parts"]).casefold()
    count = "1" if found["one"] else _value(found["count"])
    return rf"{_value(found['whole'] or '')}\frac{{{count}}}{{{DENOMINATORS[part]}}}"


def _value(words: str) -> str:
    """Return the figures of a number in words; figures stay, and nothing stays nothing."""
    if not words or words.isdigit():
        return words
    total = group = 0
    for word in re.findall("[a-z]+", words.casefold()):
        if word == "hundred":
            group *= 100
        elif word in MAGNITUDES:
            total, group = total + group * MAGNITUDES[word], 0
        else:
            group += NUMBERS.get(word, 0)
    return str(total + group)
