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
from rewards.mathematics.text import RELATIONS, Token, Tokens, enclosed, is_letter, is_mark, split, stripped, text_key
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
_UNNAMED: Final = ("answer", "final answer")  # what stands behind these is the answer itself
_WORDS: Final = {
    "∅": r"\{ \}|no solution|no solutions|no real solution|no real solutions|empty set|none|there is no solution"
    "|there are no solutions",
    "does not exist": "dne|doesn ' t exist|limit does not exist",
    INFINITY.key: "+ ∞|positive ∞|positive infinity|infinity",
    MINUS_INFINITY.key: "- ∞|negative ∞|negative infinity",
    REALS.key: r"\mathbbR|all real numbers|all reals|all real|real numbers",
}
_SYNONYMS: Final = {spelt: key for key, others in _WORDS.items() for spelt in (key, *others.split("|"))}
# words that answer one question each: in a list of them the order says which
_VERDICTS: Final = frozenset(
    "true false yes no right wrong correct incorrect odd even positive negative zero increasing decreasing "
    "always sometimes never converges diverges convergent divergent rational irrational prime composite up down left "
    "maximum minimum max min even neither both acute obtuse".split()
)


def read_answer(tokens: Tokens, algebra: Algebra) -> Value:
    """The shape of a whole answer."""
    return _Reader(algebra).answer(stripped(tokens))


