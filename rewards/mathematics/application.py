r"""Decide whether a letter before brackets is a function or a factor.

f(x+1) is a function of x+1, while x(x+1) and 2\pi r(r+h) are products. In doubt it is a function, that is: a symbol of
its own for each argument. A product taken for a function misses a right answer; a function taken for a product would
make every function linear and pay for wrong ones.
"""

from collections.abc import Sequence

from rewards.mathematics.tokens import Token, Tokens, closing_bracket, is_letter, is_mark, is_sum, texts_of

MAX_ARGUMENT = 120  # tokens: looking further would make deep nesting slow
_FACTORS = frozenset("abcdeghkmnpqrstvwxyzAMPRλμρ")  # before a sum, unless the sum is of what they are functions of
# what letters are usually functions of; those in the table, of these letters only
_FUNCTIONS_OF = {**dict.fromkeys("abcm", "nt"), **dict.fromkeys("dknte", "")}
_VARIABLES = "nstxz"


def mark_applications(tokens: Tokens) -> list[Token]:
    """Return the tokens with kind "applied" for each letter that is a function of what the brackets behind it hold."""
    return [token._replace(kind="applied") if _is_applied(tokens, at) else token for at, token in enumerate(tokens)]


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


def _is_applied(tokens: Tokens, at: int) -> bool:
    if not is_letter(tokens[at]) or (at and is_mark(tokens[at - 1], "^_")):  # 2^n(n+1)
        return False
    end = end_of_name(tokens, at)
    opening = end_of_exponent(tokens, end)
    if opening >= len(tokens) or tokens[opening].text not in ("(", "["):
        return False
    if opening > end:
        is_inverse = "".join(texts_of(tokens[end:opening])) in ("^{-1}", "^-1")
        return is_inverse or tokens[at].text == "f"
    closing = closing_bracket(tokens, opening, MAX_ARGUMENT)
    argument = tokens[opening + 1 : closing] if tokens[closing].kind == "close" else []
    return not _is_factor(texts_of(tokens[at:end]), argument)


def _is_factor(name: Sequence[str], argument: Tokens) -> bool:
    """Tell whether a name multiplies what is in the brackets: a sum that does not look like an argument."""
    letters = {token.text for token in argument if is_letter(token)}
    if name == ["π"] or (len(name) == 1 and name[0] != "f" and name[0] in letters):  # x(x+1)
        return True
    if "'" in name or name[0] not in _FACTORS or "," in texts_of(argument) or not is_sum(argument):
        return False
    usual = _FUNCTIONS_OF.get(name[0], _VARIABLES) if len(name) == 1 else ""
    is_usual = "".join(letters).isupper() or (len(letters) == 1 and letters <= set(usual))  # A(x+1), P(A+B)
    return not is_usual
