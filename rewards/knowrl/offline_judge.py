"""A judge without any model: refusal, equality, numbers, words. For runs without a network, and for answers that are
names or dates.

It errs towards "wrong": what it cannot match earns nothing (a surname for a full name, other words for the same thing),
so that no answer is worth trying but the right one. An answer may be a sentence around the truth, but must not offer
other candidates beside it. What is written like the truth is one: beside "Velda" a word in capitals, beside "weaver"
one in small letters, beside 1962 a number, beside March a month. Words of the question and common ones, such as
sentences begin with, are none.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from knowledge.store.tokens import UNSPACED
from rewards.exact import normalise
from rewards.knowrl.judge import Verdict
from rewards.knowrl.refusal import is_refusal

MAX_CHARS = 1000  # a longer answer is wrong
MAX_OTHER_WORDS = 3  # in a sentence around the truth, beside those of the question and common ones
_NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_PART_END = re.compile(
    r"[,;:!?/&|()\[\]{}\"“”\n、，；：。！？–—]|\.(?!\d)|\b(?:and|or|nor|versus|vs)\b|[和或与]", re.IGNORECASE
)
_NEGATIONS = set(
    "not never no neither nor without except unlike hardly false wrong incorrect untrue unlikely anything anyone anywhere "
    "everything everyone everywhere nothing nobody nowhere none other else rather instead far cannot isnt wasnt arent werent cant "
    "couldnt dont doesnt didnt wont wouldnt shouldnt hasnt havent hadnt".split()
)
_SPACELESS_NEGATIONS = ("不是", "没有", "并非", "ではな", "아니", "ไม่")
_SPACELESS_COMMON = "是的在了位于叫做答案为我认想可能它他她个名です은는이가입니다"
_COMMON = set(
    "it its is was are were be been being this that these those there here he she they his her their i we you my our in on at "
    "to of for from by with as about into and or but if so then than also which who whom whose what when where why how has have "
    "had do does did will would can could might must answer think believe guess correct called named known name sure probably "
    "perhaps maybe likely yes well actually really certainly surely definitely just only course mr mrs ms dr born died lives lived "
    "works worked located situated based founded held took takes place happened began started ended released published wrote "
    "written directed played starred sang sung made won became came comes".split()
)
_MONTHS = set("january february march april may june july august september october november december".split())
_WORD_NUMBERS = {
    word: str(value)
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen "
        "twenty".split()
    )
}
_SPACELESS = re.compile(f"[{UNSPACED}]")


class OfflineJudge:
    """Compares an answer with the truths; see the module. It has nothing to reach, to check or to close."""

    async def verdict(self, question: str, answer: str, truths: Sequence[str]) -> Verdict:
        """Always an outcome, never unscorable."""
        said = normalise(answer[:MAX_CHARS])
        if said and len(answer) <= MAX_CHARS and any(said == normalise(truth) for truth in truths):
            return Verdict("correct", "equals the truth")
        if is_refusal(answer):
            return Verdict("refused", "declines to answer")
        if len(answer) > MAX_CHARS:
            return Verdict("wrong", f"longer than {MAX_CHARS} characters")
        problems = [_mismatch(question, answer, truth) for truth in truths]
        return Verdict("correct", "states the truth") if "" in problems else Verdict("wrong", problems[0])

    def check_sync(self) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def words(text: str) -> list[str]:
    """The words of a text: lower case, no apostrophes and genitives; a number is a word in digits (three, 3 and 3rd are
    one)."""
    return [word for word, _ in _spelled(text)]


def _spelled(text: str) -> list[tuple[str, bool]]:
    """The words of a text, each with whether it is written in capitals."""
    text = re.sub(r"['’]s\b|['’]", "", unicodedata.normalize("NFKC", text), flags=re.IGNORECASE)
    found = [
        (word.lower(), word[0].isupper()) for word in re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", _without_thousands(text))
    ]
    return [
        (_WORD_NUMBERS.get(word, word), capital)
        for word, capital in found
        if word not in ("a", "an", "the", "st", "nd", "rd", "th")
    ]


def _beside_spaceless(question: str, answer: str, truth: str) -> str:
    """What a text without word boundaries says beside the truth: at most one character more than common ones and the
    question's."""
    if denied := [word for word in _SPACELESS_NEGATIONS if word in answer and word not in question + truth]:
        return f"denies something: {denied[0]}"
    others = [
        char
        for char in answer.replace(truth, "")
        if char.isalnum() and char not in question + truth + _SPACELESS_COMMON
    ]
    return f"says something beside the truth: {''.join(others[:10])}" if len(others) > 1 else ""


def _without_thousands(text: str) -> str:
    """12,000 as 12000, and set apart from what it touches."""
    return _NUMBER.sub(lambda match: f" {match[0].replace(',', '')} ", text)


def has_number(text: str) -> bool:
    """Whether a text holds a digit."""
    return any(char.isdigit() for char in text)


def _mismatch(question: str, answer: str, truth: str) -> str:
    """Why an answer does not state a truth; "" if it does: same numbers, all its words, no other candidate, no
    denial."""
    said, gold, asked = Counter(words(answer)), Counter(words(truth)), set(words(question))
    allowed = asked | set(gold)
    if not gold:
        return "the truth holds no word"
    numbers = {word for word in said if word[0].isdigit()}
    if extra := numbers - allowed:
        return f"states other numbers: {', '.join(sorted(extra)[:3])}"
    is_counted = any(word[0].isdigit() for word in gold)  # "How many seasons?" is answered by "three", too
    if missing := [
        word for word in gold if word not in said and not _within(word, answer) and not (is_counted and word in asked)
    ]:
        return f"does not say {', '.join(missing[:3])}"
    if denied := (set(said) - allowed) & _NEGATIONS:
        return f"denies something: {min(denied)}"
    if spaceless(truth):
        return _beside_spaceless(question, answer, truth)
    others = [word for word in said if word not in allowed | _COMMON]
    if len(others) > MAX_OTHER_WORDS:
        return f"says much beside the truth: {', '.join(sorted(others)[:3])}"
    if candidate := _candidate(_spelled(answer), _spelled(truth), set(others)):
        return f"offers something else too: {candidate}"
    beside = [
        part.strip()
        for part in _PART_END.split(_without_thousands(answer))
        if (found := set(words(part)) - _COMMON) and not found & allowed
    ]
    return f"offers something else too: {beside[0][:40]}" if beside else ""


def _candidate(said: list[tuple[str, bool]], gold: list[tuple[str, bool]], others: set[str]) -> str:
    """One of the other words that may be a candidate, "" if none is: one that is written like the truth, or that stands
    beside it or beside a further other word ("Velda orsen marrin"). Beside a date only months are."""
    core = {word for word, _ in gold} - _COMMON
    if core and all(word[0].isdigit() or word in _MONTHS for word in core):
        return min(others & _MONTHS, default="") if core & _MONTHS else ""
    cases = {capital for word, capital in said + gold if word in core} or {True, False}
    is_close = [False, *(word in core | others for word, _ in said), False]
    return next(
        (
            word
            for place, (word, capital) in enumerate(said)
            if word in others and (capital in cases or is_close[place] or is_close[place + 2])
        ),
        "",
    )


def spaceless(text: str) -> bool:
    """Whether a text is written without spaces between its words, as Chinese is: such words are looked for as
    characters."""
    return bool(_SPACELESS.search(text))


def _within(word: str, answer: str) -> bool:
    return spaceless(word) and word in answer.lower()
