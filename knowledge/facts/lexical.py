"""A verifier without a model: a fact against the sentences of the passages, word by word. For offline runs and simple sentences.

    "Mira Tolan was born in Velda."     the passage's sentence
    Mira Tolan was born in Velda        supported: one clause about the same subject holds every content word, and neither is negative
    Mira Tolan was born in Orun         refuted: all but one value is there, and that place holds another value of its kind
    Mira Tolan was not born in Velda    refuted: the same words, but for the negation
    Jon Tolan was born in Velda         unknown: another subject says nothing about this one, and nor does "Mira Tolan's son"
    Mira Tolan was born before Velda    unknown: before Velda, after Velda and Velda are three things
    Mira Tolan studied in Velda         unknown

A negation is weighed only between clauses of the same words: of "was born in Velda and never left" nobody knows what is negated. A
clause that sets a bound (before 1962, over 60) refutes no value. Each relation is taken to have one value (a person who "speaks French"
does not speak German here) and no synonyms are known: sentences made from templates are judged exactly, free text errs towards unknown.
English and Chinese. About 0.1 ms per fact once a passage was seen.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from knowledge.facts.clauses import (
    CLAUSES_VERSION,
    HAN,
    VERBS,
    ZH_VERB,
    clauses,
    is_chinese,
    is_negative,
    may_be_verb,
    subject_of_title,
)
from knowledge.facts.verdict import Question, Verdict
from knowledge.store.passages import sentences
from knowledge.store.result import Passage
from knowledge.store.tokens import TOKENS_VERSION, tokens

MAX_FACT_CHARS = 1000
MAX_CACHED_PASSAGES = 4096
Kind = Literal["name", "number", "word", "function"]

_WORD = re.compile(f"\\d[\\d,.]*|[{HAN}]+|[^\\W\\d_{HAN}]+(?:['’][^\\W\\d_]+)*")
_ZH_LINK = re.compile("不是|没有|并非|从未|[是曾有在于为的了和与及也都之以由被把对从到不没]")
_ZH_BOUND = "之前|之后|以前|以后|以上|以下|超过|不到|不足|多于|少于|至少|至多|最多|直到|将近|(?<=[年月日])[前后]"
_ZH_FUNCTION = re.compile(f"({_ZH_BOUND}|{ZH_VERB.pattern}|并非|从未|[的了和与及也都之以由被把对从到不没])")

# Words that change what the next one means: "before 1962" is not "1962", "by Jon" is not "Jon". Most are stop words for a search.
_BOUND_TEXT = """
    before after until till since over under above below beyond between more less fewer than most least almost nearly 前 后"""
BOUNDS = frozenset([*_BOUND_TEXT.split(), *_ZH_BOUND.split("|")[:-1]])
RELATIONS = BOUNDS | {"by", "from", "with", "against"}
# What follows these, up to a comma, may be about somebody else: "met Jon Orn, who was born in Velda".
_SUBORDINATORS = {
    "who",
    "whom",
    "whose",
    "which",
    "where",
    "when",
    "that",
    "because",
    "although",
    "though",
    "if",
    "unless",
}
_PREPOSITIONS = RELATIONS | {"in", "on", "at", "as", "during", "for", "to", "of"}
_ARTICLES = ("a", "an", "the")
_AUXILIARIES = ("do", "does", "did")
_APPOSITION = re.compile(r"[,，(（]")


@dataclass(frozen=True)
class Word:
    """A word as it is compared. kind: a number has a digit; a name begins with a capital, or is Chinese and no verb; function words
    (stop words, negations, relations, Chinese verbs that only link) have no tokens. Tokens tell the subordinate clause and the relation
    that the word stands in: "who from velda"."""

    text: str
    tokens: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True)
class Statement:
    """One clause. verb: where its first verb stands, before which is the subject; subject: the words of it, without an apposition."""

    words: tuple[Word, ...]
    verb: int
    is_negative: bool
    subject: tuple[Word, ...] = ()

    @cached_property
    def has_bound(self) -> bool:
        return any(word.text in BOUNDS for word in self.words)

    @cached_property
    def tokens(self) -> frozenset[str]:
        return frozenset(token for word in self.words for token in word.tokens)

    def covers(self, word: Word) -> bool:
        return self.tokens.issuperset(word.tokens)


def statement(clause: str) -> Statement:
    """A clause as words. Any string is safe."""
    text, is_verb = (
        (_ZH_FUNCTION.sub(r" \1 ", clause), ZH_VERB.fullmatch) if is_chinese(clause) else (clause, VERBS.__contains__)
    )
    found = list(_WORD.finditer(text))
    gaps = [
        text[end : match.start()] for end, match in zip([0, *(match.end() for match in found)], found, strict=False)
    ]
    words = _related([_word(match[0]) for match in found], gaps)
    verb = _verb_place(words, is_verb)
    return Statement(words, verb, is_negative(clause), words[_subject(text, found[:verb])])


def _related(words: list[Word], gaps: Sequence[str]) -> tuple[Word, ...]:
    """The words with each relation moved into the tokens of its object, the words of one kind that follow it, and each subordinator into
    those of its clause. A bound without an object (ten years before) is content itself. gaps: what stands before each word."""
    relation, kind, clause, done = "", None, "", []
    for word, gap in zip(words, gaps, strict=True):
        name = word.text.lower() if word.text.islower() or not done or is_chinese(word.text) else ""
        if "," in gap:
            clause = ""
        if "," in gap or (kind and word.text != "and" and word.kind != kind):
            relation, kind = "", None
        if name in RELATIONS:
            relation, kind = f"{'' if kind else relation} {name}".strip(), None
            word = Word(name, (), "function")
        elif name in _SUBORDINATORS:
            is_of_subject = name in ("who", "which") and all(
                before.kind == "name" for before in done
            )  # "Mira Tolan, who was born"
            clause = "" if is_of_subject else name
        elif word.tokens and (relation or clause):
            kind = word.kind if relation else None
            word = replace(word, tokens=tuple(f"{clause} {relation} {token}" for token in word.tokens))
        done.append(word)
    if not kind and BOUNDS.intersection(relation.split()):
        done.append(Word("", (relation,), "function"))
    return tuple(done)


def _subject(text: str, before_verb: Sequence[re.Match]) -> slice:
    """Which of the words before the verb are the subject: not "in 1962," before it, nor ", a baker," or "(born in 1900)" after it, nor in
    Chinese the number of a date."""
    if not before_verb:
        return slice(0)
    first, end = 0, before_verb[-1].end()
    comma = text.find(",", 0, end)
    if comma > 0 and before_verb[0][0].lower() in _PREPOSITIONS:
        first = sum(match.start() < comma for match in before_verb)
    cuts = [
        i
        for i in range(first + 1, len(before_verb))
        if _APPOSITION.search(text, before_verb[i - 1].end(), before_verb[i].start())
        or (is_chinese(text) and before_verb[i][0][0].isdigit())
    ]
    return slice(first, cuts[0] if cuts else len(before_verb))


def _verb_place(words: Sequence[Word], is_verb: Callable[[str], object]) -> int:
    """Where the first verb stands, after one word at least; if no verb is known, the first word that ends like one or is no name.
    One past the end if there is nothing but a name."""
    tests = (
        lambda word: is_verb(word.text),
        lambda word: may_be_verb(word.text),
        lambda word: word.kind == "word" or is_chinese(word.text),
    )
    return next((place for test in tests for place, word in enumerate(words) if place and test(word)), len(words))


def _word(text: str) -> Word:
    found = () if _ZH_LINK.fullmatch(text) or is_negative(text) else tuple(tokens(text))
    kind: Kind = (
        "function"
        if not found
        else "number"
        if any(letter.isdigit() for letter in text)
        else "name"
        if text[0].isupper() or (is_chinese(text) and not ZH_VERB.fullmatch(text))
        else "word"
    )
    return Word(text if text[0].isupper() else text.casefold(), found, kind)


@lru_cache(MAX_CACHED_PASSAGES)
def _statements(title: str, text: str) -> tuple[Statement, ...]:
    """What a passage says; "she" and the like stand for its title."""
    return tuple(
        statement(clause) for sentence in sentences(text) for clause in clauses(sentence, subject_of_title(title))
    )


class LexicalVerifier:
    """Needs no lock: nothing is changed but a cache that threads may share."""

    name = f"lexical/3 clauses/{CLAUSES_VERSION} tokens/{TOKENS_VERSION}"  # raise the 3 with any change in this file

    def verify(self, questions: Sequence[Question]) -> list[Verdict]:
        """One verdict per fact, in order. entailment is the greatest share of the fact's content words that one clause covers,
        contradiction 1 or 0."""
        return [self._judge(fact, passages) for fact, passages in questions]

    def _judge(self, fact: str, passages: Sequence[Passage]) -> Verdict:
        claim = statement(fact.rstrip(" .。")) if len(fact) <= MAX_FACT_CHARS else Statement((), 1, False)
        content = [word for word in claim.words if word.tokens]
        if not any(word.tokens for word in claim.words[claim.verb :]):
            return Verdict("unknown", None, 0.0, 0.0, "the fact says nothing of its subject")
        coverage, refuted = 0.0, None
        for passage in passages:
            for said in _statements(passage.title, passage.text):
                share = sum(map(said.covers, content)) / len(content)
                coverage = max(coverage, share)
                if not _is_of_same_subject(claim, said):
                    continue
                if share == 1 and _is_as_negative(claim, said) and not _is_swapped(claim, said):
                    return Verdict("supported", passage.id, 1.0, 0.0, "a sentence states it")
                if refuted is None and (reason := _refutation(claim, said)):
                    refuted = Verdict("refuted", passage.id, share, 1.0, reason)
        return refuted or Verdict(
            "unknown", None, coverage, 0.0, f"no sentence states it; the nearest has {coverage:.0%} of its words"
        )


def _is_as_negative(claim: Statement, said: Statement) -> bool:
    """Are both positive, or both negative and of the same words?"""
    return claim.is_negative == said.is_negative and (not claim.is_negative or claim.tokens == said.tokens)


def _is_of_same_subject(claim: Statement, said: Statement) -> bool:
    return _names(claim.subject, _tokens(said.subject)) or _names(said.subject, _tokens(claim.subject))


def _names(subject: Sequence[Word], wanted: tuple[str, ...]) -> bool:
    """Are these words the wanted subject? Common words may stand before it ("the actor Will Smith", but "New York" is not York, and "the
    son of Will Smith" not he), and names too in a clause that opens with a preposition ("In Velda Mira Tolan was born")."""
    place = next((i for i in range(len(subject) - 1, -1, -1) if _tokens(subject[i:]) == wanted), None)
    if place is None:
        return not wanted and not _tokens(subject)
    before = subject[:place]
    is_open = bool(before) and before[0].text.lower() in _PREPOSITIONS
    kinds = ("word", "number", "name") if is_open else ("word", "number")
    return not _tokens(before) or all(word.kind in kinds or word.text.lower() in _ARTICLES for word in before[is_open:])


def _tokens(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(token for word in words for token in word.tokens)


def _refutation(claim: Statement, said: Statement) -> str:
    """Why the clause, of the same subject, contradicts the claim; "" if it does not."""
    if claim.tokens == said.tokens:
        return (
            "a sentence states the opposite"
            if claim.is_negative != said.is_negative and not _is_swapped(claim, said)
            else ""
        )
    missing = [place for place, word in enumerate(claim.words) if not said.covers(word)]
    if not missing or claim.is_negative or said.is_negative or claim.has_bound or said.has_bound:
        return ""
    if missing[0] <= claim.verb and claim.words[missing[0]].kind != "number":
        return ""
    other = _other_value(claim, said, missing)
    return f"a sentence has {other.text} in its place" if other else ""


def _other_value(claim: Statement, said: Statement, missing: list[int]) -> Word | None:
    """The value that the clause has where the claim has another: of the same kind (one kind must cover all that is missing), after the
    same word, and not in the claim itself. Common words need a name and another common word to agree, or "is a baker" would
    contradict "is a tall woman"."""
    kinds = {claim.words[place].kind for place in missing}
    if len(kinds) != 1 or missing[0] == 0:
        return None
    kind, before = kinds.pop(), claim.words[missing[0] - 1].text
    agreeing = {word.kind for place, word in enumerate(claim.words) if place not in missing}
    if kind == "word" and not {"name", "word"} <= agreeing:
        return None
    return next(
        (
            word
            for place, word in enumerate(said.words)
            if place > said.verb
            and word.kind == kind
            and said.words[place - 1].text == before
            and not claim.covers(word)
        ),
        None,
    )


def _is_swapped(claim: Statement, said: Statement) -> bool:
    """The same words but for the order of the names, and maybe a negation: "sent Jon to Lea", "did not send Lea to Jon"."""

    def parts(clause: Statement) -> tuple[list[str], list[object]]:
        words = [word for word in clause.words if not is_negative(word.text) and word.text not in _AUXILIARIES]
        is_name = [word.kind in ("name", "number") for word in words]
        return (
            [word.text for word, name in zip(words, is_name, strict=True) if name],
            [word.tokens or word.text for word, name in zip(words, is_name, strict=True) if not name],
        )

    names, rest = parts(claim)
    other_names, other_rest = parts(said)
    return rest == other_rest and names != other_names and sorted(names) == sorted(other_names)
