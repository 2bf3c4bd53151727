"""Tables of texts, as tests write them."""

import re


def cells(text: str, *more: str) -> list[str]:
    r"""Return the texts between ¦ and line ends, without the spaces around them; \n within one stands for a line end.

    more: texts that cannot be written so.
    """
    return [cell.strip(" ").replace(r"\n", "\n") for cell in re.split(r"¦|\n", text) if cell.strip(" ")] + list(more)
