r"""Tokens of a whole answer -> its shape: `x \in [0,1)`, `3 \text{ or } -5`, `\textbf{(B)}\ 12`, a matrix, a sentence.

Every text has a shape. What cannot be read as mathematics, or exceeds a limit, is `Text` and equals only the same text.
"""

from collections.abc import Sequence
from typing import Final

from rewards.mathematics import units
from rewards.mathematics.algebra import Algebra, Quotient, Unreadable
from rewards.mathematics.choice import split_choice
from rewards.mathematics.parse import CLOSERS, read_expression
from rewards.mathematics.quantity import read_quantity
from rewards.mathematics.text import Token, enclosed, is_letter, is_mark, split, stripped, text_key
from rewards.mathematics.value import (
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Bag,
    Chain,
    Choice,
    Grid,
    Named,
    Relation,
    Row,
    Scalar,
    Text,
    Value,
    scaled,
)

MAX_NESTING: Final = 12  # of brackets in brackets that are tuples, sets or intervals
MAX_ITEMS: Final = 64  # of a list: comparing without order is quadratic

_RELATIONS: Final = "=≈<>≤≥≠∈"
_FLIPPED: Final = {">": "<", "≥": "≤"}
_MATRICES: Final = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array", "vmatrix", "Vmatrix"))
_SYNONYMS: Final = {
    **dict.fromkeys(
        (
            "∅",
            r"\{ \}",
            "no solution",
            "no solutions",
            "no real solution",
            "no real solutions",
            "empty set",
            "none",
            "there is no solution",
            "there are no solutions",
        ),
        "∅",
    ),
    **dict.fromkeys(("does not exist", "dne", "doesn ' t exist", "limit does not exist"), "does not exist"),
    **dict.fromkeys(("+ ∞", "∞", "positive ∞", "positive infinity", "infinity"), INFINITY.key),
    **dict.fromkeys(("- ∞", "negative ∞", "negative infinity"), MINUS_INFINITY.key),
    **dict.fromkeys((r"\mathbbR", "all real numbers", "all reals", "all real", "real numbers"), REALS.key),
}


def read_answer(tokens: Sequence[Token], algebra: Algebra) -> Value:
    """The shape of a whole answer."""
    return _Reader(algebra).answer(stripped(tokens))


