"""Sources: every shape that is accepted, and every kind of bad row skipped with its number and reason."""

import gzip
import json
import tracemalloc

import pytest
from making import refused

from knowledge.store import source
from knowledge.store.source import Document, Skip, Source

TRICKY = 'Three {["\\"]}, \\'
GOOD = [
    {"title": "Alex", "text": "One."},
    {"title": "Ż", "text": ["Two.", TRICKY]},
    {"title": "黑豹队", "text": "四。", "other": {"a": [1]}},
]
ROWS = [Document(1, "Alex", "One."), Document(2, "Ż", f"Two.\n{TRICKY}"), Document(3, "黑豹队", "四。")]


def read(tmp_path, content: bytes) -> list:
    path = tmp_path / "source"
    path.write_bytes(content)
    return list(Source(path))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize(
    "content",
    [
        "\n".join(map(json.dumps, GOOD)),
        "\n".join(json.dumps(row, ensure_ascii=False) for row in GOOD) + "\n",
        "\r\n".join(map(json.dumps, GOOD)) + "\r\n",
        "\ufeff" + "\n".join(map(json.dumps, GOOD)),
        json.dumps(GOOD),
        "\ufeff  \n" + json.dumps(GOOD, indent=2, ensure_ascii=False) + "\n",
    ],
    ids=["lines", "unicode", "crlf", "bom", "array", "indented"],
)
def test_shapes_that_are_accepted(tmp_path, content, compress):
    assert read(tmp_path, compress(content.encode())) == ROWS


BAD_LINES = [
    (b'{"title": "first", "text": "fine"}', None),
    (b"", "blank"),
    (b"   \t", "blank"),
    (b'{"title": "x", "text": "y"', "not JSON: Expecting ',' delimiter"),
    (b"{title: 1}", "not JSON: Expecting property name"),
    (b'["title", "text"]', "not an object: list"),
    (b'{"title": "x"}', 'no "text"; it has title'),
    (b'{"text": "y", "name": "x"}', 'no "title"; it has text, name'),
    (b'{"title": 5, "text": "y"}', '"title" must be a string'),
    (b'{"title": "x", "text": ["y", null]}', '"text" a string or a list of strings'),
    (b'{"title": " ", "text": "y"}', "empty title or text"),
    (b'{"title": "x", "text": ["", " "]}', "empty title or text"),
    (b'{"title": "x", "text": ["y", " "]}', None),
    (b'{"title": "x", "text": "####SPECIAL####SEPARATOR####"}', "empty title or text"),
    (b'{"title": "x", "text": "a \\u0000"}', "a NUL character"),
    (b'{"title": "x", "text": "a \0"}', "not JSON: Invalid control character"),
    (b'{"title": "x", "text": "\\ud83d"}', "a lone surrogate"),
    (b'{"title": "x", "text": "\xff"}', "invalid UTF-8: at byte 25"),
    (b'{"title": "x", "text": "' + b"y" * 10_000_000 + b'"}', "too long: 10.0 MB, and the limit is 8.4 MB"),
    (b"[" * 100_000, "not JSON: maximum recursion"),
    (b'{"title": "x", "text": "y", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"title": "last", "text": "fine"}', None),
]


def test_each_bad_line_is_skipped_with_its_number_and_reason(tmp_path):
    rows = read(tmp_path, b"\n".join(line for line, _ in BAD_LINES))
    assert [row.number for row in rows] == list(range(1, len(BAD_LINES) + 1))
    for row, (_, reason) in zip(rows, BAD_LINES, strict=True):
        assert isinstance(row, Document) if reason is None else isinstance(row, Skip) and reason in row.reason, row
    assert [row.title for row in rows if isinstance(row, Document)] == ["first", "x", "last"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"5", "not an object: int"),
        (b'{"title": "b"}', 'no "text"'),
        (b'{"title": "\xff", "text": "x"}', "invalid UTF-8"),
        (b'{"title": "c", "text": "\\u0000"}', "a NUL character"),
    ],
)
def test_an_unusable_element_of_an_array_loses_only_itself(tmp_path, bad, reason):
    first, *rest = (json.dumps(row).encode() for row in GOOD)
    rows = read(tmp_path, b"[" + b",".join([first, bad, *rest]) + b"]")
    assert [row.number for row in rows] == [1, 2, 3, 4] and reason in rows.pop(1).reason
    assert [row.title for row in rows] == ["Alex", "Ż", "黑豹队"]


@pytest.mark.parametrize(
    "fault", [b'{"title": "a" "text": "b"}]', b'{"title": "c", "te', b",]", b"] rubbish", b"[" * 100_000, b"9" * 5000]
)
def test_a_broken_array_is_an_error_that_says_how_to_lose_only_the_row(tmp_path, fault):
    content = b'[{"title": "first", "text": "fine"},\n' + fault
    refused(lambda: read(tmp_path, content), "is no JSON array", "one row per line")


def test_an_array_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_ARRAY_BYTES", 1000)
    content = gzip.compress(b"[" + b" " * 30_000_000 + b"]")
    tracemalloc.start()
    refused(lambda: read(tmp_path, content), "is no JSON array", "longer than", "one row per line")
    assert tracemalloc.get_traced_memory()[1] < 8e6
    tracemalloc.stop()
    assert read(tmp_path, b"[" + b" " * 998 + b"]") == []


@pytest.mark.parametrize("end", [b"", b"\n", b"\nmore"])
def test_the_end_of_a_line_does_not_count_in_its_length(tmp_path, monkeypatch, end):
    row = b'{"title": "a", "text": "b"}'
    monkeypatch.setattr(source, "MAX_LINE_BYTES", len(row))
    assert read(tmp_path, row + end)[0] == Document(1, "a", "b")
    assert read(tmp_path, row + b"  " + end)[0].reason.startswith("too long")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(b'{"title": "a", "text": "b"}\n' * 9999)[:-20], "damaged"),
        (b"\x1f\x8bnothing", "damaged"),
    ],
)
def test_an_unreadable_file_is_an_error(tmp_path, content, what):
    refused(lambda: read(tmp_path, content), what)
    for path in (tmp_path / "none.json", tmp_path):
        refused(lambda path=path: Source(path), "cannot read the source")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_memory_does_not_grow_with_a_file_of_lines(tmp_path, compress):
    row = json.dumps({"title": "a", "text": "word " * 2000}).encode() + b"\n"
    (tmp_path / "source").write_bytes(compress(row * 3000))
    source = Source(tmp_path / "source")
    tracemalloc.start()
    assert sum(isinstance(row, Document) for row in source) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 and source.bytes_read == source.size_bytes
