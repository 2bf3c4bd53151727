"""Read a judge's reply as a grade, in all usual forms; a reply that might mean something else is no grade.

    parse_grade("**Grade:** A (correct)")           ->  "correct"
    parse_grade('{"grade": "B", "reason": "..."}')  ->  "wrong"
    parse_grade("A: The answer does not match.")    ->  None

A reply has a verdict, and perhaps an explanation. The verdict stands first, or last behind a label. It is a letter, a
word or both; in brackets, Markdown, tags, JSON or a fence. The explanation gives no grade, but it can take one back:
each of its words that speaks of a grade allows some outcomes. "Matches" and "B" allow one, "not wrong" allows two. What
they do not allow together is no grade: to ask a judge again costs one call, a wrong reading pays a wrong answer.
"""

import contextlib
import json
import re
import unicodedata
from typing import Any

from grpo.base.schema import Outcome
from knowledge.facts.replies import num_words, without_thoughts

OUTCOMES: frozenset[Outcome] = frozenset(("correct", "wrong", "refused"))
Allowed = frozenset[Outcome]
LETTERS: dict[Outcome, str] = {"wrong": "B", "refused": "C", "correct": "A"}
WORDS: dict[Outcome, str] = {  # a verdict consists of these, and of letters
    "wrong": r"INCORRECT|WRONG|NOT CORRECT|(?:回答|答案)?(?:[错錯][误誤]|不正[确確])|不[对對]|[错錯](?!\w)|[❌✗✘]",
    "refused": r"NOT[ _-]?ATTEMPTED|未尝试(?:回答)?|未作答|未回答|拒绝回答",
    "correct": r"CORRECT(?:NESS)?|(?:回答|答案)?正[确確]|[对對](?!\w)|✅",
}
HINTS: dict[Outcome, str] = {  # what else speaks of a grade, in an explanation
    "wrong": r"false|inaccurate|mistaken|erroneous|inconsistent|(?:mismatch|conflict|contradict)\w{0,6}(?! no)"
    r"|有误|不符|矛盾",
    "refused": r"declin(?:es|ed)|refus(?:es|ed)|拒绝",
    "correct": r"right|accurate|match(?:es|ed|ing)?|agrees?|equivalent|identical|same|consistent|一致|相符|匹配|符合",
}
MAX_VERDICT_CHARS = 400  # of its beginning or end are looked at for the verdict

