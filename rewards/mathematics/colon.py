"""What a colon can mean between numbers: a time of day (`9:05`, `2:15 PM`) or a ratio (`2:3`, `1:2:4`)."""

from dataclasses import dataclass
from typing import Final

from rewards.mathematics.text import Tokens, is_mark

_HALVES: Final = {"am": 0, "pm": 12}


@dataclass(frozen=True)
class Clock:
    """A time on the 24-hour clock."""

    hours: int
    minutes: int
    seconds: int
    is_certain: bool  # it has AM or PM, or a part like 05: no ratio is written so


def read_clock(tokens: Tokens) -> Clock | None:
    """The time of day that the tokens are, None if they are anything else. Without AM and PM, 24 hours are meant."""
    half = _HALVES.get(tokens[-1].text.casefold()) if tokens else None
    digits = tokens if half is None else tokens[:-1]
    parts, colons = digits[::2], digits[1::2]
    if len(parts) != len(colons) + 1 or len(parts) > 3 or (half is None and len(parts) < 2):
        return None
    if not all(is_mark(colon, ":") for colon in colons) or not all(part.text.isdigit() for part in parts):
        return None
    if len(parts[0].text) > 2 or any(len(part.text) != 2 for part in parts[1:]):
        return None
    hours, minutes, seconds = (*(int(part.text) for part in parts), 0, 0)[:3]
    if minutes > 59 or seconds > 59 or hours > 24 or (half is not None and not 1 <= hours <= 12):
        return None
    if half is not None:
        hours = hours % 12 + half
    is_certain = half is not None or any(part.text.startswith("0") for part in parts)
    return Clock(hours, minutes, seconds, is_certain)
