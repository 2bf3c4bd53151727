"""Two models on the same questions: McNemar's exact test, bootstrap intervals, and what may be paired."""

import json
import math

import numpy as np
import pytest

from grpo.base.errors import UserError
from grpo.evaluation.compare import (
    bootstrap_interval,
    collect_outcomes,
    compare,
    comparison_text,
    mcnemar_exact,
    read_outcomes,
    to_json,
)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (0, 5, 2 / 32),
        (5, 5, 1.0),
        (1, 9, 2 * 11 / 1024),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
        (400, 500, 0.00096),  # scipy.stats.binomtest(400, 900).pvalue
    ],
)
def test_mcnemars_exact_p_value(only_a, only_b, p):
    assert mcnemar_exact(only_a, only_b) == mcnemar_exact(only_b, only_a) == pytest.approx(p, rel=0.02)


def outcomes(text: str) -> dict:
    """One answer per question: r right, w wrong, d declined, . not scorable."""
    names = {"r": ["correct"], "w": ["wrong"], "d": ["refused"], ".": []}
    return {(row, f"q{row}"): names[letter] for row, letter in enumerate(text)}


def test_rates_are_of_the_questions_that_both_answered():
    found = compare(outcomes("rrwwdd.r"), outcomes("rwrrdwr."))
    assert (found.num_questions, found.num_left_out) == (6, 2)
    assert (found.only_a_right, found.only_b_right, found.mcnemar_p) == (1, 2, 1.0)
    rates = {name: (rate.a, rate.b, rate.difference) for name, rate in found.rates.items()}
    assert rates["accuracy"] == pytest.approx((2 / 6, 3 / 6, 1 / 6))
    assert rates["incorrect"] == pytest.approx((2 / 6, 2 / 6, 0))
    assert rates["not_attempted"] == pytest.approx((2 / 6, 1 / 6, -1 / 6))


def test_questions_that_only_one_of_the_two_was_asked_are_left_out():
    found = compare(outcomes("rrw"), outcomes("rwwww"))
    assert (found.num_questions, found.num_left_out) == (3, 2)
    found = compare(outcomes("rrwww"), outcomes("rww"))
    assert (found.num_questions, found.num_left_out) == (3, 2)


def test_the_interval_is_of_the_paired_difference():
    """b is right wherever a is, and on 10 of 100 more: the unpaired interval would hold 0."""
    a, b = outcomes("r" * 50 + "w" * 50), outcomes("r" * 60 + "w" * 40)
    accuracy = compare(a, b).rates["accuracy"]
    assert accuracy.difference == pytest.approx(0.1) and 0.03 < accuracy.low < 0.06 and 0.14 < accuracy.high < 0.18
    same = compare(a, a).rates["accuracy"]
    assert (same.difference, same.low, same.high) == (0, 0, 0)


def test_the_bootstrap_agrees_with_the_normal_interval_on_many_questions():
    values = np.random.default_rng(3).normal(0.2, 1.0, 2000)
    low, high = bootstrap_interval(values)
    error = values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    assert bootstrap_interval(values) == (low, high)


def test_questions_with_several_answers_have_no_mcnemar_test():
    a = {(0, "q"): ["correct", "wrong"], (1, "r"): ["wrong", "wrong"]}
    b = {(0, "q"): ["correct", "correct"], (1, "r"): ["wrong"]}
    found = compare(a, b)
    assert found.mcnemar_p is None and found.only_a_right is None and "McNemar" not in comparison_text(found, "a", "b")
    assert found.rates["accuracy"].difference == pytest.approx(0.25)


def test_questions_that_differ_are_not_paired():
    a = {(0, "one"): ["correct"], (1, "two"): ["correct"]}
    with pytest.raises(UserError, match="nothing to compare") as error:
        compare(a, {(0, "two"): ["correct"], (2, "one"): ["correct"]})
    assert error.value.exit_code == 3
    with pytest.raises(UserError, match="nothing to compare"):
        compare(outcomes("..."), outcomes("rrr"))


def test_answers_are_read_from_the_file_beside_the_result(tmp_path):
    records = [{"row": 0, "question": "q", "outcome": outcome, "more": 1} for outcome in ("correct", None, "wrong")]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name in ("out.json", "out.jsonl"):
        assert read_outcomes(tmp_path / name) == {(0, "q"): ["correct", "wrong"]}
    with pytest.raises(UserError, match="row 2 is not an answer") as error:
        collect_outcomes([records[0], {"row": 1, "completion": "x"}], "f.jsonl")
    assert error.value.exit_code == 3


def test_a_file_that_is_missing_is_named_as_it_was_typed(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    for typed, missing in (("no.json", "no.json"), ("no.jsonl", "no.jsonl"), ("result.json", "result.jsonl")):
        with pytest.raises(UserError) as error:
            read_outcomes(tmp_path / typed)
        assert error.value.what == f"cannot compare {tmp_path / typed}" and error.value.exit_code == 3
        assert error.value.why == f"there is no file {tmp_path / missing}"


def test_a_comparison_is_json_and_text():
    found = compare(outcomes("rrw"), outcomes("rww"))
    assert json.loads(json.dumps(to_json(found, "x", "y")))["rates"]["accuracy"]["difference"] == pytest.approx(-1 / 3)
    text = comparison_text(found, "x", "y")
    assert "3 questions, paired" in text and "only a right: 1, only b: 0; McNemar p = 1" in text and "-33.3 %" in text
