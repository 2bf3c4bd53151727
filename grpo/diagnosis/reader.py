"""Read a file of a run directory, whoever has written it: what comes out is safe to compute with and to show.

Numbers are finite, and neither huge nor tiny; texts, lists and mappings are cut at a size that a page can hold. A file
or a line that is larger than any that a run writes, or cannot be parsed, is not read.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from grpo.base.storage import Json, read_mapping

LARGEST, SMALLEST = 1e100, 1e-100  # squares of such numbers, and sums of these, are finite
MAX_TEXT = 20_000  # characters
MAX_ITEMS = 10_000  # of a list or mapping
MAX_DEPTH = 20  # of nesting
MAX_YAML, MAX_JSON = 200_000, 20_000_000  # bytes of a file
MAX_LINE, MAX_LINES = 5_000_000, 500_000_000  # bytes of one line, and of all lines of a file


def read_document(path: Path) -> Json:
    """Return the mapping that a JSON or YAML file holds; {} if there is none."""
    limit = MAX_YAML if path.suffix == ".yaml" else MAX_JSON
    is_readable = path.is_file() and path.stat().st_size <= limit
    return clean(read_mapping(path)) if is_readable else {}


def read_lines(path: Path) -> Iterator[Any]:
    """Yield what each line of a JSONL file holds; None for a line that cannot be read."""
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            while file.tell() < MAX_LINES and (line := file.readline(MAX_LINE)):
                if line.strip():
                    yield _parse(line)
    except OSError:
        return


def _parse(line: bytes) -> Any:
    try:
        return clean(json.loads(line.decode("utf-8", errors="replace")))
    except (ValueError, RecursionError):
        return None


def clean(value: Any, depth: int = 0) -> Any:
    """Return a value that JSON or YAML held as plain data; None for a number that is not finite or far too large.

    >>> clean({"a": [1e999, 2, 1e-300]})
    {'a': [None, 2, 0]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        size = abs(value)
        return (value if size >= SMALLEST else 0) if size <= LARGEST else None
    if isinstance(value, list | dict):
        if depth == MAX_DEPTH:
            return None
        if isinstance(value, list):
            return [clean(item, depth + 1) for item in value[:MAX_ITEMS]]
        return {_cut(str(name)): clean(item, depth + 1) for name, item in islice(value.items(), MAX_ITEMS)}
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… (cut; it has {len(text):,} characters)"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
