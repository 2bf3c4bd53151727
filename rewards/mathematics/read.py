r"""Tokens of a whole answer -> its shape: `x \in [0,1)`, `3 \text{ or } -5`, `\textbf{(B)}\ 12`, a matrix, a sentence.

Every text has a shape. What cannot be read as mathematics, or exceeds a limit, is `Text` and equals only the same text.
"""

from collections.abc import Sequence
from typing import Final

from rewards.mathematics import units
from rewards.mathematics.algebra import Algebra, Quotient, Unreadable
from rewards.mathematics.choice import split_choice
from rewards.mathematics.colon import read_clock
from rewards.mathematics.compare import scaled
from rewards.mathematics.labels import Label, is_phrase, read_label
from rewards.mathematics.numeral import read_numeral
from rewards.mathematics.parse import CLOSERS, read_expression
from rewards.mathematics.quantity import Scalar, is_range_or_code, read_quantity
from rewards.mathematics.text import (
    RELATIONS,
    Token,
    Tokens,
    enclosed,
    is_letter,
    is_mark,
    nesting,
    segment,
    split,
    stripped,
    text_key,
)
from rewards.mathematics.value import (
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Bag,
    Chain,
    Choice,
    Grid,
    Named,
    Ratio,
    Relation,
    Row,
    Text,
    Value,
)

MAX_NESTING: Final = 12  # of brackets in brackets that are tuples, sets or intervals
MAX_ITEMS: Final = 64  # of a list: comparing without order is quadratic

_EQUALS_WORDS: Final = ("is", "are", "equals")
_FLIPPED: Final = {">": "<", "≥": "≤", "<": ">", "≤": "≥"}
_MATRICES: Final = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array", "vmatrix", "Vmatrix"))
_ROW_OPENERS: Final = ("(", "[", r"\langle")
_ROW_CLOSERS: Final = (")", "]", r"\rangle")
_UNNAMED: Final = (
    "answer",
    "final answer",
    "ans",
    "答",
    "答案",
    "故答案",
)  # what stands behind these is the answer itself
_WORDS: Final = {
    "∅": r"\{ \}|no solution|no solutions|no real solution|no real solutions|empty set|none|there is no solution"
    "|there are no solutions",
    "does not exist": "dne|doesn ' t exist|limit does not exist",
    INFINITY.key: "+ ∞|positive ∞|positive infinity|infinity",
    MINUS_INFINITY.key: "- ∞|negative ∞|negative infinity",
    REALS.key: r"\mathbbR|all real numbers|all reals|all real|real numbers",
}
_SYNONYMS: Final = {spelt: key for key, others in _WORDS.items() for spelt in others.split("|")}
# words that answer one question each: in a list of them the order says which
_VERDICTS: Final = frozenset(
    "true false yes no right wrong correct incorrect odd even positive negative zero increasing decreasing "
    "always sometimes never converges diverges convergent divergent rational irrational prime composite up down left "
    "maximum minimum max min neither both acute obtuse male female".split()
)


_VERDICT_LETTERS: Final = ("TF", "YN")


def read_answer(tokens: Tokens, algebra: Algebra) -> Value:
    """The shape of a whole answer."""
    return _Reader(algebra).answer(stripped(tokens))


