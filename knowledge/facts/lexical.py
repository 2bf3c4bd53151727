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

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest

from knowledge.facts.clauses import CLAUSES_VERSION, clauses, is_chinese, is_negative, subject_of_title
from knowledge.facts.forms import usual_forms
from knowledge.facts.statement import FULL_VERBS, Statement, Word, statement, tokens_of
from knowledge.facts.verdict import FactToCheck, Verdict
from knowledge.store.passages import sentences
from knowledge.store.result import Passage
from knowledge.store.tokens import TOKENS_VERSION
from knowledge.words import ARTICLES, AUXILIARIES, COPULAS, PREPOSITIONS

MAX_FACT_CHARS = 1000
MAX_CACHED_PASSAGES = 4096


@lru_cache(MAX_CACHED_PASSAGES)
def _statements(title: str, text: str) -> tuple[Statement, ...]:
    """Return what a passage says; "she" and the like stand for its title."""
    subject = usual_forms(subject_of_title(title))
    found = []
    for sentence in sentences(usual_forms(text)):
        found += map(statement, clauses(sentence, subject))
    return tuple(found)


class LexicalVerifier:
    """Verify facts word by word. It needs no lock: nothing is changed but a cache that threads may share."""

    # raise the 6 with any change here, in statement.py or in forms.py
    name = f"lexical/6 clauses/{CLAUSES_VERSION} tokens/{TOKENS_VERSION}"

    def verify(self, facts: Sequence[FactToCheck]) -> list[Verdict]:
        """Return one verdict per fact, in order.

        entailment is the greatest share of the fact's content words that one clause covers, contradiction is 1 or 0.
        """
        return [self._judge(fact, passages) for fact, passages in facts]

    def _judge(self, fact: str, passages: Sequence[Passage]) -> Verdict:
        stated = usual_forms(fact).rstrip(" .。") if len(fact) <= MAX_FACT_CHARS else ""
        claim = statement(stated)
        if not any(word.tokens for word in claim.words[claim.verb :]):
            return _unknown("the fact says nothing of its subject")
        last = claim.words[-1].text
        if _is_cut(last):
            return _unknown(f"the fact ends with {last!r}, before its value")
        content = [word for word in claim.words if word.tokens]
        best = 0.0
        refuted = None
        for passage in passages:
            for said in _statements(passage.title, passage.text):
                share = sum(map(said.covers, content)) / len(content)
                best = max(best, share)
                if not _has_same_subject(claim, said):
                    continue
                if share == 1 and _agrees_in_negation(claim, said) and _has_same_parts(claim, said):
                    return Verdict("supported", passage.id, 1.0, 0.0, "a sentence states it")
                reason = "" if refuted else _refutation(claim, said)
                if reason:
                    refuted = Verdict("refuted", passage.id, share, 1.0, reason)
        if refuted:
            return refuted
        return _unknown(f"no sentence states it; the nearest has {best:.0%} of its words", best)


def _unknown(reason: str, entailment: float = 0.0) -> Verdict:
    return Verdict("unknown", None, entailment, 0.0, reason)


def _is_cut(last: str) -> bool:
    """Tell whether a word asks for another one after it: "was born in"."""
    return last.lower() in PREPOSITIONS | ARTICLES | COPULAS | set("是有在于为和与由被把从到")


def _has_same_parts(claim: Statement, said: Statement) -> bool:
    """Tell whether names and numbers stand with the claim's verb and measure, descriptions with the subject, and names
    are not exchanged."""
    if _is_swapped(claim, said):
        return False
    for at, word in list(enumerate(claim.words))[claim.verb :]:
        places = [place for place, other in enumerate(said.words) if set(word.tokens).intersection(other.tokens)]
        if word.kind in ("name", "number"):
            about = [place for place in places if said.is_about(claim, said.words[place])]
            fit = [_is_same_measure(claim, at, said, place) for place in about]
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
        if word.part != said.words[place].part or word.text in COPULAS:
            return True
        may_govern = word.text.endswith(("ing", "ed", "s")) and has_article
        if (may_govern or word.text in FULL_VERBS | PREPOSITIONS) and not claim.covers(word):
            return False
        has_article = has_article or word.text in ARTICLES
    return True


def _agrees_in_negation(claim: Statement, said: Statement) -> bool:
    """Tell whether both are positive, or both are negative and of the same words."""
    return claim.is_negative == said.is_negative and (not claim.is_negative or claim.tokens == said.tokens)


def _has_same_subject(claim: Statement, said: Statement) -> bool:
    return _names(claim.subject, tokens_of(said.subject)) or _names(said.subject, tokens_of(claim.subject))


def _names(subject: Sequence[Word], wanted: tuple[str, ...]) -> bool:
    """Tell whether these words end in the wanted subject, with nothing before it that makes another of it.

    Common words may stand before it ("the actor Will Smith", but "New York" is not York, and "the son of Will Smith" is
    not he). In a clause that opens with a preposition, names may too ("In Velda Mira Tolan was born").
    """
    places = [place for place in range(len(subject)) if tokens_of(subject[place:]) == wanted]
    if not places:
        return not wanted and not tokens_of(subject)
    before = subject[: places[-1]]
    if not tokens_of(before):
        return True
    if before[0].text.lower() in PREPOSITIONS:
        return all(word.kind != "function" or word.text.lower() in ARTICLES for word in before[1:])
    return all(word.kind in ("word", "number") or word.text.lower() in ARTICLES for word in before)


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
        if is_value and said.is_about(claim, word):
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
    names = []
    rest = []
    for word in clause.words:
        if word.kind in ("name", "number"):
            names.append(word.text)
        elif not is_negative(word.text) and word.text not in AUXILIARIES:
            rest.append(word.tokens or word.text)
    return names, rest
