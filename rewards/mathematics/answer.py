r"""Read the tokens of an answer as its shape.

It may be `x \in [0,1)`, `3 \text{ or } -5`, `\textbf{(B)}\ 12`, a matrix, a sentence.

Every text has a shape. What cannot be read as mathematics, or exceeds a limit, is `Text` and equals only the same text.
"""

import re
from dataclasses import replace
from itertools import chain

from rewards.mathematics import regions, units
from rewards.mathematics.expression import expression_or_none
from rewards.mathematics.key import segment, text_key
from rewards.mathematics.lists import are_verdicts, is_series, joined, split_choice, with_shared_label, without_integers
from rewards.mathematics.names import Label, is_phrase, mark_applications
from rewards.mathematics.quantity import Scalar, read_quantity, sum_of
from rewards.mathematics.relations import RelationReader
from rewards.mathematics.shapes import (
    EMPTY,
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Bag,
    Choice,
    Either,
    Named,
    Row,
    Shape,
    Text,
    matrix,
)
from rewards.mathematics.tokens import (
    RELATIONS,
    Token,
    Tokens,
    enclosed,
    is_letter,
    is_mark,
    nesting,
    split,
    stripped,
    text_of,
)
from rewards.mathematics.value import Points, Unreadable

MAX_NESTING = 12  # of brackets in brackets that are tuples, sets or intervals
MAX_ITEMS = 64  # of a list: comparing without order is quadratic

