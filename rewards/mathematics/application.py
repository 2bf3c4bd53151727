r"""Whether a letter before brackets is a function or a factor, decided from the answer and the truth together: f(x+1)
is a function of x+1, while x(x+1), 2\pi r(r+h) and P(1+r)^2 are products.

In doubt it is a function, that is: a symbol of its own for each argument. A product taken for a function misses a right
answer; a function taken for a product would make every function linear and pay for wrong ones.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Final

from rewards.mathematics.key import text_key
from rewards.mathematics.text import Token, Tokens, closing_bracket, is_letter, is_mark, nesting, unwrapped

MAX_ARGUMENT: Final = 120  # tokens: looking further would make deep nesting slow
_CONSTANTS: Final = frozenset("π")
_ALWAYS_FUNCTIONS: Final = frozenset("fΓζ")
# letters that are functions where they are applied to something made of these letters alone
_FUNCTIONS_OF: Final = {
    **dict.fromkeys("pqv", frozenset("xt")),
    **dict.fromkeys("ghu", frozenset("xtn")),
    **dict.fromkeys("FGHLQSTUWXYδηθρσφχψΘΦΨ", frozenset("xyztmn")),
    **dict.fromkeys("PE", frozenset("ABCDEXYZ")),
    **dict.fromkeys("abcm", frozenset("nt")),
}
# … or where they are applied to one of these: A(x + 1), but not A(1 - e^{-t}) and P(1 + r)
_FUNCTIONS_OF_ONE: Final = {
    **dict.fromkeys("ABCDFGHIJKLMNPQRSTUVWXYZ", frozenset("xtnsz")),
    **dict.fromkeys("δηθσφχψΘΦΨ", frozenset(ascii_lowercase)),
}
_COEFFICIENTS: Final = frozenset("abckm")  # before a sum these are factors unless something speaks against it


@dataclass(frozen=True)
class Name:
    """A name in a text, with what stands in the brackets behind it."""

    at: int  # its place in the tokens
    text: str  # with its subscript and primes
    argument: tuple[Token, ...] | None  # None: no bracket follows
    is_defined: bool = False  # f(x) = at the start of an item
    is_inverse: bool = False  # f^{-1}(x)

    @property
    def letter(self) -> str:
        return self.text[0]


def mark_applications(answer: Tokens, truth: Tokens) -> tuple[list[Token], list[Token]]:
    """Both texts, with kind "applied" for each name that is a function of what stands in the brackets behind it."""
    texts = [list(_names(tokens)) for tokens in (answer, truth)]
    functions = _functions(texts)
    marked = []
    for tokens, names in zip((answer, truth), texts, strict=True):
        tokens = list(tokens)
        for name in names:
            if name.argument is not None and name.text in functions:
                tokens[name.at] = tokens[name.at]._replace(kind="applied")
        marked.append(tokens)
    return marked[0], marked[1]


def number_parameters(answer: Tokens, truth: Tokens) -> tuple[Tokens, Tokens]:
    """Both with numbers for parameters where they define the same function: f(t) = t^2 and f(x) = x^2 as f($1) = $1^2,
    and so a_n = 2n and a_k = 2k."""
    (function, ours), (other, theirs) = _definition(answer), _definition(truth)
    if function != other or len(ours) != len(theirs):
        return answer, truth
    return _numbered(answer, ours), _numbered(truth, theirs)


def _definition(tokens: Tokens) -> tuple[str, list[str]]:
    """(the function that is defined, its parameters), without parameters unless the definition uses each of them."""
    first = next(_names(tokens), None)
    if first is None or first.at > 0:
        return "", []
    function, index = tokens[0].text, end_of_name(tokens, 0)
    letters = unwrapped(tokens[1:index])[1:]  # the n of a_n
    if first.is_defined:
        function, letters = first.text, list(first.argument)
        index = closing_bracket(tokens, end_of_exponent(tokens, index)) + 1
    if index >= len(tokens) or not is_mark(tokens[index], "="):
        return function, []
    parameters = [token.text for token in letters if is_letter(token) and token.text.islower()]
    used = {token.text for token in tokens[index:]}
    return function, parameters if used.issuperset(parameters) else []


def _numbered(tokens: Tokens, parameters: list[str]) -> Tokens:
    numbers = {parameter: f"${number}" for number, parameter in enumerate(parameters, 1)}
    return [token._replace(text=numbers[token.text]) if token.text in numbers else token for token in tokens]


def end_of_name(tokens: Tokens, at: int) -> int:
    """Where the name that starts at `at` ends, after its primes and its subscript."""
    at += 1
    while at < len(tokens) and is_mark(tokens[at], "'"):
        at += 1
    if at + 1 < len(tokens) and is_mark(tokens[at], "_"):
        at = closing_bracket(tokens, at + 1) if tokens[at + 1].text == "{" else at + 1
        at += 1
    return at


def end_of_exponent(tokens: Tokens, at: int) -> int:
    """Where the exponent that may start at `at` ends: `^{-1}`, `^2`."""
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
    exponent = "".join(token.text for token in tokens[end:opening])
    is_inverse = exponent in ("^{-1}", "^-1")
    is_power = opening > end and not is_inverse and text[0] not in _ALWAYS_FUNCTIONS
    is_exponent = at > 0 and is_mark(tokens[at - 1], "^")  # 2^n(n+1)
    if is_power or is_exponent or opening >= len(tokens) or tokens[opening].text not in ("(", "["):
        return Name(at, text, None)
    closing = closing_bracket(tokens, opening, MAX_ARGUMENT)
    is_closed = tokens[closing].kind == "close"
    argument = tuple(tokens[opening + 1 : closing]) if is_closed else ()
    is_assigned = closing + 1 < len(tokens) and is_mark(tokens[closing + 1], "=")
    is_first = at == 0 or is_mark(tokens[at - 1], ",;:") or tokens[at - 1].kind == "word"
    has_bare_names = all(is_letter(part) or is_mark(part, ",") for part in argument)
    is_defined = is_assigned and is_first and has_bare_names
    return Name(at, text, argument, is_defined, is_inverse)


def _functions(texts: Sequence[Sequence[Name]]) -> set[str]:
    """The names that are functions."""
    applied: dict[str, list[Name]] = defaultdict(list)
    bare: set[str] = set()
    for names in texts:
        for name in names:
            if name.argument is None:
                bare.add(name.text)
            else:
                applied[name.text].append(name)
    functions = set()
    for name, uses in applied.items():
        most_arguments = max(len(_arguments(names, name)) for names in texts)
        if _is_function(uses, name in bare, most_arguments):
            functions.add(name)
    return functions


def _arguments(names: Sequence[Name], text: str) -> set[str]:
    """The different arguments of one name in one text."""
    return {text_key(name.argument) for name in names if name.text == text and name.argument is not None}


def _is_function(uses: Sequence[Name], is_bare: bool, num_arguments: int) -> bool:
    """What the uses of one name say. `is_bare`: it also stands alone; `num_arguments`: of one text, without repeats."""
    letter = uses[0].letter
    if letter in _CONSTANTS:
        return False
    if any(use.is_defined or use.is_inverse for use in uses):
        return True
    if any(_repeats_in_argument(use) for use in uses):  # x(x+1)
        return False
    is_derivative = "'" in uses[0].text
    if is_derivative or letter in _ALWAYS_FUNCTIONS or any(map(_is_known, uses)):
        return True
    if num_arguments > 1 or not all(_is_sum(use.argument) for use in uses):
        return True
    return not is_bare and letter not in _COEFFICIENTS


def _repeats_in_argument(use: Name) -> bool:
    return any(name.text == use.text and name.argument is None for name in _names(use.argument))


def _is_known(use: Name) -> bool:
    """Whether the letter is a usual name for functions of what is in the brackets."""
    names = {name.text for name in _names(use.argument)}
    is_indexed = use.text.endswith("_ n") and use.letter.isupper()  # T_n(x + 1)
    letter = use.letter if is_indexed else use.text  # with any other subscript, v_0, it is a constant
    if len(names) == 1 and names <= _FUNCTIONS_OF_ONE.get(letter, frozenset()):
        return True
    return bool(names) and names <= _FUNCTIONS_OF.get(letter, frozenset())


def _is_sum(argument: Tokens) -> bool:
    """Whether several terms stand in the brackets."""
    depth = 0
    for at, token in enumerate(argument):
        depth += nesting(token)
        if depth == 0 and at and is_mark(token, "+-") and not is_mark(argument[at - 1], "^*/+-"):
            return not any(is_mark(part, ",") for part in argument)
    return False