class _Reader:
    def __init__(self, algebra: Algebra) -> None:
        self.algebra, self.nesting = algebra, 0

    def answer(self, tokens: list[Token]) -> Value:
        """A choice, or a list of items separated by `;`, or by commas, "and", "or"; of one item, that item."""
        choice = split_choice(tokens)
        if choice:
            letter, body = choice
            return Choice(letter, self.answer(body) if body else None)
        parts, _ = split(tokens, (";",))
        if len(parts) > 1:
            items = [self.answer(stripped(part)) for part in parts if part]
            return self.bag(items, tokens)
        parts, separators = split(tokens, (",", "and", "or"))
        parts = _without_integers(parts)
        items = [item for part in map(stripped, parts) if part for item in self.both_signs(part)]
        if len(items) > 1 and isinstance(items[0], Named):  # x = 3, 5 says x twice
            items[1:] = [Named(items[0].name, item) if isinstance(item, Scalar) else item for item in items[1:]]
        bounded = [item.name for item in items if isinstance(item, Named) and isinstance(item.value, Row)]
        if "and" in separators and len(set(bounded)) < len(bounded):
            return Text(text_key(tokens))  # "x > 1 and x < 5" is no union
        return self.bag(items, tokens)

    def bag(self, items: list[Value], tokens: Sequence[Token], *, is_set: bool = False) -> Value:
        if len(items) > MAX_ITEMS or not items:
            return Text(text_key(tokens))
        return items[0] if len(items) == 1 and not is_set else Bag(tuple(items), is_set)

    def both_signs(self, tokens: list[Token]) -> list[Value]:
        """`2 ± √3` is two values, and `∓` goes along with `±`; inside a set they are two of its members."""
        parts, _ = split([token for token in tokens if token.text not in ("(", ")", "{", "}")], "±∓")
        if len(parts) == 1:
            return [self.item(tokens)]
        upper, lower = (
            [token._replace(text=signs[token.text]) if is_mark(token, "±∓") else token for token in tokens]
            for signs in ({"±": "+", "∓": "-"}, {"±": "-", "∓": "+"})
        )
        values = [self.item(upper), self.item(lower)]
        if isinstance(values[0], Text):
            return [Text(text_key(tokens))]
        return values[:1] if values[0] == values[1] else values

    # ---- items: relations between sides
    # --------------------------------------------------------------------------------
    def item(self, tokens: list[Token]) -> Value:
        label, colon, rest = self.labelled(tokens)
        if colon:
            return self.named(label, self.item(stripped(rest)))
        sides, signs = split(tokens, (*_RELATIONS, "is", "are", "equals"))
        signs = ["=" if sign in ("is", "are", "equals") else sign for sign in signs]
        if signs and not sides[0] and signs[0] in "=≈":
            sides, signs = sides[1:], signs[1:]
        if not signs or not all(sides):
            return self.side(tokens if signs else sides[0])
        if any(sign in "<>≤≥" for sign in signs):
            return self.inequality(sides, signs)
        if len(signs) > 1:
            return self.chain(sides, signs)
        return self.equation(sides[0], signs[0], sides[1])

    def labelled(self, tokens: list[Token]) -> tuple[list[Token], bool, list[Token]]:
        """ "Answer: 5" as (Answer, True, 5); a time or ratio has no words before its colon."""
        parts, found = split(tokens, (":",))
        before = parts[0]
        is_label = (
            len(parts) == 2 and all(parts) and _is_phrase(before) and all(t.kind in ("word", "name") for t in before)
        )
        return before, bool(found) and is_label, parts[-1]

    def named(
        self, left: list[Token], value: Value, is_label: bool = True, difference: Quotient | None = None
    ) -> Value:
        """The value under its name; "the answer" is no name."""
        name = text_key(left)
        return value if name in ("answer", "final answer") else Named(name, value, is_label, difference)

    def chain(self, sides: list[list[Token]], signs: list[str]) -> Chain:
        return Chain(tuple(signs), tuple(self.side(side) for side in sides))

    def equation(self, left: list[Token], sign: str, right: list[Token]) -> Value:
        values = self.expression(left), self.expression(right)
        if values[1] is not None and self.is_label(right, values[1]) and not self.is_label(left, values[0]):
            left, right, values = right, left, values[::-1]  # 5 = x
        difference = None if None in values else self.algebra.add(values[0], self.algebra.negate(values[1]))
        if sign == "≠":
            if self.is_label(left, values[0]) and values[1] is not None and values[1].number is not None:
                return self.named(left, Row("∖", "∖", (REALS, Scalar(values[1]))))
            return Relation(sign, difference) if difference else self.chain([left, right], [sign])
        named = self.side(left) if enclosed(left) else None  # (x, y) = (1, 2)
        is_label = self.is_label(left, values[0]) if named is None else self.is_point(named)
        if is_label or (values[0] is not None and len(self.algebra.variables(values[0])) > 1):
            return self.named(left, self.side(right), is_label, difference)
        if difference and sign == "=" and self.algebra.variables(difference):
            return Relation("=", difference)
        return Chain((sign,), (named or self.side(left), self.side(right)))

    def inequality(self, sides: list[list[Token]], signs: list[str]) -> Value:
        """0 < x ≤ 1 as x in (0, 1]; x > 3 as x in (3, ∞); any other as one relation or a chain."""
        if all(sign in ">≥" for sign in signs):
            sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
        variable = [
            at for at, side in enumerate(sides) if len(side) == 1 and is_letter(side[0]) and side[0].text not in "πei"
        ]
        values = [self.expression(side) for side in sides]
        bounds = [value for at, value in enumerate(values) if at not in variable]
        is_bounded = len(variable) == 1 and (len(sides) == 2 or (len(sides) == 3 and variable == [1]))
        if (
            is_bounded
            and all(sign in "<≤" for sign in signs)
            and None not in bounds
            and not any(map(self.algebra.variables, bounds))
        ):
            at = variable[0]
            low = (self.side(sides[at - 1]), "[" if signs[at - 1] == "≤" else "(") if at else (MINUS_INFINITY, "(")
            high = (
                (self.side(sides[at + 1]), "]" if signs[at] == "≤" else ")") if at + 1 < len(sides) else (INFINITY, ")")
            )
            return Named(sides[at][0].text, Row(low[1], high[1], (low[0], high[0])))
        if len(sides) == 2 and None not in values and signs[0] in "<≤":
            return Relation(signs[0], self.algebra.add(values[0], self.algebra.negate(values[1])))
        return self.chain(sides, signs)

    def expression(self, tokens: Sequence[Token]) -> Quotient | None:
        try:
            return read_expression(tokens, self.algebra)
        except Unreadable:
            return None

    def is_label(self, left: Sequence[Token], value: Quotient | None) -> bool:
        """Whether the left side is a mere name: words, one variable, or a function with its argument."""
        if any(token.kind == "word" and len(token.text) > 1 for token in left):
            return _is_phrase(left)
        if len(left) > 1 and all(is_letter(token) and token.text.isupper() for token in left):  # the segment AB
            return True
        if is_letter(left[0]) and left[0].text not in "xyz" and left[-1].text == ")" and _is_application(left):
            return True
        return value is not None and value.lone_atom is not None and bool(self.algebra.variables(value))

    def is_point(self, side: Value) -> bool:
        """Whether the left side is a tuple of variables."""
        return isinstance(side, Row) and all(
            isinstance(item, Scalar) and self.algebra.variables(item.value) for item in side.items
        )

    # ---- sides: one value, or brackets
    # ---------------------------------------------------------------------------------
    def side(self, tokens: Sequence[Token]) -> Value:
        tokens = stripped(tokens)
        self.nesting += 1
        try:
            if self.nesting > MAX_NESTING or not tokens:
                return Text(text_key(tokens))
            if enclosed(tokens):
                return self.brackets(tokens) or self.quantity(tokens)
            if not any(token.text in "∪∖:U" for token in tokens):
                return (self.multiple(tokens) if tokens[-1].kind == "end" else None) or self.quantity(tokens)
            unions = [
                token._replace(kind="mark", text="∪") if _is_union(tokens, at) else token
                for at, token in enumerate(tokens)
            ]
            for sign in "∪∖:":
                parts, found = split(unions, (sign,))
                if found and all(parts):
                    items = tuple(self.side(part) for part in parts)
                    return Bag(items) if sign == "∪" else Row(sign, sign, items)
            return self.quantity(tokens)
        finally:
            self.nesting -= 1

    def brackets(self, tokens: Sequence[Token]) -> Value | None:
        """What the brackets around all the tokens make of their content; None if they only group."""
        opener, inner, closer = tokens[0].text, list(tokens[1:-1]), tokens[-1].text
        if tokens[0].kind == "begin":
            return (
                self.matrix(opener, inner) if opener in _MATRICES else self.system(inner) if opener == "cases" else None
            )
        if opener == r"\{":
            return self.braces(inner) if closer == r"\}" else None
        if opener == "{":
            value = self.answer(inner)
            return None if isinstance(value, Text) else value
        parts, _ = split(inner, (";",))
        if len(parts) == 1:
            parts, _ = split(inner, (",",))
        if len(parts) > 1 and all(parts) and opener in ("(", "[", r"\langle") and closer in (")", "]", r"\rangle"):
            row = Row(opener, closer, tuple(self.answer_within(part) for part in parts))
            widths = {len(item.items) for item in row.items if isinstance(item, Row) and item.opener == "["}
            if (
                opener == "["
                and len(widths) == 1
                and all(isinstance(item, Row) and item.opener == "[" for item in row.items)
            ):
                return Grid(tuple(item.items for item in row.items))
            return row
        if CLOSERS[opener] != closer or opener not in ("(", "["):
            return None
        value = self.answer_within(inner)
        return None if isinstance(value, Text) else value

    def answer_within(self, tokens: Sequence[Token]) -> Value:
        """A part inside brackets: anything but a list by words."""
        values = self.both_signs(stripped(tokens)) if tokens else []
        return values[0] if len(values) == 1 else Text(text_key(tokens))

    def braces(self, inner: list[Token]) -> Value:
        """A set, by its members or by a condition on one variable: {x | x > 3}."""
        parts, found = split(inner, "|:")
        is_real = [token.text for token in parts[0][1:]] in ([], ["∈", r"\mathbbR"])
        if found and len(parts) == 2 and parts[0] and is_letter(parts[0][0]) and is_real:
            condition = self.item(parts[1])
            is_about_it = isinstance(condition, Named) and condition.name == parts[0][0].text
            return condition.value if is_about_it else Text(text_key(inner))
        if not inner:
            return Text("∅")
        listed = self.answer(inner)
        return (
            Bag(listed.items, is_set=True)
            if isinstance(listed, Bag) and not listed.is_set
            else Bag((listed,), is_set=True)
        )

    def matrix(self, environment: str, inner: list[Token]) -> Value:
        rows, _ = split(inner, (r"\\",))
        entries = tuple(tuple(self.side(entry) for entry in split(row, "&")[0]) for row in rows if row)
        return Grid(entries, is_determinant=environment in ("vmatrix", "Vmatrix"))

    def system(self, inner: list[Token]) -> Bag | None:
        """x = 1, y = 2 one below the other; None if this is anything but one value for each of several names."""
        if any(token.text == "&" for token in inner):
            return None
        items = [self.item(row) for row in map(stripped, split(inner, (r"\\",))[0]) if row]
        names = {item.name for item in items if isinstance(item, Named)}
        return Bag(tuple(items)) if 1 < len(items) == len(names) else None

    def multiple(self, tokens: Sequence[Token]) -> Value | None:
        """A number times a matrix; None if this is anything else."""
        start = next(at for at, token in enumerate(tokens) if token.kind in ("begin", "end"))
        factor = self.expression(tokens[:start])
        grid = self.side(tokens[start:]) if factor and enclosed(tokens[start:]) else None
        return scaled(grid, factor, self.algebra) if isinstance(grid, Grid) else None

    def quantity(self, tokens: Sequence[Token]) -> Value:
        key = text_key(tokens)
        if key in _SYNONYMS:
            return Text(_SYNONYMS[key])
        try:
            if len(tokens) == 1 and tokens[0].text.casefold() in units.NUMBER_WORDS:
                return Scalar(self.algebra.number(units.NUMBER_WORDS[tokens[0].text.casefold()]))
            return read_quantity(tokens, self.algebra)
        except Unreadable:
            return Text(key)


