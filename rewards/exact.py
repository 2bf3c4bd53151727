"""Compare the answer with the truth after normalisation: "exact match", the measure of SQuAD and TriviaQA."""

import re
import string
from collections.abc import Sequence

from grpo.algorithm.schema import Score
from knowledge.text import compatible, fold
from rewards.format import final_answer
from rewards.registry import Columns

TRUE = ("true", "1", "1.0", "yes")  # in the column unanswerable, also of a CSV file
_ARTICLE = re.compile("^(?i:an?|the) |(?<= )(?:a|(?i:an|the)) ")  # before a word; the A of "Vitamin A" is none
_MIXED = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")  # 2½ is 2 1/2
_ALIKE = str.maketrans("‐‑‒–−⁄", "-----/")
EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*\n]+)\1(?!\w)")  # Markdown: **Paris**
_MARK = f"[{re.escape(string.punctuation)}“”‘’«»、。，！？：；（）《》·…]"
_SYMBOL = "[+#*^/=<>@%♯]"  # part of the word that it touches: C++, A+, 12%
_FACTORIAL = r"(?<=\d)!|(?<=(?<!\w)\w)!"  # of 12! and n!, as far as one can tell
_KEPT = rf"(?<!\w)-\d|(?<=\w)-(?!\w)|(?<![\w.])\.\w|(?<=[\w+]){_SYMBOL}|{_SYMBOL}(?=\w)|{_FACTORIAL}"
# 1,000 is 1000; but 1.5 is not 15, 1/2 is not 12, -5 and .5 are not 5
_DROPPED = re.compile(rf"(?<=\d),(?=\d{{3}}(?!\d))|(?!{_KEPT})(?:(?<!\d){_MARK}|{_MARK}(?!\d))")


def normalise(text: str) -> str:
    """Unify compatibility characters, accents, dashes and case; drop articles, extra spaces, and punctuation, but not
    the symbols of numbers and words (1.5, C++)."""
    text = compatible(_MIXED.sub(" ", text)).translate(_ALIKE)
    words = _DROPPED.sub("", EMPHASIS.sub(r"\2", text)).split()
    return fold(_ARTICLE.sub("", " ".join(words)))


def equals_one(answer: str, accepted: Sequence[str]) -> bool:
    """Return whether an answer equals one of the truths, after normalisation; nothing equals an empty one."""
    return normalise(answer) in {normalise(truth) for truth in accepted} - {""}


def truths(answer: object) -> list[str]:
    """Return the acceptable answers of a row, which holds one or a list of them, as texts; [] if it holds none.

    Of a solution as in GSM8K, which ends in `#### answer`, it is the answer. 1994.0 is 1994: a column of whole
    numbers that has gaps is one of floats.
    """
    found = answer if isinstance(answer, list) else [answer]
    texts = [after_solution(_as_text(item)) for item in found if item is not None and item == item]  # NaN: a gap, too
    return [text for text in texts if text.strip()]


def is_unanswerable(columns: Columns) -> bool:
    """Return whether a row says of its question that to decline is right."""
    return str(columns.get("unanswerable")).strip().lower() in TRUE


def _as_text(item: object) -> str:
    return str(item).removesuffix(".0") if isinstance(item, float) else str(item)


def after_solution(text: str) -> str:
    """Return what follows the #### of a solution on its line; a text without that is the answer itself.

    It is a heading if other lines follow and it says nothing, or they hold a box, or there are several.
    """
    before, has_answer, after = text.rstrip().rpartition("####")
    answer, _, more = after.partition("\n")
    is_heading = bool(more) and (not answer.strip() or "####" in before or "\\boxed" in more)
    return answer.strip() if has_answer and not is_heading else text


def grade(completion: str, columns: Columns) -> Score:
    """Give 1 if the answer equals a truth, else 0: the answer block after the thoughts, or all of the completion."""
    accepted = truths(columns.get("answer"))
    if not accepted:
        return Score(None, "the row has no answer to compare with")
    block = final_answer(completion)
    said = completion if block is None else block
    is_right = equals_one(said, accepted)
    verb = "equals" if is_right else "is not"
    reason = f"{said.strip()[:80]!r} {verb} {accepted[0][:80]!r}"
    return Score(float(is_right), reason, "correct" if is_right else "wrong")
