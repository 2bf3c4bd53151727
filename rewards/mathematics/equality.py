"""Tell when two shapes are the same answer. Where a reader could doubt it, they are not."""

from collections.abc import Sequence
from itertools import product

from rewards.mathematics.quantity import Scalar
from rewards.mathematics.shapes import Bag, Chain, Choice, Either, Named, Relation, Row, Shape

Shapes = Sequence[Shape]
Member = tuple[frozenset[str], Shape]  # what it counts, how many


def same(answer: Shape, truth: Shape) -> bool:
    """Tell whether the answer is the truth.

    It is not symmetric: an answer may say more, so x + y = 5 and 3 + 2 = 5 answer 5, and 5 answers neither. A question
    may give the base of its answer, so 664 answers 664_7, and 664_7 does not answer 664.
    """
    match answer, truth:
        case Either(), Either():  # C(5,2) is no C(5,3)
            return same(answer.readings[0], truth.readings[0])
        case Either(), _:
            return any(same(reading, truth) for reading in answer.readings)
        case _, Either():
            return any(same(answer, reading) for reading in truth.readings)
        case (Named(), _) | (_, Named()):
            return _same_value(answer, truth) or _same_equation(answer, truth)
        case (Choice(), _) | (_, Choice()):
            return _same_choice(answer, truth)
        case Chain(), Chain():
            return _same_chain(answer, truth)
        case Chain(), _:
            return answer.holds and any(same(side, truth) for side in answer.sides)
        case (Bag(), _) | (_, Bag()):
            return _same_list(answer, truth)
        case Scalar(), Scalar():
            return _same_amount(answer, truth)
        case Row(), Row():
            return _same_row(answer, truth)
        case Relation(), Relation():
            return _same_relation(answer, truth)
    return answer == truth


# --- numbers ---------------------------------------------------------------------------------------------------------
def _same_amount(answer: Scalar, truth: Scalar) -> bool:
    """Tell whether two amounts are the same, if need be with the letters behind a number as its unit: 5 m and 5.

    Bare digits answer a truth with a base, and bare truths are decimal.
    """
    if answer.base not in (10, truth.base):
        return False
    answers = filter(None, (answer, answer.if_unit))
    truths = filter(None, (truth, truth.if_unit))
    return any(one.equals(other) for one, other in product(answers, truths))


# --- lists -----------------------------------------------------------------------------------------------------------
def _in_order(answers: Shapes, truths: Shapes) -> bool:
    return len(answers) == len(truths) and all(map(_same_member, _with_nouns(answers), _with_nouns(truths)))


