r"""Decide whether a letter before brackets is a function or a factor.

The answer and the truth decide together: f(x+1) is a function of x+1, while x(x+1) and 2\pi r(r+h) are products.

In doubt it is a function, that is: a symbol of its own for each argument. A product taken for a function misses a right
answer; a function taken for a product would make every function linear and pay for wrong ones.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from rewards.mathematics.key import text_key
from rewards.mathematics.tokens import Token, Tokens, closing_bracket, is_letter, is_mark, is_sum, texts_of

MAX_ARGUMENT = 120  # tokens: looking further would make deep nesting slow
_ALWAYS_FUNCTIONS = frozenset("fΓζ")
_COEFFICIENTS = frozenset("abckmnrstxyze")  # before a sum these are factors; others only if they stand alone as well
# what letters are usually functions of; those in the table, of these letters only
_FUNCTIONS_OF = {**dict.fromkeys("abcm", "nt"), **dict.fromkeys("dknte", "")}
_VARIABLES = "nstxz"
_GREEK_FUNCTIONS = frozenset("δηθρσφχψΘΦΨ")  # of any letters


class Use(NamedTuple):
    """A name before brackets, and what is in them."""

    at: int  # its place in the tokens
    name: str  # with its subscript and primes
    argument: tuple[Token, ...]
    is_inverse: bool  # f^{-1}(x)

    @property
    def letters(self) -> set[str]:
        """Return the letters in the brackets."""
        return {token.text for token in self.argument if is_letter(token)}


def mark_applications(answer: Tokens, truth: Tokens) -> tuple[list[Token], list[Token]]:
    """Return both texts with kind "applied" for each name that is a function of what the brackets behind it hold."""
    texts = [list(_uses(answer)), list(_uses(truth))]
    alone = {*_names_alone(answer, texts[0]), *_names_alone(truth, texts[1])}
    names = {use.name for use in chain(*texts)}
    functions = {name for name in names if not _is_factor(name, texts, name in alone)}
    marked = [list(answer), list(truth)]
    for tokens, uses in zip(marked, texts, strict=True):
        for use in uses:
            if use.name in functions:
                tokens[use.at] = tokens[use.at]._replace(kind="applied")
    return marked[0], marked[1]


def end_of_name(tokens: Tokens, at: int) -> int:
    """Return where the name that starts at `at` ends, after its primes and its subscript."""
    at += 1
    while at < len(tokens) and is_mark(tokens[at], "'"):
        at += 1
    if at + 1 < len(tokens) and is_mark(tokens[at], "_"):
        at = closing_bracket(tokens, at + 1) if tokens[at + 1].text == "{" else at + 1
        at += 1
    return at


def end_of_exponent(tokens: Tokens, at: int) -> int:
    """Return where the exponent that may start at `at` ends: `^{-1}`, `^2`."""
    if at + 1 >= len(tokens) or not is_mark(tokens[at], "^"):
        return at
    start = at + 2 if is_mark(tokens[at + 1], "-") else at + 1
    if start < len(tokens) and tokens[start].text == "{":
        start = closing_bracket(tokens, start)
    return start + 1


def _uses(tokens: Tokens) -> Iterator[Use]:
    for at, token in enumerate(tokens):
        if not is_letter(token) or (at and is_mark(tokens[at - 1], "^_")):  # 2^n(n+1)
            continue
        end = end_of_name(tokens, at)
        opening = end_of_exponent(tokens, end)
        is_inverse = "".join(texts_of(tokens[end:opening])) in ("^{-1}", "^-1")
        is_power = opening > end and not is_inverse and token.text not in _ALWAYS_FUNCTIONS
        if is_power or opening >= len(tokens) or tokens[opening].text not in ("(", "["):
            continue
        closing = closing_bracket(tokens, opening, MAX_ARGUMENT)
        argument = tuple(tokens[opening + 1 : closing]) if tokens[closing].kind == "close" else ()
        yield Use(at, text_key(tokens[at:end]), argument, is_inverse)


def _names_alone(tokens: Tokens, uses: Sequence[Use]) -> Iterator[str]:
    """Yield the names that stand before no brackets."""
    applied = {use.at for use in uses}
    for at, token in enumerate(tokens):
        if is_letter(token) and at not in applied:
            yield text_key(tokens[at : end_of_name(tokens, at)])


def _is_factor(name: str, texts: Sequence[Sequence[Use]], stands_alone: bool) -> bool:
    """Tell whether a name is a factor wherever it stands: before one sum, which is no list of arguments."""
    uses = [use for use in chain(*texts) if use.name == name]
    if name[0] in _ALWAYS_FUNCTIONS or "'" in name or any(use.is_inverse for use in uses):
        return False
    if name == "π" or any(name in use.letters for use in uses):  # x(x+1)
        return True
    for text in texts:
        if len({text_key(use.argument) for use in text if use.name == name}) > 1:  # x(t+1) - x(t-1)
            return False
    may_be = stands_alone or name[0] in _COEFFICIENTS
    return may_be and all(
        is_sum(use.argument) and "," not in texts_of(use.argument) and not _is_usual(use) for use in uses
    )


def _is_usual(use: Use) -> bool:
    """Tell whether the name is a usual one for functions of what is in the brackets: A(x+1), P(A+B), not v_0(1+t)."""
    letter = use.name.removesuffix(" _ n")  # T_n(x+1)
    if letter in _GREEK_FUNCTIONS or "".join(use.letters).isupper():
        return bool(use.letters)
    return len(letter) == len(use.letters) == 1 and use.letters <= set(_FUNCTIONS_OF.get(letter, _VARIABLES))
