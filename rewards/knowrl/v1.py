"""The rules of KnowRL's guide, by which an answer is wrong before a judge is asked: refusal patterns and keywords.

They miss "I don't know", "unknown" and curly apostrophes, and take "I can't help falling in love" for a refusal. The
patterns find here exactly what they find there, in time linear in the text. Keywords are compared word by word: the
original finds "red" in "scared".
"""

import re

from knowledge.store.tokens import UNSPACED
from rewards.outcome.correctness import Answer
from rewards.outcome.judge import Judgement
from rewards.outcome.refusal import is_refusal

STOP_WORDS = set(
    "the a an and or but is are was were in on at to for with by about like from of that this these those it they he "
    "she we you i me my your our their".split()
)
_UNSPACED = re.compile(f"[{UNSPACED}]")  # in scripts without spaces, a word may stand inside another
_SPEAK = r"(?:answer|respond|provide|give|tell|assist|help)"
_MORE = r"(?:more|additional)"
_ON_ONE_LINE = r"(?>.*?%s)"  # the first such words after those before; once found, they are not sought again
_PATTERNS = [
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        rf"\b(?:cannot|can't|unable to)\s+{_SPEAK}\b",
        r"\bas (?:an AI|a language model|an assistant),?\s+I\s+"
        r"(?:cannot|can't|am unable to|must decline|am not able to|don't have|won't)\b",
        rf"\b(?:need|require) {_MORE}\s+(?:information|details|context|specifics|clarification)\s+"
        r"to\s+(?:answer|respond|provide|help|assist)\b",
        r"\b(?:insufficient information|lack of (?:information|context|details)"
        r"|not enough (?:information|context)|too vague)\s+to\s+"
        r"(?:answer|respond|provide|give|help|assist)\b",
        rf"\b{_MORE} (?:information|context|details)\s+would be\s+(?:needed|required|necessary)\b",
        "^"
        + _ON_ONE_LINE % r"\bI (?:must|have to|will have to|need to)\b"
        + _ON_ONE_LINE
        % r"\b(?:decline|refuse|refrain from|abstain from)\s+(?:answering|responding|providing|giving)\b",
        "^"
        + _ON_ONE_LINE % r"\b(?:ethical|moral|legal)\b"
        + _ON_ONE_LINE % r"\b(?:concerns|issues|considerations|limitations|constraints)\b"
        + _ON_ONE_LINE % r"\b(?:prevent|stop|preclude|prohibit|disallow)\b",
    )
]


def matches_pattern(answer: str) -> bool:
    """Return whether one of the patterns of KnowRL's first version occurs in an answer."""
    return any(pattern.search(answer) for pattern in _PATTERNS)


def rules(answer: Answer) -> Judgement | None:
    """Judge an answer that earns nothing by these rules; None if a judge is to decide."""
    if matches_pattern(answer.text):
        return Judgement("refused", "matches a refusal pattern")
    for truth in answer.truths:
        has_digit = any(map(str.isdigit, truth))
        if has_digit or shares_keyword(answer.text, truth):
            return None
    return Judgement("refused" if is_refusal(answer.text) else "wrong", "has no word in common with the truth")


def shares_keyword(answer: str, truth: str) -> bool:
    """Return whether a word of the truth (two characters or more, no stop word) is a word of the answer."""
    answer = answer.lower()
    said = set(re.findall(r"\w+", answer))
    for word in re.findall(r"\w+", truth.lower()):
        if len(word) > 1 and word not in STOP_WORDS:
            if word in said or (_UNSPACED.search(word) and word in answer):
                return True
    return False