class _Reader:
    def __init__(self, algebra: Algebra) -> None:
        self.algebra, self.nesting = algebra, 0

    # --- lists ------------------------------------------------------------------------------------------------------
    def answer(self, tokens: Tokens) -> Value:
        """A choice, or a list of items separated by `;`, or by commas, "and", "or"; of one item, that item."""
        choice = split_choice(tokens)
        if choice:
            letter, body = choice
            return Choice(letter, self.answer(body) if body else None)
        parts, _ = split(tokens, (";",))
        if len(parts) > 1:
            items = [self.answer(stripped(part)) for part in parts if part]
            return self.bag(items, tokens, is_ordered=True)
        return self.comma_list(tokens)

    def comma_list(self, tokens: Tokens) -> Value:
        parts, separators = split(tokens, (",", "and", "or"))
        items: list[Value] = []
        for part in map(stripped, _without_integers(parts)):
            if part:
                items += self.both_signs(part)
        items = _with_shared_label(items)
        bounded = [item.label.key for item in items if _is_bounded(item)]
        if "and" in separators and len(set(bounded)) < len(bounded):
            return Text(text_key(tokens))  # "x > 1 and x < 5" is no union
        return self.bag(items, tokens, is_ordered=_is_series(items, separators))

    def bag(self, items: list[Value], tokens: Tokens, *, is_ordered: bool) -> Value:
        if len(items) == 1:
            return items[0]
        if not 0 < len(items) <= MAX_ITEMS:
            return Text(text_key(tokens))
        return Bag(tuple(items), is_ordered=is_ordered)

    def both_signs(self, tokens: Tokens) -> list[Value]:
        """`2 ± √3` is two values, and `∓` goes along with `±`; inside a set they are two of its members."""
        if not _has_both_signs(tokens):
            return [self.item(tokens)]
        upper = self.item(_with_signs(tokens, {"±": "+", "∓": "-"}))
        lower = self.item(_with_signs(tokens, {"±": "-", "∓": "+"}))
        if isinstance(upper, Text):
            return [Text(text_key(tokens))]
        return [upper] if upper == lower else [upper, lower]

    # --- items: relations between sides -----------------------------------------------------------------------------
    def item(self, tokens: Tokens) -> Value:
        words, rest = _split_words_and_colon(tokens)
        if words:
            label = Label(text_key(words), is_words=True)
            if label.key in _UNNAMED:
                return self.answer(stripped(rest))
            return Named(label, self.item(stripped(rest)))
        sides, signs = split(tokens, (*RELATIONS, *_EQUALS_WORDS))
        signs = ["=" if sign in _EQUALS_WORDS else sign for sign in signs]
        if signs and not sides[0] and signs[0] in "=≈":
            sides, signs = sides[1:], signs[1:]
        if not signs:
            return self.side(sides[0])
        if not all(sides):
            return self.side(tokens)
        if any(sign in _FLIPPED for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.equalities(sides, signs)
        if signs[0] == "≠":
            return self.inequation(*sides)
        return self.equation(sides[0], signs[0], sides[1])

    def equalities(self, sides: list[Tokens], signs: list[str]) -> Value:
        """x = 3 + 4 = 7 as x = 7 if every link holds; otherwise a chain."""
        label = read_label(sides[0])
        if label is not None and set(signs) == {"="}:
            rest = self.chain(sides[1:], signs[1:])
            if rest.holds:
                return Named(label, rest.sides[-1])
        return self.chain(sides, signs)

    def chain(self, sides: Sequence[Tokens], signs: Sequence[str]) -> Chain:
        values = tuple(map(self.side, sides))
        written = tuple(map(_leaves, sides))
        first, *others = values
        are_equal = all(self.is_equal(first, other) for other in others)
        return Chain(tuple(signs), values, written, holds=are_equal and set(signs) == {"="})

    def is_equal(self, one: Value, other: Value) -> bool:
        """Whether an equation of two values holds whatever the variables are."""
        if not isinstance(one, Scalar) or not isinstance(other, Scalar):
            return False
        return one.equals(other, self.algebra)

    def equation(self, left: Tokens, sign: str, right: Tokens) -> Value:
        """x = 5 under its name, x + y = 5 too; other equations in variables as a relation, the rest as two sides."""
        left, right = _label_first(left, right)
        label = read_label(left)
        if label is not None and label.key in _UNNAMED:
            return self.answer(stripped(right))
        if label is None and enclosed(left) and self.is_point(self.side(left)):  # (x, y) = (1, 2)
            label = Label(text_key(left))
        values = self.expression(left), self.expression(right)
        if None in values:
            return Named(label, self.side(right)) if label else self.chain([left, right], [sign])
        difference = self.algebra.subtract(*values)
        if label is not None or self.is_term_with_value(*values):
            return Named(label, self.side(right), Relation("=", difference))
        if sign == "=" and self.is_equation(*values, difference):
            return Relation("=", difference)
        return self.chain([left, right], [sign])

    def is_equation(self, left: Quotient, right: Quotient, difference: Quotient) -> bool:
        """Whether the sides have variables and none cancels: x + C = x has no more to say than its two sides."""
        variables = self.algebra.variables
        remaining = variables(difference)
        return bool(remaining) and remaining == variables(left) | variables(right)

    def inequation(self, left: Tokens, right: Tokens) -> Value:
        """x ≠ 3 as the numbers without 3; any other as a relation, or a chain if it has no value."""
        left, right = _label_first(left, right)
        values = self.expression(left), self.expression(right)
        if None in values:
            return self.chain([left, right], ["≠"])
        label = read_label(left)
        if label is not None and values[1].number is not None:
            taken = Scalar(values[1])
            return Named(label, Row("∖", "∖", (REALS, taken)))
        difference = self.algebra.subtract(*values)
        if self.algebra.variables(difference):
            return Relation("≠", difference)
        return self.chain([left, right], ["≠"])

    def is_term_with_value(self, left: Quotient, right: Quotient) -> bool:
        """Whether the equation gives the value of a term in several variables: x + y = 5."""
        if self.algebra.is_opaque(left) or self.algebra.variables(right):
            return False
        return len(self.algebra.variables(left)) > 1

    def is_point(self, side: Value) -> bool:
        """Whether the left side is a tuple of variables."""
        return isinstance(side, Row) and all(map(_is_variable_value, side.items))

    def inequality(self, sides: list[Tokens], signs: list[str]) -> Value:
        """0 < x ≤ 1 as x in (0, 1]; x > 3 as x in (3, ∞); any other as one relation or a chain."""
        if all(sign in ">≥" for sign in signs):
            sides = sides[::-1]
            signs = [_FLIPPED[sign] for sign in reversed(signs)]
        if not all(sign in "<≤" for sign in signs):
            return self.chain(sides, signs)
        interval = self.interval(sides, signs)
        if interval is not None:
            return interval
        return self.two_sided(sides, signs) or self.chain(sides, signs)

    def two_sided(self, sides: list[Tokens], signs: list[str]) -> Relation | None:
        """The inequality of two sides, None for three, or without a variable."""
        values = [self.expression(side) for side in sides]
        if len(sides) != 2 or None in values:
            return None
        difference = self.algebra.subtract(*values)
        return Relation(signs[0], difference) if self.algebra.variables(difference) else None

    def interval(self, sides: list[Tokens], signs: list[str]) -> Value | None:
        """The interval of the one variable between numbers, increasing signs given: 0 < x ≤ 1, -x < 3; None if it is
        anything else."""
        places = [at for at, side in enumerate(sides) if _is_variable(side)]
        if len(sides) > 3 or len(places) != 1:
            return None
        at = places[0]
        if len(sides) == 3 and at != 1:
            return None
        low, high = MINUS_INFINITY, INFINITY
        opener, closer = "(", ")"
        if at > 0:
            low = self.bound(sides[at - 1])
            opener = "[" if signs[at - 1] == "≤" else "("
        if at + 1 < len(sides):
            high = self.bound(sides[at + 1])
            closer = "]" if signs[at] == "≤" else ")"
        if low is None or high is None:
            return None
        row = Row(opener, closer, (low, high))
        label = Label(sides[at][-1].text)
        if len(sides[at]) == 1:
            return Named(label, row)
        return Named(label, self.mirrored(row), self.two_sided(sides, signs))  # -x

    def bound(self, tokens: Tokens) -> Scalar | None:
        """The number that bounds an interval, None for anything else."""
        side = self.side(tokens)
        is_number = isinstance(side, Scalar) and not self.algebra.variables(side.value)
        return side if is_number else None

    def mirrored(self, row: Row) -> Row:
        """What x is in where -x is in the interval."""
        low, high = row.items
        opener = "[" if row.closer == "]" else "("
        closer = "]" if row.opener == "[" else ")"
        return Row(opener, closer, (self.opposite(high), self.opposite(low)))

    def opposite(self, bound: Value) -> Value:
        if isinstance(bound, Scalar):
            return Scalar(self.algebra.negate(bound.value), bound.unit)
        return MINUS_INFINITY if bound == INFINITY else INFINITY

    def expression(self, tokens: Tokens) -> Quotient | None:
        try:
            return read_expression(tokens, self.algebra)
        except Unreadable:
            return None

    # --- sides: one value, or brackets ------------------------------------------------------------------------------
    def side(self, tokens: Tokens) -> Value:
        tokens = segment(tokens) or stripped(tokens)
        self.nesting += 1
        try:
            if self.nesting > MAX_NESTING or not tokens:
                return Text(text_key(tokens))
            return self.shape(tokens)
        finally:
            self.nesting -= 1

    def shape(self, tokens: Tokens) -> Value:
        if enclosed(tokens):
            return self.brackets(tokens) or self.quantity(tokens)
        if tokens[-1].kind == "end":
            return self.multiple(tokens) or self.quantity(tokens)
        unions = [_union_sign(tokens, at) for at in range(len(tokens))]
        for sign in "∪∖":
            parts, found = split(unions, (sign,))
            if found and all(parts):
                items = tuple(self.side(part) for part in parts)
                return Bag(items) if sign == "∪" else Row(sign, sign, items)
        return self.ratio(tokens) or self.quantity(tokens)

    def ratio(self, tokens: Tokens) -> Value | None:
        """`2:3`, `3 to 4`, or a time of day; None if this is anything else."""
        clock = read_clock(tokens)
        has_half = tokens[-1].kind == "word"
        if clock is not None and has_half:
            return clock  # with AM or PM
        parts, colons = split(tokens, (":",))
        if colons and all(parts):
            return Ratio(tuple(map(self.side, parts)), clock)
        parts, _ = split(tokens, ("to",))
        if len(parts) == 2 and all(map(self.expression, parts)):
            return Ratio(tuple(map(self.side, parts)), is_range=True)
        return None

    def brackets(self, tokens: Tokens) -> Value | None:
        """What the brackets around all the tokens make of their content; None if they only group."""
        opener, closer = tokens[0].text, tokens[-1].text
        inner = list(tokens[1:-1])
        if tokens[0].kind == "begin":
            return self.environment(opener, inner)
        if opener == r"\{":
            return self.braces(inner) if closer == r"\}" else None
        if opener == "{":
            value = self.answer(inner)
            return None if isinstance(value, Text) else value
        parts, _ = split(inner, (";",))
        if len(parts) == 1:
            parts, _ = split(inner, (",",))
        is_list = len(parts) > 1 and all(parts)
        if is_list and opener in _ROW_OPENERS and closer in _ROW_CLOSERS:
            return self.row(opener, closer, parts)
        if CLOSERS[opener] != closer or opener not in ("(", "["):
            return None
        value = self.answer_within(inner)
        return None if isinstance(value, Text) else value

    def row(self, opener: str, closer: str, parts: list[Tokens]) -> Row | Grid:
        """A tuple or an interval; [[1,2],[3,4]] is a matrix."""
        row = Row(opener, closer, tuple(map(self.answer_within, parts)))
        rows = [item.items for item in row.items if isinstance(item, Row) and item.opener == "["]
        has_equal_rows = len(rows) == len(parts) and len(set(map(len, rows))) == 1
        return Grid(tuple(rows)) if opener == "[" and has_equal_rows else row

    def answer_within(self, tokens: Tokens) -> Value:
        """A part inside brackets: anything but a list by words."""
        values = self.both_signs(stripped(tokens)) if tokens else []
        return values[0] if len(values) == 1 else Text(text_key(tokens))

    def braces(self, inner: Tokens) -> Value:
        """A set, by its members or by a condition on one variable: {x | x > 3}."""
        parts, found = split(inner, "|:")
        if found and len(parts) == 2 and _ranges_over_reals(parts[0]):
            variable = parts[0][0].text
            condition = self.item(parts[1])
            is_about_it = isinstance(condition, Named) and condition.label and condition.label.key == variable
            return condition.value if is_about_it else Text(text_key(inner))
        if not inner:
            return Text("∅")
        listed = self.answer(inner)
        is_list = isinstance(listed, Bag) and not listed.is_set
        return Bag(listed.items if is_list else (listed,), is_set=True)

    def environment(self, name: str, inner: Tokens) -> Value | None:
        if name in _MATRICES:
            return self.matrix(name, inner)
        return self.system(inner) if name == "cases" else None

    def matrix(self, environment: str, inner: Tokens) -> Value:
        rows = []
        for row in filter(None, split(inner, (r"\\",))[0]):
            entries, _ = split(row, "&")
            rows.append(tuple(map(self.side, entries)))
        return Grid(tuple(rows), is_determinant=environment in ("vmatrix", "Vmatrix"))

    def system(self, inner: Tokens) -> Bag | None:
        """x = 1, y = 2 one below the other; None if this is anything but one value for each of several names."""
        if any(token.text == "&" for token in inner):
            return None
        rows, _ = split(inner, (r"\\",))
        items = [self.item(row) for row in map(stripped, rows) if row]
        names = {item.label.key for item in items if isinstance(item, Named) and item.label}
        return Bag(tuple(items)) if 1 < len(items) == len(names) else None

    def multiple(self, tokens: Tokens) -> Value | None:
        """A number times a matrix; None if this is anything else."""
        kinds = [token.kind for token in tokens]
        start = kinds.index("begin") if "begin" in kinds else 0
        factor = self.expression(tokens[:start])
        if factor is None or not enclosed(tokens[start:]):
            return None
        grid = self.side(tokens[start:])
        return scaled(grid, factor, self.algebra) if isinstance(grid, Grid) else None

    def quantity(self, tokens: Tokens) -> Value:
        key = text_key(tokens)
        if key in _SYNONYMS:
            return Text(_SYNONYMS[key])
        texts = {token.text for token in tokens}
        if len(tokens) > 1 and any(texts <= set(pair) for pair in _VERDICT_LETTERS):  # T F T is no product
            return Text(key)
        word = tokens[0].text.casefold()
        try:
            numeral = read_numeral(tokens, self.algebra)
            if numeral is not None:
                return numeral
            if len(tokens) == 1 and word in units.NUMBER_WORDS:
                return Scalar(self.algebra.number(units.NUMBER_WORDS[word]))
            return read_quantity(tokens, self.algebra)
        except Unreadable:
            return Text(key)


def _label_first(left: Tokens, right: Tokens) -> tuple[Tokens, Tokens]:
    """5 = x as x = 5."""
    is_turned = read_label(left) is None and read_label(right) is not None
    return (right, left) if is_turned else (left, right)


def _with_shared_label(items: list[Value]) -> list[Value]:
    """x = 3, 5 as x = 3, x = 5."""
    if len(items) < 2 or not isinstance(items[0], Named):
        return items
    label = items[0].label
    return [Named(label, item) if isinstance(item, Scalar) else item for item in items]


def _is_bounded(item: Value) -> bool:
    """Whether the item says which interval a variable is in."""
    if not isinstance(item, Named) or item.label is None:
        return False
    return isinstance(item.value, Row)


def _is_variable_value(item: Value) -> bool:
    atom = item.value.lone_atom if isinstance(item, Scalar) else None
    return atom is not None and "(" not in atom


def _is_series(items: Sequence[Value], separators: Sequence[str]) -> bool:
    """Whether a list answers one question after the other, so that its order counts: "true, false", "hot, cold",
    "T, F, T". But "red and blue" is one answer, the statements ①, ③ too, and "鸡3只, 兔5只" says what is what."""
    words = [item.key.casefold() for item in items if isinstance(item, Text)]
    words = [word for word in words if not any(map(str.isdigit, word))]
    is_one_answer = "and" in separators or "or" in separators
    if len(words) > 1 and not is_one_answer:
        return True
    if sum(word in _VERDICTS for word in words) > 1 or len(set(words)) < len(words):
        return True
    letters = {item.value.lone_atom for item in items if isinstance(item, Scalar)}
    return len(items) > 1 and bool(letters) and any(letters <= set(pair) for pair in _VERDICT_LETTERS)


def _has_both_signs(tokens: Tokens) -> bool:
    """Whether ± or ∓ stands in a value, not in a tuple or a matrix."""
    depth = 0
    for token in tokens:
        if token.text not in ("(", ")", "{", "}"):
            depth += nesting(token)
        if depth == 0 and is_mark(token, "±∓"):
            return True
    return False


def _with_signs(tokens: Tokens, signs: dict[str, str]) -> Tokens:
    return [token._replace(text=signs.get(token.text, token.text)) for token in tokens]


def _split_words_and_colon(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """ "Answer: 5" as (Answer, 5); no words for a time or a ratio."""
    parts, _ = split(tokens, (":",))
    if len(parts) != 2 or not all(parts):
        return [], tokens
    words = parts[0]
    is_label = is_phrase(words) and all(token.kind in ("word", "name") for token in words)
    return (words, parts[1]) if is_label else ([], tokens)


def _leaves(tokens: Tokens) -> tuple[str, ...]:
    """The numbers, names and functions of a side, sorted; nothing for a number as it is written."""
    kept = [token for token in tokens if token.text not in ("{", "}", "(", ")")]
    has_sign_inside = any(is_mark(token, "+-") for token in kept[1:])
    is_number = all(token.kind == "number" or token.text in (r"\frac", "/", "-", "+") for token in kept)
    if is_number and not has_sign_inside and not is_range_or_code(kept):
        return ()
    return tuple(sorted(token.text for token in kept if token.text not in ("*", "/", r"\frac")))


def _is_variable(side: Tokens) -> bool:
    """Whether the side is x or -x."""
    letter = side[1:] if is_mark(side[0], "-") else side
    return len(letter) == 1 and is_letter(letter[0]) and letter[0].text not in "πei"


def _ranges_over_reals(tokens: Tokens) -> bool:
    r"""Whether a set is said to be of all x, or all x \in \mathbb{R}, with some condition."""
    texts = [token.text for token in tokens[1:]]
    return bool(tokens) and is_letter(tokens[0]) and texts in ([], ["∈", r"\mathbbR"])


def _without_integers(parts: list[Tokens]) -> list[Tokens]:
    """`k\\pi, k \\in \\mathbb{Z}` without its last part, which only says what a k in an answer means; not so with x >
    1, x \\in \\mathbb{Z}."""
    *answers, last = parts
    texts = [[token.text for token in part] for part in answers]
    if [token.text for token in last[1:]] != ["∈", r"\mathbbZ"]:
        return parts
    if any(sign in text for text in texts for sign in "<>≤≥≠∈≈"):
        return parts
    variable = last[0].text
    is_used = any(variable in _right_side(text) for text in texts)
    return answers if is_used and variable in ("k", "m", "n") else parts


def _right_side(texts: list[str]) -> list[str]:
    return texts[texts.index("=") + 1 :] if "=" in texts else texts


def _union_sign(tokens: Tokens, at: int) -> Token:
    """The token, and ∪ for a letter U between two brackets."""
    token = tokens[at]
    if token.text != "U" or not 0 < at < len(tokens) - 1:
        return token
    is_union = tokens[at - 1].kind == "close" and tokens[at + 1].kind == "open"
    return token._replace(kind="mark", text="∪") if is_union else token
