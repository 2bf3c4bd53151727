"""Bring foreign text into normal forms: safe to store and to show, with equal characters, with equal words."""

import re
import unicodedata

from grpo.base.text import encodable

_RAISED = re.compile("[⁰¹²³⁴-⁹]+")
_STROKES = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe"})
_ACCENTS = re.compile("[\u0300-\u036f]")


def clean(text: str, max_chars: int | None = None) -> str:
    """Return the first `max_chars` characters, encodable, with a space for each NUL, which SQLite refuses."""
    return encodable(text[:max_chars]).replace("\0", " ")


def printable(text: str, keep: str = "") -> str:
    """Replace each control character by a space, except those in `keep`: no terminal or chat template acts on it."""
    return "".join(char if char.isprintable() or char in keep else " " for char in text)


def shortened(text: str, max_chars: int) -> str:
    """Return the text, or its first `max_chars` characters and an ellipsis."""
    return text if len(text) <= max_chars else text[:max_chars] + "…"


def compatible(text: str) -> str:
    """Unify compatibility characters (NFKC), such as full-width ones; but 5² is 5^2, and not 52."""
    return unicodedata.normalize("NFKC", _RAISED.sub(r"^\g<0>", text))


def fold(text: str) -> str:
    """Remove case, full-width forms and Latin, Greek and Cyrillic accents: "Ｃａｆé" -> "cafe", "Łódź" -> "lodz".

    The marks of other scripts stay.
    """
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text).casefold().translate(_STROKES)
    return unicodedata.normalize("NFC", _ACCENTS.sub("", text))
