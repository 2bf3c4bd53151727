r"""Turn untrusted LaTeX, Unicode or plain text into tokens of one small vocabulary, and walk through them.

Nothing here knows mathematics: `\frac{1}{2}` is seven tokens, which `expression.py` and `answer.py` read. Time is
linear in the text.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, dropwhile, pairwise
from string import ascii_lowercase
from typing import NamedTuple

from rewards.mathematics import symbols, units
from rewards.mathematics.spelling import clean


class Token(NamedTuple):
    kind: str  # number | name | applied | word | function | command | mark | open | close | begin | end
    text: str  # one spelling per meaning: `\times`, `×` and `*` are all "*"
    spaced: bool = False  # white space stood before it

    @property
    def word(self) -> str:
        """Return the word in lower case, "" for any other token."""
        return self.text.casefold() if self.kind == "word" else ""


MAX_OUTER_BRACES = 3  # that are taken off an answer: \boxed{\boxed{5}}
RELATIONS = "=≈<>≤≥≠∈"
Tokens = Sequence[Token]

_THOUSANDS = r"(?<![0-9],)[1-9][0-9]{0,2}(?:(?: [0-9]{3})+(?![0-9/])|(?:,[0-9]{3})+(?![0-9]|,[0-9]))(?:\.[0-9]+)?"
_NUMBER = (
    r"[0-9]*\.[0-9]*\\(?:overline|bar|dot) ?(?:\{ ?[0-9]+ ?\}|[0-9])"  # 0.1\overline{6}
    r"|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+(?![A-Za-z0-9]|\.[0-9]))?"
)
_OTHERS = (
    r"(?P<space>\s+|~)|(?P<environment>\\(?:begin|end) ?\{[A-Za-z]+\*?\})|(?P<command>\\(?:[A-Za-z]+|.)|\\$)"
    r"|(?P<letters>[\u4e00-\u9fff]+|[^\W\d_\u4e00-\u9fff]+)|(?P<mark>.)"
)
_PIECE = re.compile(f"(?P<number>{_THOUSANDS}|{_NUMBER})|{_OTHERS}", re.DOTALL)
_PIECE_IN_BRACKETS = re.compile(f"(?P<number>{_NUMBER})|{_OTHERS}", re.DOTALL)  # where a comma groups no thousands
_GREEK_LETTER = re.compile(f"([{''.join(sorted(set(symbols.GREEK.values())))}])")
_AROUND = (",", ".", ";", ":", '"', r"\\")  # punctuation around an answer, or a new line at its end
_ROMAN = re.compile("(?=.*[VX]|II)(?:X[CL]|L?X{0,3})(?:I[XV]|V?I{0,3})")  # below 100; CD is a segment, too
_ARTICLES = ("a", "an", "the")
_PUNCTUATION = frozenset((r"\{", r"\}", r"\\", *"\\()[]{}.,:;?!…'\"|-_*&~@#\ufffd"))


def tokenize(text: str) -> list[Token]:
    """Return the tokens of any text, in order: an unknown character becomes a mark."""
    tokens = _Tokenizer(clean(text)).tokens
    for _ in range(MAX_OUTER_BRACES):
        if len(tokens) > 2 and tokens[0].text == "{" and enclosed(tokens):
            tokens = tokens[1:-1]
    return tokens


class _Tokenizer:
    """Read the text once, from left to right."""

    def __init__(self, text: str):
        self.tokens: list[Token] = []
        self.are_text = [False]  # for each open brace: whether \text opened it, so that its braces leave no token
        self.is_text_next = False  # the brace that comes next
        at = depth = 0
        spaced = False
        while at < len(text):
            piece = (_PIECE_IN_BRACKETS if depth else _PIECE).match(text, at)
            assert piece  # any character is a mark
            at = piece.end()
            if piece.lastgroup == "space" or piece[0] in symbols.BLANKS:
                spaced = True
                continue
            if piece[0] in symbols.TEXT_FONTS:
                self.is_text_next = True
                continue
            new = self.read(str(piece.lastgroup), piece[0])
            self.is_text_next = False
            if new:
                self.tokens += [new[0]._replace(spaced=spaced), *new[1:]]
                spaced = False
                if new[0].kind in ("open", "close") and new[0].text not in "{}":
                    depth = max(0, depth + nesting(new[0]))

    def read(self, kind: str, found: str) -> list[Token]:
        in_text = self.are_text[-1]
        if kind == "number":
            return [Token("number", _one_spelling(found))]
        if kind == "letters":
            before = self.tokens[-1].kind if self.tokens else ""
            if not in_text and found in symbols.PRODUCTS and before not in ("number", "word"):
                return [Token("name", letter) for letter in found]
            return _letters(found, in_text=in_text)
        if found == "{":
            self.are_text.append(in_text or self.is_text_next)
            return [] if self.are_text[-1] else [Token("open", "{")]
        if found == "}":
            if len(self.are_text) > 1:
                self.are_text.pop()
            return [] if in_text else [Token("close", "}")]
        return _symbol(kind, found)


def _one_spelling(number: str) -> str:
    """Write `1,234` and `1 234` as 1234, `0.1\\overline{6}` as 0.1(6); scientific notation stays."""
    if "\\" in number:
        fixed, _, repeated = number.partition("\\")
        return f"{fixed}({''.join(filter(str.isdigit, repeated))})"
    return number.replace(",", "").replace(" ", "")


def _symbol(kind: str, found: str) -> list[Token]:
    if kind == "environment":
        side, _, name = found.rstrip("*}").partition("{")
        return [Token(side.strip("\\ "), name)]
    if found in symbols.IGNORED:
        return []
    if found.startswith(r"\mathbb"):
        return [Token("name", found)]
    return [Token(*symbols.SYMBOLS.get(found, (kind, found)))]


def _letters(run: str, *, in_text: bool) -> list[Token]:
    """Read a run of letters as a function, a word, or (in mathematics) one variable per letter."""
    if run in symbols.FUNCTIONS and run != "sec":  # "sec" without its backslash is a second
        return [Token("function", run)]
    if run in symbols.GREEK.values() or (in_text and run in ("e", "i")):
        return [Token("name", run)]
    if in_text:
        return [Token("word", run)]
    if not run.isascii() and _GREEK_LETTER.search(run):
        return [token for part in _GREEK_LETTER.split(run) if part for token in _letters(part, in_text=False)]
    if run in symbols.BARE_WORDS:
        return [Token(*symbols.BARE_WORDS[run])]
    if run.isascii() and (len(run) == 1 or not _is_word(run)):
        return [Token("name", letter) for letter in run]
    return [Token("word", run)]


def _is_word(run: str) -> bool:
    """Tell whether a bare run of letters is a word (`even`, `cm`, `ABC`) and not a product (`xy`, `abc`, `nRT`)."""
    lower = run.casefold()
    if run.isupper() and lower in units.NAMES_IN_CAPITALS:
        return False
    if lower in units.SHORT_WORDS or _ROMAN.fullmatch(run):
        return True
    if len(run) == 2 or set(run) <= set("abcd") or run in ascii_lowercase:
        return False
    return run.isupper() or len(run) > 4 or bool(set("aeiou") & set(lower))


def is_mark(token: Token, texts: str) -> bool:
    """Tell whether the token is one of these one-character marks."""
    return token.kind == "mark" and token.text in texts


def text_of(tokens: Tokens) -> str:
    """Return what the tokens say, with a space between them: one text for patterns to look at."""
    return " ".join(token.text for token in tokens)


def nesting(token: Token) -> int:
    """Return how much deeper in brackets the next token stands: 1 after an opening one, -1 after a closing one."""
    if token.kind in ("open", "begin"):
        return 1
    return -1 if token.kind in ("close", "end") else 0


def is_letter(token: Token) -> bool:
    """Tell whether the token can be a variable; `\\text{x}` can, too."""
    if token.kind == "word":
        return len(token.text) == 1 and token.text.isascii()
    return token.kind == "name"


def stripped(tokens: Tokens) -> list[Token]:
    """Return the tokens without the punctuation around them."""
    kept = list(dropwhile(lambda token: token.text in _AROUND[:-1], tokens))
    while kept and kept[-1].text in _AROUND:
        kept.pop()
    return kept


def split(tokens: Tokens, separates: Collection[str]) -> tuple[list[list[Token]], list[str]]:
    """Split at separators outside all brackets, marks or words in lower case; return the parts and the separators."""
    parts: list[list[Token]] = [[]]
    found = []
    depth = 0
    for token in tokens:
        depth += nesting(token)
        text = token.word or token.text
        if depth == 0 and token.kind in ("mark", "word") and text in separates:
            found.append(text)
            parts.append([])
        else:
            parts[-1].append(token)
    return parts, found


def enclosed(tokens: Tokens) -> bool:
    """Tell whether the first token is a bracket that the last one closes."""
    last = len(tokens) - 1
    return last > 0 and closing_bracket(tokens, 0) == last and not sum(map(nesting, tokens))


def closing_bracket(tokens: Tokens, opening: int, within: int | None = None) -> int:
    """Return where the bracket closes that opens at `opening`; the last token looked at if none does."""
    looked_at = tokens[opening:] if within is None else tokens[opening : opening + within]
    depths = accumulate(map(nesting, looked_at))
    return opening + next((at for at, depth in enumerate(depths) if depth <= 0), len(looked_at) - 1)


def is_sum(tokens: Tokens) -> bool:
    """Tell whether terms are added or subtracted outside all brackets; -x, 2*-3 and x^-1 are no sums."""
    depth = 0
    for before, token in pairwise(tokens):
        depth += nesting(before)
        if depth == 0 and is_mark(token, "+-") and not is_mark(before, "^*/÷+-"):
            return True
    return False


# --- tokens without a value -------------------------------------------------------------------------------------------
def text_key(tokens: Iterable[Token]) -> str:
    """Return the normal form of a text without a value. Words have no case, numbers no idle zeros.

    The article in front goes, and so do the braces around a single token: `x^{2}` reads as `x^2`.
    """
    kept: list[Token] = []
    for token in tokens:
        is_single = len(kept) > 1 and kept[-2].kind == "open" and kept[-2].text == "{"
        if token.kind == "close" and token.text == "}" and is_single:
            kept[-2:] = [kept[-1]]
        elif not is_mark(token, '".'):
            kept.append(token)
    if len(kept) > 1 and kept[0].text.casefold() in _ARTICLES and len(kept[1].word) > 3:
        kept = kept[1:]
    is_prose = any(len(token.word) > 1 for token in kept)  # \text{R} is no r
    parts = []
    for token in kept:
        text = token.text
        if token.kind == "number" and text.replace(".", "", 1).isdigit():
            whole, _, decimals = text.partition(".")
            text = f"{whole.lstrip('0') or 0}.{decimals}".rstrip("0").rstrip(".") if decimals else whole
        parts.append(units.in_one_case(text) if is_prose else text)
    return " ".join(parts)


def are_same_word(one: Tokens, other: Tokens) -> bool:
    r"""Tell whether one is a word and the other the same letters: \text{AC} and AC."""
    word, letters = sorted((one, other), key=len)
    is_word = [token.kind for token in word] == ["word"] and {token.kind for token in letters} == {"name"}
    return is_word and word[0].text == "".join(token.text for token in letters)


def has_content(tokens: Tokens) -> bool:
    """Tell whether there is more than punctuation, dots and brackets: not so in "…", ":", "?". {} is the empty set."""
    return text_of(tokens) == r"\{ \}" or any(token.text not in _PUNCTUATION for token in tokens)
