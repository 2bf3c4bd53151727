"""A verifier without a model: a fact against the sentences of the passages, word by word. For offline runs and simple sentences.

    "Mira Tolan was born in Velda."     the passage's sentence
    Mira Tolan was born in Velda        supported: every content word is in one clause, no negation differs
    Mira Tolan was born in Orun         refuted: all but one value is there, and that place holds another value of its kind
    Mira Tolan was not born in Velda    refuted: all is there, but for the negation
    Jon Tolan was born in Velda         unknown: another subject says nothing about this one
    Mira Tolan studied in Velda         unknown

It takes each relation to have one value (a person who "speaks French" does not speak German here) and knows no synonyms: sentences made
from templates are judged exactly, free text errs towards unknown. English and Chinese. About 0.1 ms per fact once a passage was seen.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from knowledge.clauses import HAN, VERBS, ZH_VERB, clauses, is_chinese, is_negative, may_be_verb, subject_of_title
from knowledge.passages import sentences
from knowledge.result import Passage
from knowledge.tokens import tokens
from knowledge.verdict import Question, Verdict

MAX_FACT_CHARS = 1000
MAX_CACHED_PASSAGES = 4096
Kind = Literal["name", "number", "word", "function"]

_WORD = re.compile(f"\\d[\\d,.]*|[{HAN}]+|[^\\W\\d_{HAN}]+(?:['’][^\\W\\d_]+)*")
_ZH_LINK = re.compile("不是|没有|并非|从未|[是曾有在于为的了和与及也都之以由被把对从到不没]")
_ZH_FUNCTION = re.compile(f"({ZH_VERB.pattern}|并非|从未|[的了和与及也都之以由被把对从到不没])")


@dataclass(frozen=True)
class Word:
    """A word as it is compared. kind: a number has a digit; a name begins with a capital, or is Chinese and no verb; function words
    (stop words, negations, Chinese verbs that only link) have no tokens."""
    text: str
    tokens: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True)
class Statement:
    """One clause. verb: where its first verb stands, before which is the subject."""
    words: tuple[Word, ...]
    verb: int
    is_negative: bool

    @cached_property
    def tokens(self) -> frozenset[str]:
        return frozenset(token for word in self.words for token in word.tokens)

    def covers(self, word: Word) -> bool:
        return self.tokens.issuperset(word.tokens)


def statement(clause: str) -> Statement:
    """A clause as words. Any string is safe."""
    if is_chinese(clause):
        words = tuple(map(_word, _WORD.findall(_ZH_FUNCTION.sub(r" \1 ", clause))))
        return Statement(words, _verb_place(words, ZH_VERB.fullmatch), is_negative(clause))
    words = tuple(map(_word, _WORD.findall(clause)))
    return Statement(words, _verb_place(words, VERBS.__contains__), is_negative(clause))


def _verb_place(words: Sequence[Word], is_verb: Callable[[str], object]) -> int:
    """Where the first verb stands, after one word at least; if no verb is known, the first word that ends like one or is no name.
    One past the end if there is nothing but a name."""
    tests = (lambda word: is_verb(word.text), lambda word: may_be_verb(word.text),
             lambda word: word.kind == "word" or is_chinese(word.text))
    return next((place for test in tests for place, word in enumerate(words) if place and test(word)), len(words))


def _word(text: str) -> Word:
    found = () if _ZH_LINK.fullmatch(text) or is_negative(text) else tuple(tokens(text))
    kind: Kind = ("function" if not found else "number" if any(letter.isdigit() for letter in text)
                  else "name" if text[0].isupper() or (is_chinese(text) and not ZH_VERB.fullmatch(text)) else "word")
    return Word(text if text[0].isupper() else text.casefold(), found, kind)


@lru_cache(MAX_CACHED_PASSAGES)
def _statements(title: str, text: str) -> tuple[Statement, ...]:
    """What a passage says; "she" and the like stand for its title."""
    return tuple(statement(clause) for sentence in sentences(text) for clause in clauses(sentence, subject_of_title(title)))


class LexicalVerifier:
    """Needs no lock: nothing is changed but a cache that threads may share."""

    name = "lexical/1"

    def verify(self, questions: Sequence[Question]) -> list[Verdict]:
        """One verdict per fact, in order. entailment is the greatest share of the fact's content words that one clause covers,
        contradiction 1 or 0."""
        return [self._judge(fact, passages) for fact, passages in questions]

    def _judge(self, fact: str, passages: Sequence[Passage]) -> Verdict:
        claim = statement(fact.rstrip(" .。")) if len(fact) <= MAX_FACT_CHARS else Statement((), 1, False)
        content = [word for word in claim.words if word.tokens]
        if not any(word.tokens for word in claim.words[claim.verb:]):
            return Verdict("unknown", None, 0.0, 0.0, "the fact says nothing of its subject")
        coverage, refuted = 0.0, None
        for passage in passages:
            for said in _statements(passage.title, passage.text):
                share = sum(map(said.covers, content)) / len(content)
                if share == 1 and claim.is_negative == said.is_negative and not _is_swapped(claim, said):
                    return Verdict("supported", passage.id, 1.0, 0.0, "a sentence states it")
                coverage = max(coverage, share)
                if refuted is None and (reason := _refutation(claim, said)):
                    refuted = Verdict("refuted", passage.id, share, 1.0, reason)
        return refuted or Verdict("unknown", None, coverage, 0.0, f"no sentence states it; the nearest has {coverage:.0%} of its words")


def _refutation(claim: Statement, said: Statement) -> str:
    """Why the clause contradicts the claim; "" if it does not."""
    missing = [place for place, word in enumerate(claim.words) if not said.covers(word)]
    if not missing:
        return "a sentence states the opposite" if claim.is_negative != said.is_negative else ""
    if claim.is_negative or said.is_negative or (missing[0] <= claim.verb and claim.words[missing[0]].kind != "number"):
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
    return next((word for place, word in enumerate(said.words) if place > said.verb and word.kind == kind
                 and said.words[place - 1].text == before and not claim.covers(word)), None)


def _is_swapped(claim: Statement, said: Statement) -> bool:
    """The same words but for the order of the names: "Rome beat Athens", "Athens beat Rome"."""
    def parts(clause: Statement) -> tuple[list[str], list[str]]:
        is_name = [word.kind in ("name", "number") for word in clause.words]
        return ([word.text for word, name in zip(clause.words, is_name, strict=True) if name],
                [word.text for word, name in zip(clause.words, is_name, strict=True) if not name])
    names, rest = parts(claim)
    other_names, other_rest = parts(said)
    return rest == other_rest and names != other_names and sorted(names) == sorted(other_names)
