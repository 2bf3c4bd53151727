"""Find and check facts without a model: whole sentences, compared with the sentences of the passages.

    await by_rules("Hm? The capital of Norland is Velda.")  ->  Claims((Claim("The capital of Norland is Velda", ...),))

A statement is a stem and a value. Where a passage says "The capital of Norland is Velda.":

    The capital of Norland is Velda     supported: a passage states it
    The capital of Norland is Orsen     refuted: a passage has another value for the same stem
    Velda is the capital of Norland     unknown: no passage has this stem

Of a passage that says "Mira Tolan was born in Velda in 1901.", a statement may leave out the place or the year.

This serves toy worlds, and any knowledge base of plain English sentences with one value per stem. It knows no synonyms,
no pronouns and no grammar, and but for a year it cuts nothing off a sentence: "was a baker in Velda" does not tell it
that Mira was a baker. Text from people needs a decomposer and an entailment model.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from knowledge.facts.claims import MAX_TEXT_CHARS, Claim, Claims, admissible, sentence_spans
from knowledge.facts.replies import MIN_WORDS, num_words
from knowledge.facts.verdict import FactToCheck, Verdict
from knowledge.store.passages import Passage, sentences
from knowledge.text import fold

MAX_CACHED_PASSAGES = 4096
LIST_MARKS, STOPS = " -*•", " .!…;,"  # before and after a statement

# The stem ends with the last verb and the prepositions after it: "was born in", "worked as", "is".
_LINK = "(?:as|at|by|for|from|in|of|on|to)"
_VERBS = (r"is|are|was|were", r"won|[a-z]+(?:ed|s)")  # the first are sought first: "the gas used in lamps is neon"
_FORMS = [re.compile(rf"(.+ (?:{verb})(?: [a-z]+(?= {_LINK} ))?(?: {_LINK}\b)*) (\S.*)") for verb in _VERBS]
_VERB = re.compile(rf" (?:{'|'.join(_VERBS)})\b")
_ARTICLE = re.compile(r"^(?:a|an|the)(?: |$)")
_DATED = re.compile(r"(.+?),? (in|on) ((?:\w+ ){0,2}\d{3,4})")  # velda in 1901, velda on 3 may 1901
_LIMITED = re.compile(r"\b(?:not|no|none|nothing|nobody|never|only|but|except|until|less|more|than)\b")
# an I that ends a sentence, or is part of a word, and MY are values: "The symbol of iodine is I"
_NO_STATEMENT = re.compile(r"(?<![\w-])I(?![\w-]|\W*$)|\b[Mm]y\b|\b(?i:we|you|maybe|perhaps|might|nothing)\b|\?\W*$")


async def by_rules(text: str, question: str = "", subject: str = "") -> Claims:
    """Find the facts of a text: its sentences that state something. Linear in the text; any string is safe."""
    text = text[:MAX_TEXT_CHARS]
    facts = []
    for start, end in sentence_spans(text):
        sentence = text[start:end]
        fact = _plain(sentence)
        is_statement = _VERB.search(fact) and not _NO_STATEMENT.search(sentence)
        if is_statement and num_words(fact) >= MIN_WORDS:
            facts.append(Claim(fact, ((start, end),)))
    return Claims(admissible(facts, text, question))


class SentenceMatcher:
    """Verify facts by the sentences of the passages. It holds nothing but a cache that threads may share."""

    def verify(self, facts: Sequence[FactToCheck]) -> list[Verdict]:
        """Return one verdict per fact, in order."""
        return [_judge(fact, passages) for fact, passages in facts]


def _judge(fact: str, passages: Sequence[Passage]) -> Verdict:
    stem, value = stem_and_value(fact)
    refuted = None
    for passage in passages:
        values = _stated(passage.text).get(stem, ())
        if value in values or any(value in _parts(stem, other) for other in values):
            return Verdict("supported", passage)
        if not refuted and any(not _may_agree(other, value) for other in values):
            refuted = Verdict("refuted", passage)
    return refuted or Verdict("unknown")


@lru_cache(MAX_CACHED_PASSAGES)
def _stated(text: str) -> dict[str, list[str]]:
    """Return the values that a passage states, by their stems."""
    found: dict[str, list[str]] = {}
    for sentence in sentences(text):
        stem, value = stem_and_value(sentence)
        found.setdefault(stem, []).append(value)
    return found


def stem_and_value(sentence: str) -> tuple[str, str]:
    """Return both parts in one form of letters and spaces; a sentence of no known form is a stem without a value."""
    plain = _plain(sentence)
    for form in _FORMS:
        if found := form.fullmatch(plain):
            return fold(found[1]), _ARTICLE.sub("", fold(found[2]), count=1)
    return fold(plain), ""


def _parts(stem: str, value: str) -> set[str]:
    """Return what a value says without its date, and of its date, where the stem fits that, too."""
    dated = _DATED.fullmatch(value)
    if not dated or _LIMITED.search(value):
        return set()
    return {dated[1], dated[3]} if stem.endswith(f" {dated[2]}") else {dated[1]}


def _plain(sentence: str) -> str:
    return " ".join(sentence.split()).lstrip(LIST_MARKS).rstrip(STOPS)


def _may_agree(value: str, other: str) -> bool:
    """Tell whether one value holds all words of the other: "velda, a port" does not contradict "velda"."""
    words, others = set(re.findall(r"\w+", value)), set(re.findall(r"\w+", other))
    return words <= others or others <= words
