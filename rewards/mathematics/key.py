r"""Compare what has no value: texts, letters that spell the same, the end points of a segment.

Texts have no case, articles and idle zeros. \text{AC} spells AC, and \overline{AC} is a segment.
"""

import re
from collections.abc import Iterable

from rewards.mathematics import units
from rewards.mathematics.tokens import Token, Tokens, is_mark, text_of

_PUNCTUATION = frozenset((r"\{", r"\}", r"\\", *"\\()[]{}.,:;?!…'\"|-_*&~@#\ufffd"))


def text_key(tokens: Iterable[Token]) -> str:
    """Return the normal form of a text without a value. Words have no case and no articles, numbers no idle zeros."""
    kept = _unwrapped(token for token in tokens if not is_mark(token, '".'))
    prose = any(token.kind == "word" for token in kept)
    parts = []
    for at, token in enumerate(kept):
        lower = token.text.casefold()
        if token.kind == "number" and token.text.replace(".", "", 1).isdigit():
            parts.append(_without_idle_zeros(token.text))
        elif _is_article(kept, at):
            continue
        elif token.kind == "word":
            parts.append(lower)
        else:
            parts.append(lower if prose else token.text)
    return " ".join(parts)


def _unwrapped(tokens: Iterable[Token]) -> list[Token]:
    """Return the tokens without the braces around a single one.

    `x^{2}` reads as `x^2`, and `\\frac{12}{3}` as `\\frac 12 3`, where spaces keep the two apart.
    """
    kept = []
    for token in tokens:
        closes = token.text == "}" and token.kind == "close"
        if closes and len(kept) > 1 and kept[-2].text == "{" and kept[-2].kind == "open":
            kept[-2:] = [kept[-1]]
        else:
            kept.append(token)
    return kept


def _without_idle_zeros(number: str) -> str:
    whole, _, decimals = number.partition(".")
    decimals = decimals.rstrip("0")
    return f"{whole or 0}.{decimals}" if decimals else whole or "0"


def _is_article(tokens: Tokens, at: int) -> bool:
    """Tell whether the word is a mere article; a bare "a" (a name) is one only in front of a noun."""
    if len(tokens) == 1 or tokens[at].text.casefold() not in ("the", "a", "an"):
        return False
    after = tokens[1].word
    return tokens[at].kind == "word" or (at == 0 and len(after) > 3 and after not in units.MEANING_AFTER)


def same_word(one: Tokens, other: Tokens) -> bool:
    r"""Tell whether both are letters alone and spell the same: \text{AC}, \overline{AC} and AC.

    A segment's ends are capital or small. Two products, AC and ac, are left to their values.
    """
    ends, other_ends = segment(one), segment(other)
    one, other = ends or one, other_ends or other
    kinds = {token.kind for token in (*one, *other)}
    if "word" not in kinds or not kinds <= {"word", "name"}:
        return False
    spelt = "".join(token.text for token in one)
    other_spelt = "".join(token.text for token in other)
    if ends or other_ends:
        return spelt == other_spelt
    return spelt.casefold() == other_spelt.casefold()


def segment(tokens: Tokens) -> list[Token]:
    r"""Return the two end points of a segment, \overline{CD}; nothing if it is anything else."""
    is_segment = re.fullmatch(r"\\overline \{ [A-Z] ?[A-Z] \}", text_of(tokens))
    return list(tokens[2:-1]) if is_segment else []


def has_content(tokens: Tokens) -> bool:
    """Tell whether there is more than punctuation, dots and brackets: not so in "…", ":", "?". {} is the empty set."""
    return text_of(tokens) == r"\{ \}" or any(token.text not in _PUNCTUATION for token in tokens)
