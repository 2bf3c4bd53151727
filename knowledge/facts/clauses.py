"""Sentences to clauses that stand by themselves: one statement each, its subject named. By rules, English and Chinese.

    clauses("She was born in Velda and works as a baker.", "Mira Tolan")
        ->  ["Mira Tolan was born in Velda", "Mira Tolan works as a baker"]

Offline, both sides of a comparison go through here: what a text claims (claims.py) and what a passage says (lexical.py). Only
coordination is taken apart (and, but, while, semicolons; commas in Chinese); apposition and relative clauses stay in their clause.
"""

import re

CLAUSES_VERSION = 1  # change anything here and raise it: kept verdicts of other rules do not count
MAX_SENTENCE_CHARS = 1000  # a longer one is no plain statement and has no clauses

_VERB_TEXT = """
    is are was were am be has have had became becomes become did does can
    attended began belongs borders bought built came closed created designed died directed discovered earned flows followed founded
    gave governed grew grows holds invented joined keeps launched leads led lies lived lives lost made makes married moved opened opens
    owned owns painted played plays produced published received released ruled runs sang sells served serves sings sold speaks spent
    stands starred stars started studied studies taught teaches took trained visited weighs went wins won worked works writes wrote"""
VERBS = frozenset(_VERB_TEXT.split())
PRONOUNS = frozenset(("he", "she", "it", "they"))
POSSESSIVES = frozenset(("his", "her", "its", "their"))
_OPENERS = PRONOUNS | POSSESSIVES | {"the", "a", "an", "there", "i", "we"}
_JOINT = re.compile(r"[;,]? (?:and|but|while|whereas) |; ")
_LEAD = re.compile(
    r"(?:(?:so|also|and|but|then|okay|ok|hmm|oh|well|wait|yes),? |"
    r"(?:however|thus|therefore|indeed|in fact|first|second|finally|moreover|additionally|"
    r"right|now|in addition|again), )+",
    re.I,
)
_VERB_SHAPE = re.compile(r"[a-z]{2,}(?:ed|s)$")
_CONTRACTION = re.compile(r"(he|she|it|they)['’](s|re)\b", re.I)

_NEGATIVE = re.compile(
    r"\b(?:not|never|no|nor|neither|cannot|without)\b|n['’]t\b|"
    "不是|并非|并不|没|从未|从不|未曾|未能|不在|不会|不能|不曾|不再",
    re.I,
)

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN = re.compile(f"[{HAN}]")
ZH_VERB = re.compile(
    "出生|毕业|担任|任职|职业|从事|居住|住在|创立|创办|创作|成立|获得|位于|死于|逝世|去世|工作|建立|属于|拥有|成为|"
    "发明|发现|执导|出版|发行|生于|不是|没有|是|曾|有|在|于|为|获|写"
)
_ZH_JOINT = re.compile("[，,；;]+")
_ZH_LEAD = re.compile(
    "(?:并且|而且|但是|因此|所以|后来|随后|之后|同时|此外|另外|不过|首先|其次|并|还|也|而|且|但)+(?!非)"
)
_ZH_PRONOUN = re.compile("他们|她们|它们|他|她|它|该(?:人|国|城市|队)")


def is_chinese(text: str) -> bool:
    """Does it hold a Chinese character?"""
    return bool(_HAN.search(text))


def may_be_verb(word: str) -> bool:
    """A verb of the list, or a lower-case word that ends like one."""
    return word in VERBS or bool(_VERB_SHAPE.match(word))


def is_negative(text: str) -> bool:
    """Does it hold a negation?"""
    return bool(_NEGATIVE.search(text))


def subject_of_title(title: str) -> str:
    """What a text calls the thing: "Grease (film)" -> "Grease"."""
    return title.partition(" (")[0].strip()


def clauses(sentence: str, subject: str = "") -> list[str]:
    """The clauses of one sentence, in order, without the final stop. A pronoun at the start of one, and a subject left out of a later
    one, are replaced by `subject`, or by the sentence's own where it names one. [] for sentences over MAX_SENTENCE_CHARS."""
    sentence = " ".join(sentence.split()).rstrip(" .!。！…;；,，")
    if len(sentence) > MAX_SENTENCE_CHARS:
        return []
    return _chinese(sentence, subject) if is_chinese(sentence) else _english(sentence, subject)


def subject_of(clause: str) -> str:
    """The words before the first verb, "" if there is no verb, too many words, or no name: only capitalised subjects are taken."""
    if is_chinese(clause):
        verb = ZH_VERB.search(clause)
        return clause[: verb.start()] if verb and 2 <= verb.start() <= 12 else ""
    words = clause.split()
    at = _first_verb(words)
    return (
        " ".join(words[:at])
        if 0 < at <= 8 and (words[0][0].isupper() or at > 1) and words[0].lower() not in PRONOUNS
        else ""
    )


def _first_verb(words: list[str]) -> int:
    return next((i for i, word in enumerate(words) if word.lower() in VERBS), 0)


def _english(sentence: str, subject: str) -> list[str]:
    found, start = [], 0
    for joint in [*_JOINT.finditer(sentence), None]:
        end = joint.start() if joint else len(sentence)
        if joint and not (_has_verb(sentence[start:end]) and _begins_clause(sentence[joint.end() : joint.end() + 80])):
            continue
        clause = _named(
            _LEAD.sub("", sentence[start:end], count=1) if _LEAD.match(sentence, start, end) else sentence[start:end],
            subject,
        )
        subject = subject_of(clause) or subject
        found.append(clause)
        start = joint.end() if joint else end
    return [clause for clause in found if clause]


def _has_verb(text: str) -> bool:
    return any(word.lower() in VERBS for word in text.split())


def _begins_clause(text: str) -> bool:
    """Does it start with a verb, or with a subject that a verb follows soon?"""
    first, *rest = [word.lower() for word in text.split()[:6]] or [""]
    return first in VERBS or ((first in _OPENERS or text[:1].isupper()) and any(word in VERBS for word in rest))


def _named(clause: str, subject: str) -> str:
    """The clause with its subject named, if it begins with a pronoun or a verb."""
    clause = _CONTRACTION.sub(lambda found: f"{found[1]} {'is' if found[2] == 's' else 'are'}", clause, count=1)
    first, space, rest = clause.partition(" ")
    if not (subject and space) or clause.startswith(f"{subject} "):  # "It Happened One Night was made": no pronoun
        return clause
    if first.lower() in PRONOUNS:
        return f"{subject} {rest}"
    if first.lower() in POSSESSIVES:
        return f"{subject}'s {rest}"
    return f"{subject} {clause}" if first in VERBS else clause


def _chinese(sentence: str, subject: str) -> list[str]:
    found: list[str] = []
    for piece in _ZH_JOINT.split(sentence):
        clause = _ZH_LEAD.sub("", piece.strip(), count=1) if _ZH_LEAD.match(piece.strip()) else piece.strip()
        if pronoun := _ZH_PRONOUN.match(clause):
            clause = subject + clause[pronoun.end() :] if subject else clause
        elif clause.startswith("其") and subject:
            clause = f"{subject}的{clause[1:]}"
        elif ZH_VERB.match(clause) and subject:
            clause = subject + clause
        if found and not ZH_VERB.search(clause):  # "北京，上海": no statement by itself
            found[-1] += "，" + clause
            continue
        subject = subject_of(clause) or subject
        found.append(clause)
    return [clause for clause in found if clause]
