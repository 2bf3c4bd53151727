"""A whole number in another base than ten: `101_2`, `{20}_{5}`, `20_{\\text{five}}`, `1A_{16}`, `101 base 2`."""

from dataclasses import dataclass, field
from typing import Final

from rewards.mathematics.algebra import Algebra, Quotient
from rewards.mathematics.parse import read_expression
from rewards.mathematics.text import Token, Tokens, is_mark

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Numeral:
    digits: str
    base: int
    bare: Quotient = field(compare=False)  # what the digits say without their base: 101, or 1·A


def read_numeral(tokens: Tokens, algebra: Algebra) -> Numeral | None:
    """The numeral that the tokens are, None if they are anything else."""
    leads = [_leads_to_base(token) for token in tokens]
    if True not in leads:
        return None
    at = leads.index(True)
    written = [token for token in tokens[:at] if token.text not in ("{", "}", "(", ")", "in")]
    digits = "".join(_texts(written)).upper()
    base = _base(_texts(tokens[at + 1 :]))
    if base is None or not digits[:1].isdigit():
        return None
    if any(digit not in _DIGITS[:base] for digit in digits):
        return None
    return Numeral(digits.lstrip("0") or "0", base, read_expression(written, algebra))


def _texts(tokens: Tokens) -> list[str]:
    return [token.text for token in tokens if token.text not in "{}()"]


def _leads_to_base(token: Token) -> bool:
    return is_mark(token, "_") or token.word == "base"


def _base(texts: list[str]) -> int | None:
    """The base that one number names."""
    if len(texts) != 1:
        return None
    (text,) = texts
    value = int(text) if text.isdigit() and len(text) < 3 else 0
    return value if 2 <= value <= len(_DIGITS) else None
