"""Take a text apart into facts by rules, without a model (see clauses.py).

await by_rules("I am not sure. She was born in Velda.", "Where was Mira Tolan born?", "Mira Tolan")
    ->  Claims((Claim("Mira Tolan was born in Velda", sentences=((15, 37),)),))
"""

import asyncio
import re
from collections.abc import Iterable

from knowledge.facts.claims import MAX_FACT_CHARS, MAX_TEXT_CHARS, Claim, Claims, admissible, trimmed
from knowledge.facts.clauses import ZH_VERB, clauses, is_chinese, may_be_verb, subject_of
from knowledge.facts.replies import MIN_WORDS, num_words
from knowledge.store.passages import sentences
from knowledge.store.tokens import tokens

# "I remember that Velda is a city" states that Velda is a city
_KNOWING = re.compile(
    r"^(?:(?:(?:I|we) (?:also |do |clearly |now )?(?:remember|recall|know)|it is (?:well )?known) (?:that |(?=[A-Z]))|"
    r"(?:我记得|我知道|我们知道|众所周知)[，,：: ]*)",
    re.I,
)
# Doubts, and talk about the task
_NO_STATEMENT = re.compile(
    r"\b(?:I|I['’]\w+|me|my|myself|we|our|you|your|let['’]?s)\b|\b(?:not sure|may be|may have)\b|"
    r"\b(?:maybe|perhaps|probably|possibly|presumably|might|could|unsure|uncertain|unclear|unknown|likely|allegedly|"
    r"supposedly|seems?|seemingly|apparently|if|would|should|guess|double-check)\b|"
    r"\b(?:[Tt]he|[Tt]his) (?:user|question|answer|query|task)\b|\b(?:asks|is asking|asked about)\b|"
    r"^(?:check|verify|confirm|consider|recall|remember|think|note|wait|need|nothing|nobody|alternatively|this|that|"
    r"these|those|there)\b|"
    r"我|咱|用户|问题|提问|答案|回答|可能|也许|或许|大概|应该|似乎|好像|不确定|不清楚|不知道|如果|想想|想一想|确认|据说|恐怕",
    re.I,
)
_DOUBT = re.compile(
    r"(?:I|we) (?:think|believe|guess|suppose|assume|am|was)\b|maybe|perhaps|我(?:想|觉得|猜|认为)|也许|可能", re.I
)
_PRONOUN_FIRST = re.compile(r"(?:he|she|it|they|his|her|its|their)\b|[他她它其]", re.I)
_QUESTION = re.compile(r"(?:[?？][\s\"'”’)）]*|[吗呢][。.]?)$")
_CORRECTION = re.compile(
    r"(?:(?:no|wait|actually|sorry|correction|rather|i mean|scratch that|that(?:['’]s| is) (?:wrong|not right)|"
    r"不对|错了|不|更正|其实|实际上|等等|等一下)[,，.:：!！—\- ]+)+",
    re.I,
)
_DENIAL = re.compile(r"\bno\b|sorry|correction|scratch|wrong|not right|不对|错了|更正|不[,，]", re.I)
_LIST_MARK = re.compile(r"^(?:[-•]|\d+[.)]) +")
_CAPITAL = "\U00010400"  # a letter that no text holds
_MARKUP = "*`#"


async def by_rules(text: str, question: str = "", subject: str = "") -> Claims:
    """Find the facts by rules, offline, in a thread.

    subject: what a pronoun stands for if the text has not said it; "" if that is not known.
    """
    facts = await asyncio.to_thread(stated_facts, text, subject)
    return Claims(admissible(facts, text, question))


def stated_facts(text: str, subject: str = "") -> list[Claim]:
    """Return the explicit statements of a text by rules, in order. Linear in the text's length; any string is safe.

    A subject of several words is hidden from the rules. Otherwise they would read "We Will Rock You" as a speaker, "Who
    Framed Roger Rabbit?" as a question and "It Happened One Night" as a pronoun.
    """
    text, name, hidden = text[:MAX_TEXT_CHARS], subject, _CAPITAL * len(subject)
    if num_words(subject) > 1:
        text, name = text.replace(subject, hidden), hidden
    places = [place for place, letter in enumerate(text) if letter not in _MARKUP]
    plain = "".join(text[place] for place in places).replace("\0", " ")
    facts = []
    is_denied = False  # by the sentences before: the next one tells what is right
    end = 0
    for sentence in sentences(plain):
        start, end = end, end + len(sentence)
        span = trimmed(text, places[start], places[end - 1] + 1)
        sentence = _LIST_MARK.sub("", sentence.strip(), count=1)
        correction = _CORRECTION.match(sentence + " ")
        if correction:
            sentence = sentence[correction.end() :]
            is_denied = is_denied or bool(_DENIAL.search(correction[0]))
        if not sentence.strip():
            continue  # "No, that's wrong." by itself
        stated = [clause.replace(hidden, subject) for clause in _statements(sentence, name)]
        found = [Claim(fact, (span,)) for fact in stated if num_words(fact) >= MIN_WORDS]
        if correction or is_denied:
            facts = _withdraw(facts, found, is_denied)
        facts += found
        is_denied = False
        if found and not subject:
            name = subject_of(found[-1].fact) or name
    return facts[:-1] if is_denied else facts


def _statements(sentence: str, subject: str) -> list[str]:
    """Return the clauses of one sentence that state something; none if it is a question, or opens with a doubt."""
    if len(sentence) > MAX_FACT_CHARS * 2 or _QUESTION.search(sentence.strip()):
        return []
    found = [_KNOWING.sub("", clause) for clause in clauses(sentence, subject)]
    if not found or _DOUBT.match(found[0]):
        return []
    return [clause for clause in found if _is_statement(clause)]


def _is_statement(clause: str) -> bool:
    if _NO_STATEMENT.search(clause) or _PRONOUN_FIRST.match(clause):
        return False
    if is_chinese(clause):
        return bool(ZH_VERB.search(clause))
    return any(may_be_verb(word) for word in clause.split()[1:])


def _withdraw(facts: list[Claim], corrections: list[Claim], is_denied: bool) -> list[Claim]:
    """Return the facts without the last one that a correction replaces.

    If there is none, and something was plainly denied, the last fact goes.
    """
    for correction in corrections:
        for place in reversed(range(len(facts))):
            if _is_same_statement(facts[place].fact, correction.fact):
                return facts[:place] + facts[place + 1 :]
    return facts[:-1] if is_denied else facts


def _is_same_statement(fact: str, other: str) -> bool:
    """Tell whether both share half of their content words, and both or none of them differ in a number."""
    a, b = set(tokens(fact)), set(tokens(other))
    is_alike = 2 * len(a & b) >= len(a | b)
    return is_alike and _has_digit(a - b) == _has_digit(b - a)


def _has_digit(words: Iterable[str]) -> bool:
    return any(map(str.isdigit, "".join(words)))
