r"""Verify mathematics by rules: compare the answer in the last `\boxed{}` of a completion with the ground truth.

Only the last `\boxed{}` or `\fbox{}` counts; one that is cut off or blank is no answer. Comparison is exact: 0.5 is
\frac12 and 0.33 is not 1/3. Nothing is evaluated as code, and every comparison ends within a fraction of a second
whatever the model wrote. The reading and comparing is done in mathematics/.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from rewards.exact import after_solution
from rewards.mathematics.algebra import Algebra
from rewards.mathematics.answer import read_answer
from rewards.mathematics.application import mark_applications, number_parameters
from rewards.mathematics.equality import same
from rewards.mathematics.key import has_content, same_word, text_key
from rewards.mathematics.rational import Unreadable
from rewards.mathematics.tokens import Token, tokenize
from rewards.mathematics.trigonometry import separate_angles

MAX_ANSWER_CHARS = 2000  # longer answers are compared as text

Verdict = Literal["correct", "wrong", "no_answer", "unscorable"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[-+−]?[0-9][0-9.,]*|[-+−]?\\[A-Za-z]+|[A-Za-z]")
_OPTION = re.compile(r"\s*\[[^\[\]{}]*\]")  # the 3 of \sqrt[3]{2}
_ARGUMENT = re.compile(r"\s*(?:(?=\{)|[0-9A-Za-z](?![A-Za-z])|\\[A-Za-z]+)")
_NUM_ARGUMENTS = {"frac": 2, "dfrac": 2, "tfrac": 2, "cfrac": 2, "binom": 2, "dbinom": 2, "sqrt": 1}


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}` or `\fbox{}`, stripped.

    None if there is none, or it is cut off or blank.

    >>> last_boxed(r"First \boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> last_boxed(r"\boxed 7")
    '7'
    """
    return _find_box(text)[0]


def gold_answer(text: str) -> str:
    r"""Return the ground truth of a bare answer, a solution with a box, or a GSM8K solution that ends in `#### x`.

    It is "" if that is blank.

    >>> gold_answer("6 * 7 = <<6*7=42>>42\n#### 42")
    '42'
    """
    bare = after_solution(text)
    return (last_boxed(bare) or "" if _BOX.search(bare) else bare).strip()


def equivalent(answer: str, truth: str) -> bool:
    """Tell whether a careful reader would take the answer for the truth. Both are contents of boxes; never raises."""
    if max(len(answer), len(truth)) > MAX_ANSWER_CHARS:
        return "".join(answer.split()) == "".join(truth.split()) != ""
    answer_tokens, truth_tokens = tokenize(answer), tokenize(truth)
    if not has_content(answer_tokens) or not has_content(truth_tokens):
        return False
    if text_key(answer_tokens) == text_key(truth_tokens) or same_word(answer_tokens, truth_tokens):
        return True
    answer_tokens, truth_tokens = number_parameters(answer_tokens, truth_tokens)
    answer_tokens, truth_tokens = mark_applications(answer_tokens, truth_tokens)
    algebra = Algebra()
    if _same_value(answer_tokens, truth_tokens, algebra):
        return True
    parts = separate_angles(algebra)  # sin x and sin(x/2) meet when both are written in sines of x/2
    return bool(parts) and _same_value(answer_tokens, truth_tokens, Algebra(angle_parts=parts))


def _same_value(answer: Sequence[Token], truth: Sequence[Token], algebra: Algebra) -> bool:
    try:
        return same(read_answer(answer, algebra), read_answer(truth, algebra))
    except (Unreadable, RecursionError):  # the comparison itself grew beyond the limits
        return False


def verdict(completion: str, truth: str) -> tuple[Verdict, str]:
    """Return verdict and reason for a completion; "unscorable" if the ground truth holds nothing to compare with."""
    gold = gold_answer(truth)
    if not _is_readable(gold):
        return "unscorable", f"the ground truth holds no answer: {_excerpt(truth)}"
    answer, problem = _find_box(completion)
    if answer is None:
        return "no_answer", problem
    if equivalent(answer, gold):
        return "correct", f"{_excerpt(answer)} is {_excerpt(gold)}"
    return "wrong", f"{_excerpt(answer)} is not {_excerpt(gold)}"


def _find_box(text: str) -> tuple[str | None, str]:
    """Return the content of the last box and "", or None and why there is none."""
    boxes = deque(_BOX.finditer(text), maxlen=1)
    if not boxes:
        return None, r"no \boxed{} in the completion"
    last = boxes[0]
    if text[last.end() : last.end() + 1] == "{":
        end = _end_of_group(text, last.end())
        content = text[last.end() + 1 : end - 1]
    else:
        end = _end_without_braces(text, last.end())
        content = text[last.end() : end].rstrip(".,")
    if not end:
        return None, r"the last \boxed{} is cut off"
    if not _is_visible(content):
        return None, r"the last \boxed{} is blank"
    return content.strip(), ""


def _end_without_braces(text: str, start: int) -> int:
    r"""Return the index after what a box without braces holds; 0 if it holds nothing that fits.

    It may hold a number, a letter, or a command with its arguments (`\frac12`).
    """
    unbraced = _UNBRACED.match(text, start)
    if unbraced is None:
        return 0
    end = unbraced.end()
    command = unbraced[0].lstrip("-+−").removeprefix("\\")
    option = _OPTION.match(text, end) if command == "sqrt" else None
    end = option.end() if option else end
    for _ in range(_NUM_ARGUMENTS.get(command, 0)):
        argument = _ARGUMENT.match(text, end)
        if argument is None:
            return 0
        end = argument.end()
        if text[end : end + 1] == "{" and not argument[0][-1:].isdigit():
            end = _end_of_group(text, end) or len(text)
    while "\\" in unbraced[0] and text[end : end + 1] == "{":
        end = _end_of_group(text, end) or len(text)
    return end


def _end_of_group(text: str, start: int) -> int:
    r"""Return the index after the brace that closes the one at `start`, 0 if none does.

    `\{` and `\}` are not braces.
    """
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.end()
    return 0


def _is_visible(content: str) -> bool:
    r"""Tell whether anything would be printed: `\,`, `{}` and `\text{ }` are blank."""
    if len(content.strip()) > MAX_ANSWER_CHARS:
        return True
    return any(token.text not in "{}" for token in tokenize(content))


def _is_readable(gold: str) -> bool:
    return len(gold) > MAX_ANSWER_CHARS or has_content(tokenize(gold))


def _excerpt(text: str) -> str:
    """Return a short printable form of untrusted text, with control characters and lone surrogates escaped."""
    shown = text if len(text) <= 80 else text[:77] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
