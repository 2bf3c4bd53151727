"""Verify facts without a model: compare a fact with the sentences of the passages, word by word.

It serves offline runs and simple sentences. For the passage's sentence "Mira Tolan was born in Velda.":

    Mira Tolan was born in Velda        supported: a clause about the same subject holds every content word, and neither
                                        is negative
    Mira Tolan was born in Orun         refuted: all but one value is there, and in its place is another of its kind
    Mira Tolan was not born in Velda    refuted: the same words, but for the negation
    Jon Tolan was born in Velda         unknown: it is about another subject, as is "Mira Tolan's son was born in Velda"
    Mira Tolan was born before Velda    unknown: before Velda, after Velda and Velda are three things
    Mira Tolan studied in Velda         unknown

Dates, numbers and "&" are compared in one form (forms.py). A negation counts only between clauses of the same words: in
"was born in Velda and never left" it is not known what is negated. A clause that sets a bound (before 1962, over 60)
refutes no value.

A value belongs to the verb between the same commas or brackets: of "Mira Tolan, born in 1900, won the Orun Prize in
1941", nothing follows for "Mira Tolan was born in 1941".

A value refutes another only where the two exclude each other as far as grammar can tell. Numbers do. What something is
called (a city, a port; the largest, the oldest) does not, nor does any Chinese noun: 上海 is a 城市 and a 直辖市, and
who was born in 绍兴 was born in 浙江, too. In English each other relation is taken to have one value: a person who
"speaks French" does not speak German here, and who was born in Paris was not born in France.

So this is a verifier for tests and toy worlds, whose sentences are made from templates: it judges these exactly. No
synonyms are known, and most of free text is unknown to it. English and Chinese. About 0.1 ms per fact once a passage
was seen.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, zip_longest
from typing import Literal

from knowledge.facts.clauses import (
    CLAUSES_VERSION,
    HAN,
    ZH_VERB,
    clauses,
    is_chinese,
    is_negative,
    may_be_verb,
    subject_of_title,
)
from knowledge.facts.forms import usual_forms
from knowledge.facts.verdict import Question, Verdict
from knowledge.store.passages import sentences
from knowledge.store.result import Passage
from knowledge.store.tokens import TOKENS_VERSION, tokens
from knowledge.words import (
    ARTICLES,
    AUXILIARIES,
    BOUNDS,
    COPULAS,
    PREPOSITIONS,
    RELATIONS,
    SUBORDINATORS,
    VERBS,
    ZH_BOUNDS,
)

MAX_FACT_CHARS = 1000
MAX_CACHED_PASSAGES = 4096
Kind = Literal["name", "number", "word", "function"]

_WORD = re.compile(f"\\d(?:[\\d,.]*\\d)?|[{HAN}]+|[^\\W\\d_{HAN}]+(?:['’][^\\W\\d_]+)*")
_ZH_LINK = re.compile("不是|没有|并非|从未|[是曾有在于为的了和与及也都之以由被把对从到不没]")
_ZH_FUNCTION = re.compile(
    f"({'|'.join(ZH_BOUNDS)}|(?<=[年月日])[前后]|{ZH_VERB.pattern}|并非|从未|[的了和与及也都之以由被把对从到不没])"
)
_FULL_VERBS = VERBS - COPULAS - AUXILIARIES - {"be", "has", "have", "had"}  # "won" is a stop word, as in "won't"
_APPOSITION = re.compile(r"[,，(（]")
_PART_END = re.compile(r"[,;:，；：()（）\[\]–—]")


@dataclass(frozen=True)
class Word:
    """A word as it is compared.

    kind: a number has a digit; a name begins with a capital, or is Chinese and no verb; function words (stop words,
    negations, relations, Chinese verbs that only link) have no tokens. The tokens also tell the subordinate clause and
    the relation that the word stands in: "who from velda".
    """

    text: str
    tokens: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True)
class Statement:
    """One clause. verb: the place of its first verb; subject: the words before that, without an apposition; parts: for
    each word, the number of its part between commas, brackets and the like."""

    words: tuple[Word, ...]
    verb: int
    is_negative: bool
    subject: tuple[Word, ...] = ()
    parts: tuple[int, ...] = ()

    @cached_property
    def has_bound(self) -> bool:
        return any(word.text in BOUNDS for word in self.words)

    @cached_property
    def tokens(self) -> frozenset[str]:
        return frozenset(_tokens(self.words))

    @cached_property
    def predicates(self) -> dict[int, set[str]]:
        """The tokens of each part's common words, without those of the subject."""
        found: dict[int, set[str]] = {}
        for word, part in zip(self.words, self.parts, strict=False):
            if word.kind == "word" and word not in self.subject:
                found.setdefault(part, set()).update(word.tokens)
        return found

    def covers(self, word: Word) -> bool:
        return self.tokens.issuperset(word.tokens)

    def is_about(self, claim: "Statement", place: int) -> bool:
        """Tell whether the word at `place` stands in a part with one of the claim's common words, or with none."""
        here = self.predicates.get(self.parts[place] if place < len(self.parts) else -1)
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
    parts = tuple(accumulate(len(_PART_END.findall(gap)) for gap in gaps))
    words = _relate([_word(match[0]) for match in found], follows_comma)
    verb = _place_of_verb(words, is_verb)
    return Statement(words, verb, is_negative(clause), words[_subject(text, found[:verb])], parts)


