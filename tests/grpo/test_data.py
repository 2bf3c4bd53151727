"""Questions from data files: what is read, what is refused, and in which order rows are handed out."""

import json

import pytest
from making import cases, refused, write_rows

from grpo.algorithm.schema import Order
from grpo.base.storage import write_json
from grpo.data.files import read_records
from grpo.data.rows import fingerprint, read_rows


def test_json_array_jsonl_and_csv_are_told_apart_by_content(tmp_path):
    rows = [{"question": "a?", "answer": "1"}, {"question": "b, c?", "answer": "2"}]
    (tmp_path / "array.txt").write_text("\ufeff" + json.dumps(rows), encoding="utf-8")
    (tmp_path / "lines.json").write_text("\r\n".join(map(json.dumps, rows)) + "\r\n\n", encoding="utf-8")
    (tmp_path / "table.csv").write_text('question,answer\na?,1\n"b, c?",2\n', encoding="utf-8")
    (tmp_path / "below.csv").write_text("\ufeff\nquestion;answer\na?;1\nb, c?;2\n", encoding="utf-8")
    (tmp_path / "below.jsonl").write_text("\ufeff\n" + "\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert all(read_records(path) == rows for path in tmp_path.iterdir())
    write_json(tmp_path / "one.json", rows[0])
    assert read_records(tmp_path / "one.json") == rows[:1]


def test_fields_are_found_or_named(tmp_path):
    path = write_rows(tmp_path / "d.jsonl", [{"problem": " x? ", "solution": "#### 3", "other": 7}])
    (row,) = read_rows(path)
    assert row.question == "x?" and row.columns["answer"] == "#### 3" and row.columns["other"] == 7
    path = write_rows(tmp_path / "e.jsonl", [{"q": "x?", "a": "1", "t": "T"}])
    (row,) = read_rows(path, "q", "a", "t")
    assert (row.question, row.columns["answer"], row.columns["title"]) == ("x?", "1", "T")
    refused(lambda: read_rows(path), "no column for the question", "columns: q, a, t", "question_field")
    refused(lambda: read_rows(path, "q", "b"), "no column b", "answer_field")


@pytest.mark.parametrize(
    "content, part",
    [
        (b"", "no rows"),
        (b"[]", "no rows"),
        (b"[1]", "row 1 is not an object"),
        (b'{"question": "a"}\n{"question": ', "x.jsonl:2 is not valid JSON"),
        (b'{"question": "a"}\n{"question": null}', "row 2 has no question"),
        (b'{"question": ["a"]}', "row 1 holds no conversation"),
        (b"[{]", "x.jsonl:1 is not valid JSON"),
        (b'[{"question": "\xff"}]', "not UTF-8"),
        (b"PK\x03\x04\x14\x00\xff", "is a ZIP archive"),  # a workbook of Excel is one, too
        (b"question,answer,answer\na,1,2\n", "two columns have the same name"),
        (None, "cannot read"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, content, part):
    if content is not None:
        (tmp_path / "x.jsonl").write_bytes(content)
    refused(lambda: read_rows(tmp_path / "x.jsonl"), part)


@pytest.mark.parametrize("name, content, line", cases(__file__, "places"))
def test_a_row_that_is_not_what_it_seems_is_named_by_its_first_line(tmp_path, name, content, line):
    (tmp_path / name).write_text(content.replace("NUL", "\0").replace("DIGITS", "1" * 5000))
    refused(lambda: read_records(tmp_path / name), f"{name}:{line} is not valid")


def test_order_is_a_permutation_per_epoch_and_continues_from_a_position():
    """In whatever portions it is taken; the seed decides it."""
    epochs = [Order(20, seed, True, position=20 * epoch).take(20) for seed in range(5) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) != epoch for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 15
    whole, resumed = Order(7, seed=1, shuffle=True), Order(7, seed=1, shuffle=True, position=6)
    taken = [row for count in (1, 0, 9, 5) for row in resumed.take(count)]
    assert taken == whole.take(21)[6:] and resumed.position == 21
    assert Order(3, 5, shuffle=False).take(7) == [0, 1, 2, 0, 1, 2, 0]


def test_fingerprint_sees_content_and_order(tmp_path):
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    other = [rows[0], {**rows[1], "answer": "3"}]  # the answers count too
    found = [fingerprint(read_rows(write_rows(tmp_path / "d.jsonl", some))) for some in (rows, rows, rows[::-1], other)]
    assert found[0] == found[1] and len(set(found)) == 3
