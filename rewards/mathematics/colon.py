"""What a colon can mean between numbers: a time of day (`9:05`, `2:15 PM`) or a ratio (`2:3`, `1:2:4`)."""

from dataclasses import dataclass, field
from typing import Final

from rewards.mathematics.text import Tokens, is_mark

_HALVES: Final = {"am": 0, "pm": 12}


@dataclass(frozen=True)
class Clock:
    """A time on the 24-hour clock."""

    hours: int
    minutes: int
    seconds: int
    is_certain: bool = field(compare=False)  # it has AM or PM, or a part like 05: no ratio is written so


def read_clock(tokens: Tokens) -> Clock | None:
    """The time of day that the tokens are, None if they are anything else. Without AM and PM, 24 hours are meant."""
    half = _HALVES.get(tokens[-1].text.casefold()) if tokens else None
    figures = _figures(tokens if half is None else tokens[:-1])
    if not figures or (half is None and len(figures) == 1):
        return None
    hours, minutes, seconds = (int(figure) for figure in [*figures, "0", "0"][:3])
    if hours > 24 or minutes > 59 or seconds > 59:
        return None
    is_certain = half is not None or any(figure.startswith("0") for figure in figures)
    if half is None:
        return Clock(hours, minutes, seconds, is_certain)
    if not 1 <= hours <= 12:
        return None
    return Clock(hours % 12 + half, minutes, seconds, is_certain)


def _figures(tokens: Tokens) -> list[str]:
    """The numbers between colons, all but the first of two digits; nothing if there is anything else."""
    parts, colons = tokens[::2], tokens[1::2]
    if not all(is_mark(colon, ":") for colon in colons) or len(parts) == len(colons):
        return []
    figures = [part.text for part in parts]
    if len(figures) > 3 or not all(figure.isdigit() for figure in figures):
        return []
    first, *others = figures
    if len(first) > 2 or any(len(figure) != 2 for figure in others):
        return []
    return figures
