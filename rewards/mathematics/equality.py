"""When two shapes are the same answer. Where a reader could doubt it, they are not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from rewards.mathematics.algebra import ONE, Algebra, Quotient
from rewards.mathematics.colon import Clock
from rewards.mathematics.numeral import Numeral
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.value import (
    Bag,
    Chain,
    Choice,
    Grid,
    Named,
    Ratio,
    Relation,
    Row,
    Value,
)

_TUPLE_BRACKETS: Final = (("(", ")"), (r"\langle", r"\rangle"))

Values = Sequence[Value]
Member = tuple[frozenset[str], Value]  # what it counts, how many


def same(answer: Value, truth: Value, algebra: Algebra) -> bool:
    """Whether the answer is the truth. Symmetric but where only the answer may say more: x + y = 5 and 3 + 2 = 5 answer
    5, and 5 answers neither; 664 answers 664_7, and 664_7 does not answer 664."""
    return _Equality(algebra).same(answer, truth)


class _Equality:
    """Decides within one algebra whether two shapes are the same."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        # the first of these that either side is, decides
        self.of_either: dict[type, Callable[..., bool]] = {
            Named: self.named,
            Choice: self.choices,
            Chain: self.chains,
            Ratio: self.ratios,
            Numeral: self.numerals,
        }
        self.of_both: dict[type, Callable[..., bool]] = {
            Scalar: self.scalars,
            Row: self.rows,
            Bag: self.lists,
            Grid: self.grids,
            Relation: self.relations,
            Clock: self.clocks,
        }

    def same(self, answer: Value, truth: Value) -> bool:
        kinds = (type(answer), type(truth))
        for kind, compare in self.of_either.items():
            if kind in kinds:
                return compare(answer, truth)
        if kinds.count(Grid) == 1:
            answer, truth = _as_row(answer), _as_row(truth)
        if _is_assignment(answer) and _is_nameless_list(truth):
            return self.assigned(answer, truth)
        if _is_assignment(truth) and _is_nameless_list(answer):
            return self.assigned(truth, answer)
        if type(answer) is not type(truth):
            answer, truth = _as_one(answer), _as_one(truth)
            return isinstance(answer, Scalar) and isinstance(truth, Scalar) and self.scalars(answer, truth)
        compare = self.of_both.get(type(answer))
        return compare(answer, truth) if compare else answer == truth

    # --- numbers ----------------------------------------------------------------------------------------------------
    def scalars(self, answer: Scalar, truth: Scalar) -> bool:
        """Whether both are the same amount; letters behind a number may be its unit: 5 m and 5."""
        answers = filter(None, (answer, answer.if_unit))
        truths = filter(None, (truth, truth.if_unit))
        return any(one.equals(other, self.algebra) for one, other in product(answers, truths))

    def clocks(self, answer: Clock, truth: Clock) -> bool:
        return replace(answer, is_certain=True) == replace(truth, is_certain=True)

    def ratios(self, answer: Value, truth: Value) -> bool:
        """2:4 is 1:2 and ½; times of day are the same to the minute, and nothing that may be a time is a fraction."""
        clocks = [_clock(answer), _clock(truth)]
        if all(clocks):
            return self.clocks(*clocks)
        if any(clock and clock.is_certain for clock in clocks):
            return False
        if isinstance(answer, Ratio) and isinstance(truth, Ratio):
            return self.in_proportion(answer.parts, truth.parts)
        if isinstance(answer, Ratio):
            return self.is_fraction(answer, truth)
        return self.is_fraction(truth, answer)

    def is_fraction(self, ratio: Ratio, other: Value) -> bool:
        """3:4 is 3/4; a range is no fraction, and 4:2 is not 2."""
        if ratio.clock or ratio.is_range or not isinstance(other, Scalar) or other.unit:
            return False
        number = other.value.number
        is_whole = number is not None and number.denominator == 1
        one = Scalar(self.algebra.number(1))
        return not is_whole and self.in_proportion(ratio.parts, (other, one))

    def in_proportion(self, ones: Values, others: Values) -> bool:
        """Whether the parts of two ratios are the same but for a factor."""
        if len(ones) != len(others) or not all(map(_is_nonzero, [*ones, *others])):
            return False
        pairs = list(zip(ones, others, strict=True))
        if any(one.contradicts(other) or one.noun != other.noun for one, other in pairs):
            return False
        multiply = self.algebra.multiply
        values = [(one.in_unit_of(other, self.algebra), other.value) for one, other in pairs]
        first, first_other = values[0]
        return all(self.algebra.equal(multiply(first, other), multiply(first_other, one)) for one, other in values)

    def numerals(self, answer: Value, truth: Value) -> bool:
        """Whether digits and base agree. A truth with a base is answered by the bare digits: the base was given with
        the question; a bare truth only by base ten."""
        if isinstance(answer, Numeral) and isinstance(truth, Numeral):
            return answer == truth
        if isinstance(answer, Numeral):
            return answer.base == 10 and self.has_digits(truth, answer)
        return self.has_digits(answer, truth)

    def has_digits(self, value: Value, numeral: Numeral) -> bool:
        is_plain = isinstance(value, Scalar) and not value.unit
        return is_plain and self.algebra.equal(value.value, numeral.bare)

    # --- lists ------------------------------------------------------------------------------------------------------
    def in_order(self, answers: Values, truths: Values) -> bool:
        if len(answers) != len(truths):
            return False
        return all(map(self.same_member, _with_nouns(answers), _with_nouns(truths)))

    def in_any_order(self, answers: Values, truths: Values) -> bool:
        return _pair_off(_with_nouns(answers), _with_nouns(truths), self.same_member)

    def same_member(self, answer: Member, truth: Member) -> bool:
        """Whether the values are the same, and both count the same thing: 3 cats."""
        (noun, value), (other_noun, other) = answer, truth
        if noun and other_noun and noun != other_noun:
            return False
        return self.same(value, other)

    def rows(self, answer: Row, truth: Row) -> bool:
        brackets = [(row.opener, row.closer) for row in (answer, truth)]
        are_tuples = all(pair in _TUPLE_BRACKETS for pair in brackets)
        if brackets[0] != brackets[1] and not are_tuples:
            return False
        return self.in_order(answer.items, truth.items)

    def grids(self, answer: Grid, truth: Grid) -> bool:
        if answer.is_determinant != truth.is_determinant or len(answer.rows) != len(truth.rows):
            return False
        return all(map(self.in_order, answer.rows, truth.rows))

    def lists(self, answer: Bag, truth: Bag) -> bool:
        if answer.is_set or truth.is_set:
            return self.sets(answer, truth)
        counts_things = [any(noun for noun, _ in _with_nouns(bag.items)) for bag in (answer, truth)]
        names_the_rest = counts_things[0] != counts_things[1]  # 342, 236 for 342 adults, 236 children
        if answer.is_ordered or truth.is_ordered or names_the_rest:
            return self.in_order(answer.items, truth.items)
        return self.in_any_order(answer.items, truth.items)

    def assigned(self, named: Bag, other: Row | Bag) -> bool:
        """Whether x = 1, y = 2 has the values of the other in this order; x_1 = 1, x_2 = 2 also those of a set."""
        values = _assigned(named)
        if isinstance(other, Bag) and other.is_set:
            letters = {item.label.key.partition("_")[0] for item in named.items}
            return len(letters) == 1 and self.sets(Bag(tuple(values)), other)
        return _has_order(other) and self.in_order(values, other.items)

    def sets(self, answer: Bag, truth: Bag) -> bool:
        """Whether each member of the one is in the other."""
        answers, truths = _with_nouns(answer.items), _with_nouns(truth.items)
        ours = all(any(self.same_member(a, t) for t in truths) for a in answers)
        theirs = all(any(self.same_member(a, t) for a in answers) for t in truths)
        return ours and theirs

    # --- letters of multiple choice ---------------------------------------------------------------------------------
    def choices(self, answer: Value, truth: Value) -> bool:
        """The letters decide; without two letters, the body of the one against the whole other. A lone "b" is the
        letter B."""
        letters = _letter(answer), _letter(truth)
        ours, theirs = _body(answer), _body(truth)
        if all(letters):
            agree = ours is None or theirs is None or self.same(ours, theirs)
            return letters[0] == letters[1] and agree
        if ours is not None:
            return self.same(ours, truth)
        return theirs is not None and self.same(answer, theirs)

    # --- equations --------------------------------------------------------------------------------------------------
    def named(self, answer: Value, truth: Value) -> bool:
        return self.same_value(answer, truth) or self.same_equation(_as_equation(answer), _as_equation(truth))

    def same_value(self, answer: Value, truth: Value) -> bool:
        """Whether the values agree, and the labels too where both have one."""
        if isinstance(answer, Named) and isinstance(truth, Named):
            return self.same_label(answer, truth) and self.same(answer.value, truth.value)
        if isinstance(answer, Named):
            return _says_value(answer, truth) and self.same(answer.value, truth)
        if truth.label is None:
            return False
        return _says_value(truth, answer) and self.same(answer, truth.value)

    def same_label(self, answer: Named, truth: Named) -> bool:
        if answer.label is None or truth.label is None:
            return False
        if answer.label.key == truth.label.key:
            return True
        if not isinstance(answer.value, Scalar):
            return False
        has_variable = bool(self.algebra.variables(answer.value.value))
        return has_variable and answer.label.agrees(truth.label)

    def same_equation(self, answer: Value, truth: Value) -> bool:
        """Whether both are one equation in several variables, y = 2x + 3 and 2x - y + 3 = 0, or one inequality."""
        for side in (answer, truth):
            if not isinstance(side, Relation):
                return False
            if side.sign == "=" and len(self.algebra.variables(side.difference)) < 2:
                return False
        return self.relations(answer, truth)

    def relations(self, answer: Relation, truth: Relation) -> bool:
        """Whether one difference is a constant multiple of the other (a positive one for < and ≤); in an equation the
        denominators do not matter."""
        if answer.sign != truth.sign:
            return False
        a, t = answer.difference, truth.difference
        is_equation = answer.sign in "=≠"
        if is_equation:
            a, t = Quotient(a.top, ONE), Quotient(t.top, ONE)
        factor = self.algebra.leading(a) / self.algebra.leading(t)
        if factor < 0 and not is_equation:
            return False
        multiple = self.algebra.multiply(t, self.algebra.number(factor))
        return self.algebra.equal(a, multiple)

    def chains(self, answer: Value, truth: Value) -> bool:
        r"""Whether both say the same of the same things: \log_4 8 = 3/2 is not \log_{36} 216 = 3/2. A chain that holds
        answers each of its sides."""
        if not isinstance(truth, Chain):
            return answer.holds and any(self.same(side, truth) for side in answer.sides)
        if not isinstance(answer, Chain) or answer.signs != truth.signs:
            return False
        if self.same_sides(answer, truth):
            return True
        turned = replace(answer, sides=answer.sides[::-1], written=answer.written[::-1])
        return set(answer.signs) <= {"=", "≠"} and self.same_sides(turned, truth)

    def same_sides(self, answer: Chain, truth: Chain) -> bool:
        is_of_numbers = all(isinstance(side, Scalar) for side in answer.sides)
        if is_of_numbers and answer.written != truth.written:
            return False
        return self.in_order(answer.sides, truth.sides)