def _without_integers(parts: list[list[Token]]) -> list[list[Token]]:
    """`k\\pi, k \\in \\mathbb{Z}` without its last part, which only says what a k in an answer means; not so with x >
    1, x \\in \\mathbb{Z}."""
    *answers, last = parts
    texts = [[token.text for token in part] for part in answers]
    says_it = [token.text for token in last[1:]] == ["∈", r"\mathbbZ"] and last[0].text in ("k", "m", "n")
    is_used = (
        any(last[0].text in text[text.index("=") + 1 if "=" in text else 0 :] for text in texts) if says_it else False
    )
    return answers if is_used and not any(sign in text for text in texts for sign in "<>≤≥≠∈≈") else parts


def _is_phrase(tokens: Sequence[Token]) -> bool:
    """Whether there are words, and none that negates what follows."""
    words = [token.text.casefold() for token in tokens if token.kind == "word" and len(token.text) > 1]
    return bool(words) and units.NEGATIONS.isdisjoint(words)


def _is_application(tokens: Sequence[Token]) -> bool:
    """Whether f, f', f_1 or f^{-1} stands before one pair of brackets that ends the tokens."""
    opening = next((at for at, token in enumerate(tokens) if token.text == "("), 0)
    return (
        opening > 0
        and enclosed(tokens[opening:])
        and all(token.text in ("'", "_", "^", "{", "}", "-") or token.kind == "number" for token in tokens[1:opening])
    )


def _is_union(tokens: Sequence[Token], at: int) -> bool:
    """Whether a letter U between two brackets stands for ∪."""
    return (
        tokens[at].text == "U"
        and 0 < at < len(tokens) - 1
        and tokens[at - 1].kind == "close"
        and tokens[at + 1].kind == "open"
    )
