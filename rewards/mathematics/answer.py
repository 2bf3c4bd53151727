r"""Read the tokens of an answer as its shape.

It may be `x \in [0,1)`, `3 \text{ or } -5`, `\textbf{(B)}\ 12`, a matrix, a sentence.

Every text has a shape. What cannot be read as mathematics, or exceeds a limit, is `Text` and equals only the same text.
"""

import re
from collections.abc import Sequence

from rewards.mathematics.expression import expression_or_none
from rewards.mathematics.names import Label, mark_applications
from rewards.mathematics.quantity import Scalar, read_quantity
from rewards.mathematics.relations import RelationReader
from rewards.mathematics.shapes import (
    EMPTY,
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Bag,
    Bracketed,
    Choice,
    Either,
    Named,
    Shape,
    Text,
    all_but,
    union,
)
from rewards.mathematics.symbols import NUMBERS
from rewards.mathematics.tokens import (
    RELATIONS,
    Tokens,
    enclosed,
    is_letter,
    is_mark,
    split,
    stripped,
    text_key,
    text_of,
)
from rewards.mathematics.value import Points, Unreadable

MAX_NESTING = 12  # of brackets in brackets that are tuples, sets or intervals
MAX_ITEMS = 64  # of a list: comparing without order is quadratic

_EQUALS_WORDS = ("is", "are", "equals")
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix smallmatrix array".split())
_CLOCK = re.compile("[0-9]{1,2}(?: : [0-9]{2})+")
_ROW_OPENERS = ("(", "[", r"\langle")
_ROW_CLOSERS = (")", "]", r"\rangle")
_RATIO = frozenset([("ratio", 1)])  # the unit of 3/4 for 3:4
_CHOICES = frozenset("ABCDEFGHIJ")
_TRUE_FALSE = (set("TF"), set("YN"))  # letters that answer one question each
_WORDS = (
    (
        EMPTY,
        "no solution|no solutions|no real solution|no real solutions|empty set|none|there is no solution"
        "|there are no solutions",
    ),
    (Text("does not exist"), "dne|doesn ' t exist|limit does not exist"),
    (INFINITY, "+ ∞|positive ∞|positive infinity|infinity"),
    (MINUS_INFINITY, "- ∞|negative ∞|negative infinity"),
    (REALS, r"\mathbbR|all real numbers|all reals|all real|real numbers"),
)
_SHAPES = {words: shape for shape, several in _WORDS for words in several.split("|")}


def read_answer(tokens: Tokens, points: Points) -> Shape:
    """Return the shape of an answer."""
    return _AnswerReader(points).answer(stripped(mark_applications(tokens)))


