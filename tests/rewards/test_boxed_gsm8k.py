"""Every gold answer of GSM8K is read as its number. Skipped without the data. (Notations: test_boxed_properties.py.)"""

import pytest
from making import read_lines, real_data

from rewards.exact import after_solution
from rewards.mathematics.boxes import equivalent, gold_answer, grade_box


@pytest.mark.parametrize("name", ["test.jsonl", "train.jsonl"])
def test_every_gold_answer(name):
    golds = {gold_answer(after_solution(row["answer"])) for row in read_lines(real_data(f"gsm8k/{name}"))}
    assert len(golds) > 300
    for gold in golds:
        number = int(gold.replace(",", ""))
        assert grade_box(rf"Step 1 gives \boxed{{1}}. So \boxed{{{number}}}.", gold)[0] == "correct", gold
        assert not equivalent(str(number + 1), gold), gold
