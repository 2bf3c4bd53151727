"""Judge without a model, by equality and words: for tests and toy worlds, and for short answers.

An answer is right if it holds the truth, word by word, and nothing else but words of the question and those of a short
list: what people write around an answer ("I think it is Paris"). Any other word may change what is said ("her brother
was Paris", "near Paris", "Paris, Texas") and makes the answer wrong; right before the truth only a few words can stand.
So no answer is worth trying but the right one, and much that a reader would accept is wrong here: a surname for a full
name, another order, other words for the same thing ("the author is", asked who wrote it), a place and a date. Dates,
numbers and "&" are compared in one form (knowledge/facts/forms.py).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from knowledge.facts.forms import usual_forms
from knowledge.store.tokens import UNSPACED
from knowledge.text import fold
from rewards.exact import ARTICLES, EMPHASIS, normalise
from rewards.knowrl.judge import Judgement
from rewards.knowrl.refusal import is_refusal
from rewards.mathematics.units import UNIT_MARKS, unit_named

MAX_CHARS = 1000  # a longer answer is wrong
_LETTER = rf"(?:(?![{UNSPACED}])[^\W_])"
_WORD = re.compile(  # H2O, C++, A-, .NET, 18th, 12! and 1940s are one word each; 北京 is two
    rf"(?P<number>[<>≤≥]?(?:(?<!\w)[-−])?(?:\d+(?:\.\d+)?|\.\d+)(?!{_LETTER})[+!]?)"
    rf"|(?P<word>[\^=](?=\w)|[@#]?(?:(?<![\w.])\.)?(?:(?<!\w){_LETTER}!|{_LETTER}+(?:[#+*♯]+|-(?!\w))?)|[{UNSPACED}])"
    r"(?P<genitive>['’][sS]\b)?"
)
_PART_END = re.compile(r"[,;:!?()\[\]\"“”\n、，；：。！？–—]|\.(?!\w)")
_GLUED_UNIT = re.compile(r"(?<=\d)(?!s\b)[^\W\d_]+")  # 5km; but 1940s are no seconds
_ZH_OR = re.compile("还是|或")
_IS = re.compile(r"\b(it|that|he|she|there|what)['’]s\b", re.IGNORECASE)
_AROUND = set(  # words that may stand next to the truth, whatever was asked
    "it its is was are were be would he she they his her their my our that this there i we in on at located "
    "think believe guess final answer correct probably perhaps maybe likely of course".split()
) | set("是的在了位于为我认想可能它他她答案です은는이가입니다คือ")
_BEFORE = set("is was are were be in on at by as called named".split()) | set("是为在于叫คือ")  # right before it
_ABOUT = {"about", "around", "approximately", "year"}  # right before a number
_NEVER = set("not no never neither nor or without except".split()) | set("不没非除或吗前后")  # though asked with
_NOT_AFTER = set("的之以前后")  # right after it: 北京的, of Beijing


class Word(NamedTuple):
    """A word in one spelling. is_apart: it begins a part of the sentence. is_genitive: it is followed by 's."""

    text: str
    is_apart: bool = False
    is_genitive: bool = False

    @property
    def is_number(self) -> bool:
        return self.text[-1].isdigit() and self.text.strip("-−<>≤≥").replace(".", "", 1).isdigit()


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
    """Split a text into words: lower case, no accents, no apostrophes and genitives, metres as m."""
    return [word.text for word in _spelled(text)]


def is_unspaced(text: str) -> bool:
    """Return whether a text has no spaces between words, as Chinese: each character is taken for a word."""
    return bool(re.search(f"[{UNSPACED}]", text))


