r"""Compare the letter that an answer chooses with the right one, for questions with given choices.

The letter is in the last `\boxed{}`, or alone on the last line, or after the last "answer", or begins the answer: `B`,
`(B)`, `B) Paris`. A letter that begins a list of them, as in `B, A` or `B or A`, chooses nothing.
"""

import re

from grpo.algorithm.schema import Score
from rewards.boxed import last_boxed
from rewards.exact import truths
from rewards.format import final_text
from rewards.outcome.refusal import is_refusal
from rewards.registry import Columns

_MARKS = r"[\s*_`$(\[{]*"
_LETTER = r"(?:\\text\{|\\mathbf\{)?([A-J])(?![A-Za-z'’]|\s+[a-z])"
_AFTER_ANSWER = re.compile(rf"(?i:\banswer|\bchoice|\boption|答案|选项)(?i:\s+is)?{_MARKS}[:：是为]?{_MARKS}{_LETTER}")
_IN_FRONT = re.compile(rf"{_MARKS}{_LETTER}")
_CLOSING = r"[\s*_`$)\]}.]*"
_LAST_LINE = re.compile(rf"(?:\A|\n){_MARKS}{_LETTER}{_CLOSING}\Z")
_AND_MORE = re.compile(rf"{_CLOSING}(?:[-•,/;|&+、，；]|(?i:or|and)\b|[和或与]){_MARKS}{_LETTER}")


def chosen_letter(completion: str) -> str | None:
    """Return the letter, A to J, that a completion chooses; None if it names none."""
    text = final_text(completion)
    box = last_boxed(text)
    if box is not None:
        text = box
    named = list(_AFTER_ANSWER.finditer(text))
    chosen = _LAST_LINE.search(text) or (named[-1] if named else _IN_FRONT.match(text))
    is_one = chosen and not _AND_MORE.match(text, chosen.end(1))
    return chosen[1] if is_one else None


def grade(completion: str, columns: Columns) -> Score:
    """Give 1 for the right letter, else 0."""
    accepted = [truth.strip() for truth in truths(columns.get("answer"))]
    if not accepted:
        return Score(None, "the row has no answer to compare with")
    letter = chosen_letter(completion)
    if letter is None:
        is_declined = is_refusal(final_text(completion))
        reason = "declines to answer" if is_declined else "names no choice"
        return Score(0.0, reason, "refused" if is_declined else "wrong")
    is_right = letter in accepted
    reason = f"chooses {letter}, which is {'right' if is_right else 'wrong'}"
    return Score(float(is_right), reason, "correct" if is_right else "wrong")
