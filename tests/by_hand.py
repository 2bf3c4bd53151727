"""What a careful reader said of facts and of answers: two files of cases, and how well rules agree with the reader."""

from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    """A text under a heading of two parts, and its label."""

    first: str  # a title, or a question
    second: str  # a passage, or a reference
    label: str
    text: str

    @property
    def is_chinese(self) -> bool:
        return any("\u4e00" <= char <= "\u9fff" for char in self.first)


def read_cases(path: Path) -> list[Case]:
    """Read `@ first | second`, each followed by lines `label | text`."""
    cases: list[Case] = []
    heading = ("", "")
    for line in path.read_text(encoding="utf-8").splitlines():
        left, _, right = (part.strip() for part in line.partition(" | "))
        if line.startswith("@"):
            heading = (left.removeprefix("@").strip(), right)
        elif line and not line.startswith("#"):
            cases.append(Case(*heading, left, right))
    return cases


def agreement(pairs: list[tuple[str, str]], label: str) -> tuple[int, int, int]:
    """Return how often rules and reader gave this label both, how often the rules did, and how often the reader did."""
    both = sum(said == ours == label for said, ours in pairs)
    return both, sum(ours == label for _, ours in pairs), sum(said == label for said, _ in pairs)