_EQUALS_WORDS = ("is", "are", "equals")
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix smallmatrix array vmatrix Vmatrix".split())
_PADDED = re.compile("0[0-9]")  # of a time: 9:05
_TIME = re.compile("[0-9]{1,2} : [0-9]{2}")
_ROW_OPENERS = ("(", "[", r"\langle")
_ROW_CLOSERS = (")", "]", r"\rangle")
# what stands behind these, and "=" or a colon, is the answer itself
_UNNAMED = frozenset(("", "answer", "final answer", "ans", "答", "答案", "故答案"))
_WORDS = (
    (EMPTY, "no solution|no solutions|no real solution|no real solutions|empty set|none|there is no solution"),
    (EMPTY, "there are no solutions"),
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
        self.points, self.nesting = points, 0
        self.relations = RelationReader(points, self.side)

    # --- lists ------------------------------------------------------------------------------------------------------
    def answer(self, tokens: Tokens) -> Shape:
        """Read a choice, or a list of items separated by `;`, or by commas, "and", "or"; of one item, that item."""
        choice = split_choice(tokens)
        if choice:
            letter, body = choice
            return Choice(letter, self.answer(body) if body else None)
        parts, _ = split(tokens, (";",))
        if len(parts) > 1:
            answers = [self.answer(stripped(part)) for part in parts if part]
            return _bag(answers, tokens, is_ordered=True)
        parts, separators = split(tokens, (",", "and", "or"))
        items = []
        for part in filter(None, map(stripped, without_integers(parts))):
            items += self.both_signs(part)
        items = joined(with_shared_label(items), separators)
        bag = _bag(items, tokens, is_ordered=is_series(items, separators))
        are_amounts = isinstance(bag, Bag) and all(isinstance(item, Scalar) for item in items)
        total = sum_of(items) if are_amounts and set(separators) == {"and"} else None
        return Either((bag, total)) if total else bag

    def both_signs(self, tokens: Tokens) -> list[Shape]:
        """Read `2 ± √3` as two values, where `∓` goes along with `±`; inside a set they are two of its members."""
        if not _has_double_sign(tokens):
            return [self.item(tokens)]
        values = []
        for signs in ({"±": "+", "∓": "-"}, {"±": "-", "∓": "+"}):
            value = self.item([token._replace(text=signs.get(token.text, token.text)) for token in tokens])
            values += [value] if value not in values else []
        return values

    # --- items: words, and relations between sides ------------------------------------------------------------------
    def item(self, tokens: Tokens) -> Shape:
        """Read "Answer: 5", x = 5, 0 < x < 1, or one side."""
        tokens = _without_colon(tokens)
        sides, signs = split(tokens, (*RELATIONS, *_EQUALS_WORDS))
        signs = ["=" if sign in _EQUALS_WORDS else sign for sign in signs]
        if not signs:
            return self.point(tokens) or self.side(tokens)
        if signs[0] in "=≈" and text_key(sides[0]) in _UNNAMED:
            return self.answer(stripped(tokens[len(sides[0]) + 1 :]))
        return self.relations.read(sides, signs) if all(sides) else self.side(tokens)

    def point(self, tokens: Tokens) -> Shape | None:
        """Read P(3, -4) as P = (3, -4), C(5, 2) as 10 as well; None unless a capital names a tuple of numbers."""
        if not re.fullmatch("[A-Z]", tokens[0].text) or not enclosed(tokens[1:]):
            return None
        value = self.side(tokens[1:])
        if not isinstance(value, Row):
            return None
        if not all(isinstance(item, Scalar) and not item.value.variables for item in value.items):
            return None
        point = Named(Label(tokens[0].text), value)
        return Either((point, self.quantity(tokens))) if tokens[0].text == "C" else point

    # --- sides: one value, or brackets ------------------------------------------------------------------------------
    def side(self, tokens: Tokens) -> Shape:
        tokens = segment(tokens) or stripped(tokens)
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
        if tokens[-1].kind == "end":
            return self.multiple(tokens)
        for sign in "∪∖∩":
            parts, found = split(tokens, (sign,))
            if found and all(parts):
                return _combined(sign, [self.side(part) for part in parts])
        return self.ratio(tokens)

    def ratio(self, tokens: Tokens) -> Shape | None:
        """Read `2:3`, which may be a fraction as well, or `3 to 4`; None if this is anything else."""
        parts, found = split(tokens, (":", "to"))
        are_values = "to" not in found or all(expression_or_none(part, self.points) for part in parts)
        if not found or not all(parts) or not are_values:
            return None
        if any(_PADDED.match(part[0].text) for part in parts):
            return Text(text_key(tokens))
        items = list(map(self.side, parts))
        if not all(isinstance(item, Scalar) and not item.value.is_zero for item in items):
            return Row(":", ":", tuple(items))
        first, *_, last = items
        ratio = Row(":", ":", tuple(replace(item, value=item.value / first.value, if_unit=None) for item in items))
        if found != [":"] or _TIME.fullmatch(text_of(tokens)):
            return ratio
        share = first.value / last.value
        is_bare = not (first.unit or last.unit or share.is_whole)
        return Either((ratio, Scalar(share, units.RATIO))) if is_bare else ratio

    def brackets(self, tokens: Tokens) -> Shape | None:
        """Read what the brackets around all the tokens make of their content; None if they only group."""
        opener, closer = tokens[0].text, tokens[-1].text
        inner = list(tokens[1:-1])
        if opener in _MATRICES:
            return self.matrix(opener, inner)
        if opener == "cases":
            return self.system(inner)
        if opener == r"\{":
            return self.braces(inner) if closer == r"\}" else None
        if opener == "{":
            value = self.braces(inner) if "|" in split(inner, "|")[1] else self.answer(inner)
            return None if isinstance(value, Text) else value
        parts, semicolons = split(inner, (";",))
        if not semicolons:
            parts, _ = split(inner, (",",))
        if len(parts) > 1 and all(parts) and opener in _ROW_OPENERS and closer in _ROW_CLOSERS:
            return Row(opener, closer, tuple(map(self.part, parts)))
        value = self.part(inner) if opener + closer in ("()", "[]") else None
        return None if isinstance(value, Text) else value

    def part(self, tokens: Tokens) -> Shape:
        """Read a part inside brackets: anything but a list by words."""
        values = self.both_signs(stripped(tokens)) if tokens else []
        return values[0] if len(values) == 1 else Text(text_key(tokens))

    def braces(self, inner: Tokens) -> Shape:
        """Read a set, by its members or by a condition on one variable: {x | x > 3}."""
        parts, found = split(inner, "|:")
        if found and len(parts) == 2 and _ranges_over_reals(parts[0]):
            condition = self.answer(parts[1])
            is_about_it = isinstance(condition, Named) and condition.label == Label(parts[0][0].text)
            return condition.value if is_about_it else Text(text_key(inner))
        listed = self.answer(inner) if inner else EMPTY
        if inner and listed == EMPTY:
            return Text(f"{{{EMPTY.key}}}")  # a set with a member
        return Bag(listed.items, is_set=True) if isinstance(listed, Bag) else listed  # of one member: that member

    def matrix(self, environment: str, inner: Tokens) -> Shape:
        rows, _ = split(inner, (r"\\",))
        entries = [list(map(self.side, split(row, "&")[0])) for row in rows if row]
        return matrix(entries, "||" if environment in ("vmatrix", "Vmatrix") else "[]")

    def system(self, inner: Tokens) -> Bag | None:
        """Read x = 1, y = 2 one below the other; None if this is anything but one value for each of several names."""
        rows, _ = split(inner, (r"\\",))
        system = Bag(tuple(map(self.item, filter(None, map(stripped, rows)))))
        return system if len(system.items) > 1 and system.is_assignment else None

    def multiple(self, tokens: Tokens) -> Shape | None:
        """Read a number times a matrix; None if this is anything else."""
        start = next((at for at, token in enumerate(tokens) if token.kind == "begin"), 0)
        factor = expression_or_none(tokens[:start], self.points)
        found = self.side(tokens[start:]) if enclosed(tokens[start:]) else None
        found = found.readings[0] if isinstance(found, Either) else found
        if factor is None or not isinstance(found, Row) or found.brackets != "[]":
            return None
        rows = [row.items for row in found.items]
        if not all(isinstance(entry, Scalar) and entry.unit is None and entry.base == 10 for entry in chain(*rows)):
            return None
        return matrix([[Scalar(factor * entry.value) for entry in row] for row in rows])

    def quantity(self, tokens: Tokens) -> Shape:
        key = text_key(tokens)
        if key in _SHAPES:
            return _SHAPES[key]
        if len(tokens) > 1 and are_verdicts({token.text for token in tokens}):  # T F T is no product
            return Text(key)
        try:
            return read_quantity(tokens, self.points)
        except Unreadable:
            return Text(key)


def _bag(items: list[Shape], tokens: Tokens, *, is_ordered: bool) -> Shape:
    if len(items) == 1:
        return items[0]
    if not items or len(items) > MAX_ITEMS:
        return Text(text_key(tokens))
    return Bag(tuple(items), is_ordered=is_ordered)


def _has_double_sign(tokens: Tokens) -> bool:
    """Tell whether there is a ± or ∓, within no other brackets than ( ) and { }."""
    depth = 0
    for token in tokens:
        if token.text not in ("(", ")", "{", "}"):
            depth += nesting(token)
        if depth == 0 and is_mark(token, "±∓"):
            return True
    return False


def _without_colon(tokens: Tokens) -> Tokens:
    """Write "the area: 5" and "the area is: 5" as the area = 5. A time or a ratio stays."""
    parts, _ = split(tokens, ":")
    name = parts[0]
    if len(parts) != 2 or not is_phrase(name) or not {token.kind for token in name} <= {"word", "name"}:
        return tokens
    if name[-1].text in _EQUALS_WORDS:
        name = name[:-1]
    return [*name, Token("mark", "="), *parts[1]]


def _ranges_over_reals(tokens: Tokens) -> bool:
    r"""Tell whether a set is said to be of all x, or all x \in \mathbb{R}, with some condition."""
    return bool(tokens) and is_letter(tokens[0]) and text_of(tokens[1:]) in ("", r"∈ \mathbbR")


def _combined(sign: str, sets: list[Shape]) -> Shape:
    """Return the union, difference or intersection of sets; of others than known numbers only how it was written."""
    first, *others = sets
    if sign == "∪":
        return regions.union(sets) or Bag(tuple(sets))
    if sign == "∖":
        others = [regions.complement(other) for other in others]
    found = None if None in others else regions.intersection([first, *others])
    return found or Row(sign, sign, tuple(sets))
