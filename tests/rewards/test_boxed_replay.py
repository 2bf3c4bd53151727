"""The replay of references: what it makes of them is right by its rules, and the verifier agrees on all of a sample."""

import json
import random

import pytest

from bench import verifier
from rewards.boxed import equivalent


def test_the_corpus_is_replayed_without_a_wrong_payment(capfd):
    verifier.main(["--pairs", "2000"])
    row = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert row["checks"]["pairs"] > 1800
    assert row["checks"]["paid by ours"] == 0
    assert row["checks"]["missed by ours"] < 0.01 * row["checks"]["pairs"]
    assert all(case["pairs"] > 0 for case in row["cases"])


def test_references_are_read_from_lines_rows_and_solutions(tmp_path):
    lines, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    lines.write_text("12\n\n\\frac12\n", encoding="utf-8")
    solution = r"so it is \boxed{x+1}."
    rows.write_text("\n".join(json.dumps({"answer": answer}) for answer in ("12", solution)), encoding="utf-8")
    assert verifier.read_references([lines, rows]) == ["12", r"\frac12", "x+1"]


@pytest.mark.parametrize(
    ("rule", "truth", "answer"),
    [
        (verifier.SAME["sides swapped"], "x < 3", "3 > x"),
        (verifier.SAME["ASCII relations"], r"x \le 3", "x <= 3"),
        (verifier.SAME["fractions of digits"], r"\frac{1}{2}", r"\frac12"),
        (verifier.SAME["terms in another order"], "(1, 2)", None),
        (verifier.OTHER["tuple swapped"], "(1, 2)", "(2, 1)"),
        (verifier.OTHER["fraction upside down"], r"\frac{1}{2}", r"\frac{2}{1}"),
        (verifier.OTHER["another number"], "7", "8"),
        (verifier.OTHER["negative"], r"\text{no}", None),
        (verifier.OTHER["functions the other way round"], "5", ("f(g(5))", "g(f(5))")),
    ],
)
def test_a_rule(rule, truth, answer):
    assert rule(truth, random.Random(0)) == answer


def test_failures_are_counted_by_class():
    pairs = [verifier.Pair("a", "1", "1", True), verifier.Pair("b", "1", "2", False)]
    counts, _ = verifier.replay(pairs, {"ours": equivalent, "generous": lambda answer, truth: True})
    assert [len(counts[rule].wrong["ours"]) for rule in "ab"] == [0, 0]
    assert [len(counts[rule].wrong["generous"]) for rule in "ab"] == [0, 1]
