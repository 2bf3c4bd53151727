"""Streams the rows of a source file: a JSON array or JSON lines of {"title", "text"}, plain or gzip, told apart by
content.

Memory stays constant: a row is held once, and no row is longer than max_row_bytes. What cannot be used is yielded as a
Skip with its line number and the reason, and reading goes on at the next row. A byte order mark and CRLF line ends are
accepted silently.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grpo.errors import PREFLIGHT, UserError

MAX_ROW_BYTES = 8 << 20  # the longest article of Wikipedia has about 1 MB
CHUNK_BYTES = 1 << 20

_STRUCTURE = re.compile(rb'["\\{}\[\],]')
_NEXT_ROW = re.compile(rb'[}\]"]\s*,\s*(?=\{\s*")')


@dataclass(frozen=True)
class Row:
    """A usable row; text as a list, also where the source has one string. line counts from 1."""

    line: int
    title: str
    texts: list[str]


@dataclass(frozen=True)
class Skip:
    """A row that cannot be used."""

    line: int
    reason: str


class Source:
    """Iterate for the rows and skips; `bytes_read` of `size_bytes` (both compressed) is the progress.

    Raises UserError (exit 3) where the file as a whole cannot be read: missing, a directory, a damaged gzip, UTF-16.
    """

    def __init__(self, path: str | Path, max_row_bytes: int = MAX_ROW_BYTES):
        self.path, self.max_row_bytes, self.bytes_read = Path(path), max_row_bytes, 0
        try:
            self._file: BinaryIO = open(self.path, "rb")
        except OSError as error:
            raise UserError(
                f"cannot read the source {path}",
                error.strerror or str(error),
                'name a JSON array or JSON lines file of {"title", "text"}, plain or gzip',
                PREFLIGHT,
            ) from error
        self.size_bytes = self.path.stat().st_size

    def __iter__(self) -> Iterator[Row | Skip]:
        with self._file:
            try:
                stream = self._open()
                rows = self._elements(stream) if _starts_array(stream) else self._lines(stream)
                for line, raw in rows:
                    self.bytes_read = self._file.tell()
                    yield Skip(line, raw) if isinstance(raw, str) else parse_row(line, raw)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise UserError(
                    f"the gzip file {self.path} is damaged after {self._file.tell():,} bytes",
                    str(error),
                    "fetch it again",
                    PREFLIGHT,
                ) from error
            except OSError as error:
                raise UserError(
                    f"reading {self.path} failed after {self._file.tell():,} bytes",
                    str(error),
                    "check the disk",
                    PREFLIGHT,
                ) from error
        self.bytes_read = self.size_bytes

    def _open(self) -> io.BufferedReader:
        """The decompressed bytes, after a byte order mark if there is one."""
        is_gzip = self._file.peek(2)[:2] == b"\x1f\x8b"
        stream = io.BufferedReader(gzip.GzipFile(fileobj=self._file) if is_gzip else self._file, CHUNK_BYTES)
        start = stream.peek(4)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UserError(
                f"{self.path} is UTF-16", "JSON files are UTF-8", f"iconv -f UTF-16 -t UTF-8 {self.path}", PREFLIGHT
            )
        if start.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        return stream

    def _lines(self, stream: io.BufferedReader) -> Iterator[tuple[int, bytes | str]]:
        """(line, its bytes, or why it is skipped) of a JSON lines file."""
        line = 0
        while raw := stream.readline(self.max_row_bytes + 1):
            line, num_bytes, rest = line + 1, len(raw), raw
            while (
                not rest.endswith(b"\n") and num_bytes > self.max_row_bytes and (rest := stream.readline(CHUNK_BYTES))
            ):
                num_bytes += len(rest)
            yield line, raw if num_bytes <= self.max_row_bytes + 1 else self._too_long(num_bytes)

    def _too_long(self, num_bytes: int) -> str:
        return f"{num_bytes / 1e6:.1f} MB, over the limit of {self.max_row_bytes / 1e6:.1f} MB for a row"

    def _elements(self, stream: io.BufferedReader) -> Iterator[tuple[int, bytes | str]]:
        """(line, its bytes, or why it is skipped) of each element of a JSON array; lines are those where the element
        starts."""
        scanner = _ArrayScanner(self.max_row_bytes)
        while piece := stream.readline(CHUNK_BYTES):
            for line, raw in scanner.feed(piece):
                yield (
                    line,
                    self._too_long(len(raw)) if isinstance(raw, bytes) and len(raw) > self.max_row_bytes else raw,
                )
        yield from scanner.end()


def _starts_array(stream: io.BufferedReader) -> bool:
    return stream.peek(CHUNK_BYTES).lstrip()[:1] == b"["


class _ArrayScanner:
    """Finds the elements of a JSON array in pieces of it, each a line or a part of one, by counting brackets outside
    strings.

    What is between two commas is an element, sound or not. Only two faults upset the count, a missing quote and a
    missing bracket; they show as a string that goes over a line end, or as an element without end. Then the scan goes
    back to the second place in that element where a row seems to start, so that the broken row alone is lost
    (MAX_RETREATS bounds the work on garbage).
    """

    MAX_RETREATS = 100

    def __init__(self, max_row_bytes: int):
        self.max_row_bytes = max_row_bytes
        self.line = self.start_line = 1
        self.depth, self.in_string, self.escaped, self.lost = 0, False, False, False
        self.element, self.pieces, self.num_retreats = bytearray(), deque(), 0

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes | str]]:
        """The elements that end in this piece."""
        self.pieces.append(piece)
        yield from self._drain()

    def _drain(self) -> Iterator[tuple[int, bytes | str]]:
        while self.pieces:
            piece = self.pieces.popleft()
            begin = self._find_row(piece) if self.lost else 0
            if not self.lost:
                yield from self._scan(piece, begin)
            line_ends = piece.endswith(b"\n")
            if self.in_string and line_ends:
                yield self._give_up("a string without end: a quote is missing")
            elif len(self.element) > self.max_row_bytes:
                yield self._give_up(
                    f"no end within {self.max_row_bytes / 1e6:.1f} MB: too long, or a quote or a bracket is missing"
                )
            elif line_ends:
                self.line += 1

    def end(self) -> Iterator[tuple[int, bytes | str]]:
        """What is left when the file ends: nothing, for a whole array."""
        while self.depth > 0 and not self.lost:
            if not self.element.strip():
                self.start_line = self.line
            elif isinstance(parse_row(0, self.element), Row):  # whole: only the closing bracket is missing
                yield self.start_line, bytes(self.element)
                self.element.clear()
            yield self._give_up("the file ends before the array does")
            yield from self._drain()

    def _scan(self, piece: bytes, begin: int) -> Iterator[tuple[int, bytes | str]]:
        """Follows strings and brackets from `begin` on, and keeps what no comma or bracket has ended yet."""
        position = begin
        while match := _STRUCTURE.search(piece, position + self.escaped):
            self.escaped = False
            position, mark = match.end(), match.group()
            if mark == b'"':
                self.in_string = not self.in_string
            elif self.in_string:
                self.escaped = mark == b"\\"
            elif mark in b"{[":
                self.depth += 1
                begin = position if self.depth == 1 else begin  # the array's own bracket is no part of an element
            elif mark in b"}]" or self.depth == 1:
                self.depth = max(0, self.depth - (mark != b","))
                if mark == b"," or self.depth == 0:
                    yield from self._take(piece[begin : position - 1], comma=mark == b",")
                    begin = position
        self.escaped = self.escaped and position == len(piece)
        if self.depth > 0:
            self._grow(piece[begin:])

    def _grow(self, part: bytes) -> None:
        if not self.element.strip():
            self.start_line = self.line
        self.element += part

    def _take(self, tail: bytes, comma: bool) -> Iterator[tuple[int, bytes | str]]:
        """The element that ends with this tail; before the closing bracket there may be none."""
        self._grow(tail)
        element = bytes(self.element)
        self.element.clear()
        if element.strip() or comma:
            yield self.start_line, element

    def _give_up(self, reason: str) -> tuple[int, str]:
        """Drops the element's first row; what follows it is scanned again."""
        again = bytes(self.element).lstrip()[1:]
        self.element.clear()
        self.lost, self.in_string, self.escaped, self.depth = True, False, False, 0
        self.num_retreats += 1
        if self.num_retreats <= self.MAX_RETREATS:
            self.pieces.extendleft(reversed(again.splitlines(keepends=True)))
            self.line = self.start_line
        elif again.endswith(b"\n"):
            self.line += 1
        return self.start_line, reason

    def _find_row(self, piece: bytes) -> int:
        """Where the next row starts: at the first brace of a line, or after a comma between rows; `lost` stays if there
        is none."""
        match = re.match(rb"\s*(?=\{)", piece) or _NEXT_ROW.search(piece)
        if not match:
            return 0
        self.lost, self.depth = False, 1
        return match.end()