def _word(text: str) -> Word:
    found = () if _ZH_LINK.fullmatch(text) or is_negative(text) else tuple(tokens(text))
    if not found and text.casefold() in _FULL_VERBS:
        found = (text.casefold(),)
    return Word(text if text[0].isupper() else text.casefold(), found, _kind(text, found))


def _kind(text: str, found: tuple[str, ...]) -> Kind:
    if not found:
        return "function"
    if any(letter.isdigit() for letter in text):
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
    done: list[Word] = []
    for word, is_after_comma in zip(words, follows_comma, strict=True):
        name = word.text.lower() if word.text.islower() or not done or is_chinese(word.text) else ""
        if is_after_comma:
            clause = ""
        if is_after_comma or (kind and word.text != "and" and word.kind != kind):
            relation, kind = "", None
        if name in RELATIONS:
            relation = name if kind else f"{relation} {name}".strip()
            kind = None
            word = Word(name, (), "function")
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


@lru_cache(MAX_CACHED_PASSAGES)
def _statements(title: str, text: str) -> tuple[Statement, ...]:
    """Return what a passage says; "she" and the like stand for its title."""
    subject = usual_forms(subject_of_title(title))
    found = [clause for sentence in sentences(usual_forms(text)) for clause in clauses(sentence, subject)]
    return tuple(map(statement, found))


class LexicalVerifier:
    """Needs no lock: nothing is changed but a cache that threads may share."""

    name = (
        f"lexical/6 clauses/{CLAUSES_VERSION} tokens/{TOKENS_VERSION}"  # raise the 6 with any change here or in forms
    )

    def verify(self, questions: Sequence[Question]) -> list[Verdict]:
        """Return one verdict per fact, in order.

        entailment is the greatest share of the fact's content words that one clause covers, contradiction is 1 or 0.
        """
        return [self._judge(fact, passages) for fact, passages in questions]

    def _judge(self, fact: str, passages: Sequence[Passage]) -> Verdict:
        claim = statement(usual_forms(fact).rstrip(" .。") if len(fact) <= MAX_FACT_CHARS else "")
        if not any(word.tokens for word in claim.words[claim.verb :]):
            return Verdict("unknown", None, 0.0, 0.0, "the fact says nothing of its subject")
        if _is_cut(claim.words[-1].text):
            return Verdict("unknown", None, 0.0, 0.0, f"the fact ends with {claim.words[-1].text!r}, before its value")
        content = [word for word in claim.words if word.tokens]
        best = 0.0
        refuted = None
        for passage in passages:
            for said in _statements(passage.title, passage.text):
                share = sum(map(said.covers, content)) / len(content)
                best = max(best, share)
                if not _is_of_same_subject(claim, said):
                    continue
                if share == 1 and _is_as_negative(claim, said) and _is_of_same_parts(claim, said):
                    return Verdict("supported", passage.id, 1.0, 0.0, "a sentence states it")
                reason = "" if refuted else _refutation(claim, said)
                if reason:
                    refuted = Verdict("refuted", passage.id, share, 1.0, reason)
        if refuted:
            return refuted
        return Verdict("unknown", None, best, 0.0, f"no sentence states it; the nearest has {best:.0%} of its words")


def _is_cut(last: str) -> bool:
    """Tell whether a word asks for another one after it: "was born in"."""
    return last.lower() in PREPOSITIONS | ARTICLES | COPULAS | set("是有在于为和与由被把从到")


def _is_of_same_parts(claim: Statement, said: Statement) -> bool:
    """Tell whether names and numbers stand with the claim's verb and measure, descriptions with the subject, and names
    are not exchanged."""
    if _is_swapped(claim, said):
        return False
    for at, word in list(enumerate(claim.words))[claim.verb :]:
        places = [place for place, other in enumerate(said.words) if set(word.tokens).intersection(other.tokens)]
        if word.kind in ("name", "number"):
            fit = [said.is_about(claim, place) and _is_same_measure(claim, at, said, place) for place in places]
        elif word.kind == "word" and _describes(claim, claim, at):
            fit = [_describes(claim, said, place) for place in places]
        else:
            continue
        if places and not any(fit):
            return False
    return True


def _is_same_measure(claim: Statement, at: int, said: Statement, place: int) -> bool:
    """Tell whether the same common words follow a number: 12 m long is not 12 m wide."""
    if claim.words[at].kind != "number":
        return True
    for word, other in zip_longest(claim.words[at + 1 :], said.words[place + 1 :]):
        if word is None or word.text in PREPOSITIONS | {"and"} or word.kind not in ("word", "function"):
            return True
        if other is None or (word.tokens or word.text) != (other.tokens or other.text):
            return False
        if word.kind == "word":
            return True
    return True


