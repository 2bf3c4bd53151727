"""What counts as text, which of several names was meant, and how measures and durations are written."""

import unicodedata
from difflib import get_close_matches

MAX_CHARACTER_BYTES = 4  # in UTF-8; each may be a token of its own
WORDS = {  # of metrics and outcomes, as people read them: files keep the names of papers
    "accuracy": "right",
    "correct": "right",
    "incorrect": "wrong",
    "not_attempted": "declined",
    "refused": "declined",
    "refusal_rate": "declined",
    "refusal_rate_known": "declined, though known",
    "correct_given_attempted": "right of those not declined",
    "incorrect_given_attempted": "wrong of those not declined",
    "accuracy_searched": "right after a search",
    "accuracy_unsearched": "right without a search",
}
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # Hangul fillers and the blank of Braille: letters and signs without ink


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing: it holds only spaces, controls, formats, bare marks and fillers.

    >>> is_blank("\\u200b \\n\\u3164"), is_blank("0")
    (True, False)
    """
    return all(char in _FILLERS or unicodedata.category(char)[0] in "ZCM" for char in text)


def in_words(name: str) -> str:
    """Return the name of a metric or an outcome as people read it.

    >>> in_words("eval/not_attempted"), in_words("kl")
    ('eval/declined', 'kl')
    """
    group, slash, own = name.rpartition("/")
    return f"{group}{slash}{WORDS.get(own, own)}"


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can write and UTF-8 cannot, by question marks."""
    return text.encode("utf-8", "replace").decode()


def closest(name: str, candidates: list[str]) -> str:
    """Return the first candidate that goes on after `name`, or the one that it resembles most; "" if there is none."""
    longer = [candidate for candidate in candidates if candidate.startswith(f"{name}_")]
    return next(iter(longer or get_close_matches(name, candidates, n=1)), "")


def did_you_mean(name: str, candidates: list[str]) -> str:
    """Return the end of a message that suggests the candidate that `name` resembles most; "" if it resembles none."""
    close = closest(name, candidates)
    return f"; did you mean {close}?" if close else ""


def show_duration(seconds: float) -> str:
    """Write a duration in seconds, in minutes from one minute on, or in hours from 0.1 hours on."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 360 else f"{seconds / 3600:,.1f} h"
