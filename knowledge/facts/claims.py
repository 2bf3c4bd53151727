"""Define the claims of a text, its atomic facts with the places where it states them, and the verdicts on them.

    Claims((Claim("Mira Tolan was born in Velda", sentences=((15, 37),)),))
    verifier.verify([("Mira Tolan was born in Velda", passages)])  ->  [Verdict("supported", passages[0])]

Two files take a text apart: model_decomposer.py asks a language model, as KnowRL does; matcher.py needs none. Both pass
their facts through `admissible`; KnowRL's own rewards count every fact that the model lists (`every_fact`).

A verifier, an entailment model (entailment.py) or rules (matcher.py), says whether passages support a fact or
contradict it: one verdict per fact, in order; "unknown" without a passage. Several threads may call it.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from knowledge.store.passages import Passage, sentences
from knowledge.store.tokens import UNSPACED, tokens
from knowledge.words import STOP_WORDS

MAX_TEXT_CHARS = 20_000  # the rest of a text is not read
MAX_FACTS = 64  # per text; the first ones are kept
MAX_FACT_CHARS = 400  # a longer fact is not atomic
Span = tuple[int, int]  # of characters: where it starts, and where it has ended

_NEGATIVE = re.compile(r"\b(?:not|never|no|nor|neither|cannot|without)\b|n['’]t\b|[不没未非]", re.IGNORECASE)
_IS_UNSPACED = re.compile(f"[{UNSPACED}]").match
_CODES = re.compile(r"(?<=\s)[A-Z]{1,3}\b").findall


@dataclass(frozen=True)
class Claim:
    """A fact of a text, and where the sentences are that state it; () if that is not known."""

    fact: str
    sentences: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Claims:
    """The facts of a text, () if it states nothing; None if it could not be taken apart, and `reason` says why."""

    facts: tuple[Claim, ...] | None
    reason: str = ""


Support = Literal["supported", "refuted", "unknown"]
LABELS: tuple[Support, ...] = ("supported", "refuted", "unknown")
FactToCheck = tuple[str, Sequence[Passage]]  # a fact, and the passages that may bear on it


@dataclass(frozen=True)
class Verdict:
    """What the passages say of a fact. evidence: the passage that decided; None if no passage did."""

    label: Support
    evidence: Passage | None = None


Decompose = Callable[[str, str, str], Awaitable[Claims]]  # (text, question, subject)
Keep = Callable[[Iterable[Claim], str, str], tuple[Claim, ...]]  # (claims, text, question), as admissible takes them


def admissible(claims: Iterable[Claim], text: str, question: str) -> tuple[Claim, ...]:
    """Return the facts that count, at most MAX_FACTS.

    A fact counts if it shares a content word with the text (otherwise it was made up on the way), says something that
    the question does not, and is no repetition. Facts with the same content words, in any order, are the same fact,
    unless only one of them is negative; it is stated in the sentences of all of them.
    """
    said = content_words(text)
    asked = content_words(question)
    asked_letters = set("".join(filter(_IS_UNSPACED, asked)))
    kept: dict[tuple[frozenset[str], bool], Claim] = {}
    for claim in claims:
        words = content_words(claim.fact)
        new = [word for word in words - asked if not (_IS_UNSPACED(word) and asked_letters.issuperset(word))]
        if new and words & said and len(claim.fact) <= MAX_FACT_CHARS:
            is_negative = _NEGATIVE.search(claim.fact) is not None
            first = kept.get((words, is_negative), Claim(claim.fact))
            stated_in = (*first.sentences, *claim.sentences)
            kept[words, is_negative] = Claim(first.fact, stated_in)
    return tuple(kept.values())[:MAX_FACTS]


def content_words(text: str) -> frozenset[str]:
    """Return the tokens of a text, and its codes in capitals that are spelt like stop words: "India is IN"."""
    codes = [] if text.isupper() else _CODES(text)
    return frozenset(tokens(text)).union(code for code in codes if code.lower() in STOP_WORDS)


def every_fact(claims: Iterable[Claim], text: str, question: str) -> tuple[Claim, ...]:
    """Return all facts of the list, as KnowRL counts them."""
    return tuple(claims)


def sentence_spans(text: str) -> list[Span]:
    """Return where the sentences of a text are, without blank ones and the white space between them."""
    spans = []
    end = 0
    for sentence in sentences(text):
        end += len(sentence)
        if sentence.strip():
            first = end - len(sentence.lstrip())
            after_last = first + len(sentence.strip())
            spans.append((first, after_last))
    return spans
