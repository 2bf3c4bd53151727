"""Stream the rows of a source: a JSON array or JSON lines of {"title", "text"}, plain or gzip; or a knowledge base.

Memory stays constant. A row that cannot be used is yielded as a Skip with its line and the reason, and reading goes on
at the next row. A line that is not JSON is such a row; an array that is not JSON is an error, as nothing tells where
its next row begins. A byte order mark and CRLF line ends are accepted.
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
from knowledge.store.passages import split_stored
from knowledge.store.recognise import MAGIC, recognise

MAX_ROW_BYTES = 8 << 20  # the longest article of Wikipedia has about 1 MB
CHUNK_BYTES = 1 << 20
# In an array, the end of a longer row is sought this far, in multiples of max_row_bytes, before the array is an error.
MAX_SEARCH = 8
FIX = 'name a JSON array or JSON lines file of {"title", "text"}, plain or gzip'
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Row:
    """A usable row; `texts` is a list also where the source has one string; `line` counts from 1."""

    line: int
    title: str
    texts: list[str]


@dataclass(frozen=True)
class Skip:
    """A row that cannot be used."""

    line: int
    reason: str


class Source:
    """Yield the rows and skips of a file; `bytes_read` of `size_bytes` (both compressed) is the progress.

    Raises UserError (exit 3) if the file cannot be read: missing, a directory, damaged gzip, UTF-16, a broken array.
    """

    def __init__(self, path: str | Path, max_row_bytes: int = MAX_ROW_BYTES):
        self.path, self.max_row_bytes, self.bytes_read = Path(path), max_row_bytes, 0
        try:
            self._file: BinaryIO = open(self.path, "rb")
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(f"cannot read the source {path}", why, FIX, PREFLIGHT) from error
        self.size_bytes = self.path.stat().st_size

    def __iter__(self) -> Iterator[Row | Skip]:
        with self._file:
            try:
                for row in self._rows():
                    self.bytes_read = self._file.tell()
                    yield row
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                what = f"the gzip file {self.path} is damaged after {self._file.tell():,} bytes"
                raise UserError(what, str(error), "fetch it again", PREFLIGHT) from error
            except OSError as error:
                what = f"reading {self.path} failed after {self._file.tell():,} bytes"
                raise UserError(what, str(error), "check the disk", PREFLIGHT) from error
        self.bytes_read = self.size_bytes

    def _rows(self) -> Iterator[Row | Skip]:
        if self._file.peek(16).startswith(MAGIC):
            return self._documents()
        stream = self._open()
        is_array = stream.peek(CHUNK_BYTES).lstrip().startswith(b"[")
        return self._array(stream) if is_array else self._lines(stream)

    def _documents(self) -> Iterator[Row | Skip]:
        """Yield the documents of a knowledge base, such as KnowRL's."""
        with closing(ReadOnlyDatabase(self.path)) as database:
            markers = recognise(database).markers
            for number, (title, text) in enumerate(database.stream("SELECT title, text FROM documents"), 1):
                yield check_row(number, {"title": str(title), "text": split_stored(str(text or ""), markers)})

    def _open(self) -> io.BufferedReader:
        """Return a stream of the decompressed bytes, after a byte order mark if there is one."""
        is_gzip = self._file.peek(2)[:2] == b"\x1f\x8b"
        stream = io.BufferedReader(gzip.GzipFile(fileobj=self._file) if is_gzip else self._file, CHUNK_BYTES)
        start = stream.peek(4)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            fix = f"iconv -f UTF-16 -t UTF-8 {self.path}"
            raise UserError(f"{self.path} is UTF-16", "JSON files are UTF-8", fix, PREFLIGHT)
        if start.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        return stream

    def _lines(self, stream: io.BufferedReader) -> Iterator[Row | Skip]:
        """Yield a row or a skip for each line of a JSON lines file."""
        line = 0
        while raw := stream.readline(self.max_row_bytes + 1):
            line += 1
            num_bytes = len(raw)
            rest = raw
            while num_bytes > self.max_row_bytes and rest and not rest.endswith(b"\n"):
                rest = stream.readline(CHUNK_BYTES)
                num_bytes += len(rest)
            yield self._too_long(line, num_bytes) if num_bytes > self.max_row_bytes + 1 else parse_row(line, raw)

    def _array(self, stream: io.BufferedReader) -> Iterator[Row | Skip]:
        """Yield a row or a skip for each element of a JSON array; UserError (exit 3) where the array is broken."""
        array = _ArrayReader(stream, MAX_SEARCH * self.max_row_bytes)
        try:
            for line, value, num_chars in array:
                too_long = num_chars > self.max_row_bytes
                yield self._too_long(line, num_chars) if too_long else check_row(line, value)
        except (ValueError, RecursionError) as error:
            what, why = f"{self.path}:{array.line}: the JSON array is broken", getattr(error, "msg", str(error))
            fix = (
                "correct it there, or write one row per line without the brackets: then only the broken row is skipped"
            )
            raise UserError(what, why, fix, PREFLIGHT) from error

    def _too_long(self, line: int, num_bytes: int) -> Skip:
        return Skip(line, f"{num_bytes / 1e6:.1f} MB, over the limit of {self.max_row_bytes / 1e6:.1f} MB for a row")