class _AnswerReader:
    def __init__(self, points: Points):
        self.points = points
        self.nesting = 0
        self.relations = RelationReader(points, self.side)

    # --- lists ------------------------------------------------------------------------------------------------------
    def answer(self, tokens: Tokens) -> Shape:
        """Read a choice, or a list of items separated by `;`, or by commas, "and", "or"; of one item, that item."""
        choice = _split_choice(tokens)
        if choice:
            letter, body = choice
            return Choice(letter, self.answer(body) if body else None)
        parts, _ = split(tokens, (";",))
        if len(parts) > 1:
            answers = [self.answer(stripped(part)) for part in parts if part]
            return Text(text_key(tokens)) if _conditions(answers) else _bag(answers, tokens, is_ordered=True)
        parts, separators = split(tokens, (",", "and", "or"))
        items = []
        for part in filter(None, map(stripped, parts)):
            items += self.both_signs(part)
        items = _with_shared_label(items)
        if conditions := _conditions(items):
            if set(separators) != {"or"}:  # they must all hold
                return Text(text_key(tokens))
            # x < 0 or x > 1 is x in (-∞, 0) ∪ (1, ∞)
            return Named(conditions[0].label, union([item.value for item in conditions]))
        is_series = _is_series(items)
        if is_series and "or" in separators:  # "high or low" is not "high and low"
            return Text(text_key(tokens))
        return _bag(items, tokens, is_ordered=is_series)

    def both_signs(self, tokens: Tokens) -> list[Shape]:
        """Read `2 ± √3` as two values, where `∓` goes along with `±`."""
        if not any(is_mark(token, "±∓") for token in tokens):
            return [self.item(tokens)]
        upper, lower = [
            self.item([token._replace(text=signs.get(token.text, token.text)) for token in tokens])
            for signs in ({"±": "+", "∓": "-"}, {"±": "-", "∓": "+"})
        ]
        return [upper] if upper == lower else [upper, lower]

    # --- items: words, and relations between sides ------------------------------------------------------------------
    def item(self, tokens: Tokens) -> Shape:
        """Read x = 5, 0 < x < 1, "the area is 5", or one side."""
        sides, signs = split(tokens, (*RELATIONS, *_EQUALS_WORDS))
        signs = ["=" if sign in _EQUALS_WORDS else sign for sign in signs]
        if not signs:
            return self.side(tokens)
        if signs[0] in "=≈" and not text_key(sides[0]):
            return self.answer(stripped(tokens[len(sides[0]) + 1 :]))
        if not all(sides):
            return self.side(tokens)
        return self.relations.read(sides, signs) or Text(text_key(tokens))

    # --- sides: one value, or brackets ------------------------------------------------------------------------------
    def side(self, tokens: Tokens) -> Shape:
        tokens = stripped(tokens)
        self.nesting += 1
        try:
            if self.nesting > MAX_NESTING or not tokens:
                return Text(text_key(tokens))
            return self.shape(tokens) or self.quantity(tokens)
        finally:
            self.nesting -= 1

    def shape(self, tokens: Tokens) -> Shape | None:
        """Read brackets, a matrix, a union or a ratio; None for anything else."""
        if enclosed(tokens):
            return self.brackets(tokens)
        parts, found = split(tokens, "∪∖∩")
        if found and all(parts):
            return self.sets([self.side(part) for part in parts], found)
        return self.ratio(tokens)

    def sets(self, sets: list[Shape], signs: list[str]) -> Shape:
        r"""Read a union, and \mathbb{R} \setminus \{3\}; what else is done to sets stays as it was written."""
        if set(signs) == {"∪"}:
            return union(sets)
        if signs == ["∖"] and sets[0] == REALS and isinstance(sets[1], Scalar):
            return all_but(sets[1])
        return Bracketed(signs[0], "".join(signs), tuple(sets))

    def ratio(self, tokens: Tokens) -> Shape | None:
        """Read `2:3`, which may be a fraction as well; None if this is no ratio."""
        parts, found = split(tokens, ":")
        if not found or not all(parts):
            return None
        key = text_key(tokens)
        is_clock = _CLOCK.fullmatch(text_of(tokens))
        if is_clock and " : 0" in text_of(tokens):  # 9:05; 9:15 may be a ratio, too
            return Text(key)
        read = [expression_or_none(part, self.points) for part in parts]
        values = [value for value in read if value and not value.is_zero]
        if len(values) < len(parts) or any(value.is_calculation and value.number for value in values):
            return Bracketed(":", ":", tuple(map(self.side, parts)))
        first, *_, last = values
        share = first / last
        ratio = Bracketed(":", ":", tuple(Scalar(value / first) for value in values))
        if is_clock:
            return Either((Text(key), ratio))
        if len(values) > 2 or share.whole is not None:
            return ratio
        return Either((ratio, Scalar(share, _RATIO)))

    def brackets(self, tokens: Tokens) -> Shape | None:
        """Read what the brackets around all the tokens make of their content; None if they only group."""
        opener = tokens[0].text
        closer = tokens[-1].text
        inner = list(tokens[1:-1])
        if opener in _MATRICES:
            return self.matrix(inner)
        if opener == r"\{":
            return self.braces(inner) if closer == r"\}" else None
        value: Shape | None
        if opener == "{":
            value = self.answer(inner)
            return None if isinstance(value, Text) else value
        parts, semicolons = split(inner, (";",))
        if not semicolons:
            parts, _ = split(inner, (",",))
        if len(parts) > 1 and all(parts) and opener in _ROW_OPENERS and closer in _ROW_CLOSERS:
            return Bracketed(opener, closer, tuple(map(self.part, parts)))
        value = self.part(inner) if opener + closer in ("()", "[]") else None
        return None if isinstance(value, Text) else value

    def part(self, tokens: Tokens) -> Shape:
        """Read a part inside brackets: anything but a list by words."""
        tokens = stripped(tokens)
        values = self.both_signs(tokens)
        return values[0] if len(values) == 1 else Text(text_key(tokens))

    def braces(self, inner: Tokens) -> Shape:
        """Read a set, by its members or by a condition on one variable: {x | x > 3}."""
        parts, found = split(inner, "|:")
        if found and len(parts) == 2 and _ranges_over_reals(parts[0]):
            condition = self.answer(parts[1])
            if isinstance(condition, Named) and condition.label == Label(parts[0][0].text):
                return condition.value
            return Text(text_key(inner))
        listed = self.answer(inner) if inner else EMPTY
        if inner and listed == EMPTY:
            return Text(f"{{{EMPTY.key}}}")  # a set with a member
        return Bag(listed.items, is_set=True) if isinstance(listed, Bag) else listed  # of one member: that member

    def matrix(self, inner: Tokens) -> Shape:
        """Read a matrix. One of a single row or column may be a tuple as well."""
        lines, _ = split(inner, (r"\\",))
        rows = [tuple(map(self.side, split(line, "&")[0])) for line in lines if line]
        whole = Bracketed("[", "]", tuple(Bracketed("[", "]", row) for row in rows))
        is_vector = len(rows) == 1 or all(len(row) == 1 for row in rows)
        return Either((whole, Bracketed("(", ")", sum(rows, ())))) if is_vector else whole

    def quantity(self, tokens: Tokens) -> Shape:
        key = text_key(tokens)
        if key in _SHAPES:
            return _SHAPES[key]
        if key in NUMBERS:  # seven
            return Scalar(self.points.number(NUMBERS[key]))
        if len(tokens) > 1 and _are_true_false({token.text for token in tokens}):  # T F T is no product
            return Text(key)
        try:
            return read_quantity(tokens, self.points)
        except Unreadable:
            return Text(key)


