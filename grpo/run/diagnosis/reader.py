"""Read a file of a run directory, whoever has written it: what comes out is safe to compute with and to show.

Numbers are finite, and neither huge nor tiny; texts are cut at a size that a page can hold. What cannot be parsed is
not read.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo.base.storage import Json, read_mapping

LARGEST, SMALLEST = 1e100, 1e-100  # squares of such numbers, and sums of these, are finite
MAX_TEXT = 20_000  # characters


def read_document(path: Path) -> Json:
    """Return the mapping that a JSON or YAML file holds; {} if there is none."""
    try:
        return clean(read_mapping(path)) if path.is_file() else {}
    except RecursionError:
        return {}


def read_lines(path: Path) -> Iterator[Any]:
    """Yield what each line of a JSONL file holds; None for a line that cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                yield from (_parse(line) for line in file if line.strip())


def _parse(line: bytes) -> Any:
    try:
        return clean(json.loads(line.decode("utf-8", errors="replace")))
    except (ValueError, RecursionError):
        return None


def clean(value: Any) -> Any:
    """Return a value that JSON or YAML held as plain data; None for a number that is not finite or far too large.

    >>> clean({"a": [1e999, 2, 1e-300]})
    {'a': [None, 2, 0]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        size = abs(value)
        return (value if size >= SMALLEST else 0) if size <= LARGEST else None
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {_cut(str(name)): clean(item) for name, item in value.items()}
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… (cut; it has {len(text):,} characters)"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
