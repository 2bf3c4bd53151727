r"""Compare the letter that an answer chooses with the right one, for questions with given choices.

An answer states letters, clause by clause: `B`, `(B) Paris`, `I think it is B`, `应该选B`; or it denies them: `not A`,
`A is wrong`. The answer is the last `\boxed{}`, else what follows the last "answer", or "option", else all of the text.
It chooses a letter if it states exactly one that it does not deny, and nowhere says that it does not know.
"""

import re
import unicodedata

from grpo.algorithm.schema import Score
from rewards.exact import truths
from rewards.format import final_text
from rewards.mathematics.boxes import last_boxed
from rewards.outcome.refusal import is_refusal
from rewards.registry import Columns

ANNOUNCED_BY = (r"\banswers?\b|答案", r"\bchoice\b|\boption\b|选项")  # what follows the last of these is the answer
_MARKUP = re.compile(r"\\[A-Za-z]{2,}|[*_`$(\[{}\"“”]")
_END = r"(?![A-Za-z0-9'’])"  # of a letter
_NEXT = re.compile(rf"(?<![A-Za-z0-9])([A-J])(?:[^\w?]|_)*(?=[A-J]{_END}(?!\s+[a-z]))")  # A/B, A B, A) B)
_LISTED = re.compile(r"(?<![A-Za-z0-9])([A-J][).:]\s[^,.;!?\n]*?)\s(?=\(?[A-J][).:]\s)")  # A) Rome B) Paris
_BUT = re.compile(r"\b(?:any|anything|every|everything|all)\s+(?:but|except)\b", re.IGNORECASE)
_SCHOOL_GRADE = re.compile(r"(?<![A-Za-z0-9])[A-J](?:\+|[-−](?=\W*$))", re.MULTILINE)  # A+ is no choice
# in "C) Both A and B" the letters behind C are the text of that choice
_LETTERS_AS_TEXT = re.compile(
    r"(?<![A-Za-z0-9])([A-J][).:]\s+)(?:(?:both|either|neither|all|only|none)\s+(?:of\s+)?)?"
    r"[A-J](?:\s*(?:,|&|,?\s*\b(?:and|or|nor)\b)\s*[A-J])+(?=[.\s]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_ALONE = re.compile(r"[^\w\n]*([A-J])[^\w\n]*(?:\n|\Z)").match  # on its line
_CLAUSE = re.compile(r"([.!?;,\n。！？；，、/&+|]|\b(?:and|or|but|to)\b|或者?|和|与|但)", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9'’]+|[):\]]|[\u4e00-\u9fff]+")
_BEFORE = set(  # a letter that is stated
    """
    no wait actually hmm hm well so then thus therefore hence sorry oh ok okay rather instead maybe perhaps probably
    possibly likely could might may can alternatively otherwise else also first second other either both it its it's
    is are was be i i'd i'll think guess believe say choose pick mean meant select go going with for the answer
    answers option choice letter correct right best final must should would my that this yes sure certainly clearly
    definitely : ) ]
    """.split()
)
_BEFORE_ZH = re.compile(
    "(?:我们?|认为|觉得|选择?|应该?|是|也|可能|也许|等等|答案?|正确|选项|项|为|所以|因此|那么|还是|最终|的|故|则|即"
    "|综上(?:所述)?|由此|可知|可得|显然|[本此该]题)*"
)
_NOT = {"not", "isn't", "wasn't", "never", "neither", "nor", "except", "isnt"}
_NOT_ZH = re.compile("不(?:是|选|应该?)|并?非|排除")
_RIGHT = re.compile(
    r"(?:is|was|seems|looks|must be|should be)\b.*\b(?:right|correct|answer|best|better)\b|(?:because|since)\b"
    r"|选?项?(?:是|正|对)"
)
_WRONG = re.compile(r"(?:is|was|seems|looks)\b.*\b(?:wrong|incorrect|false|not)\b|isn.t\b|选?项?(?:不|错|是错)")


def chosen_letter(completion: str) -> str | None:
    """Return the letter, A to J, that a completion chooses; None if it chooses none, or several."""
    text = unicodedata.normalize("NFKC", final_text(completion))
    box = last_boxed(text)
    if box is not None:
        return _only(box)
    for words in ANNOUNCED_BY:
        *before, after = re.split(words, text, flags=re.IGNORECASE)
        if before and _statements(after):
            return _only(after)
    return _only(text)


def _only(text: str) -> str | None:
    """Return the only letter that a text states, and does not deny; None if it says that it does not know."""
    if any(is_refusal(clause) for clause in _CLAUSE.split(text)):
        return None
    statements = _statements(text)
    stated = {letter for letter, is_denied in statements if not is_denied}
    if len(stated) > 2 and (alone := _ALONE(text)):  # the other lines explain every choice
        stated = {alone[1]}
    stated -= {letter for letter, is_denied in statements if is_denied}
    return stated.pop() if len(stated) == 1 else None


def _statements(text: str) -> list[tuple[str, bool]]:
    """Return the letters of a text, clause by clause, and whether each is denied. What is asked states nothing."""
    text = _LETTERS_AS_TEXT.sub(r"\1", _BUT.sub("not", _MARKUP.sub(" ", _SCHOOL_GRADE.sub("grade", text))))
    parts = _CLAUSE.split(_LISTED.sub(r"\1, ", _NEXT.sub(r"\1, ", text)))
    found = [_statement(clause) for clause, end in zip(parts[::2], [*parts[1::2], ""], strict=True) if end != "?"]
    return [statement for statement in found if statement]


def _statement(clause: str) -> tuple[str, bool] | None:
    """Return the letter that a clause states or denies."""
    words = _WORD.findall(clause)
    is_denied = False
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        is_pronoun = word == "I" and rest and rest[0].islower()
        is_alone = not rest or rest == [")"]
        if not is_pronoun and re.fullmatch("[A-Ja-j]" if is_alone else "[A-J]", word):
            after = " ".join(rest)
            if _WRONG.match(after):
                return word.upper(), True
            is_text = is_alone or not rest[0].isalpha() or rest[0][0].isupper() or _RIGHT.match(after)
            return (word.upper(), is_denied) if is_text else None
        if word.lower() in _NOT or _NOT_ZH.search(word):
            is_denied = True
        elif word.lower() not in _BEFORE and not _BEFORE_ZH.fullmatch(word):
            return None
    return None


def grade(completion: str, columns: Columns) -> Score:
    """Give 1 for the right letter, else 0."""
    accepted = [truth.strip().upper() for truth in truths(columns.get("answer"))]
    if not accepted:
        return Score(None, "the row has no answer to compare with")
    letter = chosen_letter(completion)
    if letter is None:
        is_declined = is_refusal(final_text(completion))
        reason = "declines to answer" if is_declined else "names no choice, or several"
        return Score(0.0, reason, "refused" if is_declined else "wrong")
    is_right = letter in accepted
    reason = f"chooses {letter}, which is {'right' if is_right else 'wrong'}"
    return Score(float(is_right), reason, "correct" if is_right else "wrong")