class _ArrayReader:
    """Yield (line, value, number of characters) of each element of a JSON array, and hold few of them at a time.

    Raises json.JSONDecodeError where the array is broken; `line` is then the line of the fault.
    """

    def __init__(self, stream: io.BufferedReader, max_chars: int):
        self.line = 1
        self._stream = codecs.getreader("utf-8")(stream, errors="surrogateescape")
        self._max_chars = max_chars
        self._text = ""
        self._place = 0  # in the text; everything before it has been read
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[tuple[int, object, int]]:
        mark = self._next_mark("[")
        if self._peek() == "]":
            mark = self._next_mark("]")
        while mark != "]":
            self._peek()
            line = self.line
            value, num_chars = self._element()
            self._move_to(self._place + num_chars)
            yield line, value, num_chars
            mark = self._next_mark(",]")
        if self._peek():
            self._fail("text after the end of the array")

    def _element(self) -> tuple[object, int]:
        """Return the value at the current place and its length; read on while it may be incomplete."""
        while True:
            try:
                value, end = self._decode(self._text, self._place)
                num_chars = end - self._place
                if end < len(self._text) or not self._read():
                    return value, num_chars
            except json.JSONDecodeError as error:
                num_sound_chars = error.pos - self._place
                if not self._read():
                    self._move_to(self._place + num_sound_chars)
                    raise

    def _next_mark(self, allowed: str) -> str:
        mark = self._peek()
        if not mark:
            self._fail("the file ends before the array does")
        if mark not in allowed:
            self._fail(f"expected {' or '.join(allowed)}, not {mark}")
        self._move_to(self._place + 1)
        return mark

    def _peek(self) -> str:
        """Return the next character that is no white space, "" at the end of the file, and move to it."""
        while True:
            space = _SPACE.match(self._text, self._place)
            self._move_to(space.end())
            if self._place < len(self._text) or not self._read():
                return self._text[self._place : self._place + 1]

    def _read(self) -> bool:
        """Double the text ahead of the current place; False at the end of the file, or if that is too much text."""
        self._text = self._text[self._place :]
        self._place = 0
        if len(self._text) >= self._max_chars:
            return False
        more = self._stream.read(max(CHUNK_BYTES, len(self._text)))
        self._text += more
        return bool(more)

    def _move_to(self, place: int) -> None:
        self.line += self._text.count("\n", self._place, place)
        self._place = place

    def _fail(self, reason: str) -> None:
        raise json.JSONDecodeError(reason, self._text, self._place)


def parse_row(line: int, raw: bytes) -> Row | Skip:
    """Return the row in this line of a file, or say why it holds none."""
    if not raw.strip():
        return Skip(line, "blank")
    try:
        return check_row(line, json.loads(raw.decode("utf-8")))
    except UnicodeDecodeError as error:
        return Skip(line, f"invalid UTF-8 at byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return Skip(line, f"not JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        return Skip(line, "not JSON: nested too deeply")
    except ValueError as error:
        return Skip(line, f"not JSON: {error}")


def check_row(line: int, row: object) -> Row | Skip:
    """Return a usable row, or why it cannot be used."""
    if not isinstance(row, dict):
        return Skip(line, f"not an object: {type(row).__name__}")
    for key in ("title", "text"):
        if key not in row:
            keys = ", ".join(list(row)[:8]) or "no keys"
            return Skip(line, f'no "{key}"; it has {keys}'.encode("ascii", "replace").decode())
    title, texts = row["title"], row["text"]
    if isinstance(texts, str):
        texts = [texts]
    are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not isinstance(title, str) or not are_texts:
        return Skip(line, '"title" must be a string, "text" a string or a list of strings')
    title = title.strip()
    if not title:
        return Skip(line, "empty title")
    if not any(text.strip() for text in texts):
        return Skip(line, "empty text")
    everything = title + "".join(texts)
    if "\0" in everything:
        return Skip(line, "a NUL character")
    if not everything.isascii() and re.search("[\ud800-\udfff]", everything):
        return Skip(line, "a lone surrogate (half of a character) or invalid UTF-8")
    return Row(line, title, texts)
