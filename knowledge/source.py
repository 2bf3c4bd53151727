"""Read the rows of a source: {"title", "text"} as JSON lines or an array, plain or gzip; a table; a knowledge base.

Of a folder, each text (.txt, .md) is a row, whose title is the name of its file. Lines take constant memory. An array
is read at once, and so are tables and Parquet, by grpo/data/files.py. A row that cannot be used is yielded as a Skip
with its number and the reason, and reading goes on at the next row.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grpo.base.errors import explained
from grpo.data.files import GZIP, read_records
from knowledge.store.database import ALL_DOCUMENTS, ReadOnlyDatabase, has_index
from knowledge.store.passages import SEPARATOR, split_stored, without_markers
from knowledge.text import clean

MAGIC = b"SQLite format 3\0"
MAX_LINE_BYTES = 8 << 20  # the longest article of Wikipedia has about 1 MB
TEXTS = (".txt", ".md")
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
SPACES = b"\xef\xbb\xbf \t\r\n"  # before the first row: a byte order mark, white space


@dataclass(frozen=True)
class Document:
    """A usable row. number: of the row, from 1. text: its paragraphs, or ready passages, are joined by line breaks."""

    number: int
    title: str
    text: str


@dataclass(frozen=True)
class Skip:
    """A row that cannot be used."""

    number: int
    reason: str


def sources_of(source: Path) -> list[Path]:
    """Return the texts in a folder and in those below it, by their names; of a file, itself, if it exists."""
    if not source.is_dir():
        return [source] * source.exists()
    return sorted(file for file in source.rglob("*") if file.suffix.lower() in TEXTS)


def read_source(path: Path, passed: Callable[[int], object] = int) -> Iterator[Document | Skip]:
    """Yield the documents and skips of a file or pipe. passed: is told after each row how many bytes have been read.

    path: may be a folder, too. UserError (exit 3) if it cannot be read: missing, damaged gzip, a broken array.
    """
    if path.is_dir():
        yield from _texts(path, passed)
        return
    fix = 'name a file of {"title", "text"}: JSON lines, an array, a table; or fetch it again'
    kinds = (OSError, EOFError, zlib.error)  # gzip's own error is an OSError
    with explained(kinds, f"cannot read the source {path}", fix), open(path, "rb") as file:
        for row in _rows(path, file):
            passed(file.tell() if file.seekable() else 0)
            yield row


def _texts(folder: Path, passed: Callable[[int], object]) -> Iterator[Document | Skip]:
    """Yield a document or a skip for each text in a folder."""
    num_bytes = 0
    for number, file in enumerate(sources_of(folder), 1):
        with explained(OSError, f"cannot read {file}", "make it readable, or remove it"):
            content = file.read_bytes()
        num_bytes += len(content)
        passed(num_bytes)
        text = content.decode("utf-8-sig", "surrogateescape")
        row = check_row(number, {"title": file.stem, "text": text})
        if isinstance(row, Skip):
            row = Skip(number, f"{row.reason}: {file.name}")
        yield row


def _rows(path: Path, file: BinaryIO) -> Iterator[Document | Skip]:
    start = file.peek(len(MAGIC))
    stream = gzip.GzipFile(fileobj=file) if start.startswith(GZIP) else file
    if start.startswith(MAGIC):
        rows = _documents(path)
    elif path.name.lower().endswith(TABLES):
        rows = read_records(path)
    elif stream.peek(1).lstrip(SPACES).startswith(b"["):
        rows = _array(path, stream)
    else:
        yield from _lines(stream)
        return
    for number, row in enumerate(rows, 1):
        yield check_row(number, row)


def _array(path: Path, stream: BinaryIO) -> list[object]:
    """Return the elements of a JSON array; UserError (exit 3) if it is broken."""
    with explained(
        (ValueError, RecursionError),
        f"{path} is no JSON array that can be read",
        "write one row per line, without the brackets: then only a broken row is skipped",
    ):
        return json.loads(stream.read().decode("utf-8-sig", "surrogateescape"))


def _documents(path: Path) -> Iterator[object]:
    """Yield the documents of a knowledge base, such as KnowRL's, as rows."""
    with closing(ReadOnlyDatabase(path)) as database:
        has_index(database)  # or raises
        for title, text in database.stream(ALL_DOCUMENTS):
            yield {"title": str(title), "text": split_stored(str(text or ""))}


def _lines(stream: BinaryIO) -> Iterator[Document | Skip]:
    """Yield a document or a skip for each line."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while not line.endswith(b"\n") and (rest := stream.readline(MAX_LINE_BYTES)):
                line = rest
            yield Skip(number, f"too long: the limit is {MAX_LINE_BYTES / 1e6:.1f} MB")
            continue
        try:
            yield check_row(number, json.loads(line)) if line.lstrip(SPACES) else Skip(number, "blank")
        except (ValueError, RecursionError) as error:
            yield Skip(number, f"not JSON: {error}")


def check_row(number: int, row: object) -> Document | Skip:
    """Return the document of a row, or why it cannot be used."""
    if not isinstance(row, dict):
        return Skip(number, f"not an object: {type(row).__name__}")
    title = row.get("title")
    texts = row.get("text")
    if isinstance(texts, str):
        texts = [texts]
    are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not isinstance(title, str) or not are_texts:
        return Skip(number, f'"title" must be a string, "text" a string or a list of strings: it has {list(row)[:8]!a}')
    title = title.strip()
    text = without_markers("\n".join(texts)).replace(SEPARATOR, "\n")
    if not title or not text.strip():
        return Skip(number, "empty title or text")
    if clean(title + text) != title + text:
        return Skip(number, "a NUL character, or what is not UTF-8, such as a lone surrogate")
    return Document(number, title, text)