_NOTHING = r"[^\w?≠¬✅❌✗✘]|_"  # marks that say nothing about a grade
_LABEL = (
    r"(?:(?:the|my|final|overall|correct|so|therefore|thus|hence|here|is|i|would|this|answer|response|should|be"
    r"|candidate['’]s|receives? a)[ ,]+|我的?|最终|最后|应该?)*"
    r"(?:(?:graded?|grading|rated?|option|choice|verdict|judge?ment|result|label|rating|score|evaluation|assessment"
    r"|decision|conclusion|评分|等级|评级|评判|判定|判断|结果|结论|评价)(?:结果)?[\s*_]*"
    r"(?:(?:this|the|it)\s+)?(?:answer\s+)?(?:is|are|as|of|为|是|[:=>→-])?"
    r"|(?:ans|answer|答案|回答)[\s*_]*(?:is)?[\s*_]*:|(?:so|therefore|thus|hence)\s*[,:]|deserves an?|[评判]为|选择?)"
)
_SUBJECT = (  # "the answer is A" would be no verdict: it may repeat the answer
    r"(?:(?:(?:the|this|that|it|so|candidate|predicted|given|model|student)(?:['’]s)?[\s,]+)*"
    r"(?:(?:answer|response|prediction)\s+)?(?:is|was)\s+|(?:该|这个?|此|候选|模型|考生|学生)*的?(?:答案|回答)是?)"
)
_START = r"(?!(?<=[A-Za-z0-9])[A-Za-z])"  # of a word or of a letter: BA holds none
_WORD = rf"(?:{'|'.join(WORDS.values())})(?![A-Za-z0-9])"
_TOKEN_END = r"(?![A-Za-z0-9+#]|[-−–][^\w\n]*(?:\n|\Z))"  # B+ and A- are grades of a school, on another scale
_TOKEN = rf"{_START}(?:{'|'.join([*LETTERS.values(), *WORDS.values()])}){_TOKEN_END}"
_MARKS = rf"(?:{_NOTHING})*"
_HEAD = (
    rf"{_MARKS}(?P<label>{_LABEL})?{_MARKS}"
    rf"(?P<grade>(?P<sentence>{_SUBJECT}){_WORD}的?|{_TOKEN}(?:(?:(?!\n)(?:{_NOTHING}))*{_TOKEN})*)"
)
_VERDICT = re.compile(rf"{_HEAD}(?=\s*(?:$|\n|['’_]+(?!\w)|[^\w\s'’?])|\s+(?:because|since|as)\b)", re.IGNORECASE)
_LAST_VERDICT = re.compile(_HEAD + _MARKS, re.IGNORECASE)
_NAMED = re.compile(
    _START + "(?:" + "|".join(f"(?P<{name}>{LETTERS[name]}|{WORDS[name]})" for name in LETTERS) + ")(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_LABEL_ALONE = re.compile(rf"^({_MARKS}{_LABEL})[ *_]*\n+", re.IGNORECASE)  # the verdict is on the next line
_GAP = re.compile(_MARKS)  # between a verdict and its explanation
_TAG = re.compile(
    r"<\|[a-z_▁]{1,30}\|>|<(/?)([a-z_]{1,20})>|```(?:[a-z]+\s*\n)?|\\(?:boxed|text|textbf|mathbf|mathrm|fbox)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\n|(?<=[.!?;])\s|。")
_SETS_OFF = re.compile(r"\n|[–—]|\s-+\s")
_EXPLAINS = re.compile(r"^because|answer|response|candidate|reference|prediction|both|回答|答案|参考", re.IGNORECASE)

_NEGATION = (
    r"(?i:(?:\b(?:not|never|no|none|nothing|neither|nor|without|cannot|would|fail(?:s|ed)? to|partially|partly|almost"
    r"|nearly|hardly|barely)|n['’]t)\s+(?:[\w'’-]{1,20}\s+){0,3}?)|(?:不|未|没有?|并非|无|部分)[\u4e00-\u9fff]{0,6}?"
)
_CONCEDED = r"[^.;!?\n]{0,200}\b(?:but|yet|however)\b|[^。;!?\n]{0,100}[但却]"  # a hint before it decides nothing
_LETTERS = {"wrong": r"B(?! would)", "refused": r"C(?! would)", "correct": r"A(?!\s+[a-z])"}  # a letter is an article


def _spoken(outcome: Outcome) -> str:
    hint = rf"(?i:{HINTS[outcome]})(?![A-Za-z])(?!{_CONCEDED})"
    return rf"(?P<{outcome}>(?i:{WORDS[outcome]})|{hint}|{_LETTERS[outcome]})"


_CLAIM = re.compile(
    # "the correct answer is Paris" speaks of the reference
    r"(?P<other>(?i:(?:correct|right)\s+[\w'’-]{1,20}\s*(?::|\b(?:is|was|are|were|would|should)\b))"
    r"|(?<!是)正[确確]的?答案)"
    # a word of a grade, perhaps negated
    rf"|(?P<negation>{_NEGATION})?{_START}(?:{'|'.join(map(_spoken, LETTERS))})(?![A-Za-z0-9])"
    # no by itself, and a candidate that does not know: anything but correct
    r"|(?P<denial>(?i:\Anot\b|\b(?:no|nope|not)(?=\s*(?:[,.;:!]|$))|\bnot (?:really|quite|exactly|at all)\b"
    r"|(?:\bnot|n['’]t) (?:know|answer|attempt)\b|\bno answer\b)|没有?回答|不知道"
    r"|(?<!是)否|不(?=[,。;!]|$))"
)


def parse_grade(reply: str) -> Outcome | None:
    """Return the grade in a reply; None if it holds none, or might hold several."""
    text = _TAG.sub(_untagged, unicodedata.normalize("NFKC", without_thoughts(reply)))
    text = _LABEL_ALONE.sub(r"\1 ", text.strip())
    start, end = text.find("{"), text.rfind("}") + 1
    with contextlib.suppress(ValueError, RecursionError):
        pairs = json.loads(text[start:end], object_pairs_hook=tuple, strict=False)
        fields = [_as_line(key, value) for key, value in pairs]
        text = "\n".join([text[:start].rstrip(": \n"), *fields, text[end:]])
    meant = _of_text(text)
    return next(iter(meant)) if len(meant) == 1 else None


def _as_line(key: str, value: Any) -> str:
    """Write a field of a JSON object as a judge would say it: "grade: A", "is correct", "never is correct"."""
    key = key.replace("_", " ")
    return (
        f"{'' if value else 'never '}{key}" if isinstance(value, bool) else f"{key}: {'-' if value is None else value}"
    )


def _untagged(tag: re.Match) -> str:
    """Return what a tag or fence stands for: a label if it has a name (<grade>A</grade>), or a new line."""
    if tag[2] and len(tag[2]) > 2 and not tag[1]:
        return f"\n{tag[2]}: "
    return "" if tag[0].startswith("\\") else "\n"


def _of_text(text: str) -> Allowed:
    """Return what verdict and explanation of a text allow together; nothing if it has no verdict."""
    text = text.strip()
    verdict = _VERDICT.match(text[:MAX_VERDICT_CHARS])
    if verdict:
        gap = _GAP.match(text, verdict.end())
        explanation = text[gap.end() :]
        if explanation and not _is_explained(verdict, gap[0], explanation):
            return frozenset()
    else:
        last = _SENTENCE_END.split(text[-MAX_VERDICT_CHARS:].rstrip(".。 "))[-1]
        verdict = _LAST_VERDICT.fullmatch(last)
        if not verdict or not (verdict["label"] or verdict["sentence"]):
            return frozenset()
        explanation = text[: text.rindex(last)]
    named = frozenset(word.lastgroup for word in _NAMED.finditer(verdict["grade"]))
    return named & _allowed_by(explanation) if len(named) == 1 else frozenset()


def _is_explained(verdict: re.Match, gap: str, explanation: str) -> bool:
    """Return whether a text explains the verdict before it. "A. Lincoln was here" and "Correct: New York" do not."""
    is_letter = re.search(r"\b[ABC]\b", verdict["grade"], re.IGNORECASE)
    is_set_off = verdict["sentence"] or _SETS_OFF.search(gap) or (is_letter and ":" in gap)
    if is_set_off and num_words(explanation) > 1:
        return True
    return bool(_CLAIM.search(explanation) or _EXPLAINS.search(explanation))


def _allowed_by(explanation: str) -> Allowed:
    """Return the outcomes that all words of an explanation allow."""
    allowed = OUTCOMES
    for claim in _CLAIM.finditer(explanation):
        if claim["denial"]:
            allowed -= {"correct"}
        elif not claim["other"]:
            spoken = {claim.lastgroup}
            allowed = allowed - spoken if claim["negation"] else allowed & spoken
    return allowed
