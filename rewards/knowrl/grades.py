"""Read a judge's reply as a grade, in any usual dress; a reply that might mean something else is no grade.

    parse_grade("**Grade:** A (correct)")       ->  "correct"
    parse_grade('{"grade": "B"}')               ->  "wrong"
    parse_grade("A correct answer")             ->  None

A reply is a grade if it is one as a whole: a letter, a word, or both; with or without a label, brackets, Markdown,
JSON or a fence. An explanation may follow a grade that stands on the first line or before a colon, and may precede a
grade with a label on the last line. All grades of a reply must be the same, also those that the explanation of a bare
letter names. The article "a", the CORRECT in NOT CORRECT and the A in "A or B" are no grades.
"""

import json
import re
import unicodedata
from typing import Any

from grpo.schema import Outcome
from knowledge.facts.replies import num_words, unfenced, without_thoughts

GRADES: dict[str, Outcome] = {  # in capitals, without spaces and the like
    "A": "correct",
    "CORRECT": "correct",
    "正确": "correct",
    "正確": "correct",
    "回答正确": "correct",
    "答案正确": "correct",
    "对": "correct",
    "B": "wrong",
    "INCORRECT": "wrong",
    "WRONG": "wrong",
    "错误": "wrong",
    "錯誤": "wrong",
    "不正确": "wrong",
    "不正確": "wrong",
    "回答错误": "wrong",
    "答案错误": "wrong",
    "回答不正确": "wrong",
    "答案不正确": "wrong",
    "错": "wrong",
    "C": "refused",
    "NOTATTEMPTED": "refused",
    "未尝试": "refused",
    "未尝试回答": "refused",
    "未作答": "refused",
    "未回答": "refused",
    "拒绝回答": "refused",
}
KEYS = {  # of a JSON object, in small letters
    *("grade", "verdict", "judgement", "judgment", "result", "label", "rating", "evaluation", "assessment", "decision"),
    *("answer", "correctness", "score", "评分", "等级", "评级", "判定", "判断", "结果", "结论", "评价"),
}
_ZH_WORDS = sorted((word for word in GRADES if not word.isascii()), key=len, reverse=True)  # 对 and 错 come last
_TOKEN = r"(?:NOT[ _-]?ATTEMPTED|INCORRECT|CORRECT|WRONG|[ABC])(?![A-Z0-9])|" + "|".join(_ZH_WORDS)
_BETWEEN = r"(?:[^\w?≠¬❌✗✘]|_)*"  # what may stand around a grade: marks that say nothing about it
_LABEL = (
    r"(?:(?:the|my|final|overall|correct|so|therefore|thus|hence|here|is)[\s,]+|最终|最后)*"
    r"(?:(?:grade|grading|option|choice|verdict|judge?ment|result|label|rating|evaluation|assessment|decision"
    r"|评分|等级|评级|评判|判定|判断|结果|结论"
    r"|评价)(?:结果)?[\s*_]*(?:is|are|为|是|[:=>→-])?|(?:answer|答案|回答)[\s*_]*(?:is)?[\s*_]*:)"
)
_MARKUP = re.compile(
    r"</?[a-z_]{1,20}>|<\|[a-z_▁]{1,30}\|>|\\(?:boxed|text|textbf|mathbf|mathrm|fbox)\b", re.IGNORECASE
)
_LABELLED = re.compile(rf"{_BETWEEN}{_LABEL}(.*)", re.IGNORECASE)
_LABEL_ALONE = re.compile(rf"^({_BETWEEN}{_LABEL})[ *_]*\n+", re.IGNORECASE)  # the grade is on the next line
_SENTENCE = re.compile(  # the answer is A would be no grade: it may repeat the answer
    rf"{_BETWEEN}(?:(?:the|this|that|it|so|candidate|predicted|given|model|student)(?:['’]s)?[\s,]+)*"
    rf"(?:(?:answer|response|prediction)\s+)?(?:is|was)\s+(not\s+correct|incorrect|correct|wrong){_BETWEEN}",
    re.IGNORECASE,
)
_WHOLE = re.compile(rf"{_BETWEEN}(?:(?:{_TOKEN}){_BETWEEN})+", re.IGNORECASE)
_EXPLAINS = re.compile(r":| [-–—] ")  # what stands between a grade and its explanation
_EACH = re.compile(_TOKEN, re.IGNORECASE)
_NAMED = re.compile(  # in an explanation
    r"\b[ABC]\b|(?i:\b(?:not[ _-]?attempted|incorrect|correct|wrong)\b)|" + "|".join(_ZH_WORDS[:-2])
)


def parse_grade(reply: str) -> Outcome | None:
    """Return the grade that a reply is; None if it is none, or might be several."""
    text = unicodedata.normalize("NFKC", unfenced(without_thoughts(reply)))
    try:
        return _from_json(json.loads(text, object_pairs_hook=list))
    except (ValueError, RecursionError):
        pass
    text = _LABEL_ALONE.sub(r"\1 ", _MARKUP.sub(" ", text)).strip()
    return _grade(text) or _from_lines(text)


def _from_json(data: Any) -> Outcome | None:
    """Read a string, a list of one, or an object in which all KEYS (or its only key) have the same grade."""
    if isinstance(data, str):
        return _grade(data)
    if not isinstance(data, list) or not data:
        return None
    is_object = all(isinstance(pair, tuple) for pair in data)
    if not is_object:
        return _from_json(data[0]) if len(data) == 1 else None
    values = [value for key, value in data if key.lower() in KEYS or len(data) == 1]
    return _agreed([_from_json(value) for value in values])


def _from_lines(text: str) -> Outcome | None:
    """Read a grade with an explanation after it, or before it if the grade has a label."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    grades = [_grade(line) or _grade_before_colon(line) for line in lines]
    if _agreed([grade for grade in grades if grade]) is None:
        return None
    if _LABELLED.fullmatch(lines[-1]) and grades[-1]:
        return grades[-1]
    if _LABELLED.fullmatch(lines[0]) and grades[0]:
        return grades[0]
    if _grade(lines[0]) and len(_EACH.findall(lines[0])) > 1:  # a letter and its word: no bare letter
        return grades[0]
    explained = [_outcome(word) for word in _NAMED.findall(text)]
    return _agreed([grades[0], *explained])


def _grade(text: str) -> Outcome | None:
    """Read a text that is nothing but a grade, perhaps with a label, or a sentence that says it."""
    sentence = _SENTENCE.fullmatch(text.strip())
    if sentence:
        return "correct" if sentence[1].lower() == "correct" else "wrong"
    labelled = _LABELLED.fullmatch(text.strip())
    bare = labelled[1] if labelled else text
    if not _WHOLE.fullmatch(bare):
        return None
    return _agreed([_outcome(token) for token in _EACH.findall(bare)])


def _grade_before_colon(line: str) -> Outcome | None:
    """Read a grade before an explanation. A single word explains nothing: CORRECT: no."""
    head, *rest = _EXPLAINS.split(line, maxsplit=1)
    return _grade(head) if rest and num_words(rest[0]) > 1 else None


def _outcome(token: str) -> Outcome:
    return GRADES[re.sub(r"[\s_-]", "", token.upper())]


def _agreed(grades: list[Outcome | None]) -> Outcome | None:
    """Return the one grade that all of them are; None if they differ, or if there is none."""
    return grades[0] if len(set(grades)) == 1 else None
