"""Judge without a model, by refusal, equality, numbers and words: for runs without a network, and for short answers.

It errs towards "wrong": what it cannot match earns nothing (a surname for a full name, other words for the same thing),
so that no answer is worth trying but the right one. An answer may be a sentence around the truth, but it must not offer
other candidates. A candidate is what is written like the truth: for "Velda" a word in capitals, for "weaver" one in
small letters, for 1962 a number, for March a month. Words of the question, and common words such as sentences begin
with, are no candidates.
"""

import re
import unicodedata
from collections.abc import Sequence

from knowledge.store.tokens import UNSPACED
from rewards.exact import ARTICLES, normalise
from rewards.knowrl.judge import Judgement
from rewards.knowrl.refusal import is_refusal
from rewards.mathematics.units import NUMBER_WORDS

MAX_CHARS = 1000  # a longer answer is wrong
MAX_OTHER_WORDS = 3  # in a sentence around the truth, besides those of the question and common ones
_NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_PART_END = re.compile(
    r"[,;:!?/&|()\[\]{}\"“”\n、，；：。！？–—]|\.(?!\d)|\b(?:and|or|nor|versus|vs)\b|[和或与]", re.IGNORECASE
)
_NEGATIONS = set(
    "not never no neither nor without except unlike hardly false wrong incorrect untrue unlikely anything anyone "
    "anywhere everything everyone everywhere nothing nobody nowhere none other else rather instead far cannot isnt "
    "wasnt arent werent cant couldnt dont doesnt didnt wont wouldnt shouldnt hasnt havent hadnt".split()
)
_UNSPACED_NEGATIONS = ("不是", "没有", "并非", "ではな", "아니", "ไม่")
_UNSPACED_COMMON = "是的在了位于叫做答案为我认想可能它他她个名です은는이가입니다"
_COMMON = set(
    "it its is was are were be been being this that these those there here he she they his her their i we you my our "
    "in on at to of for from by with as about into and or but if so then than also which who whom whose what when "
    "where why how has have had do does did will would can could might must answer think believe guess correct called "
    "named known name sure probably perhaps maybe likely yes well actually really certainly surely definitely just "
    "only course mr mrs ms dr born died lives lived works worked located situated based founded held took takes place "
    "happened began started ended released published wrote written directed played starred sang sung made won became "
    "came comes".split()
)
_MONTHS = set("january february march april may june july august september october november december".split())
_ORDINAL_ENDINGS = {"st", "nd", "rd", "th"}
_UNSPACED = re.compile(f"[{UNSPACED}]")
Spelled = list[tuple[str, bool]]  # words, each with whether it is written in capitals


class OfflineJudge:
    """Compare an answer with the truths by rules. This judge has nothing to reach, to check or to close."""

    async def judge(
        self, question: str, answer: str, truths: Sequence[str], falsehoods: Sequence[str] = ()
    ) -> Judgement:
        """Always reach an outcome: no answer is unscorable. What matches no truth is wrong, so falsehoods add
        nothing."""
        is_long = len(answer) > MAX_CHARS
        said = normalise(answer[:MAX_CHARS])
        if said and not is_long and said in {normalise(truth) for truth in truths}:
            return Judgement("correct", "equals the truth")
        if is_refusal(answer):
            return Judgement("refused", "declines to answer")
        if is_long:
            return Judgement("wrong", f"longer than {MAX_CHARS} characters")
        mismatches = [_mismatch(question, answer, truth) for truth in truths]
        if "" in mismatches:
            return Judgement("correct", "states the truth")
        return Judgement("wrong", mismatches[0])

    def check_sync(self) -> None:
        """Do nothing: rules always work."""

    def metrics(self) -> dict[str, float]:
        """Count nothing."""
        return {}

    def close(self) -> None:
        """Do nothing: rules hold nothing."""


def words(text: str) -> list[str]:
    """Split a text into words: lower case, no apostrophes and genitives, numbers in digits (three, 3 and 3rd are 3)."""
    return [word for word, _ in _spelled(text)]


