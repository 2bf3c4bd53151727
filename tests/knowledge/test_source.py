"""Sources: every shape that is accepted, and every kind of bad row skipped with its line and reason, in constant
memory."""

import gzip
import json
import tracemalloc

import pytest

from grpo.base.errors import UserError
from knowledge.store import source
from knowledge.store.source import Row, Skip, Source

TRICKY = 'Three {["\\"]}, \\'
GOOD = [
    {"title": "Alex", "text": "One."},
    {"title": "Ż", "text": ["Two.", TRICKY]},
    {"title": "黑豹队", "text": "四。", "other": {"a": [1]}},
]
ROWS = [("Alex", ["One."]), ("Ż", ["Two.", TRICKY]), ("黑豹队", ["四。"])]


def read(tmp_path, content: bytes, **options) -> list:
    path = tmp_path / "source"
    path.write_bytes(content)
    return list(Source(path, **options))


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
        "[" + ",\n".join(map(json.dumps, GOOD)) + "]",
    ],
    ids=["lines", "unicode", "crlf", "bom", "array", "indented", "array of lines"],
)
def test_shapes_that_are_accepted(tmp_path, content, compress):
    rows = read(tmp_path, compress(content.encode()))
    assert [(row.title, row.texts) for row in rows] == ROWS


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 7, 64, 1 << 20])
@pytest.mark.parametrize("separator", ["", "\n"])
def test_quotes_and_brackets_inside_strings_are_text_wherever_a_piece_ends(
    tmp_path, monkeypatch, chunk_bytes, separator
):
    """An odd number of escaped quotes, backslashes before the closing quote, and every bracket."""
    monkeypatch.setattr(source, "CHUNK_BYTES", chunk_bytes)
    texts = ['a 5" pipe {', '"', "x\\", 'x\\"', '\\\\"]}, {"', "[[[", "}}}],", ',"', 'é" 中"}']
    content = (
        "[" + separator + f",{separator}".join(json.dumps({"title": f"t{text}", "text": text}) for text in texts) + "]"
    )
    assert [(row.title, row.texts) for row in read(tmp_path, content.encode())] == [
        (f"t{text}", [text]) for text in texts
    ]


BAD_LINES = [
    (b'{"title": "first", "text": "fine"}', None),
    (b"", "blank"),
    (b"   \t", "blank"),
    (b'{"title": "x", "text": "y"', "not JSON: Expecting ',' delimiter at character 28"),
    (b"{title: 1}", "not JSON: Expecting property name"),
    (b'["title", "text"]', "not an object: list"),
    (b'{"title": "x"}', 'no "text"; it has title'),
    (b'{"text": "y", "name": "x"}', 'no "title"; it has text, name'),
    (b'{"title": 5, "text": "y"}', '"title" must be a string'),
    (b'{"title": "x", "text": ["y", null]}', '"text" a string or a list of strings'),
    (b'{"title": " ", "text": "y"}', "empty title"),
    (b'{"title": "x", "text": ["", " "]}', "empty text"),
    (b'{"title": "x", "text": ["y", " "]}', None),
    (b'{"title": "x", "text": "a \\u0000"}', "a NUL character"),
    (b'{"title": "x", "text": "a \0"}', "not JSON: Invalid control character"),
    (b'{"title": "x", "text": "\\ud83d"}', "a lone surrogate"),
    (b'{"title": "x", "text": "\xff"}', "invalid UTF-8 at byte 25"),
    (b'{"title": "x", "text": "' + b"y" * 10_000_000 + b'"}', "10.0 MB, over the limit of 8.4 MB"),
    (b"[" * 100_000, "not JSON: nested too deeply"),
    (b'{"title": "x", "text": "y", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"title": "last", "text": "fine"}', None),
]


def test_each_bad_line_is_skipped_with_its_number_and_reason(tmp_path):
    rows = read(tmp_path, b"\n".join(line for line, _ in BAD_LINES))
    assert [row.line for row in rows] == list(range(1, len(BAD_LINES) + 1))
    for row, (_, reason) in zip(rows, BAD_LINES, strict=True):
        assert isinstance(row, Row) if reason is None else isinstance(row, Skip) and reason in row.reason, row
    assert [row.title for row in rows if isinstance(row, Row)] == ["first", "x", "last"]


def test_an_unusable_element_of_an_array_loses_only_itself(tmp_path):
    bad = [
        (b"5", "not an object: int"),
        (b'{"title": "b"}', 'no "text"'),
        (b'{"title": "\xff", "text": "x"}', "invalid UTF-8"),
        (b'{"title": "c",\n "text": "\\u0000"}', "a NUL character"),
    ]
    for fault, reason in bad:
        good = [json.dumps(row).encode() for row in GOOD]
        rows = read(tmp_path, b"[" + b",\n".join([good[0], fault, good[1], good[2]]) + b"]")
        num_lines = fault.count(b"\n")
        assert [row.line for row in rows] == [1, 2, 3 + num_lines, 4 + num_lines]
        assert [row.title for row in rows if isinstance(row, Row)] == ["Alex", "Ż", "黑豹队"]
        assert reason in rows[1].reason