def _describes(claim: Statement, said: Statement, place: int) -> bool:
    """Tell whether the word at `place` says what the claim's subject is: "is a weaver", ", a weaver,"; not so in "is
    the son of a weaver", "married a weaver"."""
    if claim.words[claim.verb].text not in COPULAS or is_chinese(said.words[place].text):
        return False
    has_article = False  # between the word and those before it: "replacing a ferry", but "a retired weaver"
    for before in range(place - 1, -1, -1):
        word = said.words[before]
        if said.parts[before] != said.parts[place] or word.text in COPULAS:
            return True
        may_govern = word.text.endswith(("ing", "ed", "s")) and has_article
        if (may_govern or word.text in _FULL_VERBS | PREPOSITIONS) and not claim.covers(word):
            return False
        has_article = has_article or word.text in ARTICLES
    return True


def _is_as_negative(claim: Statement, said: Statement) -> bool:
    """Tell whether both are positive, or both are negative and of the same words."""
    return claim.is_negative == said.is_negative and (not claim.is_negative or claim.tokens == said.tokens)


def _is_of_same_subject(claim: Statement, said: Statement) -> bool:
    return _names(claim.subject, _tokens(said.subject)) or _names(said.subject, _tokens(claim.subject))


def _names(subject: Sequence[Word], wanted: tuple[str, ...]) -> bool:
    """Tell whether these words end in the wanted subject, with nothing before it that makes another of it.

    Common words may stand before it ("the actor Will Smith", but "New York" is not York, and "the son of Will Smith" is
    not he). In a clause that opens with a preposition, names may too ("In Velda Mira Tolan was born").
    """
    places = [place for place in range(len(subject)) if _tokens(subject[place:]) == wanted]
    if not places:
        return not wanted and not _tokens(subject)
    before = subject[: places[-1]]
    if not _tokens(before):
        return True
    if before[0].text.lower() in PREPOSITIONS:
        return all(word.kind != "function" or word.text.lower() in ARTICLES for word in before[1:])
    return all(word.kind in ("word", "number") or word.text.lower() in ARTICLES for word in before)


def _tokens(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(token for word in words for token in word.tokens)


def _refutation(claim: Statement, said: Statement) -> str:
    """Return why the clause, of the same subject, contradicts the claim; "" if it does not."""
    if claim.tokens == said.tokens:
        is_opposite = claim.is_negative != said.is_negative and not _is_swapped(claim, said)
        return "a sentence states the opposite" if is_opposite else ""
    if claim.is_negative or said.is_negative or claim.has_bound or said.has_bound:
        return ""
    other = _other_value(claim, said)
    return f"a sentence has {other.text} in its place" if other else ""


def _other_value(claim: Statement, said: Statement) -> Word | None:
    """Return the value that the clause has where the claim has another.

    It is of the same kind as all that is missing, stands after the same word and behind the verb, and is not in the
    claim. Common words also need a name and another common word to agree, or "works as a baker" would contradict
    "works with a tall woman".
    """
    missing = [word for word in claim.words if not said.covers(word)]
    kinds = {word.kind for word in missing}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    first = claim.words.index(missing[0])
    if first == 0 or (first <= claim.verb and kind != "number"):
        return None
    if kind != "number" and (_is_description(claim, first) or is_chinese(missing[0].text)):
        return None
    agreeing = {word.kind for word in claim.words if said.covers(word)}
    if kind == "word" and not {"name", "word"} <= agreeing:
        return None
    before = claim.words[first - 1].text
    for place in range(said.verb + 1, len(said.words)):
        word = said.words[place]
        is_value = word.kind == kind and said.words[place - 1].text == before and not claim.covers(word)
        if is_value and said.is_about(claim, place):
            return word
    return None


def _is_description(claim: Statement, value: int) -> bool:
    """Tell whether a copula leads to the value ("is a city", "was deaf"), and no participle does ("was born")."""
    after = claim.verb + 1
    has_participle = after < value and claim.words[after].kind == "word"
    return claim.words[claim.verb].text in COPULAS and not has_participle


def _is_swapped(claim: Statement, said: Statement) -> bool:
    """Tell whether only the order of the names differs, and maybe a negation: "Rome beat Jon", "Jon beat Rome"."""
    names, rest = _names_and_rest(claim)
    other_names, other_rest = _names_and_rest(said)
    return rest == other_rest and names != other_names and sorted(names) == sorted(other_names)


def _names_and_rest(clause: Statement) -> tuple[list[str], list[object]]:
    names: list[str] = []
    rest: list[object] = []
    for word in clause.words:
        if word.kind in ("name", "number"):
            names.append(word.text)
        elif not is_negative(word.text) and word.text not in AUXILIARIES:
            rest.append(word.tokens or word.text)
    return names, rest
