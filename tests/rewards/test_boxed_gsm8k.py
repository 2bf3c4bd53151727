"""Every gold answer of GSM8K can be read, equals itself in several notations, and equals no neighbour. Skipped without
the data."""

import json
from pathlib import Path

import pytest

from rewards.exact import after_solution
from rewards.mathematics.boxes import equivalent, gold_answer, grade_box

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k"


@pytest.mark.parametrize("name", ["test.jsonl", "train.jsonl"])
def test_every_gold_answer(name):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"GSM8K is not at {path}")
    solutions = {json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()}
    golds = {gold_answer(after_solution(solution)) for solution in solutions}
    assert len(golds) > 300
    for gold in golds:
        number = int(gold.replace(",", ""))
        for written in (
            gold,
            str(number),
            f"{number:,}",
            f"{number:,}".replace(",", "{,}"),
            f"{number}.00",
            rf"\${number}",
            rf"{number}\text{{ apples}}",
            f"x = {number}",
            rf"\frac{{{2 * number}}}{{2}}",
            rf"{number}\%",
        ):
            assert grade_box(rf"Step 1 gives \boxed{{1}}. So \boxed{{{written}}}.", gold)[0] == "correct", (
                written,
                gold,
            )
        for other in (
            number + 1,
            number - 1,
            -number or 1,
            10 * number or 1,
            f"{number}.5",
            f"{number}, {number + 1}",
            rf"\frac{{{number or 1}}}{{3}}",
        ):
            assert not equivalent(str(other), gold), (other, gold)
