"""A whole number in another base than ten: `101_2`, `{20}_{5}`, `20_{\\text{five}}`, `1A_{16}`, `101 base 2`."""

from dataclasses import dataclass
from typing import Final

from rewards.mathematics.text import Token, Tokens, is_mark
from rewards.mathematics.units import NUMBER_WORDS

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Numeral:
    digits: str
    base: int


def read_numeral(tokens: Tokens) -> Numeral | None:
    """The numeral that the tokens are, None if they are anything else."""
    at = next((at for at, token in enumerate(tokens) if _leads_to_base(token)), None)
    if not at:
        return None
    written = [token.text for token in tokens[:at] if token.text not in "{}()"]
    base = [token for token in tokens[at + 1 :] if token.text not in "{}()"]
    base_value = _base(base[0]) if len(base) == 1 else None
    if base_value is None or not written or not written[0][0].isdigit():
        return None
    digits = "".join(written).upper().lstrip("0") or "0"
    is_numeral = all(digit in _DIGITS[:base_value] for digit in digits)
    return Numeral(digits, base_value) if is_numeral else None


def _leads_to_base(token: Token) -> bool:
    return is_mark(token, "_") or (token.kind == "word" and token.text.casefold() == "base")


def _base(token: Token) -> int | None:
    named = NUMBER_WORDS.get(token.text.casefold())
    value = int(token.text) if token.text.isdigit() and len(token.text) < 3 else named
    return value if value is not None and 2 <= value <= len(_DIGITS) else None