def _spelled(text: str) -> Spelled:
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"['’]s\b|['’]", "", text, flags=re.IGNORECASE)
    found = []
    for written in re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", _without_thousands(text)):
        word = written.lower()
        if word in NUMBER_WORDS:
            word = str(NUMBER_WORDS[word])
        if word not in ARTICLES | _ORDINAL_ENDINGS:
            found.append((word, written[0].isupper()))
    return found


def _without_thousands(text: str) -> str:
    """Write 12,000 as 12000, and set it apart from what it touches."""
    return _NUMBER.sub(lambda match: f" {match[0].replace(',', '')} ", text)


def is_unspaced(text: str) -> bool:
    """Return whether a text has no spaces between words, as Chinese: its words are looked for as characters."""
    return bool(_UNSPACED.search(text))


def _mismatch(question: str, answer: str, truth: str) -> str:
    """Say why an answer does not state a truth; "" if it does.

    It does with the same numbers, all of the truth's words, no other candidate and no denial.
    """
    spelled, gold = _spelled(answer), _spelled(truth)
    said = list(dict.fromkeys(word for word, _ in spelled))
    asked = set(words(question))
    allowed = asked.union(word for word, _ in gold)
    if not gold:
        return "the truth holds no word"
    other_numbers = [word for word in said if word[0].isdigit() and word not in allowed]
    if other_numbers:
        return f"states other numbers: {', '.join(sorted(other_numbers)[:3])}"
    missing = _missing(gold, said, asked, answer)
    if missing:
        return f"does not say {', '.join(missing[:3])}"
    denials = [word for word in said if word in _NEGATIONS and word not in allowed]
    if denials:
        return f"denies something: {min(denials)}"
    if is_unspaced(truth):
        return _surplus_unspaced(question, answer, truth)
    others = [word for word in said if word not in allowed | _COMMON]
    if len(others) > MAX_OTHER_WORDS:
        return f"says much besides the truth: {', '.join(sorted(others)[:3])}"
    candidate = _candidate(spelled, gold, set(others)) or _part_without(allowed, answer)
    return f"offers something else too: {candidate}" if candidate else ""


def _missing(gold: Spelled, said: list[str], asked: set[str], answer: str) -> list[str]:
    """Find the truth's words that the answer does not say."""
    required = list(dict.fromkeys(word for word, _ in gold))
    if any(word[0].isdigit() for word in required):  # "How many seasons?" is answered by "three", too
        required = [word for word in required if word not in asked]
    return [word for word in required if word not in said and not (is_unspaced(word) and word in answer.lower())]


def _surplus_unspaced(question: str, answer: str, truth: str) -> str:
    """Say what a text without spaces says besides the truth. One character that is not common is allowed."""
    known = question + truth
    for word in _UNSPACED_NEGATIONS:
        if word in answer and word not in known:
            return f"denies something: {word}"
    rest = answer.replace(truth, "")
    others = [char for char in rest if char.isalnum() and char not in known + _UNSPACED_COMMON]
    return f"says something besides the truth: {''.join(others[:10])}" if len(others) > 1 else ""


def _candidate(said: Spelled, gold: Spelled, others: set[str]) -> str:
    """Find one of the other words that may be a candidate; "" if none may.

    It is written like the truth, or stands next to it or to another such word ("Velda orsen marrin"). Where the truth
    is a date, only months are candidates.
    """
    core = {word for word, _ in gold} - _COMMON
    if core and all(word[0].isdigit() or word in _MONTHS for word in core):
        return min(others & _MONTHS, default="") if core & _MONTHS else ""
    cases = {is_capital for word, is_capital in said + gold if word in core} or {True, False}
    for place, (word, is_capital) in enumerate(said):
        neighbours = said[max(place - 1, 0) : place] + said[place + 1 : place + 2]
        is_close = any(neighbour in core | others for neighbour, _ in neighbours)
        if word in others and (is_capital in cases or is_close):
            return word
    return ""


def _part_without(allowed: set[str], answer: str) -> str:
    """Find a part of the answer, between commas and the like, that says something and none of the allowed words."""
    for part in _PART_END.split(_without_thousands(answer)):
        found = set(words(part)) - _COMMON
        if found and not found & allowed:
            return part.strip()[:40]
    return ""
