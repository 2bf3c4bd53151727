r"""Verify mathematics by rules: compare the boxed answer of a completion with the ground truth.

The last `\boxed{}` or `\fbox{}` is the answer. A box inside it only decorates, and boxes that are joined by nothing but
a comma, "and" or "or" are one list: `x = \boxed{2} or x = \boxed{3}` answers 2, 3. So it is in the ground truth. A last
box that is cut off or blank is no answer.

Numbers are compared exactly: 0.5 is \frac12 and 0.33 is not 1/3, so that `\boxed{0.33} or \boxed{\frac13}` is a list of
two answers. Expressions are compared at random points. Nothing is evaluated as code, and every comparison ends within
about a second, whatever the model wrote.
"""

import re
from typing import Literal

from rewards.mathematics import units
from rewards.mathematics.answer import read_answer
from rewards.mathematics.shapes import same
from rewards.mathematics.tokens import are_same_word, has_content, text_key, tokenize
from rewards.mathematics.value import Points, Unreadable

MAX_ANSWER_CHARS = 2000  # longer answers are compared as text
MAX_JOINED = 8  # boxes that are one list
MAX_LABEL_CHARS = 20  # of the `x = ` before them

BoxGrade = Literal["correct", "wrong", "no_answer", "unscorable"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
# what a box without braces holds: a number, a letter, or a command with its arguments (`\frac12`)
_UNBRACED = re.compile(
    r"[-+−]?(?:[0-9][0-9.,]*|[A-Za-z](?![A-Za-z])"
    rf"|\\[A-Za-z]+(?:\s*(?:\[[^\[\]{{}}]*\]|{_GROUP}|[0-9]|\\[A-Za-z]+))*)"
)
_LABEL = r"[A-Za-z](?:_\{?\w\}?)?\s*=\s*"
_LINK = r"(?:[,;，；、或和]|,?(?:\\text\{)?\s*(?:and|or)\s*\}?)"
_JOINED = re.compile(rf"[\s$\\()\[\]]*{_LINK}[\s$\\()\[\]]*(?P<label>(?:{_LABEL})?)")
_LABELLED = re.compile(rf"(?<![A-Za-z\\]){_LABEL}\Z")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}` or `\fbox{}`, or of the last ones if they are joined, stripped.

    None if there is none, or the last one is cut off or blank.

    >>> last_boxed(r"First \boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> last_boxed(r"\boxed 7")
    '7'
    >>> last_boxed(r"$x = \boxed{2}$ or $x = \boxed{3}$")
    'x = 2, x = 3'
    """
    return _find_box(text)[0]


def gold_answer(text: str) -> str:
    r"""Return the ground truth of a bare answer, or of a solution with a box. It is "" if that is blank.

    >>> gold_answer(r"Since 6 * 7 = 42, it is \boxed{42}.")
    '42'
    """
    if not _outer_boxes(text):
        return text.strip()
    return last_boxed(text) or ""


def equivalent(answer: str, truth: str, question: str = "") -> bool:
    """Tell whether a careful reader would take the answer for the truth. Both are contents of boxes; never raises.

    question: if there is one, an answer counts only what question or truth name: 7 eggs, but not 7 doubtful ones.
    """
    if max(len(answer), len(truth)) > MAX_ANSWER_CHARS:
        return "".join(answer.split()) == "".join(truth.split()) != ""
    answer_tokens = tokenize(answer)
    truth_tokens = tokenize(truth)
    if not has_content(answer_tokens) or not has_content(truth_tokens):
        return False
    if text_key(answer_tokens) == text_key(truth_tokens) or are_same_word(answer_tokens, truth_tokens):
        return True
    points = Points(units.nouns_of(f"{question} {truth}") if question else None)
    try:
        return same(read_answer(answer_tokens, points), read_answer(truth_tokens, points))
    except (Unreadable, RecursionError):  # the comparison itself grew beyond the limits
        return False


def grade_box(completion: str, truth: str, question: str = "") -> tuple[BoxGrade, str]:
    """Return grade and reason for a completion; "unscorable" if the ground truth holds nothing to compare with."""
    gold = gold_answer(truth)
    if len(gold) <= MAX_ANSWER_CHARS and not has_content(tokenize(gold)):
        return "unscorable", f"the ground truth holds no answer: {_excerpt(truth)}"
    answer, problem = _find_box(completion)
    if answer is None:
        return "no_answer", problem
    if equivalent(answer, gold, question):
        return "correct", f"{_excerpt(answer)} is {_excerpt(gold)}"
    return "wrong", f"{_excerpt(answer)} is not {_excerpt(gold)}"


def _find_box(text: str) -> tuple[str | None, str]:
    """Return the content of the last box and "", or None and why there is none."""
    boxes = _outer_boxes(text)
    if not boxes:
        return None, r"no \boxed{} in the completion"
    _, end, content = boxes[-1]
    if not end:
        return None, r"the last \boxed{} is cut off"
    is_short = len(content.strip()) <= MAX_ANSWER_CHARS
    if is_short and all(token.text in "{}" for token in tokenize(content)):  # \, prints nothing
        return None, r"the last \boxed{} is blank"
    return _joined(text, boxes[-MAX_JOINED:]), ""


def _joined(text: str, boxes: list[tuple[int, int, str]]) -> str:
    """Return the last box and those that are joined to it as one list: `x = 2, x = 3`."""
    start, _, last = boxes.pop()
    items = [last.strip()]
    while boxes:
        before, end, content = boxes.pop()
        link = _JOINED.fullmatch(text, end, start) if end else None
        if link is None:
            break
        start = before
        if not equivalent(last, content):  # \boxed{x+1} or \boxed{1+x}
            items[:1] = [content.strip(), link["label"] + items[0]]
    if len(items) > 1:
        label = _LABELLED.search(text, max(0, start - MAX_LABEL_CHARS), start)
        if label:
            items[0] = label[0] + items[0]
    return ", ".join(items)


def _outer_boxes(text: str) -> list[tuple[int, int, str]]:
    """Return start, end and content of each box that is not inside another one; the end is 0 if it is cut off."""
    closing = _closing_braces(text)
    boxes: list[tuple[int, int, str]] = []
    for box in _BOX.finditer(text):
        if boxes and box.start() < boxes[-1][1]:
            continue
        if text[box.end() : box.end() + 1] == "{":
            end = closing.get(box.end(), 0)
            boxes.append((box.start(), end, text[box.end() + 1 : end - 1] if end else ""))
            continue
        found = _UNBRACED.match(text, box.end())
        if found:
            boxes.append((box.start(), found.end(), found[0].rstrip(".,")))
        elif box.end() == len(text):  # else it is the word \boxed in a sentence
            boxes.append((box.start(), 0, ""))
    return boxes


def _closing_braces(text: str) -> dict[int, int]:
    r"""Map the place of each brace that is closed to the place after its partner. `\{` and `\}` are not braces."""
    closing = {}
    waiting = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            waiting.append(brace.start())
        elif brace[0] == "}" and waiting:
            closing[waiting.pop()] = brace.end()
    return closing


def _excerpt(text: str) -> str:
    """Return a short printable form of untrusted text, with control characters and lone surrogates escaped."""
    shown = text if len(text) <= 80 else text[:77] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
