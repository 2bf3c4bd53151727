"""How many rows of a data set are used, and why the others are not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo.data.files import BadRows, join_errors

SKIP = ", or set skip_bad_rows to go on without such rows"


@dataclass
class RowCount:
    """The rows of one data set: how many were read, and how many are left out, by reason.

    bad: those that cannot be used, which are an error, unless it skips them (skips_bad).
    left_out: reason -> rows, such as {"without an answer": 3}. notes: what else its reader should know, and how often,
    such as {"answers cut at 512 tokens": 2}.

    >>> count = RowCount("train.jsonl", rows=40)
    >>> count.left_out["without an answer"] += 3
    >>> print(count)
    train.jsonl: 37 of 40 rows are used; left out: 3 without an answer
    """

    data: str
    rows: int = 0
    skips_bad: bool = False
    bad: BadRows = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def leave_out_bad(self) -> None:
        """Count the bad rows as left out, or raise UserError (exit 3), which names the first of them."""
        if self.bad and not self.skips_bad:
            raise join_errors(self.bad, SKIP)
        if self.bad:
            first = self.bad[min(self.bad)]
            self.left_out[f"bad, the first of which: {first.what}"] += len(self.bad)
        self.bad = {}

    def note(self, what: str, found: Sequence[str]) -> None:
        """Note how many rows are of a kind, and which is the first. found: what to say of each."""
        if found:
            self.notes[f"{what}, the first in {found[0]}"] += len(found)

    def __str__(self) -> str:
        text = f"{self.data}: {self.rows} rows"
        if self.left_out.total():
            used = self.rows - self.left_out.total()
            text = f"{self.data}: {used} of {self.rows} rows are used; left out: {_listed(self.left_out)}"
        return f"{text}; {_listed(self.notes)}" if self.notes.total() else text


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {text}" for text, number in (+counter).items())


MEDIA = ("image", "images", "video", "videos", "audio", "audios")  # columns of what no model here can see or hear
MEDIA_PARTS = ("image", "video", "audio", "input_image", "input_audio")  # beginnings of the types of a message's parts
DAMAGED = "rows with control characters, as \\frac in JSON makes one unless its backslash is written twice"
WITH_MEDIA = "with images, videos or audio"  # a reason to leave a row out


def has_media(columns: Mapping[str, Any]) -> bool:
    """Return whether a row has an image, a video or audio, without which its text makes no sense.

    It may be a column, or a part of a message: {"content": [{"type": "image", …}, {"type": "text", …}]}.
    """
    if any(map(columns.get, MEDIA)):
        return True
    messages = [message for value in columns.values() for message in _objects(value)]
    parts = [part for message in messages for part in _objects(message.get("content"))]
    return any(str(part.get("type")).startswith(MEDIA_PARTS) for part in parts)


def _objects(value: Any) -> list[dict]:
    """Return the objects in a list; [] of any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_empty(value: Any) -> bool:
    """Return whether a field holds nothing: null, NaN, blank text, an empty list, or a list of only such values."""
    if isinstance(value, list):
        return all(map(is_empty, value))
    return value is None or value != value or (isinstance(value, str) and not value.strip())
