"""Stream the rows of a source: JSON lines or a JSON array of {"title", "text"}, plain or gzip; or a knowledge base.

Lines take constant memory; an array is read at once. A row that cannot be used is yielded as a Skip with its number and
the reason, and reading goes on at the next row. A line that is not JSON is such a row; an array that is not JSON is an
error. A byte order mark and CRLF line ends are accepted.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grpo.base.errors import PREFLIGHT, UserError
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.layout import MAGIC, index_record
from knowledge.store.passages import SEPARATOR, split_stored, without_markers

MAX_LINE_BYTES = 8 << 20  # the longest article of Wikipedia has about 1 MB
MAX_ARRAY_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20
FIX = 'name a JSON array or JSON lines file of {"title", "text"}, plain or gzip'


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


class Source:
    """Yield the documents and skips of a file; `bytes_read` of `size_bytes` (both compressed) is the progress.

    Raises UserError (exit 3) if the file cannot be read: missing, a directory, damaged gzip, a broken array.
    """

    def __init__(self, path: str | Path):
        self.path, self.bytes_read = Path(path), 0
        try:
            self._file: BinaryIO = open(self.path, "rb")
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(f"cannot read the source {path}", why, FIX, PREFLIGHT) from error
        self.size_bytes = self.path.stat().st_size

    def __iter__(self) -> Iterator[Document | Skip]:
        with self._file:
            try:
                for row in self._rows():
                    self.bytes_read = self._file.tell()
                    yield row
            except (EOFError, OSError, zlib.error) as error:  # gzip's own error is an OSError
                what = f"{self.path} is damaged after {self._file.tell():,} bytes"
                raise UserError(what, str(error), "check the disk, or fetch it again", PREFLIGHT) from error
        self.bytes_read = self.size_bytes

    def _rows(self) -> Iterator[Document | Skip]:
        if self._file.peek(16).startswith(MAGIC):
            return self._documents()
        stream = self._open()
        is_array = stream.peek(CHUNK_BYTES).lstrip().startswith(b"[")
        return self._array(stream) if is_array else _lines(stream)

    def _documents(self) -> Iterator[Document | Skip]:
        """Yield the documents of a knowledge base, such as KnowRL's."""
        with closing(ReadOnlyDatabase(self.path)) as database:
            index_record(database)
            for number, (title, text) in enumerate(database.stream("SELECT title, text FROM documents"), 1):
                yield check_row(number, {"title": str(title), "text": split_stored(str(text or ""))})

    def _open(self) -> io.BufferedReader:
        """Return a stream of the decompressed bytes, after a byte order mark if there is one."""
        is_gzip = self._file.peek(2)[:2] == b"\x1f\x8b"
        stream = io.BufferedReader(gzip.GzipFile(fileobj=self._file) if is_gzip else self._file, CHUNK_BYTES)
        if stream.peek(4).startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        return stream

    def _array(self, stream: io.BufferedReader) -> Iterator[Document | Skip]:
        """Yield a document or a skip for each element of a JSON array; UserError (exit 3) if it is broken."""
        what = f"{self.path} is no JSON array that can be read"
        fix = "write one row per line, without the brackets: then only a broken row is skipped"
        content = stream.read(MAX_ARRAY_BYTES + 1)
        if len(content) > MAX_ARRAY_BYTES:
            raise UserError(what, f"it is longer than {MAX_ARRAY_BYTES / 1e9:.1f} GB", fix, PREFLIGHT)
        try:
            rows = json.loads(content.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            raise UserError(what, str(error), fix, PREFLIGHT) from error
        for number, row in enumerate(rows, 1):
            yield check_row(number, row)


def _lines(stream: io.BufferedReader) -> Iterator[Document | Skip]:
    """Yield a document or a skip for each line of a JSON lines file."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        num_bytes = len(raw)
        rest = raw
        while num_bytes > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
            rest = stream.readline(CHUNK_BYTES)
            num_bytes += len(rest)
        if num_bytes > MAX_LINE_BYTES + 1:
            yield Skip(number, f"too long: {num_bytes / 1e6:.1f} MB, and the limit is {MAX_LINE_BYTES / 1e6:.1f} MB")
        else:
            yield parse_row(number, raw)


def parse_row(number: int, raw: bytes) -> Document | Skip:
    """Return the document in this line of a file, or say why it holds none."""
    if not raw.strip():
        return Skip(number, "blank")
    try:
        return check_row(number, json.loads(raw.decode("utf-8")))
    except UnicodeDecodeError as error:
        return Skip(number, f"invalid UTF-8: at byte {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return Skip(number, f"not JSON: {error}")


def check_row(number: int, row: object) -> Document | Skip:
    """Return the document of a row, or why it cannot be used."""
    if not isinstance(row, dict):
        return Skip(number, f"not an object: {type(row).__name__}")
    for key in ("title", "text"):
        if key not in row:
            keys = ", ".join(list(row)[:8]) or "no keys"
            return Skip(number, f'no "{key}"; it has {keys}'.encode("ascii", "replace").decode())
    title, texts = row["title"], row["text"]
    if isinstance(texts, str):
        texts = [texts]
    are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not isinstance(title, str) or not are_texts:
        return Skip(number, '"title" must be a string, "text" a string or a list of strings')
    title, text = title.strip(), without_markers("\n".join(texts)).replace(SEPARATOR, "\n")
    if not title or not text.strip():
        return Skip(number, "empty title or text")
    if "\0" in title + text:
        return Skip(number, "a NUL character")
    if re.search("[\ud800-\udfff]", title + text):
        return Skip(number, "a lone surrogate (half of a character) or invalid UTF-8")
    return Document(number, title, text)
