r"""Decide whether a letter before brackets is a function or a factor.

The answer and the truth decide together: f(x+1) is a function of x+1, while x(x+1), 2\pi r(r+h) and P(1+r)^2 are
products.

In doubt it is a function, that is: a symbol of its own for each argument. A product taken for a function misses a right
answer; a function taken for a product would make every function linear and pay for wrong ones.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from string import ascii_lowercase

from rewards.mathematics.key import text_key
from rewards.mathematics.tokens import (
    Token,
    Tokens,
    are_letters,
    closing_bracket,
    is_letter,
    is_mark,
    is_sum,
    texts_of,
    unwrapped,
)

MAX_ARGUMENT = 120  # tokens: looking further would make deep nesting slow
_CONSTANTS = frozenset("π")
_ALWAYS_FUNCTIONS = frozenset("fΓζ")
# letters that are functions where they are applied to something made of these letters alone
_FUNCTIONS_OF = {
    **dict.fromkeys("pqv", frozenset("xt")),
    **dict.fromkeys("ghu", frozenset("xtn")),
    **dict.fromkeys("FGHLQSTUWXYδηθρσφχψΘΦΨ", frozenset("xyztmn")),
    **dict.fromkeys("PE", frozenset("ABCDEXYZ")),
    **dict.fromkeys("abcm", frozenset("nt")),
}
# … or where they are applied to one of these: A(x + 1), but not A(1 - e^{-t}) and P(1 + r)
_FUNCTIONS_OF_ONE = {
    **dict.fromkeys("ABCDFGHIJKLMNPQRSTUVWXYZ", frozenset("xtnsz")),
    **dict.fromkeys("δηθσφχψΘΦΨ", frozenset(ascii_lowercase)),
}
_COEFFICIENTS = frozenset("abckm")  # before a sum these are factors unless something speaks against it


@dataclass(frozen=True)
class Name:
    """A name in a text, with what stands in the brackets behind it."""

    at: int  # its place in the tokens
    text: str  # with its subscript and primes
    argument: tuple[Token, ...] | None  # None: no bracket follows
    is_inverse: bool = False  # f^{-1}(x)

    @property
    def is_applied(self) -> bool:
        return self.argument is not None


def mark_applications(answer: Tokens, truth: Tokens) -> tuple[list[Token], list[Token]]:
    """Return both texts with kind "applied" for each name that is a function of what the brackets behind it hold."""
    texts = [list(_names(answer)), list(_names(truth))]
    applied = {name.text for name in chain(*texts) if name.is_applied}
    functions = {text for text in applied if _is_function(text, texts)}
    return _marked(answer, texts[0], functions), _marked(truth, texts[1], functions)


def _marked(tokens: Tokens, names: Sequence[Name], functions: Set[str]) -> list[Token]:
    tokens = list(tokens)
    for name in names:
        if name.is_applied and name.text in functions:
            tokens[name.at] = tokens[name.at]._replace(kind="applied")
    return tokens


def number_parameters(answer: Tokens, truth: Tokens) -> tuple[Tokens, Tokens]:
    """Number the parameters where both define the same function.

    f(t) = t^2 and f(x) = x^2 become f($1) = $1^2, and so do a_n = 2n and a_k = 2k.
    """
    (function, ours), (other, theirs) = _definition(answer), _definition(truth)
    if function != other or len(ours) != len(theirs):
        return answer, truth
    return _numbered(answer, ours), _numbered(truth, theirs)


def _definition(tokens: Tokens) -> tuple[str, list[str]]:
    """Return the function that is defined, and its parameters; none unless the definition uses each of them."""
    first = next(_names(tokens), None)
    if first is None or first.at > 0:
        return "", []
    function, end = tokens[0].text, end_of_name(tokens, 0)
    letters = unwrapped(tokens[1:end])[1:]  # the n of a_n
    if first.is_applied and are_letters(first.argument, ","):
        function, letters = first.text, first.argument
        end = closing_bracket(tokens, end_of_exponent(tokens, end)) + 1
    if end >= len(tokens) or not is_mark(tokens[end], "="):
        return function, []
    parameters = [token.text for token in letters if is_letter(token) and token.text.islower()]
    used = set(texts_of(tokens[end:]))
    return function, parameters if used.issuperset(parameters) else []


def _numbered(tokens: Tokens, parameters: list[str]) -> Tokens:
    numbers = {parameter: f"${number}" for number, parameter in enumerate(parameters, 1)}
    return [token._replace(text=numbers[token.text]) if token.text in numbers else token for token in tokens]


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


def _names(tokens: Tokens) -> Iterator[Name]:
    at = 0
    while at < len(tokens):
        if not is_letter(tokens[at]):
            at += 1
            continue
        end = end_of_name(tokens, at)
        yield _name(tokens, at, end)
        at = end


def _name(tokens: Tokens, at: int, end: int) -> Name:
    text = text_key(tokens[at:end])
    opening = end_of_exponent(tokens, end)
    is_inverse = "".join(texts_of(tokens[end:opening])) in ("^{-1}", "^-1")
    is_power = opening > end and not is_inverse and text[0] not in _ALWAYS_FUNCTIONS
    is_exponent = at > 0 and is_mark(tokens[at - 1], "^")  # 2^n(n+1)
    if is_power or is_exponent or opening >= len(tokens) or tokens[opening].text not in ("(", "["):
        return Name(at, text, None)
    closing = closing_bracket(tokens, opening, MAX_ARGUMENT)
    is_closed = tokens[closing].kind == "close"
    return Name(at, text, tuple(tokens[opening + 1 : closing]) if is_closed else (), is_inverse)


def _is_function(text: str, texts: Sequence[Sequence[Name]]) -> bool:
    """Tell whether a name is a function, by its uses in both texts."""
    found = [name for name in chain(*texts) if name.text == text]
    uses = [name for name in found if name.is_applied]
    letter = text[0]
    if letter in _CONSTANTS:
        return False
    if any(use.is_inverse for use in uses):
        return True
    if any(map(_repeats_in_argument, uses)):  # x(x+1)
        return False
    if "'" in text or letter in _ALWAYS_FUNCTIONS or any(map(_is_known, uses)):
        return True
    has_several_arguments = any(len(_arguments(text, names)) > 1 for names in texts)
    if has_several_arguments or not all(map(_adds, uses)):
        return True
    is_bare = len(uses) < len(found)
    return not is_bare and letter not in _COEFFICIENTS


def _arguments(text: str, names: Sequence[Name]) -> set[str]:
    """Return what a name is applied to in one text."""
    return {text_key(name.argument) for name in names if name.is_applied and name.text == text}


def _repeats_in_argument(use: Name) -> bool:
    return any(name.text == use.text and not name.is_applied for name in _names(use.argument))


def _is_known(use: Name) -> bool:
    """Tell whether the letter is a usual name for functions of what is in the brackets."""
    names = {name.text for name in _names(use.argument)}
    is_indexed = use.text.endswith("_ n") and use.text[0].isupper()  # T_n(x + 1)
    letter = use.text[0] if is_indexed else use.text  # with any other subscript, v_0, it is a constant
    if len(names) == 1 and names <= _FUNCTIONS_OF_ONE.get(letter, frozenset()):
        return True
    return bool(names) and names <= _FUNCTIONS_OF.get(letter, frozenset())


def _adds(use: Name) -> bool:
    """Tell whether one sum stands in the brackets, and no list of arguments."""
    return is_sum(use.argument) and not any(is_mark(token, ",") for token in use.argument)
