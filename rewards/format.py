"""Check the format that KnowRL asks for: a think block, then an answer block, and nothing else but a confidence.

`tag_count` gives partial credit for it, to a model that has never written the tags.

A linear scanner looks for exactly one of each tag, in order, with something in both blocks. The regular expression of
the original lets doubled tags and junk inside the answer through, and takes quadratic time on white space.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from grpo.algorithm.schema import Score, own_words
from grpo.base.text import is_blank
from rewards.own_words import CALLS, RESULT
from rewards.prompts import tag_of
from rewards.registry import Columns, Options, Reward

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_ANY_TAG = re.compile("|".join(TAGS))
_CONFIDENCE = re.compile(r"<confidence>\s*(\d{1,3}(?:\.\d{1,9})?|\.\d{1,9})\s*(?:(%)\s*)?</confidence>")


@dataclass(frozen=True)
class Parsed:
    """A completion taken apart.

    answer: the body of the first answer block, stripped; "" if it shows nothing; None if it is absent or not closed.
    problem: what is wrong with the format; "" if nothing is. is_well_tagged: each tag occurs once, all in order.
    """

    answer: str | None
    problem: str
    is_well_tagged: bool


def parse(completion: str) -> Parsed:
    """Take a completion apart. A missing first `<think>` is added: a chat template has put it into the prompt."""
    text = completion if "<think>" in completion else "<think>" + completion
    tag_problem = _problem_with_tags(text)
    return Parsed(
        answer=_first_answer(text),
        problem=tag_problem or _problem_with_blocks(text),
        is_well_tagged=not tag_problem,
    )


def thoughts(completion: str) -> tuple[str, int]:
    """Return the body of the first think block, stripped, and where it starts.

    A block that is not closed goes to the end of the completion, one that is not opened starts with it.
    """
    start = completion.find("<think>") + len("<think>") if "<think>" in completion else 0
    body, _, _ = completion[start:].partition("</think>")
    return body.strip(), start + len(body) - len(body.lstrip())


def final_text(completion: str) -> str:
    """Return what a completion says in the end: what follows its thoughts, or the first answer block in that.

    "" if it ends within its thoughts.
    """
    answer = final_answer(completion)
    return after_thoughts(completion, {}).strip() if answer is None else answer


def after_thoughts(completion: str, columns: Columns) -> str:
    """Return what follows the last thoughts, which may begin in the prompt; "" if the completion ends within them."""
    _, is_over, after = completion.rpartition("</think>")
    return after if is_over or not _is_opened(completion, columns) else ""


def final_answer(completion: str) -> str | None:
    """Return the body of the first answer block after the thoughts, as Parsed.answer is that of all blocks."""
    return _first_answer(completion.rpartition("</think>")[2])


def stated_confidence(text: str) -> float | None:
    """Return the confidence in the last block of a text, from 0 to 1; None if there is none, or it is no probability.

    >>> stated_confidence("<answer>Paris</answer><confidence>80 %</confidence>")
    0.8
    """
    found = _CONFIDENCE.findall(text)
    if not found:
        return None
    number, percent = found[-1]
    value = float(number) / (100 if percent else 1)
    return value if value <= 1 else None


def _first_answer(text: str) -> str | None:
    _, is_opened, rest = text.partition("<answer>")
    body, is_closed, _ = rest.partition("</answer>")
    if not is_opened or not is_closed:
        return None
    return "" if is_blank(body) else body.strip()


def _problem_with_tags(text: str) -> str:
    wrong = [
        f"{tag} occurs {text.count(tag)} times" if tag in text else f"no {tag}" for tag in TAGS if text.count(tag) != 1
    ]
    if wrong:
        return "; ".join(wrong)
    places = [text.find(tag) for tag in TAGS]
    return "" if places == sorted(places) else "the tags are out of order"


def _problem_with_blocks(text: str) -> str:
    """Look at what lies before, in, between and after the blocks of a well-tagged text."""
    before, think, between, answer, after = _ANY_TAG.split(text)
    confidence = after.lstrip().removesuffix("\n")
    has_more = after not in ("", "\n")
    is_confidence = _CONFIDENCE.fullmatch(confidence) and stated_confidence(confidence) is not None
    problems = {
        "text before <think>": before.strip(),
        "the think block is empty": is_blank(think),
        "text between the blocks": between.strip(),
        "the answer block is empty": is_blank(answer),
        "the confidence stands inside another block": "<confidence>" in think + answer,
        "text after </answer>": has_more and not confidence.startswith("<confidence>"),
        "the confidence is not a single number from 0 to 1": has_more and not is_confidence,
    }
    return next((problem for problem, is_found in problems.items() if is_found), "")


def build(name: str, options: Options) -> Reward:
    """Build the reward `format`, which knows the tags of the configured tools."""
    tools = options.get("tools") or ()
    names = [RESULT, *map(tag_of, tools)] if tools else []
    tags = tuple(f"<{slash}{name}>" for name in names for slash in ("", "/"))
    return Reward(name, partial(grade, tags=tags))


def grade(completion: str, columns: Columns, tags: Sequence[str] = ()) -> Score:
    """Give +1 if all of the completion has the format, else -1.

    Calls of tools belong into the think block, as what is thought there. tags: those of calls, which no other text has.
    """
    calls = columns.get(CALLS) or ()
    if calls and calls[-1].is_turn:  # what follows is an answer of its own
        completion = completion[calls[-1].span[1] :]
        calls = ()
    problem = parse(own_words(completion, calls, fill="x")).problem
    if not problem and any(call.span[1] > completion.find("</think>") for call in calls):
        problem = "a tool is called after the think block"
    stray = [tag for tag in tags if tag in own_words(completion, calls)]
    problem = problem or (f"{stray[0]} without a call" if stray else "")
    if not _is_opened(completion, columns):
        problem = "; ".join(filter(None, ("no <think>", problem)))
    return Score(-1.0, problem) if problem else Score(1.0, "think and answer blocks are in order")


def _is_opened(completion: str, columns: Columns) -> bool:
    """Return whether there is a `<think>`: in the completion, or at the end of the prompt."""
    return "<think>" in completion or str(columns.get("prompt", "")).rstrip().endswith("<think>")


def count_tags(completion: str, columns: Columns) -> Score:
    """Give 0.25 for each of the four tags that occurs exactly once, wherever it stands.

    It is tag_count_reward of open-r1 (src/open_r1/rewards.py), without the line breaks around the tags. An opening
    <think> that the chat template has written into the prompt counts.
    """
    is_opened_before = "<think>" not in completion and _is_opened(completion, columns)
    text = "<think>" * is_opened_before + completion
    share = sum(text.count(tag) == 1 for tag in TAGS) / len(TAGS)
    return Score(share, _problem_with_tags(text) or "each tag occurs once")
