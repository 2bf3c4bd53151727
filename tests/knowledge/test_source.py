"""Sources: every shape that is accepted, and every kind of bad row skipped with its number and reason."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from cells import cells
from making import refused

from knowledge.source import Document, Skip, read_source

TRICKY = 'Three {["\\"]}, \\'
GOOD = [
    {"title": "Alex", "text": "One."},
    {"title": "Ż", "text": ["Two.", TRICKY]},
    {"title": "黑豹队", "text": "四。", "other": {"a": [1]}},
]
ROWS = [Document(1, "Alex", "One."), Document(2, "Ż", f"Two.\n{TRICKY}"), Document(3, "黑豹队", "四。")]


def read(tmp_path, content):
    path = tmp_path / "source"
    path.write_bytes(content)
    return list(read_source(path))


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
)
def test_shapes_that_are_accepted(tmp_path, content, compress):
    assert read(tmp_path, compress(content.encode())) == ROWS


LINES = cells(r"""
    {"title": "first", "text": "fine"} | ¦ {"title": "x", "text": ["y", " "]} | ¦ | blank
    {"title": "x", "text": "y" | not JSON: Expecting ',' delimiter ¦ {title: 1} | not JSON: Expecting property name
    ["title", "text"] | not an object: list ¦ {"title": "x", "name": "y"} | it has ['title', 'name']
    {"title": 5, "text": "y"} | "title" must be a string
    {"title": "x", "text": ["y", null]} | "text" a string or a list of strings
    {"title": " ", "text": "y"} | empty title or text ¦ {"title": "x", "text": ["", " "]} | empty title or text
    {"title": "x", "text": "####SPECIAL####SEPARATOR####"} | empty title or text
    {"title": "x", "text": "a \u0000"} | a NUL character ¦ {"title": "x", "text": "\ud83d"} | a lone surrogate
    """)
BAD_LINES = [
    (b"\xef\xbb\xbf", "blank"),
    *((line.encode(), reason.strip()) for line, _, reason in (case.partition("|") for case in LINES)),
    (b"   \t", "blank"),
    (b'{"title": "x", "text": "a \0"}', "not JSON: Invalid control character"),
    (b'{"title": "x", "text": "\xff"}', "not JSON: 'utf-8' codec"),
    (b"[" * 100_000, "not JSON: maximum recursion"),
    (b'{"title": "x", "text": "y", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"title": "x", "text": "' + b"y" * 30_000_000 + b'"}', "too long: the limit is 8.4 MB"),
    (b'{"title": "last", "text": "fine"}', ""),
]


def test_each_bad_line_is_skipped_with_its_number_and_reason(tmp_path):
    rows = read(tmp_path, b"\n".join(line for line, _ in BAD_LINES))
    assert [row.number for row in rows] == list(range(1, len(BAD_LINES) + 1))
    for row, (_, reason) in zip(rows, BAD_LINES, strict=True):
        assert isinstance(row, Skip) and reason in row.reason if reason else isinstance(row, Document), row
    assert [row.title for row in rows if isinstance(row, Document)] == ["first", "x", "last"]


def test_a_first_row_that_cannot_be_used_is_skipped_too(tmp_path):
    skip, document = read(tmp_path, b'nonsense\n{"title": "Alex", "text": "One."}\n')
    assert (skip.number, document.title) == (1, "Alex")


def test_elements_of_an_array_are_skipped_like_lines(tmp_path):
    rows = read(
        tmp_path, b'[{"title": "a", "text": "b"}, 5, {"title": "c", "text": "\xff"}, {"title": "d", "text": "e"}]'
    )
    assert [row.number for row in rows if isinstance(row, Document)] == [1, 4]
    assert "not an object" in rows[1].reason
    assert "lone surrogate" in rows[2].reason
    refused(lambda: read(tmp_path, b'[{"title": "first", "text": "fine"},\n {"te'), "no JSON array")


def test_tables_are_read_as_data_sets_are(tmp_path):
    path = tmp_path / "source.csv"
    path.write_text("title,text\nAlex,One.\n")
    assert list(read_source(path)) == ROWS[:1]


def test_the_texts_of_a_folder_are_documents_under_their_names(tmp_path):
    (tmp_path / "towns").mkdir()
    texts = {"Alex.txt": b"One.", "towns/Oslo.MD": "\ufeff# Oslo\nå".encode(), "z.txt": b"\xff", "empty.md": b" "}
    for name, text in (texts | {"note.pdf": b"%PDF", ".hidden": b"x"}).items():
        (tmp_path / name).write_bytes(text)
    passed = []
    alex, empty, oslo, bad = read_source(tmp_path, passed.append)
    assert (alex, oslo) == (Document(1, "Alex", "One."), Document(3, "Oslo", "# Oslo\nå"))
    assert empty == Skip(2, "empty title or text: empty.md") and "UTF-8" in bad.reason and "z.txt" in bad.reason
    assert passed[-1] == sum(map(len, texts.values()))


def piped(content):
    """The rows of a pipe that holds this content."""
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    try:
        return list(read_source(Path(f"/dev/fd/{reader}")))
    finally:
        os.close(reader)


def test_a_pipe_is_read_unless_it_holds_a_database(ours):
    lines = "\n".join(map(json.dumps, GOOD)).encode()
    assert piped(lines) == piped(gzip.compress(lines)) == ROWS
    refused(lambda: piped(ours.read_bytes()[:4096]), "a pipe")


@pytest.mark.parametrize("content", [gzip.compress(b'{"title": "a", "text": "b"}\n' * 9999)[:-20], b"\x1f\x8bnothing"])
def test_an_unreadable_file_is_an_error(tmp_path, content):
    refused(lambda: read(tmp_path, content), "cannot read the source")
    refused(lambda: list(read_source(tmp_path / "none.json")), "cannot read the source")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_memory_does_not_grow_with_a_file_of_lines(tmp_path, compress):
    row = json.dumps({"title": "a", "text": "word " * 2000}).encode() + b"\n"
    path, passed = tmp_path / "source", []
    path.write_bytes(compress(row * 3000))
    tracemalloc.start()
    assert sum(isinstance(row, Document) for row in read_source(path, passed.append)) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 and passed[-1] == path.stat().st_size and passed == sorted(passed)
