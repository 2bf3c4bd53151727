"""What counts as text."""

import unicodedata

_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # Hangul fillers and the blank of Braille: letters and signs without ink


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing: it holds only spaces, controls, formats, bare marks and fillers.

    >>> is_blank("\\u200b \\n\\u3164"), is_blank("0")
    (True, False)
    """
    return all(char in _FILLERS or unicodedata.category(char)[0] in "ZCM" for char in text)