def _in_any_order(answers: Shapes, truths: Shapes) -> bool:
    """Tell whether each answer has its own partner among the truths, and none is left."""
    left = _with_nouns(truths)
    for answer in _with_nouns(answers):
        found = next((at for at, truth in enumerate(left) if _same_member(answer, truth)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_set(answers: Shapes, truths: Shapes) -> bool:
    """Tell whether each member of the one is in the other."""
    ones, others = _with_nouns(answers), _with_nouns(truths)
    are_right = all(any(_same_member(one, other) for other in others) for one in ones)
    return are_right and all(any(_same_member(one, other) for one in ones) for other in others)


def _same_member(answer: Member, truth: Member) -> bool:
    """Tell whether the values are the same, and both count the same thing: 3 cats."""
    (noun, value), (other_noun, other) = answer, truth
    return (noun == other_noun or not noun or not other_noun) and same(value, other)


def _with_nouns(values: Shapes) -> list[Member]:
    """Return each value with what it counts, less the words that are the same for all."""
    nouns = [value.noun if isinstance(value, Scalar) else frozenset() for value in values]
    shared = frozenset.intersection(*nouns) if nouns else frozenset()
    return [(noun - shared, value) for noun, value in zip(nouns, values, strict=True)]


def _same_row(answer: Row, truth: Row) -> bool:
    are_alike = answer.brackets == truth.brackets or (answer.is_tuple and truth.is_tuple)
    return are_alike and _in_order(answer.items, truth.items)


def _same_list(answer: Shape, truth: Shape) -> bool:
    are_assigned = [isinstance(side, Bag) and side.is_assignment for side in (answer, truth)]
    if any(are_assigned) and not all(are_assigned):
        named, other = (answer, truth) if are_assigned[0] else (truth, answer)
        return _same_assigned(named, other)
    if not isinstance(answer, Bag) or not isinstance(truth, Bag):
        return False
    if answer.is_set or truth.is_set:
        return _same_set(answer.items, truth.items)
    names_the_rest = _has_nouns(answer) != _has_nouns(truth)  # 342, 236 for 342 adults, 236 children
    compare = _in_order if answer.is_ordered or truth.is_ordered or names_the_rest else _in_any_order
    return compare(answer.items, truth.items)


def _has_nouns(bag: Bag) -> bool:
    return any(noun for noun, _ in _with_nouns(bag.items))


def _same_assigned(named: Bag, other: Shape) -> bool:
    """Tell whether x = 1, y = 2 has the values of the other in this order; x_1 = 1, x_2 = 2 also those of a set."""
    ordered = sorted(named.items, key=lambda item: item.label.key)
    values = [item.value for item in ordered]
    if isinstance(other, Row):
        return other.is_tuple and _in_order(values, other.items)
    if not isinstance(other, Bag) or any(isinstance(item, Named) for item in other.items):
        return False
    is_of_one_letter = len({item.label.key.partition("_")[0] for item in ordered}) == 1
    if other.is_set:
        return is_of_one_letter and _same_set(values, other.items)
    return _in_order(values, other.items)


# --- letters of multiple choice --------------------------------------------------------------------------------------
def _same_choice(answer: Shape, truth: Shape) -> bool:
    """Compare the letters, and the bodies where both have one; without two letters, a body with the other side."""
    letters = _letter(answer), _letter(truth)
    ours, theirs = (getattr(side, "body", None) for side in (answer, truth))
    if all(letters):
        return letters[0] == letters[1] and (ours is None or theirs is None or same(ours, theirs))
    if ours is not None:
        return same(ours, truth)
    return theirs is not None and same(answer, theirs)


def _letter(value: Shape) -> str | None:
    """Return the letter of a choice; a lone "b" is the letter B."""
    if isinstance(value, Choice):
        return value.letter
    name = value.value.name if isinstance(value, Scalar) else None
    return name.upper() if name and name not in "ei" else None


# --- equations -------------------------------------------------------------------------------------------------------
def _same_value(answer: Shape, truth: Shape) -> bool:
    """Tell whether the values agree, and the labels too where both have one."""
    if isinstance(answer, Named) and isinstance(truth, Named):
        return _same_label(answer, truth) and same(answer.value, truth.value)
    if isinstance(answer, Named):
        return _says_value(answer, truth) and same(answer.value, truth)
    return truth.label is not None and _says_value(truth, answer) and same(answer, truth.value)


def _same_label(answer: Named, truth: Named) -> bool:
    if answer.label is None or truth.label is None:
        return False
    if answer.label.key == truth.label.key:
        return True
    has_variable = isinstance(answer.value, Scalar) and bool(answer.value.value.variables)
    return has_variable and answer.label.defines_with(truth.label)


def _says_value(named: Named, other: Shape) -> bool:
    """Tell whether the value alone may stand for the equation: C for "the answer is C", but not for z = c."""
    is_symbol = named.label is not None and not named.label.is_words
    return not (is_symbol and isinstance(other, Choice))


def _same_equation(answer: Shape, truth: Shape) -> bool:
    """Tell whether both are one equation in several variables, y = 2x + 3 and 2x - y + 3 = 0, or one inequality."""
    relations = [side.relation if isinstance(side, Named) else side for side in (answer, truth)]
    for relation in relations:
        if not isinstance(relation, Relation):
            return False
        if relation.sign == "=" and len(relation.difference.variables) < 2:
            return False
    return _same_relation(*relations)


def _same_relation(answer: Relation, truth: Relation) -> bool:
    """Tell whether one difference is a constant multiple of the other, a positive one for < and ≤.

    In an equation the denominators do not matter.
    """
    if answer.sign != truth.sign:
        return False
    is_equation = answer.sign in "=≠"
    ours, theirs = answer.difference, truth.difference
    if is_equation:
        ours, theirs = ours.without_divisors(), theirs.without_divisors()
    ratio = ours.ratio_to(theirs)
    return ratio is not None and (is_equation or ratio > 0)


def _same_chain(answer: Chain, truth: Chain) -> bool:
    r"""Tell whether both say the same of the same things.

    Sides are made of the same numbers and names: \log_4 8 = 3/2 is not \log_{36} 216 = 3/2. Those of = and ≠ may
    change places.
    """
    if answer.signs != truth.signs:
        return False
    if set(answer.signs) in ({"="}, {"≠"}):
        return sorted(answer.parts) == sorted(truth.parts) and _in_any_order(answer.sides, truth.sides)
    return answer.parts == truth.parts and _in_order(answer.sides, truth.sides)