class _Reader:
    def __init__(self, algebra: Algebra) -> None:
        self.algebra, self.nesting = algebra, 0

    # ---- lists -------------------------------------------------------------------------------------------------------
    def answer(self, tokens: list[Token]) -> Value:
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

    def comma_list(self, tokens: list[Token]) -> Value:
        parts, separators = split(tokens, (",", "and", "or"))
        parts = _without_integers(parts)
        items = [item for part in map(stripped, parts) if part for item in self.both_signs(part)]
        if len(items) > 1 and isinstance(items[0], Named):  # x = 3, 5 says x twice
            label = items[0].label
            items[1:] = [Named(label, item) if isinstance(item, Scalar) else item for item in items[1:]]
        bounded = [item.label.key for item in items if _is_bounded(item)]
        if "and" in separators and len(set(bounded)) < len(bounded):
            return Text(text_key(tokens))  # "x > 1 and x < 5" is no union
        return self.bag(items, tokens, is_ordered=_is_series_of_verdicts(items))

    def bag(self, items: list[Value], tokens: list[Token], *, is_ordered: bool) -> Value:
        if len(items) > MAX_ITEMS or not items:
            return Text(text_key(tokens))
        return items[0] if len(items) == 1 else Bag(tuple(items), is_ordered=is_ordered)

    def both_signs(self, tokens: list[Token]) -> list[Value]:
        """`2 ± √3` is two values, and `∓` goes along with `±`; inside a set they are two of its members."""
        parts, _ = split([token for token in tokens if token.text not in ("(", ")", "{", "}")], "±∓")
        if len(parts) == 1:
            return [self.item(tokens)]
        upper = self.item(_with_signs(tokens, {"±": "+", "∓": "-"}))
        lower = self.item(_with_signs(tokens, {"±": "-", "∓": "+"}))
        if isinstance(upper, Text):
            return [Text(text_key(tokens))]
        return [upper] if upper == lower else [upper, lower]

    # ---- items: relations between sides ------------------------------------------------------------------------------
    def item(self, tokens: list[Token]) -> Value:
        words, rest = _split_words_and_colon(tokens)
        if words:
            return self.named(Label(text_key(words), is_words=True), self.item(stripped(rest)))
        sides, signs = split(tokens, (*RELATIONS, *_EQUALS_WORDS))
        signs = ["=" if sign in _EQUALS_WORDS else sign for sign in signs]
        if signs and not sides[0] and signs[0] in "=≈":
            sides, signs = sides[1:], signs[1:]
        if not signs or not all(sides):
            return self.side(tokens if signs else sides[0])
        if any(sign in _FLIPPED for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.equalities(sides, signs)
        return self.equation(sides[0], signs[0], sides[1])

    def named(self, label: Label | None, value: Value, difference: Quotient | None = None) -> Value:
        """The value under its name; "the answer" is no name."""
        return value if label and label.key in _UNNAMED else Named(label, value, difference)

    def equalities(self, sides: list[list[Token]], signs: list[str]) -> Value:
        """x = 3 + 4 = 7 as x = 7 if every link holds; otherwise a chain."""
        label = read_label(sides[0])
        chain = self.chain(sides, signs)
        if label is None or set(signs) != {"="}:
            return chain
        rest = self.chain(sides[1:], signs[1:])
        return self.named(label, rest.sides[-1]) if rest.holds else chain

    def chain(self, sides: list[list[Token]], signs: list[str]) -> Chain:
        values = tuple(self.side(side) for side in sides)
        holds = set(signs) == {"="} and all(self.is_equal(values[0], value) for value in values[1:])
        return Chain(tuple(signs), values, tuple(map(_leaves, sides)), holds)

    def is_equal(self, one: Value, other: Value) -> bool:
        """Whether an equation of two values holds whatever the variables are."""
        if not isinstance(one, Scalar) or not isinstance(other, Scalar) or one.contradicts(other):
            return False
        return self.algebra.equal(one.value, other.value)

    def equation(self, left: list[Token], sign: str, right: list[Token]) -> Value:
        label, values = read_label(left), (self.expression(left), self.expression(right))
        if label is None and values[1] is not None:
            label = read_label(right)  # 5 = x
            if label is not None:
                left, right, values = right, left, values[::-1]
        if sign == "≠":
            return self.inequation(label, values) or self.chain([left, right], [sign])
        difference = None if None in values else self.algebra.subtract(*values)
        if label is None and enclosed(left) and self.is_point(self.side(left)):  # (x, y) = (1, 2)
            label = Label(text_key(left))
        if label is not None or self.is_term_with_value(*values):
            return self.named(label, self.side(right), difference)
        if difference and sign == "=" and self.is_equation(values, difference):
            return Relation("=", difference)
        return self.chain([left, right], [sign])

    def is_equation(self, values: tuple[Quotient, Quotient], difference: Quotient) -> bool:
        """Whether the sides have variables and none cancels: x + C = x has no more to say than its two sides."""
        variables = self.algebra.variables
        return bool(variables(difference)) and variables(difference) == variables(values[0]) | variables(values[1])

    def inequation(self, label: Label | None, values: tuple[Quotient | None, ...]) -> Value | None:
        """x ≠ 3 as the numbers without 3; any other as a relation; None for what has no value."""
        if label is not None and values[1] is not None and values[1].number is not None:
            return self.named(label, Row("∖", "∖", (REALS, Scalar(values[1]))))
        difference = None if None in values else self.algebra.subtract(*values)
        is_relation = difference is not None and self.algebra.variables(difference)
        return Relation("≠", difference) if is_relation else None

    def is_term_with_value(self, left: Quotient | None, right: Quotient | None) -> bool:
        """Whether the equation gives the value of a term in several variables: x + y = 5."""
        if left is None or right is None or self.algebra.is_opaque(left) or self.algebra.variables(right):
            return False
        return len(self.algebra.variables(left)) > 1

    def is_point(self, side: Value) -> bool:
        """Whether the left side is a tuple of variables."""
        if not isinstance(side, Row):
            return False
        atoms = [item.value.lone_atom if isinstance(item, Scalar) else None for item in side.items]
        return all(atom is not None and "(" not in atom for atom in atoms)

    def inequality(self, sides: list[list[Token]], signs: list[str]) -> Value:
        """0 < x ≤ 1 as x in (0, 1]; x > 3 as x in (3, ∞); any other as one relation or a chain."""
        if all(sign in ">≥" for sign in signs):
            sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
        if not all(sign in "<≤" for sign in signs):
            return self.chain(sides, signs)
        interval = self.interval(sides, signs)
        if interval is not None:
            return interval
        values = [self.expression(side) for side in sides]
        if len(sides) == 2 and None not in values:
            difference = self.algebra.subtract(*values)
            if self.algebra.variables(difference):
                return Relation(signs[0], difference)
        return self.chain(sides, signs)

    def interval(self, sides: list[list[Token]], signs: list[str]) -> Value | None:
        """The interval of the one variable between numbers, increasing signs given: 0 < x ≤ 1, -x < 3; None if it is
        anything else."""
        places = [at for at, side in enumerate(sides) if _is_variable(side)]
        if len(places) != 1 or not (len(sides) == 2 or (len(sides) == 3 and places == [1])):
            return None
        at = places[0]
        bounds = [self.expression(side) for side in (*sides[:at], *sides[at + 1 :])]
        if None in bounds or any(map(self.algebra.variables, bounds)):
            return None
        low, opener = (self.side(sides[at - 1]), "[" if signs[at - 1] == "≤" else "(") if at else (MINUS_INFINITY, "(")
        high, closer = INFINITY, ")"
        if at + 1 < len(sides):
            high, closer = self.side(sides[at + 1]), "]" if signs[at] == "≤" else ")"
        row = Row(opener, closer, (low, high))
        if len(sides[at]) > 1:
            row = self.mirrored(row)
        return Named(Label(sides[at][-1].text), row) if row else None

    def mirrored(self, row: Row) -> Row | None:
        """What x is in where -x is in the interval."""
        ends = []
        for end in row.items:
            if isinstance(end, Scalar):
                ends.append(Scalar(self.algebra.negate(end.value), end.unit))
            elif end in (INFINITY, MINUS_INFINITY):
                ends.append(MINUS_INFINITY if end == INFINITY else INFINITY)
            else:
                return None
        opener = "[" if row.closer == "]" else "("
        closer = "]" if row.opener == "[" else ")"
        return Row(opener, closer, (ends[1], ends[0]))

    def expression(self, tokens: Tokens) -> Quotient | None:
        try:
            return read_expression(tokens, self.algebra)
        except Unreadable:
            return None

    # ---- sides: one value, or brackets -------------------------------------------------------------------------------
    def side(self, tokens: Tokens) -> Value:
        tokens = stripped(tokens)
        self.nesting += 1
        try:
            if self.nesting > MAX_NESTING or not tokens:
                return Text(text_key(tokens))
            return self.shape(tokens)
        finally:
            self.nesting -= 1

    def shape(self, tokens: list[Token]) -> Value:
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

    def ratio(self, tokens: list[Token]) -> Value | None:
        """`2:3`, `3 to 4`, or a time of day; None if this is anything else."""
        clock = read_clock(tokens)
        if clock is not None and is_mark(tokens[-1], ":") is False and not tokens[-1].text.isdigit():
            return clock  # with AM or PM
        parts, colons = split(tokens, (":",))
        if colons and all(parts):
            return Ratio(tuple(self.side(part) for part in parts), clock)
        parts, _ = split(tokens, ("to",))
        if len(parts) == 2 and all(self.expression(part) for part in parts):
            return Ratio(tuple(self.side(part) for part in parts), is_range=True)
        return None

    def brackets(self, tokens: Tokens) -> Value | None:
        """What the brackets around all the tokens make of their content; None if they only group."""
        opener, inner, closer = tokens[0].text, list(tokens[1:-1]), tokens[-1].text
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
        if len(parts) > 1 and all(parts) and opener in ("(", "[", r"\langle") and closer in (")", "]", r"\rangle"):
            return self.row(opener, closer, parts)
        if CLOSERS[opener] != closer or opener not in ("(", "["):
            return None
        value = self.answer_within(inner)
        return None if isinstance(value, Text) else value

    def row(self, opener: str, closer: str, parts: list[list[Token]]) -> Row | Grid:
        """A tuple or an interval; [[1,2],[3,4]] is a matrix."""
        items = tuple(self.answer_within(part) for part in parts)
        is_matrix = opener == "[" and all(isinstance(item, Row) and item.opener == "[" for item in items)
        if is_matrix and len({len(item.items) for item in items}) == 1:
            return Grid(tuple(item.items for item in items))
        return Row(opener, closer, items)

    def answer_within(self, tokens: Tokens) -> Value:
        """A part inside brackets: anything but a list by words."""
        values = self.both_signs(stripped(tokens)) if tokens else []
        return values[0] if len(values) == 1 else Text(text_key(tokens))

    def braces(self, inner: list[Token]) -> Value:
        """A set, by its members or by a condition on one variable: {x | x > 3}."""
        parts, found = split(inner, "|:")
        is_real = [token.text for token in parts[0][1:]] in ([], ["∈", r"\mathbbR"])
        if found and len(parts) == 2 and parts[0] and is_letter(parts[0][0]) and is_real:
            condition = self.item(parts[1])
            variable = parts[0][0].text
            is_about_it = isinstance(condition, Named) and condition.label and condition.label.key == variable
            return condition.value if is_about_it else Text(text_key(inner))
        if not inner:
            return Text("∅")
        listed = self.answer(inner)
        is_list = isinstance(listed, Bag) and not listed.is_set
        return Bag(listed.items if is_list else (listed,), is_set=True)

    def environment(self, name: str, inner: list[Token]) -> Value | None:
        if name in _MATRICES:
            return self.matrix(name, inner)
        return self.system(inner) if name == "cases" else None

    def matrix(self, environment: str, inner: list[Token]) -> Value:
        rows, _ = split(inner, (r"\\",))
        entries = tuple(tuple(self.side(entry) for entry in split(row, "&")[0]) for row in rows if row)
        return Grid(entries, is_determinant=environment in ("vmatrix", "Vmatrix"))

    def system(self, inner: list[Token]) -> Bag | None:
        """x = 1, y = 2 one below the other; None if this is anything but one value for each of several names."""
        if any(token.text == "&" for token in inner):
            return None
        rows, _ = split(inner, (r"\\",))
        items = [self.item(row) for row in map(stripped, rows) if row]
        names = {item.label.key for item in items if isinstance(item, Named) and item.label}
        return Bag(tuple(items)) if 1 < len(items) == len(names) else None

    def multiple(self, tokens: Tokens) -> Value | None:
        """A number times a matrix; None if this is anything else."""
        start = next(at for at, token in enumerate(tokens) if token.kind in ("begin", "end"))
        factor = self.expression(tokens[:start])
        grid = self.side(tokens[start:]) if factor and enclosed(tokens[start:]) else None
        return scaled(grid, factor, self.algebra) if isinstance(grid, Grid) else None

    def quantity(self, tokens: Tokens) -> Value:
        key = text_key(tokens)
        if key in _SYNONYMS:
            return Text(_SYNONYMS[key])
        numeral = read_numeral(tokens)
        if numeral is not None:
            return numeral
        word = tokens[0].text.casefold()
        try:
            if len(tokens) == 1 and word in units.NUMBER_WORDS:
                return Scalar(self.algebra.number(units.NUMBER_WORDS[word]))
            return read_quantity(tokens, self.algebra)
        except Unreadable:
            return Text(key)


def _is_bounded(item: Value) -> bool:
    """Whether the item says which interval a variable is in."""
    return isinstance(item, Named) and item.label is not None and isinstance(item.value, Row)


def _is_series_of_verdicts(items: Sequence[Value]) -> bool:
    """Whether a list answers one question after the other, so that its order counts: "true, false", "T, F, T"."""
    words = [item.key.casefold() for item in items if isinstance(item, Text)]
    if sum(word in _VERDICTS for word in words) > 1 or len(set(words)) < len(words):
        return True
    letters = [item.value.lone_atom for item in items if isinstance(item, Scalar)]
    return len(letters) > 1 and set(letters) <= {"T", "F"}


def _with_signs(tokens: list[Token], signs: dict[str, str]) -> list[Token]:
    return [token._replace(text=signs[token.text]) if is_mark(token, "±∓") else token for token in tokens]


def _split_words_and_colon(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
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
    if all(token.kind == "number" or token.text in (r"\frac", "/", "-", "+") for token in kept):
        if sum(is_mark(token, "+-") for token in kept[1:]) == 0 and not is_range_or_code(kept):
            return ()
    return tuple(sorted(token.text for token in kept if token.text not in ("*", "/", r"\frac")))


def _is_variable(side: Tokens) -> bool:
    """Whether the side is x or -x."""
    letter = side[1:] if len(side) == 2 and is_mark(side[0], "-") else side
    return len(letter) == 1 and is_letter(letter[0]) and letter[0].text not in "πei"


def _without_integers(parts: list[list[Token]]) -> list[list[Token]]:
    """`k\\pi, k \\in \\mathbb{Z}` without its last part, which only says what a k in an answer means; not so with x >
    1, x \\in \\mathbb{Z}."""
    *answers, last = parts
    if [token.text for token in last[1:]] != ["∈", r"\mathbbZ"] or last[0].text not in ("k", "m", "n"):
        return parts
    texts = [[token.text for token in part] for part in answers]
    if any(sign in text for text in texts for sign in "<>≤≥≠∈≈"):
        return parts
    values = [text[text.index("=") + 1 :] if "=" in text else text for text in texts]
    return answers if any(last[0].text in value for value in values) else parts


def _union_sign(tokens: Tokens, at: int) -> Token:
    """The token, and ∪ for a letter U between two brackets."""
    token = tokens[at]
    if token.text != "U" or not 0 < at < len(tokens) - 1:
        return token
    is_union = tokens[at - 1].kind == "close" and tokens[at + 1].kind == "open"
    return token._replace(kind="mark", text="∪") if is_union else token
