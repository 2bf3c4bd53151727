"""Is the answer right? KnowRL's two versions, faithful in outcome, and a hardened one, `correctness`, which is the
default.

                        knowrl_v1                                knowrl_v2        correctness
    no answer block     -1                                       -1               -1 (and for anything but one tag pair of each kind)
    before the judge    refusal pattern: -1; gold without a      nothing          no letter or digit: -1; a refusal: 1;
                        digit and no word in common: -1                           nothing but alternatives: -1
    judge: correct      2                                        2                2
    judge: wrong        -1                                       -1               -1
    judge: no attempt   -1                                       1                1
    no verdict          unscorable                               unscorable       unscorable

The judge sees the row's question, never the rendered prompt. (The original pays 0 when the judge fails, more than for a
wrong answer; it pays 2 for any reply that holds the article "a"; and its v1 finds "red" in "scared".)
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from grpo.schema import Score
from knowledge.store.tokens import UNSPACED
from rewards.exact import normalise, truths
from rewards.format import TAGS, parse
from rewards.knowrl.judge import Judge, Verdict, model_judge
from rewards.knowrl.offline_judge import OfflineJudge, has_number, spaceless
from rewards.knowrl.refusal import is_refusal
from rewards.knowrl.refusal import knowrl_v1 as is_v1_refusal

CORRECT, REFUSED, WRONG = 2.0, 1.0, -1.0
Grade = Callable[[str, Mapping[str, Any]], Awaitable[Score]]
STOP_WORDS = set(
    "the a an and or but is are was were in on at to for with by about like from of that this these those it they he she we "
    "you i me my your our their".split()
)
MAX_ALTERNATIVE_WORDS = 12
# how answers list alternatives -> what separates them, and how often at least; "km/h" and "AC/DC" list none
_ALTERNATIVES = {
    "or": (re.compile(r"\bor\b|或者|还是", re.IGNORECASE), 1),
    "slash": (re.compile(r"\s/\s|(?<=[^\W\d_]{3})/(?=[^\W\d_]{3})"), 1),
    "semicolon": (re.compile(r"[;；|](?=\s*\w)"), 1),
    "list": (re.compile(r"^[ \t]*[-*•][ \t]+(?=\S)|(?<!\S)\d{1,2}[.)]\s+(?=\S)", re.MULTILINE), 2),
}
_WORD = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+")


def build_judge(options: Mapping[str, Any]) -> Judge:
    """The judge of the configuration: `judge: api` asks a model, `judge: offline` matches texts."""
    return OfflineJudge() if options["judge"] == "offline" else model_judge(options)


def knowrl_v1(judge: Judge) -> Grade:
    """KnowRL's first version; see the table."""

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        case = _Case.read(completion, columns)
        if case.score is not None:
            return case.score
        if is_v1_refusal(case.answer):
            return Score(WRONG, "matches a refusal pattern", "refused")
        if not any(has_number(truth) or shares_keyword(case.answer, truth) for truth in case.truths):
            return Score(
                WRONG, "has no word in common with the truth", "refused" if is_refusal(case.answer) else "wrong"
            )
        return _score(await case.ask(judge), refused=WRONG)

    return grade


def knowrl_v2(judge: Judge) -> Grade:
    """KnowRL since October 2025; see the table."""

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        case = _Case.read(completion, columns)
        return case.score or _score(await case.ask(judge), refused=REFUSED)

    return grade


def correctness(judge: Judge) -> Grade:
    """The hardened default; see the table."""

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        case = _Case.read(completion, columns)
        if case.score is not None:
            return case.score
        if not has_one_pair_of_each_tag(completion):
            return Score(WRONG, "not exactly one think block and one answer block", "wrong")
        if not any(char.isalnum() for char in case.answer):
            return Score(WRONG, "the answer holds neither letter nor digit", "wrong")
        if normalise(case.answer) not in {normalise(truth) for truth in case.truths}:
            if is_refusal(case.answer):
                return Score(REFUSED, "declines to answer", "refused")
            if kind := lists_alternatives(case.answer, case.truths):
                return Score(WRONG, f"lists alternatives ({kind})", "wrong")
        return _score(await case.ask(judge), refused=REFUSED)

    return grade


def shares_keyword(answer: str, truth: str) -> bool:
    """Whether one of the truth's words (longer than one character, no stop word) is a word of the answer."""
    keywords = {word for word in re.findall(r"\w+", truth.lower()) if len(word) > 1 and word not in STOP_WORDS}
    said = set(re.findall(r"\w+", answer.lower()))
    return bool(keywords & said) or any(spaceless(word) and word in answer.lower() for word in keywords)


def has_one_pair_of_each_tag(completion: str) -> bool:
    """Whether each tag occurs once, and in order; `<think>` may be missing at the start (see format.py)."""
    text = completion if TAGS[0] in completion else TAGS[0] + completion
    places = [text.find(tag) for tag in TAGS]
    return all(text.count(tag) == 1 for tag in TAGS) and places == sorted(places)


def lists_alternatives(answer: str, accepted: Sequence[str]) -> str:
    """In which way an answer consists of alternatives, while no truth lists any in that way; "" if it does not.

    It does if every part is short: in a longer text an "or" or a list is nearly always incidental, and the judge grades
    alternatives.
    """
    for kind, (separator, least) in _ALTERNATIVES.items():
        parts = separator.split(answer)
        if (
            len(parts) > least
            and all(len(_WORD.findall(part)) <= MAX_ALTERNATIVE_WORDS for part in parts)
            and not any(separator.search(truth) for truth in accepted)
        ):
            return kind
    return ""


class _Case:
    """A completion's answer (the first block), its row's question and truths; or the score, where that is decided
    already."""

    def __init__(self, question: str, answer: str, accepted: list[str], score: Score | None):
        self.question, self.answer, self.truths, self.score = question, answer, accepted, score

    @classmethod
    def read(cls, completion: str, columns: Mapping[str, Any]) -> "_Case":
        question, answer, accepted = (
            str(columns.get("question") or "").strip(),
            parse(completion).answer,
            truths(columns.get("answer")),
        )
        score = (
            Score(WRONG, "no answer block" if answer is None else "the answer block is empty", "wrong")
            if not answer
            else Score(None, "the row has no question")
            if not question
            else Score(None, "the row has no answer to compare with")
            if not accepted
            else None
        )
        return cls(question, answer or "", accepted, score)

    async def ask(self, judge: Judge) -> Verdict:
        return await judge.verdict(self.question, self.answer, self.truths)


def _score(verdict: Verdict, refused: float) -> Score:
    values = {"correct": CORRECT, "wrong": WRONG, "refused": refused, None: None}
    return Score(values[verdict.outcome], verdict.reason, verdict.outcome)
