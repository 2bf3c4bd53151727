"""Read a judge's reply as a grade; a reply that might mean something else is no grade.

    parse_grade("**Grade:** A (correct)")           ->  "correct"
    parse_grade('{"grade": "B", "reason": "..."}')  ->  "wrong"
    parse_grade("A: The answer does not match.")    ->  None

A reply has a verdict, and perhaps an explanation. The verdict stands first, or last behind a label. It is a letter, a
word or both; in brackets, Markdown, tags, JSON or a fence. The explanation gives no grade, but it takes one back: by a
word that speaks of another grade, by a denial of the grade ("B: not wrong"), or if it is "correct", by any negation. To
ask a judge again costs one call, a wrong reading pays a wrong answer.
"""

import contextlib
import json
import re
import unicodedata

from grpo.algorithm.schema import Outcome
from knowledge.facts.replies import without_thoughts

WORDS: dict[Outcome, str] = {  # a verdict consists of these, and of letters
    "wrong": r"INCORRECT|WRONG|NOT CORRECT|(?:回答|答案)?(?:[错錯][误誤]|不正[确確])|不[对對]|[错錯](?!\w)|[❌✗✘]",
    "refused": r"NOT[ _-]?ATTEMPTED|未尝试(?:回答)?|未作答|未回答|拒绝回答",
    "correct": r"CORRECT|(?:回答|答案)?正[确確]|[对對](?!\w)|✅",
}
HINTS: dict[Outcome, str] = {  # what else speaks of a grade, in an explanation
    "wrong": r"false|inaccurate|mistaken|erroneous|inconsistent|mismatch\w*|conflict\w*|contradict\w*|有误|不符|矛盾",
    "refused": r"declin(?:es|ed)|refus(?:es|ed)|拒绝",
    "correct": r"right|accurate|match(?:es|ed|ing)?|agrees?|equivalent|identical|same|consistent|一致|相符|匹配|符合",
}
LETTERS: dict[Outcome, str] = {"wrong": "B", "refused": "C", "correct": "A"}
MAX_VERDICT_CHARS = 400  # of its beginning or end are looked at for the verdict

_MARK = r"(?:[^\w?≠✅❌✗✘]|_)"  # it says nothing about a grade
_START = r"(?!(?<=[A-Za-z0-9])[A-Za-z])"  # of a word or of a letter: BA holds none
_TOKEN = (  # B+ and A- are grades of a school, on another scale
    rf"{_START}(?:{'|'.join([*LETTERS.values(), *WORDS.values()])})(?![A-Za-z0-9+#]|[-−–][^\w\n]*(?:\n|\Z))"
)
_LABEL = (
    r"(?:(?:(?:the|my|final|overall|correct|so|therefore|thus|hence|here|is|i|would)[ ,]+|最终)*"
    r"(?:grad(?:e|ing)|rat(?:e|ing)|option|choice|verdict|judge?ment|result|score|evaluation|conclusion"
    r"|评分|等级|评判|判定|判断|结果|结论)(?: (?:this|the) \w+)?(?:结果)?[\s*_]*(?:is|as|为|是|[:=>→-])?"
    r"|(?:the |this |it |candidate['’]s |(?:model|student)['’]s |answer )*is (?=[a-z]{2})|answer:"
    r"|(?:so|therefore|thus|hence)[:,]|(?:该|这个?|此|候选|考生|应|[判评]为)+(?:答案|回答)?是?)"
)
_VERDICT = re.compile(
    rf"{_MARK}*(?P<label>{_LABEL})?{_MARK}*(?P<grade>{_TOKEN}(?:(?!\n){_MARK}*{_TOKEN})*)",
    re.IGNORECASE,
)
# behind a verdict: nothing, or what sets an explanation off. "A. Lincoln" and "Correct: New York" are no verdicts, but
# who speaks of "the answer" explains
_SET_OFF = re.compile(
    rf"的?{_MARK}*\Z|[^\w\n?]*\n|[^\w\s?]*\s?[,;(–—]|[^\w\s?]*\s-"
    r"|[^\w\s?]*[.:]\s*(?i:the|this|that|both)\s[^\n]*(?:candidate|\banswer|response|reference)"
    r"|[^\w\s?]*[:。][^\n]*(?:回答|答案)"
    r"|(?<=\b[ABCabc])[^\w\s?]*:|(?<=\w\w)[.!]|\s(?:because|since)\b"
)
_NAMED = re.compile(
    _START + "(?:" + "|".join(f"(?P<{name}>{LETTERS[name]}|{WORDS[name]})" for name in LETTERS) + ")(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_SPOKEN = re.compile(  # in an explanation; a letter before a word is an article
    _START
    + "(?:"
    + "|".join(rf"(?P<{name}>(?i:{WORDS[name]}|{HINTS[name]})|{LETTERS[name]}(?!\s+[a-z]))" for name in LETTERS)
    + ")(?![A-Za-z0-9])"
)
_NEGATION = re.compile(
    r"\b(?:no|nope|not|nor|never|none|neither|cannot|but|however|fails?|failed|part(?:ial)?ly)\b|n['’]t\b|[不没無无未否但却]"
    r"|\b(?:if|unless|provided|assuming|suppos\w+|(?:were|had) (?:it|its|the|this|that|he|she|they))\b"
    r"|,\s*(?:were|had|should)\b"
    r"|如果|假如",
    re.IGNORECASE,
)
# words of "correct" that give no grade: they are denied, or speak of the reference
_NOT_CORRECT = re.compile(
    rf"(?:{_NEGATION.pattern})(?:\s*[\w'’-]+){{0,3}}?\s*(?:correct|{HINTS['correct']})"
    r"|(?:correct|right) \w+ (?:is|was|would be)\b|正[确確]的?答案",
    re.IGNORECASE,
)
_NOT_WRONG = re.compile(
    rf"(?:{_NEGATION.pattern}|\bnothing\b)(?:\s*[\w'’-]+){{0,3}}?\s*(?:{WORDS['wrong']}|{HINTS['wrong']})",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"<\|[a-z_▁]{1,30}\|>|<(/?)([a-z_]{1,20})>|```(?:[a-z]+\s*\n)?|\\(?:boxed|text|textbf|mathbf|mathrm|fbox)\b",
    re.IGNORECASE,
)
_LABEL_ALONE = re.compile(rf"^({_MARK}*{_LABEL})[ *_]*\n+", re.IGNORECASE)  # the verdict is on the next line
_SENTENCE_END = re.compile(r"\n|(?<=[.!?;])\s|。")


