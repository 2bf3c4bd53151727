"""Judge an answer by the rules of KnowRL's guide, before its judge is asked: refusals, numbers, keywords.

    1. An answer that declines is no attempt.
    2. If the truth holds a digit, the judge decides.
    3. An answer that shares no keyword with the truth is wrong; any other one goes to the judge.

The guide's own patterns miss "I don't know" and curly apostrophes, and find "I can't help falling in love". It seeks
keywords within words ("red" in "scared"). Here everyday refusals decline, too; what equals a truth does not; and
keywords are words.
"""

import re
from collections.abc import Sequence

from knowledge.store.tokens import tokens
from rewards.exact import equals_one
from rewards.format import Parsed
from rewards.outcome.correctness import NO_ANSWER
from rewards.outcome.judge import Judgement
from rewards.outcome.refusal import is_refusal

_UNABLE = r"(?:cannot|can not|can't|unable to|not able to|won't)"
_ANSWER = r"(?:answer|respond|provide|assist|give (?:you|an|any)|tell you|help (?:you|with))"
_MORE = r"(?:more|additional) (?:information|details|context|specifics|clarification)"
_NEAR = r"[^\n]{0,80}?"
_REFUSALS = re.compile(
    "|".join(
        (
            rf"\b{_UNABLE} {_ANSWER}\b",
            rf"\bi (?:must|have to|need to)\b{_NEAR}\b(?:decline|refuse|refrain|abstain)"
            r" (?:to answer|(?:from )?\w+ing)\b",
            rf"\bas an? (?:ai|language model|assistant)\b{_NEAR}\bi (?:{_UNABLE}|must decline|don't have)",
            rf"\b(?:ethical|moral|legal)\b{_NEAR}\b(?:concerns|issues|considerations|limitations|constraints)\b"
            rf"{_NEAR}\b(?:prevent|stop|preclude|prohibit|disallow)",
            rf"\b(?:need|require)s? {_MORE} to {_ANSWER}\b",
            rf"\b(?:insufficient|lack of|not enough) (?:information|context|details) to {_ANSWER}\b",
            rf"\btoo vague to {_ANSWER}\b",
            rf"\b{_MORE} (?:is|are|would be) (?:needed|required|necessary)\b",
        )
    ),
    re.IGNORECASE,
)


def judge_by_guide(parsed: Parsed, question: str, accepted: Sequence[str]) -> Judgement | None:
    """Judge an answer block for which the guide asks no judge; None if a judge is to decide."""
    answer = " ".join(parsed.answer.replace("’", "'").split())
    if equals_one(answer, accepted):
        return None
    if is_refusal(answer) or _REFUSALS.search(answer):
        return Judgement("refused", "declines to answer")
    keywords = set(tokens(" ".join(accepted)))
    if not keywords or any(truth == NO_ANSWER or is_refusal(truth) or re.search(r"\d", truth) for truth in accepted):
        return None
    return None if keywords & set(tokens(answer)) else Judgement("wrong", "shares no keyword with the truth")
