"""Read a whole number in another base than ten: `101_2`, `{20}_{5}`, `20_{\\text{five}}`, `1A_{16}`, `101 base 2`."""

import re
from dataclasses import dataclass, field

from rewards.mathematics.expression import read_expression
from rewards.mathematics.tokens import Tokens, texts_of
from rewards.mathematics.value import Points, Value

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMERAL = re.compile("([0-9][0-9A-Z]*)(?:_|base)([0-9]{1,2})", re.IGNORECASE)


@dataclass(frozen=True)
class Numeral:
    digits: str
    base: int
    bare: Value = field(compare=False)  # what the digits say without their base: 101, or 1·A


def read_numeral(tokens: Tokens, points: Points) -> Numeral | None:
    """Return the numeral that the tokens are; None if they are anything else."""
    kept = [token for token in tokens if token.text not in ("{", "}", "(", ")", "in")]
    found = _NUMERAL.fullmatch("".join(texts_of(kept)))
    if found is None:
        return None
    digits, base = found[1].upper(), int(found[2])
    if not 2 <= base <= len(_DIGITS) or any(digit not in _DIGITS[:base] for digit in digits):
        return None
    return Numeral(digits.lstrip("0") or "0", base, read_expression(kept[:-2], points))
