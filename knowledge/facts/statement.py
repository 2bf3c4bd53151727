"""Read a clause as words that can be compared: of which kind each is, and where it stands in the clause.

    statement("Mira Tolan, born in 1900, won the Orun Prize before 1941")
        ->  subject: Mira Tolan; verb: won; 1900 and 1941 are numbers in different parts; 1941 is "before 1941"

English and Chinese.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Literal

from knowledge.facts.clauses import HAN, ZH_VERB, is_chinese, is_negative, may_be_verb
from knowledge.store.tokens import tokens
from knowledge.words import AUXILIARIES, BOUNDS, COPULAS, PREPOSITIONS, RELATIONS, SUBORDINATORS, VERBS, ZH_BOUNDS

Kind = Literal["name", "number", "word", "function"]

_WORD = re.compile(f"\\d(?:[\\d,.]*\\d)?|[{HAN}]+|[^\\W\\d_{HAN}]+(?:['’][^\\W\\d_]+)*")
_ZH_LINK = re.compile("不是|没有|并非|从未|[是曾有在于为的了和与及也都之以由被把对从到不没]")
_ZH_FUNCTION = re.compile(
    f"({'|'.join(ZH_BOUNDS)}|(?<=[年月日])[前后]|{ZH_VERB.pattern}|并非|从未|[的了和与及也都之以由被把对从到不没])"
)
FULL_VERBS = VERBS - COPULAS - AUXILIARIES - {"be", "has", "have", "had"}  # "won" is a stop word, as in "won't"
_APPOSITION = re.compile(r"[,，(（]")
_PART_END = re.compile(r"[,;:，；：()（）\[\]–—]")


@dataclass(frozen=True)
class Word:
    """A word as it is compared.

    kind: a number has a digit; a name begins with a capital, or is Chinese and no verb; function words (stop words,
    negations, relations, Chinese verbs that only link) have no tokens. The tokens also tell the subordinate clause and
    the relation that the word stands in: "who from velda". part: its number between commas, brackets and the like.
    """

    text: str
    tokens: tuple[str, ...]
    kind: Kind
    part: int = field(default=-1, compare=False)


@dataclass(frozen=True)
class Statement:
    """One clause. verb: the place of its first verb; subject: the words before that, without an apposition."""

    words: tuple[Word, ...]
    verb: int
    is_negative: bool
    subject: tuple[Word, ...]

    @cached_property
    def has_bound(self) -> bool:
        return any(word.text in BOUNDS for word in self.words)

    @cached_property
    def tokens(self) -> frozenset[str]:
        return frozenset(tokens_of(self.words))

    @cached_property
    def predicates(self) -> dict[int, set[str]]:
        """Return the tokens of each part's common words, without those of the subject."""
        found: dict[int, set[str]] = {}
        for word in self.words:
            if word.kind == "word" and word not in self.subject:
                found.setdefault(word.part, set()).update(word.tokens)
        return found

    def covers(self, word: Word) -> bool:
        return self.tokens.issuperset(word.tokens)

    def is_about(self, claim: "Statement", word: Word) -> bool:
        """Tell whether this word stands in a part with one of the claim's common words, or with none."""
        here = self.predicates.get(word.part)
        claimed = set().union(*claim.predicates.values())
        return not here or not claimed or not here.isdisjoint(claimed)


def statement(clause: str) -> Statement:
    """Return a clause as words. Any string is safe."""
    text, is_verb = clause, VERBS.__contains__
    if is_chinese(clause):
        text, is_verb = _ZH_FUNCTION.sub(r" \1 ", clause), ZH_VERB.fullmatch
    found = list(_WORD.finditer(text))
    ends = [0, *(match.end() for match in found)]
    gaps = [text[end : match.start()] for end, match in zip(ends, found, strict=False)]
    follows_comma = ["," in gap for gap in gaps]
    parts = accumulate(len(_PART_END.findall(gap)) for gap in gaps)
    words = _relate([_word(match[0], part) for match, part in zip(found, parts, strict=True)], follows_comma)
    verb = _place_of_verb(words, is_verb)
    return Statement(words, verb, is_negative(clause), words[_subject(text, found[:verb])])


def _word(text: str, part: int) -> Word:
    found = () if _ZH_LINK.fullmatch(text) or is_negative(text) else tuple(tokens(text))
    if not found and text.casefold() in FULL_VERBS:
        found = (text.casefold(),)
    return Word(text if text[0].isupper() else text.casefold(), found, _kind(text, found), part)


def _kind(text: str, found: tuple[str, ...]) -> Kind:
    if not found:
        return "function"
    if any(map(str.isdigit, text)):
        return "number"
    if text[0].isupper() or (is_chinese(text) and not ZH_VERB.fullmatch(text)):
        return "name"
    return "word"


def _relate(words: Sequence[Word], follows_comma: Sequence[bool]) -> tuple[Word, ...]:
    """Move each relation and each subordinator into the tokens of the words that they govern.

    A relation governs its object, the words of one kind that follow it; a subordinator governs its clause. A bound
    without an object (ten years before) is content itself.
    """
    relation, clause = "", ""
    kind = None  # of the relation's object, None until it has begun
    done = []
    for word, is_after_comma in zip(words, follows_comma, strict=True):
        name = word.text.lower() if word.text.islower() or not done or is_chinese(word.text) else ""
        if is_after_comma:
            clause = ""
        if is_after_comma or (kind and word.text != "and" and word.kind != kind):
            relation, kind = "", None
        if name in RELATIONS:
            relation = name if kind else f"{relation} {name}".strip()
            kind = None
            word = Word(name, (), "function", word.part)
        elif name in SUBORDINATORS:
            is_about_subject = name in ("who", "which") and all(before.kind == "name" for before in done)
            clause = "" if is_about_subject else name  # "Mira Tolan, who was born"
        elif word.tokens and (relation or clause):
            if relation:
                kind = word.kind
            word = replace(word, tokens=tuple(f"{clause} {relation} {token}" for token in word.tokens))
        done.append(word)
    if not kind and BOUNDS.intersection(relation.split()):
        done.append(Word("", (relation,), "function"))
    return tuple(done)


def _place_of_verb(words: Sequence[Word], is_verb: Callable[[str], object]) -> int:
    """Return the place of the first verb, after one word at least.

    If no verb is known, it is the first word that ends like one, or else is no name. If there are only names, it is one
    past the end.
    """
    tests = (
        lambda word: is_verb(word.text),
        lambda word: may_be_verb(word.text),
        lambda word: word.kind == "word" or is_chinese(word.text),
    )
    for test in tests:
        for place, word in enumerate(words):
            if place and test(word):
                return place
    return len(words)


def _subject(text: str, before_verb: Sequence[re.Match]) -> slice:
    """Return which of the words before the verb are the subject.

    Left out are "in 1962," before it, ", a baker," or "(born in 1900)" after it, and in Chinese the number of a date.
    """
    if not before_verb:
        return slice(0)
    first = 0
    comma = text.find(",", 0, before_verb[-1].end())
    if before_verb[0][0].lower() in PREPOSITIONS:
        first = sum(match.start() < comma for match in before_verb)
    for place in range(first + 1, len(before_verb)):
        is_apposed = _APPOSITION.search(text, before_verb[place - 1].end(), before_verb[place].start())
        if is_apposed or (is_chinese(text) and before_verb[place][0][0].isdigit()):
            return slice(first, place)
    return slice(first, len(before_verb))


def tokens_of(words: Iterable[Word]) -> tuple[str, ...]:
    """Return the tokens of these words, in order."""
    return tuple(chain.from_iterable(word.tokens for word in words))