def _spelled(text: str) -> list[Word]:
    text = _IS.sub(r"\1 is", EMPHASIS.sub(r"\2", text))
    text = re.sub(r"([$€£¥₹]) ?(\d[\d.,]*)", lambda price: f"{price[2]} {UNIT_MARKS[price[1]]}", text)
    text = re.sub(r"(?<=\d) ?%|\bper cent\b", " percent", text)
    text = _GLUED_UNIT.sub(lambda match: f" {match[0]}" if unit_named(match[0]) else match[0], text)
    text = re.sub(r"['’](?!s\b)|(?<=\d)['’]", "", text, flags=re.IGNORECASE)
    found = []
    end = 0
    for match in _WORD.finditer(text):
        word = fold(match["number"] or match["word"])
        if found and found[-1].is_number and word not in _AROUND:
            word = unit_named(word) or word
        if word not in ARTICLES:
            is_apart = not found or bool(_PART_END.search(text, end, match.start()))
            found.append(Word(word, is_apart, bool(match["genitive"])))
            end = match.end()
    return found


class Asked(NamedTuple):
    """What a question lets stand around an answer. kinds: "year" of "in which year", right before the truth."""

    words: set[str]
    kinds: set[str]


def _asked(question: str) -> Asked:
    """Take from a question what an answer may repeat of it: no choice that it offers, and no denial."""
    found = words(question)
    choices = set()
    for before, word, after in zip(found, found[1:], found[2:], strict=False):
        if word == "or":
            choices |= {before, after}
    kept = set() if _ZH_OR.search(question) else set(found) - choices - _NEVER
    units = {unit_named(word) for word in kept} - {None}
    longer = [word for word in kept if len(word) > 2]
    forms = {word + ending for word, ending in product(longer, ("s", "d", "ed"))}  # "die", "died"
    kinds = {after for word, after in pairwise(found) if word in ("which", "what")}
    return Asked(kept | units | forms, kinds & kept)


def _mismatch(question: str, answer: str, truth: str) -> str:
    """Say why an answer does not state a truth; "" if it does."""
    said, asked = _spelled(answer), _asked(question)
    problem = "the truth holds no word"
    for gold in _spellings(_spelled(truth), asked):
        problem = _surplus(said, gold, asked)
        if not problem:
            return ""
    return problem


def _spellings(gold: list[Word], asked: Asked) -> Iterator[list[Word]]:
    """Yield the words of the truth; then the number alone, of "three seasons" where seasons were asked for."""
    if gold:
        yield gold
    needed = [word for word in gold if word.is_number or word.text not in asked.words]
    if any(word.is_number for word in gold) and len(needed) < len(gold):
        yield needed


def _surplus(said: list[Word], gold: list[Word], asked: Asked) -> str:
    """Say what more an answer holds than the truth, or that it does not hold it; "" if it is the truth alone."""
    texts, wanted = [word.text for word in said], [word.text for word in gold]
    size = len(gold)
    places = [place for place in range(len(said)) if texts[place : place + size] == wanted]
    if not places:
        return f"does not say {' '.join(wanted)[:80]}"
    problems = [_wrong_place(said, place, gold, asked) for place in places]
    held = {place - 1 for place in places if not said[place].is_apart}  # a word that may stand there
    for place in places:
        held.update(range(place, place + size))
    others = [text for place, text in enumerate(texts) if place not in held and text not in asked.words | _AROUND]
    problems += [f"says something besides the truth: {other}" for other in others]
    return next(filter(None, problems), "")


def _wrong_place(said: list[Word], place: int, gold: list[Word], asked: Asked) -> str:
    """Say what right before or after the truth makes another thing of it: "the capital of X", "X's brother"."""
    before = _BEFORE | asked.kinds
    if gold[0].is_number:
        before = (before | _ABOUT) - {"by"}
    first, last = said[place], said[place + len(gold) - 1]
    if not first.is_apart and said[place - 1].text not in before:
        return f"says {said[place - 1].text} right before the truth"
    after = said[place + len(gold) : place + len(gold) + 1]
    is_part = bool(after) and not after[0].is_apart and after[0].text in _NOT_AFTER
    if is_part or (last.is_genitive and not gold[-1].is_genitive):
        return "names something of the truth"
    return ""
