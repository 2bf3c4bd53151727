"""Judge without a model, by refusal, equality, numbers and words: for runs without a network, and for short answers.

It errs towards "wrong": what it cannot match earns nothing (a surname for a full name, other words for the same thing),
so that no answer is worth trying but the right one. An answer may be a sentence around the truth, but it must not offer
other candidates. A candidate is what is written like the truth: for "Velda" a word in capitals, for "weaver" one in
small letters, for 1962 a number, for March a month. Words of the question, and common words such as sentences begin
with, are no candidates. Dates, numbers and "&" are compared in one form (knowledge/facts/forms.py).
"""

import re
from collections import Counter
from collections.abc import Sequence

from knowledge.facts.forms import MONTHS, usual_forms
from knowledge.store.tokens import UNSPACED
from knowledge.text import fold
from knowledge.words import BOUNDS, ZH_BOUNDS
from rewards.exact import ARTICLES, normalise
from rewards.knowrl.judge import Judgement
from rewards.knowrl.refusal import is_refusal

MAX_CHARS = 1000  # a longer answer is wrong
MAX_OTHER_WORDS = 3  # in a sentence around the truth, besides those of the question and common ones
_WORD = re.compile(r"(?:(?<!\w)[-−])?\d+(?:\.\d+)?(?:s\b)?|[^\W\d_]+")  # 1940s is not 1940
_PART_END = re.compile(
    r"[,;:!?/&|()\[\]{}\"“”\n、，；：。！？–—]|\.(?!\d)|\b(?:and|or|nor|versus|vs)\b|[和或与]", re.IGNORECASE
)
_NEGATIONS = set(
    "not never no neither nor without except unlike hardly false wrong incorrect untrue unlikely anything anyone "
    "anywhere everything everyone everywhere nothing nobody nowhere none other else rather instead far cannot isnt "
    "wasnt arent werent cant couldnt dont doesnt didnt wont wouldnt shouldnt hasnt havent hadnt doubt minus half twice "
    "dozen bc bce".split()
)
_UNSPACED_DENIALS = re.compile("|".join(["不是", "没有", "并非", "公元前", "ではな", "아니", "ไม่", *ZH_BOUNDS]))
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
_MONTHS = {month.lower() for month in MONTHS}
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
        if len(answer) > MAX_CHARS:
            return Judgement("wrong", f"longer than {MAX_CHARS} characters")
        question, said = usual_forms(question), usual_forms(answer)
        accepted = [usual_forms(truth) for truth in truths]
        if normalise(said) in {normalise(truth) for truth in accepted} - {""}:
            return Judgement("correct", "equals the truth")
        if is_refusal(answer):
            return Judgement("refused", "declines to answer")
        mismatches = [_mismatch(question, said, truth) for truth in accepted]
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
    """Split a text into words: lower case, no accents, no apostrophes and genitives, 3rd as 3."""
    return [word for word, _ in _spelled(text)]


def _spelled(text: str) -> Spelled:
    text = re.sub(r"(?<!\d)['’]s\b|['’]", "", text, flags=re.IGNORECASE)
    found = []
    for written in _WORD.findall(text):
        word = fold(written)
        if word not in ARTICLES | _ORDINAL_ENDINGS:
            found.append((word, written[0].isupper()))
    return found


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
    other_numbers = [word for word in said if word[-1].isdigit() and word not in allowed]
    if other_numbers:
        return f"states other numbers: {', '.join(sorted(other_numbers)[:3])}"
    missing = _missing(gold, spelled, asked, answer)
    if missing:
        return f"does not say {', '.join(missing[:3])}"
    if _numbers(spelled, gold) != _numbers(gold, gold):
        return "states the numbers in another order"
    denials = [word for word in said if word in _NEGATIONS | BOUNDS and word not in allowed]
    denials += [word for word in _UNSPACED_DENIALS.findall(answer) if word not in question + truth]
    if denials:
        return f"denies or bounds something: {min(denials)}"
    if is_unspaced(truth):
        return _surplus_unspaced(question, answer, truth)
    others = [word for word in said if word not in allowed | _COMMON]
    if len(others) > MAX_OTHER_WORDS:
        return f"says much besides the truth: {', '.join(sorted(others)[:3])}"
    candidate = _candidate(spelled, gold, set(others)) or _part_without(allowed, answer) or _rival(question, gold, said)
    return f"offers something else too: {candidate}" if candidate else ""


def _missing(gold: Spelled, said: Spelled, asked: set[str], answer: str) -> list[str]:
    """Find the truth's words that the answer does not say, or not as often as the truth does."""
    required = Counter(word for word, _ in gold)
    if any(word[-1].isdigit() for word in required):  # "How many seasons?" is answered by "three", too
        required = Counter({word: number for word, number in required.items() if word not in asked})
    required -= Counter(word for word, _ in said)
    return [word for word in required if not (is_unspaced(word) and word in answer.lower())]


def _numbers(text: Spelled, gold: Spelled) -> list[str]:
    """Find the truth's numbers in a text, in order: 3-1 is not 1-3. Where the truth is a date, their order is free."""
    wanted = [word for word, _ in gold if word[-1].isdigit()]
    if len(wanted) < 2 or _MONTHS & {word for word, _ in gold}:
        return []
    return [word for word, _ in text if word in wanted][: len(wanted)]


def _rival(question: str, gold: Spelled, said: list[str]) -> str:
    """Find a choice of the question ("Ali or Frazier?") that the answer names beside the right one; "" if none."""
    asked, right = words(question), {word for word, _ in gold}
    pairs = [(asked[at - 1], asked[at + 1]) for at in range(1, len(asked) - 1) if asked[at] == "or"]
    rivals = {word for pair in pairs if right & set(pair) for word in pair} - right
    if "no" in right:
        rivals.add("yes")
    return min(rivals & set(said), default="")


def _surplus_unspaced(question: str, answer: str, truth: str) -> str:
    """Say what a text without spaces says besides the truth. One character that is not common may stand after it."""
    rest = answer.replace(truth, "")
    others = [char for char in rest if char.isalnum() and char not in question + truth + _UNSPACED_COMMON]
    is_part = any(char + truth in answer for char in others)  # 东京 is not 京
    return f"says something besides the truth: {''.join(others[:10])}" if len(others) > 1 or is_part else ""


def _candidate(said: Spelled, gold: Spelled, others: set[str]) -> str:
    """Find one of the other words that may be a candidate; "" if none may.

    It is written like the truth, or stands next to it or to another such word ("Velda orsen marrin"). Where the truth
    is a date, only months are candidates.
    """
    core = {word for word, _ in gold} - _COMMON
    if core and all(word[-1].isdigit() or word in _MONTHS for word in core):
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
    for part in _PART_END.split(answer):
        found = set(words(part)) - _COMMON
        if found and not found & allowed:
            return part.strip()[:40]
    return ""