def _is_nonzero(value: Value) -> bool:
    return isinstance(value, Scalar) and bool(value.value.top)


def _clock(value: Value) -> Clock | None:
    if isinstance(value, Ratio):
        return value.clock
    return value if isinstance(value, Clock) else None


def _pair_off(ones: Iterable, others: Iterable, alike: Callable[..., bool]) -> bool:
    """Whether each of the one has its own partner in the other, and none is left."""
    left = list(others)
    for one in ones:
        found = next((at for at, other in enumerate(left) if alike(one, other)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _with_nouns(values: Values) -> list[Member]:
    """Each value with what it counts, without the words that are the same for all; with nothing where all count the
    same."""
    nouns = [value.noun if isinstance(value, Scalar) else frozenset() for value in values]
    shared = frozenset.intersection(*nouns) if nouns else frozenset()
    return [(noun - shared, value) for noun, value in zip(nouns, values, strict=True)]


def _as_row(value: Value) -> Value:
    """A column or row matrix as the tuple of its entries."""
    if not isinstance(value, Grid) or value.is_determinant:
        return value
    if len(value.rows) == 1:
        return Row("(", ")", value.rows[0])
    if all(len(row) == 1 for row in value.rows):
        return Row("(", ")", tuple(row[0] for row in value.rows))
    return value


def _as_one(value: Value) -> Value | None:
    """The sum of 5 hours and 30 minutes."""
    return value.total if isinstance(value, Bag) else value


def _is_assignment(value: Value) -> bool:
    """Whether the list gives each of several variables its value: x = 1, y = 2, but not x = 1, x = 2."""
    if not isinstance(value, Bag):
        return False
    names = {item.label.key for item in value.items if isinstance(item, Named) and item.label}
    return len(names) == len(value.items)


def _assigned(value: Bag) -> list[Value]:
    """The values of x = 1, y = 2 by the order of their names."""
    ordered = sorted(value.items, key=lambda item: item.label.key)
    return [item.value for item in ordered]


def _is_nameless_list(value: Value) -> bool:
    if not isinstance(value, (Row, Bag)):
        return False
    return not any(isinstance(item, Named) for item in value.items)


def _has_order(value: Row | Bag) -> bool:
    """Whether the members can be the values of several variables: "1, 2" or (1, 2)."""
    if isinstance(value, Bag):
        return not value.is_set
    return (value.opener, value.closer) in _TUPLE_BRACKETS


def _letter(value: Value) -> str | None:
    if isinstance(value, Choice):
        return value.letter
    name = value.value.lone_atom if isinstance(value, Scalar) else None
    return name.upper() if name and name not in "ei" else None


def _body(value: Value) -> Value | None:
    return value.body if isinstance(value, Choice) else None


def _says_value(named: Named, other: Value) -> bool:
    """Whether the value alone may stand for the equation: C for "the answer is C", but not for z = c."""
    is_symbol = named.label is not None and not named.label.is_words
    return not (is_symbol and isinstance(other, Choice))


def _as_equation(value: Value) -> Value:
    return value.relation or value if isinstance(value, Named) else value