def parse_grade(reply: str) -> Outcome | None:
    """Return the grade in a reply; None if it holds none, or might hold several."""
    text = _TAG.sub(_untagged, unicodedata.normalize("NFKC", without_thoughts(reply)))
    text = _LABEL_ALONE.sub(r"\1 ", text.strip())
    start = text.find("{")
    end = text.rfind("}") + 1
    with contextlib.suppress(ValueError, RecursionError):
        pairs = json.loads(text[start:end], object_pairs_hook=tuple, strict=False)
        fields = [_as_line(key.replace("_", " "), value) for key, value in pairs]
        text = "\n".join([text[:start].rstrip(": \n"), *fields, text[end:]])
    verdict, explanation = _parts(text.strip())
    named = _outcomes(_NAMED, verdict)
    denial = _NOT_WRONG if named == {"wrong"} else _NEGATION
    is_denied = named != {"refused"} and denial.search(explanation)
    if len(named) != 1 or is_denied or not _outcomes(_SPOKEN, _NOT_CORRECT.sub("", explanation)) <= named:
        return None
    return named.pop()


def _as_line(key: str, value: object) -> str:
    """Write a field of a JSON object as a judge would say it: "grade: A", "is correct", "never is correct"."""
    if isinstance(value, bool):
        return key if value else f"never {key}"
    return key if value is None else f"{key}: {value}"


def _untagged(tag: re.Match) -> str:
    """Return what a tag or fence stands for: a label if it has a name (<grade>A</grade>), or a new line."""
    if tag[2] and len(tag[2]) > 2 and not tag[1]:
        return f"\n{tag[2]}: "
    return "" if tag[0].startswith("\\") else "\n"


def _parts(text: str) -> tuple[str, str]:
    """Return verdict and explanation; an empty verdict if there is none."""
    verdict = _VERDICT.match(text[:MAX_VERDICT_CHARS])
    if verdict and _SET_OFF.match(text, verdict.end()):
        return verdict["grade"], text[verdict.end() :]
    last = _SENTENCE_END.split(text[-MAX_VERDICT_CHARS:].rstrip(".。 "))[-1]
    verdict = re.fullmatch(f"(?:{_VERDICT.pattern}){_MARK}*", last, re.IGNORECASE)
    if verdict and verdict["label"]:
        return verdict["grade"], text[: text.rindex(last)]
    return "", text


def _outcomes(pattern: re.Pattern, text: str) -> set[Outcome]:
    found = {one.lastgroup for one in pattern.finditer(text)}
    return {outcome for outcome in LETTERS if outcome in found}