# --- what a list is ---------------------------------------------------------------------------------------------------
def _bag(items: list[Shape], tokens: Tokens, *, is_ordered: bool) -> Shape:
    if len(items) == 1:
        return items[0]
    if not items or len(items) > MAX_ITEMS:
        return Text(text_key(tokens))
    return Bag(tuple(items), is_ordered=is_ordered)


def _with_shared_label(items: list[Shape]) -> list[Shape]:
    """Write x = 3, 5 as x = 3, x = 5."""
    if not items or not isinstance(items[0], Named) or not isinstance(items[0].value, Scalar):
        return items
    label = items[0].label
    return [Named(label, item) if isinstance(item, Scalar) else item for item in items]


def _conditions(items: list[Shape]) -> list[Named]:
    """Return the items if they are conditions on one variable, x > 0 and x ≠ 1; else nothing."""
    named = [item for item in items if isinstance(item, Named)]
    if len(named) < max(len(items), 2) or len({item.label for item in named}) > 1:
        return []
    return named if any(isinstance(item.value, Bracketed | Bag) for item in named) else []


def _is_series(items: Sequence[Shape]) -> bool:
    """Tell whether a list answers one question after the other, so that its order counts.

    It does wherever there are words or signs: "true, false", "high and low", and in T, F, T.
    """
    if any(isinstance(item, Text) for item in items):
        return True
    letters = {item.value.name for item in items if isinstance(item, Scalar)}
    return bool(letters) and _are_true_false(letters)


def _are_true_false(letters: set[str]) -> bool:
    return any(map(letters.issubset, _TRUE_FALSE))


def _ranges_over_reals(tokens: Tokens) -> bool:
    r"""Tell whether a set is said to be of all x, or all x \in \mathbb{R}, with some condition."""
    return bool(tokens) and is_letter(tokens[0]) and text_of(tokens[1:]) in ("", r"∈ \mathbbR")


# --- what stands before an answer -------------------------------------------------------------------------------------
def _split_choice(tokens: Tokens) -> tuple[str, Tokens] | None:
    """Return the letter, A to J, and what follows it: `(B) 12`, `B) 12`, `B. 12`, `B: 12`; None if this is no choice.

    A term (`(B)+1`, `(B)x`) is none, and neither is a list of choices ("A) 5 B) 6", "(A) (B)").
    """
    in_brackets = len(tokens) > 1 and tokens[0].text == "("
    if not tokens or tokens[in_brackets].text not in _CHOICES:
        return None
    letter, *rest = tokens[in_brackets:]
    if not rest:
        return letter.text, []
    end, *body = rest
    has_point = is_mark(end, ".:") and bool(body) and body[0].spaced and not in_brackets
    if end.text != ")" and not has_point:
        return None
    body = stripped(body)
    starts_term = bool(body) and (body[0].kind in ("mark", "open") or is_letter(body[0]))
    names_another = any(token.text.removeprefix("\\") in _CHOICES for token in body)
    return None if starts_term or names_another else (letter.text, body)
