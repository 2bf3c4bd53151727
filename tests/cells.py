"""Tables of texts, as tests write them."""

import re


def cells(text, *more):
    r"""Return the texts between ¦ and line ends, without the spaces around them; \n within one stands for a line end.

    more: texts that cannot be written so.
    """
    return [cell.strip(" ").replace(r"\n", "\n") for cell in re.split(r"¦|\n", text) if cell.strip(" ")] + list(more)


def rows(text: str, mark: str = "|") -> list[list[str]]:
    """Return the cells of a text, each cut at the marks that stand alone, without the spaces around the parts."""
    return [[part.strip(" ") for part in re.split(rf"(?:^|(?<= ))[{mark}](?= |$)", cell)] for cell in cells(text)]


HOSTILE = [  # to anything that reads text
    "\0",
    "\ud800 lone half",
    'title:x AND NEAR("a" OR b*) C++ "',
    "x" * 100_000,
    "born in Velda " * 8_000,
    "🙂" * 1000,
    "and " * 30_000,
    "?!. " * 30_000,
    "no, " * 30_000,
    "is in the " * 9_000,
    "is a " + " " * 100_000 + "b.",
    "He is. " * 15_000,
    "，" * 50_000,
    "是" * 50_000,
    "- - - -",
    "\n" * 50_000,
]