@pytest.mark.parametrize(
    "fault, line",
    [
        (b'{"title": "a" "text": "no comma"},', 2),
        (b'{"title": "c", "text": "no quote},', 2),
        (b'{"title": "d", "text": "no brace",', 3),
        (b'{"title": "f", "text": "line\nbreak"},', 2),
        (b"{title: 1},", 2),
        (b",", 2),
        (b"[" * 100_000, 2),
        (b"9" * 5000 + b",", 2),
    ],
)
def test_a_broken_array_is_an_error_with_its_line(tmp_path, fault, line):
    path = tmp_path / "source"
    path.write_bytes(b'[{"title": "first", "text": "fine"},\n' + fault + b'\n{"title": "last", "text": "fine"}]')
    rows = iter(Source(path))
    assert next(rows) == Row(1, "first", ["fine"])
    with pytest.raises(UserError, match="the JSON array is broken") as error:
        list(rows)
    assert error.value.what.startswith(f"{path}:{line}: ") and error.value.exit_code == 3
    assert error.value.why and "one row per line" in error.value.fix


def test_a_broken_array_is_found_without_reading_all_of_it(tmp_path):
    path = tmp_path / "source"
    with open(path, "wb") as file:
        file.write(b'[{"title": "a", "text": "b"},\n{"title": "c", "text": ["')
        file.write(b"x" * 30_000_000 + b'"]}]')
    rows = Source(path, max_row_bytes=1_000_000)
    tracemalloc.start()
    with pytest.raises(UserError, match=":2: the JSON array is broken"):
        list(rows)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "content, num_rows", [(b"[]", 0), (b"[\n]\n", 0), (b"", 0), (b' [ {"title": "a", "text": "b"} ] \n', 1)]
)
def test_small_arrays(tmp_path, content, num_rows):
    assert len(read(tmp_path, content)) == num_rows


@pytest.mark.parametrize(
    "content, why",
    [
        (b'[{"title": "a", "text": "b"}', "the file ends before the array does"),
        (b'[{"title": "a", "text": "b"},', "Expecting value"),
        (b'[{"title": "a", "text": "b"},{"title": "c", "te', "Unterminated string"),
        (b"[", "Expecting value"),
        (b"[1 2]", "expected , or ], not 2"),
        (b'[{"title": "a", "text": "b"}] rubbish', "text after the end"),
    ],
)
def test_arrays_that_end_too_early_or_too_late(tmp_path, content, why):
    with pytest.raises(UserError, match="the JSON array is broken") as error:
        read(tmp_path, content)
    assert why in error.value.why


def test_a_number_goes_on_in_what_is_read_next(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK_BYTES", 3)  # "[12", "345", "6]": 12 is a number, too
    assert read(tmp_path, b"[123456]") == [Skip(1, "not an object: int")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nmore"])
def test_the_end_of_a_line_does_not_count_in_its_length(tmp_path, end):
    row = b'{"title": "a", "text": "b"}'
    assert read(tmp_path, row + end, max_row_bytes=len(row))[0] == Row(1, "a", ["b"])
    assert "over the limit" in read(tmp_path, row + b" " + end, max_row_bytes=len(row) - 1)[0].reason


def test_a_row_over_the_limit_is_skipped_in_an_array_too(tmp_path):
    content = json.dumps(
        [{"title": "a", "text": "b"}, {"title": "big", "text": "x" * 5_000_000}, {"title": "c", "text": "d"}]
    ).encode()
    rows = read(tmp_path, content, max_row_bytes=1_000_000)
    assert [row.title for row in rows if isinstance(row, Row)] == ["a", "c"]
    assert [row for row in rows if isinstance(row, Skip)]


@pytest.mark.parametrize(
    "content, what",
    [
        (gzip.compress(b'{"title": "a", "text": "b"}\n' * 9999)[:-20], "damaged"),
        (b"\x1f\x8bnothing", "damaged"),
        ("[]".encode("utf-16"), "UTF-16"),
    ],
)
def test_an_unreadable_file_is_an_error(tmp_path, content, what):
    with pytest.raises(UserError, match=what) as error:
        read(tmp_path, content)
    assert error.value.exit_code == 3 and error.value.fix


def test_a_missing_file_or_a_folder_is_an_error(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UserError, match="cannot read the source"):
            Source(path)


@pytest.mark.parametrize("layout", ["array in one line", "lines", "gzip"])
def test_memory_does_not_grow_with_the_file(tmp_path, layout):
    row = json.dumps({"title": "a", "text": "word " * 2000}).encode()
    content = (b"[" + b",".join([row] * 3000) + b"]") if layout.startswith("array") else b"\n".join([row] * 3000)
    path = tmp_path / "source"
    path.write_bytes(gzip.compress(content, 1) if layout == "gzip" else content)
    assert len(content) > 30e6
    del content
    source = Source(path)
    tracemalloc.start()
    assert sum(isinstance(row, Row) for row in source) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 and source.bytes_read == source.size_bytes
