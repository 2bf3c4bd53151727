"""KnowRL's published reading of a judge's reply, as a reward of one's own: it looks for the grade "correct" first.

Its pattern for that grade is the word CORRECT or the letter A, in capitals after the whole reply is. So a reply that
holds the article "a" is a right answer: "This is a wrong answer: INCORRECT" pays 2, "NOT_ATTEMPTED, a refusal" too.

The judge of this example never errs, and needs no network. `python -m rewards.audit rewards/examples/knowrl_judge.yaml`
says nonetheless: "correct gives 2: a wrong answer".
rewards/outcome/grades.py reads such replies as what they say, or as no grade.
"""

import re

from rewards.exact import equals_one
from rewards.format import parse
from rewards.outcome.refusal import is_refusal

GRADES = ((r"\b(CORRECT|A)\b", 2.0), (r"\b(INCORRECT|B)\b", -1.0), (r"\b(NOT[_ ]ATTEMPTED|C)\b", 1.0))  # in its order


def reply_of_judge(answer: str, truth: str) -> str:
    """Grade an answer truly, in a sentence as chat models write it."""
    if equals_one(answer, [truth]):
        return "The answer agrees with the reference: CORRECT"
    if is_refusal(answer):
        return "NOT_ATTEMPTED, a refusal"
    return "This is a wrong answer: INCORRECT"


def read_reply(reply: str) -> float:
    """Return what KnowRL's code makes of a judge's reply."""
    return next((value for pattern, value in GRADES if re.search(pattern, reply.upper())), 0.0)


def correct(completions, answer, **columns):
    """Return 2 for a right answer, 1 for a refusal, -1 for a wrong one, as KnowRL intends."""
    blocks = [parse(completion).answer for completion in completions]
    return [
        read_reply(reply_of_judge(block, truth)) if block else -1.0 for block, truth in zip(blocks, answer, strict=True)
    ]
