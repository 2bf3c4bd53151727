"""Read a time of day: `9:05`, `2:15 PM`. Without AM and PM it may be a ratio as well."""

import re
from dataclasses import dataclass, field

from rewards.mathematics.tokens import Tokens, texts_of

_CLOCK = re.compile(r"([0-9]{1,2})(?: : ([0-9]{2}))?(?: : ([0-9]{2}))?(?: (am|pm))?", re.IGNORECASE)


@dataclass(frozen=True)
class Clock:
    """A time on the 24-hour clock."""

    hours: int
    minutes: int
    seconds: int
    is_certain: bool = field(compare=False)  # it has AM or PM, or a part like 05: no ratio is written so


def read_clock(tokens: Tokens) -> Clock | None:
    """Return the time of day that the tokens are; None if they are anything else.

    Without AM and PM, 24 hours are meant.
    """
    found = _CLOCK.fullmatch(" ".join(texts_of(tokens)))
    if found is None or not (found[2] or found[4]):
        return None
    *figures, half = found.groups()
    hours, minutes, seconds = (int(figure or 0) for figure in figures)
    earliest, latest = (1, 12) if half else (0, 24)
    if not earliest <= hours <= latest or max(minutes, seconds) > 59:
        return None
    if half:
        return Clock(hours % 12 + 12 * (half.casefold() == "pm"), minutes, seconds, is_certain=True)
    return Clock(hours, minutes, seconds, is_certain=any(figure and figure.startswith("0") for figure in figures))
