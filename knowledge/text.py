"""Bring foreign text into normal forms: accepted by every library, with equal characters, with equal words."""

import re
import unicodedata

_RAISED = re.compile("[⁰¹²³⁴-⁹]+")
_ACCENTS = re.compile("[\u0300-\u036f]")


def clean(text: str, max_chars: int | None = None) -> str:
    """Return the first `max_chars` characters with "?" for each lone surrogate and a space for each NUL.

    SQLite, UTF-8 and tokenizers refuse both.
    """
    return text[:max_chars].encode("utf-8", "replace").decode().replace("\0", " ")


def compatible(text: str) -> str:
    """Unify compatibility characters (NFKC), such as full-width ones; but 5² is 5^2, and not 52."""
    return unicodedata.normalize("NFKC", _RAISED.sub(r"^\g<0>", text))


def fold(text: str) -> str:
    """Remove case, full-width forms and Latin, Greek and Cyrillic accents: "Ｃａｆé" -> "cafe".

    The marks of other scripts stay.
    """
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", _ACCENTS.sub("", text))
