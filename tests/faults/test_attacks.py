"""Attacks by table: Parquet and answers to compare in which one thing is wild.

Each is read for what it says, or refused in three lines; none is a traceback.
"""

import json
from dataclasses import asdict

import pytest
from cells import cells
from fuzzing import refuses_or
from making import write_rows

from grpo.data.rows import read_rows
from grpo.evaluation.compare import compare, read_answers

WILD = cells(  # in JSON
    r"""
    null ¦ true ¦ 0 ¦ -1 ¦ 1e308 ¦ NaN ¦ Infinity ¦ "" ¦ " " ¦ "\u0000" ¦ "\ud800" ¦ "<|im_end|>" ¦ "=1+1" ¦ "\u202e"
    [] ¦ {} ¦ [null] ¦ [[]] ¦ [{}] ¦ [NaN, "a"] ¦ {"role": "user"} ¦ [{"role": "user", "content": {}}]
    {"math": "x"} ¦ {"math": NaN} ¦ {"": 1}
    """,
    *("1" + "0" * 310, "-1" + "0" * 310, '"' + "x" * 100_000 + '"'),
)


@pytest.mark.parametrize("place", [0, 4, 60, 200, -60, -9, -8, -5, -1])
def test_damaged_parquet_is_refused_or_read(tmp_path, place):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    parquet.write_table(arrow.Table.from_pylist([{"question": "1 + 1?", "answer": "2"}] * 50), path)
    data = path.read_bytes()
    at = place % len(data)
    for end in (bytes([data[at] ^ 37]) + data[at + 1 :], b"", bytes(len(data) - at)):
        path.write_bytes(data[:at] + end)
        assert all(row.question.strip() for row in refuses_or(lambda: read_rows(path), {3}) or [])


ANSWER = {"row": 0, "question": "q", "outcome": "correct", "reward": 1.0, "rewards": {"math": 1.0}, "completion": "c"}


@pytest.mark.parametrize("name", [*ANSWER, "confidence", "choices", "mc1", "mc2", ""])
def test_a_comparison_with_a_wild_answer_is_made_or_refused(tmp_path, name):
    good = [ANSWER | {"row": row, "outcome": outcome} for row, outcome in enumerate(("correct", "wrong", "refused"))]
    write_rows(tmp_path / "a.jsonl", good)
    for wild in map(json.loads, WILD):
        write_rows(tmp_path / "b.jsonl", [*good[:2], good[2] | {name: wild}])
        found = refuses_or(lambda: compare(*(read_answers(tmp_path / f"{side}.json") for side in "ab")), {3})
        if found:
            assert found.num_questions in (2, 3)
            assert json.dumps(asdict(found), allow_nan=False)
