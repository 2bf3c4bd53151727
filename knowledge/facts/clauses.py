"""Split sentences into clauses: one statement each, with its subject named. By rules, for English and Chinese.

    clauses("She was born in Velda and works as a baker.", "Mira Tolan")
        ->  ["Mira Tolan was born in Velda", "Mira Tolan works as a baker"]

Offline, both sides of a comparison pass through here: what a text claims (rule_decomposer.py) and what a passage says
(lexical.py). Sentences are split at coordination only (and, but, while, semicolons; commas in Chinese). Appositions and
relative clauses stay in their clause.
"""

import re

from knowledge.words import OPENERS, POSSESSIVES, PRONOUNS, VERBS

CLAUSES_VERSION = 2  # raise it with any change here, so that kept verdicts of other rules do not count
MAX_SENTENCE_CHARS = 1000  # a longer one is no plain statement and has no clauses
MAX_SUBJECT_WORDS = 8
MAX_SUBJECT_CHARS = 12  # in Chinese

_JOINT = re.compile(r"[;,]? (?:and|but|while|whereas) |; ")
_LEAD = re.compile(
    r"^(?:(?:so|also|and|but|then|okay|ok|hmm|oh|well|wait|yes),? |"
    r"(?:however|thus|therefore|indeed|in fact|first|second|finally|moreover|additionally|"
    r"right|now|in addition|again), )+",
    re.I,
)
_VERB_SHAPE = re.compile(r"[a-z]{2,}(?:ed|s)$")
_CONTRACTION = re.compile(r"(he|she|it|they)['’](s|re)\b", re.I)

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN = re.compile(f"[{HAN}]")
ZH_VERB = re.compile(
    "出生|毕业|担任|任职|职业|从事|居住|住在|创立|创办|创作|成立|获得|位于|死于|逝世|去世|工作|建立|属于|拥有|成为|"
    "发明|发现|执导|出版|发行|生于|不是|没有|是|曾|有|在|于|为|获|写"
)
_NEGATIVE = re.compile(
    r"\b(?:not|never|no|nor|neither|cannot|without)\b|n['’]t\b|"
    f"不是|并非|并不|没|从未|从不|未曾|未能|不会|不能|不曾|不再|[不未](?:{ZH_VERB.pattern})",
    re.I,
)
_ZH_JOINT = re.compile("[，,；;]+")
_ZH_LEAD = re.compile(
    "^(?:并且|而且|但是|因此|所以|后来|随后|之后|同时|此外|另外|不过|首先|其次|并|还|也|而|且|但)+(?!非)"
)
_ZH_PRONOUN = re.compile("他们|她们|它们|他|她|它|该(?:人|国|城市|队)")


def is_chinese(text: str) -> bool:
    """Tell whether the text holds a Chinese character."""
    return bool(_HAN.search(text))


def may_be_verb(word: str) -> bool:
    """Tell whether the word is in the list of verbs, or is in lower case and ends like a verb."""
    return word in VERBS or bool(_VERB_SHAPE.match(word))


def is_negative(text: str) -> bool:
    """Tell whether the text holds a negation."""
    return bool(_NEGATIVE.search(text))


def subject_of_title(title: str) -> str:
    """Return what a text calls the thing: "Grease (film)" -> "Grease"."""
    return title.partition(" (")[0].strip()


def clauses(sentence: str, subject: str = "") -> list[str]:
    """Return the clauses of one sentence, in order, without the final stop.

    `subject` replaces a pronoun at the start of a clause, and stands where a later clause leaves its subject out; if
    the sentence names a subject itself, that one is used. The list is empty for a sentence over MAX_SENTENCE_CHARS.
    """
    sentence = " ".join(sentence.split()).rstrip(" .!。！…;；,，")
    if len(sentence) > MAX_SENTENCE_CHARS:
        return []
    found = _chinese(sentence, subject) if is_chinese(sentence) else _english(sentence, subject)
    return [clause for clause in found if clause]


def subject_of(clause: str) -> str:
    """Return the words before the first verb if they are a capitalised name of not too many words, else ""."""
    if is_chinese(clause):
        verb = ZH_VERB.search(clause)
        return clause[: verb.start()] if verb and 2 <= verb.start() <= MAX_SUBJECT_CHARS else ""
    words = clause.split()
    is_verb = [word.lower() in VERBS for word in words]
    num_before = is_verb.index(True) if True in is_verb else 0
    if not 0 < num_before <= MAX_SUBJECT_WORDS or words[0].lower() in PRONOUNS:
        return ""
    if num_before == 1 and not words[0][0].isupper():
        return ""
    return " ".join(words[:num_before])


def _english(sentence: str, subject: str) -> list[str]:
    found = []
    for piece in _split_english(sentence):
        clause = _name_subject(_LEAD.sub("", piece), subject)
        subject = subject_of(clause) or subject
        found.append(clause)
    return found


def _split_english(sentence: str) -> list[str]:
    """Split a sentence at each joint that has a verb before it and the start of a clause after it."""
    pieces = []
    start = 0
    for joint in _JOINT.finditer(sentence):
        before = sentence[start : joint.start()]
        after = sentence[joint.end() : joint.end() + 80]
        if _has_verb(before) and _begins_clause(after):
            pieces.append(before)
            start = joint.end()
    return [*pieces, sentence[start:]]


def _has_verb(text: str) -> bool:
    return not VERBS.isdisjoint(text.lower().split())


def _begins_clause(text: str) -> bool:
    """Tell whether the text starts with a verb, or with a subject that a verb follows soon."""
    words = text.lower().split()[:6] or [""]
    if words[0] in VERBS:
        return True
    return (words[0] in OPENERS or text[:1].isupper()) and not VERBS.isdisjoint(words)


def _name_subject(clause: str, subject: str) -> str:
    """Return the clause with its subject named, if it begins with a pronoun or a verb."""
    clause = _CONTRACTION.sub(_expand, clause, count=1)
    first, space, rest = clause.partition(" ")
    if not (subject and space) or clause.startswith(f"{subject} "):  # "It Happened One Night was made": no pronoun
        return clause
    if first.lower() in PRONOUNS:
        return f"{subject} {rest}"
    if first.lower() in POSSESSIVES:
        return f"{subject}'s {rest}"
    return f"{subject} {clause}" if first in VERBS else clause


def _expand(contraction: re.Match) -> str:
    verb = "is" if contraction[2] == "s" else "are"
    return f"{contraction[1]} {verb}"


def _chinese(sentence: str, subject: str) -> list[str]:
    found = []
    for piece in _ZH_JOINT.split(sentence):
        clause = _ZH_LEAD.sub("", piece.strip())
        if subject:
            clause = _name_chinese_subject(clause, subject)
        if found and not ZH_VERB.search(clause):  # "北京，上海": no statement by itself
            found[-1] += "，" + clause
            continue
        subject = subject_of(clause) or subject
        found.append(clause)
    return found


def _name_chinese_subject(clause: str, subject: str) -> str:
    pronoun = _ZH_PRONOUN.match(clause)
    if pronoun:
        return subject + clause[pronoun.end() :]
    if clause.startswith("其"):
        return f"{subject}的{clause[1:]}"
    return subject + clause if ZH_VERB.match(clause) else clause
