"""The format that KnowRL asks for: a think block, then an answer block, and nothing else.

A linear scanner and no regular expression: exactly one of each tag, in order, with something in both blocks. (A lazy
regex with DOTALL lets doubled tags and junk inside the answer through, and is quadratic in white space.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo.schema import Score

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class Parsed:
    """A completion's blocks: `think` and `answer` are stripped; None where the block is absent or not closed.
    problem: what is wrong with the format, "" if nothing is."""

    think: str | None
    answer: str | None
    problem: str


def parse(completion: str) -> Parsed:
    """Takes a completion apart. `<think>` may be missing at the start, where a chat template has already put it."""
    text = completion if "<think>" in completion else "<think>" + completion
    counts = {tag: text.count(tag) for tag in TAGS}
    wrong = [f"{tag} occurs {count} times" for tag, count in counts.items() if count != 1]
    if wrong:
        return Parsed(_between(text, *TAGS[:2]), _between(text, *TAGS[2:]), "; ".join(wrong))
    places = [text.find(tag) for tag in TAGS]
    if places != sorted(places):
        return Parsed(_between(text, *TAGS[:2]), _between(text, *TAGS[2:]), "the tags are out of order")
    before, think, between, answer, after = _cut(text, places)
    problem = "text before <think>" if before.strip() else "" if think.strip() else "the think block is empty"
    problem = problem or (
        "text between the blocks" if between.strip() else "" if answer.strip() else "the answer block is empty"
    )
    problem = problem or ("" if after in ("", "\n") else "text after </answer>")
    return Parsed(think.strip(), answer.strip(), problem)


def _cut(text: str, places: list[int]) -> tuple[str, str, str, str, str]:
    ends = [place + len(tag) for place, tag in zip(places, TAGS, strict=True)]
    return (
        text[: places[0]],
        text[ends[0] : places[1]],
        text[ends[1] : places[2]],
        text[ends[2] : places[3]],
        text[ends[3] :],
    )


def _between(text: str, opening: str, closing: str) -> str | None:
    """The body of the first block, None without one."""
    _, found, rest = text.partition(opening)
    body, closed, _ = rest.partition(closing)
    return body.strip() if found and closed else None


def grade(completion: str, columns: Mapping[str, Any]) -> Score:
    """+1 if the whole completion has the format, else -1."""
    problem = parse(completion).problem
    return Score(-1.0, problem) if problem else Score(1.0, "think and answer blocks are in order")
