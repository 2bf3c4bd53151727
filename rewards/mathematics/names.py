r"""Read letters that stand for more than a variable: functions before brackets, and the left sides of equations.

f(x+1) is a function of x+1, while x(x+1) and 2\pi r(r+h) are products. In doubt it is a function, that is: a symbol of
its own for each argument. A product taken for a function misses a right answer; a function taken for a product would
make every function linear and pay for wrong ones.

A label names the value that was asked for: `x`, `a_n`, `\angle ABC`, `AB:CD`, `\cos\theta`, "the area". `f(x)` is one
where f is being defined, and `f(2)`. Every other left side is one half of an equation: \ln y = x + C says nothing about
y = x + C.
"""

import re
from dataclasses import dataclass

from rewards.mathematics import symbols, units
from rewards.mathematics.tokens import (
    Token,
    Tokens,
    closing_bracket,
    is_letter,
    is_mark,
    is_sum,
    split,
    text_key,
    text_of,
)

MAX_ARGUMENT = 120  # tokens: looking further would make deep nesting slow
_FACTORS = frozenset("abcdeghkmnpqrstvwxyzAMPRλμρ")  # before a sum, unless the sum is of what they are functions of
# what letters are usually functions of; those in the table, of these letters only
_FUNCTIONS_OF = {**dict.fromkeys("abcm", "nt"), **dict.fromkeys("dknte", "")}
_VARIABLES = "nstxz"
_CONSTANTS = frozenset("πi")  # e is an eccentricity, too
# one thing, as texts of tokens with spaces between them: x_1, the segment AB, \angle ABC, \vec{v}, |AB|, \cos\theta
_LETTER = rf"(?:[A-Za-z{''.join(symbols.GREEK.values())}]|\\mathbb[A-Z])"
_LETTERS = rf"{_LETTER}(?: {_LETTER})*"
_NAME = rf"{_LETTER}(?: ')*(?: _ (?:\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\S+))?"
_ACCENT = rf"(?:m (?=\\angle))?(?:{'|'.join(map(re.escape, symbols.ACCENTS))})"
_ACCENTED = rf"{_ACCENT} (?:\S+|\{{ \S+ \}}|{_LETTERS}|[({{] {_LETTERS} [)}}])"
_ONE = rf"(?![πi]$)(?:{_NAME}|[A-Z](?: [A-Z])+|{_ACCENTED})"
_OF_ANGLE = rf"(?:{'|'.join(symbols.OF_ANGLES)}) (?:[0-9.]+ )?(?![a-z]$)"  # \sin x = 1 is an equation for x
_THING = re.compile(rf"(?:{_OF_ANGLE})?{_ONE}|\| (?!\S+ \|){_ONE} \|")
_NO_LABEL = "+-*/÷^=<>≤≥≠≈±∓!|"


# --- functions and factors -------------------------------------------------------------------------------------------
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
        return tokens[at].text == "f" or text_of(tokens[end:opening]) in ("^ { - 1 }", "^ - 1")
    closing = closing_bracket(tokens, opening, MAX_ARGUMENT)
    argument = tokens[opening + 1 : closing] if tokens[closing].kind == "close" else []
    return not _is_factor(text_of(tokens[at:end]), argument)


def _is_factor(name: str, argument: Tokens) -> bool:
    """Tell whether a name multiplies what is in the brackets: a sum that does not look like an argument."""
    letters = {token.text for token in argument if is_letter(token)}
    if name == "π" or name in letters - {"f"}:  # x(x+1)
        return True
    if "'" in name or name[0] not in _FACTORS or "," in text_of(argument) or not is_sum(argument):
        return False
    usual = _FUNCTIONS_OF.get(name, _VARIABLES) if name in _FACTORS else ""
    is_usual = "".join(letters).isupper() or (len(letters) == 1 and letters <= set(usual))  # A(x+1), P(A+B)
    return not is_usual


# --- labels -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Label:
    key: str  # all of the label
    is_words: bool = False  # "the area", "the correct option": no name of mathematics


def read_label(tokens: Tokens) -> Label | None:
    """Return the label that the tokens are; None if they are more than that."""
    if tokens[0].kind == "applied":
        return _application(tokens)
    parts, _ = split(tokens, ":")
    if all(_THING.fullmatch(text_of(part)) for part in parts):
        return Label(text_key(tokens))
    is_term = tokens[0].kind == "number" or any(map(_operates, tokens))  # 2 area, area + 1
    return Label(text_key(tokens), is_words=True) if is_phrase(tokens) and not is_term else None


def is_phrase(tokens: Tokens) -> bool:
    """Tell whether there are words, and none that negates what follows."""
    words = [token.word for token in tokens if token.word and not is_letter(token)]
    return bool(words) and units.NEGATIONS.isdisjoint(words)


def _operates(token: Token) -> bool:
    is_command = token.kind == "command" and token.text not in symbols.ACCENTS
    return is_command or token.kind == "function" or is_mark(token, _NO_LABEL)


def _application(tokens: Tokens) -> Label | None:
    r"""Read f(x), f^{-1}(x), u(x,t), or one value: f(2), P(A \cup B)."""
    end = end_of_name(tokens, 0)
    opening = end_of_exponent(tokens, end)
    if opening >= len(tokens) or closing_bracket(tokens, opening) != len(tokens) - 1:
        return None
    argument = tokens[opening + 1 : -1]
    is_defined = all(is_letter(token) or token.text == "," for token in argument)
    return Label(text_key(tokens)) if is_defined or not any(map(_is_variable, argument)) else None


def _is_variable(token: Token) -> bool:
    """Tell whether a value at this argument would be no single one. It is one for the 2 of f(2) and the A of P(A)."""
    if token.kind == "name":
        return not token.text.isupper() and token.text not in _CONSTANTS
    return token.kind in ("applied", "function")
