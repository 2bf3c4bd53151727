"""Find and check facts without a model: whole sentences, compared with the sentences of the passages.

    await by_rules("Hm? The capital of Norland is Velda.")  ->  Claims((Claim("The capital of Norland is Velda", ...),))

A statement is a stem and a value. Where a passage says "The capital of Norland is Velda.":

    The capital of Norland is Velda     supported: a passage states it
    The capital of Norland is Orsen     refuted: a passage has another value for the same stem
    Velda is the capital of Norland     unknown: no passage has this stem

Of a passage that says "Mira Tolan was born in Velda in 1901.", a statement may leave out the place or the year. Other
numbers of the same thing refute, and so do other names. Another unit, a similar spelling, another description ("is a
town", "is a port") do not.

This serves toy worlds, and any knowledge base of plain English sentences with one value per stem. It knows no synonyms,
no pronouns and no grammar, and but for a year it cuts nothing off a sentence: "was a baker in Velda" does not tell it
that Mira was a baker. Text from people needs a decomposer and an entailment model.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import product

from knowledge.facts.claims import MAX_TEXT_CHARS, Claim, Claims, FactToCheck, Verdict, admissible, sentence_spans
from knowledge.facts.replies import MIN_WORDS, num_words
from knowledge.store.passages import Passage, sentences
from knowledge.text import fold
from knowledge.words import MONTHS, ONES, TENS

MAX_CACHED_PASSAGES = 4096
MIN_SIMILAR, MIN_SIMILAR_CHARS = 0.75, 6  # of words that may be two spellings of one
LIST_MARKS, STOPS = " -*•", " .!…;,"  # before and after a statement

# The stem ends with the last verb and the prepositions after it: "was born in", "worked as", "is".
_LINK = "(?:as|at|by|for|from|in|of|on|to)"
_IRREGULAR = (
    "became|began|bore|broke|brought|built|came|chose|cost|drew|drove|fell|fought|found|gave|grew|had|held|knew|lay|led"
    "|left|lost|made|met|paid|ran|read|rose|sang|sank|saw|sent|sold|spoke|stood|swam|taught|took|went|won|wore|wrote"
)
_VERBS = (
    r"is|are|was|were",
    rf"{_IRREGULAR}|[a-z]+(?:ed|s)",
)  # the first are sought first: "the gas used in lamps is neon"
_FORMS = [re.compile(rf"(.+ (?:{verb})(?: [a-z]+(?= {_LINK} ))?(?: {_LINK}\b)*) (\S.*)") for verb in _VERBS]
_VERB = re.compile(rf" (?:{'|'.join(_VERBS)})\b")
_ARTICLE = re.compile(r"^(?:a|an|the)(?: |$)")
_DATE = rf"(?:(?:\d\d? )?(?:{'|'.join(MONTHS)}) (?:\d\d?,? )?)?\d{{3,4}}"
_DATED = re.compile(rf"(.+?),? (in|on) ({_DATE})")  # velda in 1901, velda on 3 may 1901
_NUMBER = re.compile(rf"\b(?:({'|'.join(TENS)})(?:[ -]({'|'.join(ONES)}))?|({'|'.join(ONES)}))\b")
_IDLE = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b|(?<=\d),(?=\d{3}\b)")  # 3rd is 3, 1,234 is 1234
# what something is called, beside other names: "Velda is a port", "Velda is the largest city", but not "The currency of
# Norland is the crown"
_DESCRIBES = re.compile(r"(?:(?! of ).)+? (?:is|are|was|were) (?:an?|the) |.+? (?:is|are|was|were) an? ").match
_LIMITED = re.compile(r"\b(?:not|no|none|nothing|nobody|never|only|but|except|until|less|more|than)\b")
# an I that ends a sentence, is part of a word, or follows a name, and MY are values: "World War I began in 1914"
_WRITER = (
    r"(?:^|[^\w\s-]\s*|\b(?:[a-z0-9]\w*|And|As|Because|But|Here|How|If|No|Now|Or|Since|So|That|Then|What|When|Where"
    r"|While|Who|Why|Yes)\s+)I(?![\w-]|\W*$)"
)
_NO_STATEMENT = re.compile(_WRITER + r"|\b[Mm]y\b|\b(?i:we|you|maybe|perhaps|might|nothing)\b|\?\W*$")


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
    is_description = _DESCRIBES(_plain(fact))
    refuted = None
    for passage in passages:
        values = _stated(passage.text).get(stem, ())
        if value in values or any(value in _parts(stem, other) for other in values):
            return Verdict("supported", passage)
        if not refuted and not is_description and any(_contradicts(value, other) for other in values):
            refuted = Verdict("refuted", passage)
    return refuted or Verdict("unknown")


@lru_cache(MAX_CACHED_PASSAGES)
def _stated(text: str) -> dict[str, list[str]]:
    """Return the values that a passage states, by their stems."""
    found = defaultdict(list)
    for sentence in sentences(text):
        stem, value = stem_and_value(sentence)
        found[stem].append(value)
    return found


def stem_and_value(sentence: str) -> tuple[str, str]:
    """Return both parts in one form of letters and spaces; a sentence of no known form is a stem without a value."""
    plain = _plain(sentence)
    for form in _FORMS:
        if found := form.fullmatch(plain):
            return fold(found[1]), _NUMBER.sub(_digits, _IDLE.sub("", _ARTICLE.sub("", fold(found[2]), count=1)))
    return fold(plain), ""


def _parts(stem: str, value: str) -> set[str]:
    """Return what a value says without its date, and of its date, where the stem fits that, too."""
    place, word, date = _place_and_date(value)
    return {place, date} if stem.endswith(f" {word}") else {place}


def _plain(sentence: str) -> str:
    return " ".join(sentence.split()).lstrip(LIST_MARKS).rstrip(STOPS)


def _digits(found: re.Match) -> str:
    tens, ones, alone = found.groups()
    number = TENS.get(tens, 0)
    number += ONES.get(ones or alone, 0)
    return str(number)


def _contradicts(value: str, other: str) -> bool:
    """Tell whether two values cannot both be true, in the place or in the date."""
    parts = (_place_and_date(one)[::2] for one in (value, other))
    return any(_differs(*pair) for pair in product(*parts))


def _place_and_date(value: str) -> tuple[str, ...]:
    """Return a value without its date, the word before that, and the date; these are "" if it has none."""
    dated = _DATED.fullmatch(value)
    return dated.groups() if dated and not _LIMITED.search(value) else (value, "", "")


def _differs(value: str, other: str) -> bool:
    """Tell whether two values are other numbers of the same, or other names; "velda, a port" may still be "velda"."""
    words = set(re.findall(r"[^\W_]+", value))
    others = set(re.findall(r"[^\W_]+", other))
    ours = words - others
    theirs = others - words
    if not ours or not theirs:
        return False
    if any(word[0].isdigit() for word in words | others):
        months, others = (sorted(word in MONTHS for word in found) for found in (ours, theirs))
        return months == others and all(word[0].isdigit() or word in MONTHS for word in ours | theirs)
    ours, theirs = (" ".join(sorted(found)) for found in (ours, theirs))
    is_long = max(len(ours), len(theirs)) >= MIN_SIMILAR_CHARS
    return not (is_long and SequenceMatcher(None, ours, theirs).ratio() >= MIN_SIMILAR)