def parse_row(line: int, raw: bytes) -> Row | Skip:
    """The row in these bytes, or why there is none."""
    if not raw.strip():
        return Skip(line, "blank")
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Skip(line, f"invalid UTF-8 at byte {error.start + 1}")
    except RecursionError:
        return Skip(line, "not JSON: nested too deeply")
    except ValueError as error:
        where = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        return Skip(line, f"not JSON: {getattr(error, 'msg', error)}{where}")
    if not isinstance(row, dict):
        return Skip(line, f"not an object: {type(row).__name__}")
    for key in ("title", "text"):
        if key not in row:
            return Skip(
                line, f'no "{key}"; it has {", ".join(list(row)[:8]) or "no keys"}'.encode("ascii", "replace").decode()
            )
    title, texts = row["title"], [row["text"]] if isinstance(row["text"], str) else row["text"]
    if not isinstance(title, str) or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return Skip(line, '"title" must be a string, "text" a string or a list of strings')
    title = title.strip()
    if not title or not any(text.strip() for text in texts):
        return Skip(line, "empty title" if not title else "empty text")
    everything = title + "".join(texts)
    if "\0" in everything:
        return Skip(line, "a NUL character")
    if not everything.isascii() and re.search("[\ud800-\udfff]", everything):
        return Skip(line, "a lone surrogate: half of a character")
    return Row(line, title, texts)
