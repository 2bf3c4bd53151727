"""Two models on the same questions: exact p-values, bootstrap intervals, and what may be paired."""

import numpy as np
import pytest
from making import refused

from grpo.evaluation.compare import collect, compare, comparison_text, exchange_test, read_answers


def test_the_exchange_test_counts_the_signs_that_are_as_extreme():
    """1 2 3 4: two of the sixteen ways to give them signs have a mean as large; for 1 -2 3 -4 it is fourteen."""
    assert exchange_test(np.array([1.0, 2, 3, 4])) == pytest.approx(2 / 16, abs=0.01)
    assert exchange_test(np.array([1.0, -2, 3, -4])) == pytest.approx(14 / 16, abs=0.015)


@pytest.mark.parametrize(
    "only_a, only_b, p",
    [(0, 0, 1.0), (0, 5, 2 / 32), (10, 2, 2 * (1 + 12 + 66) / 4096), (980, 1020, 0.383)],
)
def test_the_exchange_test_of_rates_is_mcnemars(only_a, only_b, p):
    """p by the binomial distribution. Questions on which the models agree decide nothing."""
    changes = np.array([-1.0] * only_a + [1.0] * only_b + [0.0] * 7)
    assert exchange_test(changes) == exchange_test(-changes) == pytest.approx(p, abs=0.015)


def answers(text, *rewards):
    """One answer per question: r right, w wrong, d declined, . not scorable; and its reward."""
    names = {"r": "correct", "w": "wrong", "d": "refused", ".": None}
    records = [{"row": row, "question": f"q{row}", "outcome": names[letter]} for row, letter in enumerate(text)]
    for record, reward in zip(records, rewards, strict=False):
        record["reward"] = reward
    return collect(records, "x")


def test_rates_are_of_the_questions_that_both_answered():
    found = compare(answers("rrwwdd.r"), answers("rwrrdwr."))
    assert (found.num_questions, found.num_left_out) == (6, 2) and found.measures["accuracy"].p == 1.0
    sixths = {"accuracy": (2, 3, 1), "incorrect": (2, 2, 0), "not_attempted": (2, 1, -1)}
    for name, wanted in sixths.items():
        rate = found.measures[name]
        assert (6 * rate.a, 6 * rate.b, 6 * rate.difference) == pytest.approx(wanted)


def test_means_of_a_reward_without_right_and_wrong_are_compared():
    found = compare(answers("." * 40, *[0.5] * 40), answers("." * 40, *[0.75, 0.5] * 20))
    (mean,) = found.measures.values()
    assert (mean.a, mean.b, mean.difference) == pytest.approx((0.5, 0.625, 0.125)) and mean.p < 0.001
    assert (mean.low, mean.high) == pytest.approx((14 / 160, 26 / 160))  # 2.5 % of the binomial distribution
    assert "reward" in comparison_text(found, "x", "y") and "+0.125" in comparison_text(found, "x", "y")


def test_each_of_several_rewards_is_a_row():
    record = {"row": 0, "question": "q", "outcome": "correct", "reward": 3.0, "rewards": {"format": 1.0, "mine": 2.0}}
    assert list(collect([record], "x"))[3:] == ["reward", "rewards/format", "rewards/mine"]
    assert list(collect([{**record, "rewards": {"mine": 3.0}}], "x"))[3:] == ["reward"]


def test_the_facts_of_an_answer_are_rows_by_the_first_reward_that_checked_them():
    counts = {"facts": 5, "supported": 3, "refuted": 1}
    record = {"row": 0, "question": "q", "outcome": "wrong"}
    record["details"] = {"mine": {"supported": "3"}, "factuality": counts, "knowrl": counts | {"supported": 0}}
    measured = collect([record, record | {"details": None}], "x")
    assert {name: list(of.values()) for name, of in measured.items() if "facts" in name} == {
        "supported_facts": [[3.0]],
        "refuted_facts": [[1.0]],
    }


def test_the_interval_is_of_the_paired_difference():
    """b is right wherever a is, and on 10 of 100 more: the unpaired interval would hold 0."""
    a, b = answers("r" * 50 + "w" * 50), answers("r" * 60 + "w" * 40)
    accuracy = compare(a, b).measures["accuracy"]
    assert accuracy.difference == pytest.approx(0.1)
    assert 0.03 < accuracy.low < 0.06
    assert 0.14 < accuracy.high < 0.18
    assert accuracy.p == pytest.approx(2 / 1024, abs=1e-3)
    same = compare(a, a).measures["accuracy"]
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_questions_that_differ_are_not_paired():
    def asked(*texts):
        return collect([{"row": row, "question": q, "outcome": "correct"} for row, q in enumerate(texts)], "x")

    for a, b in ((asked("one", "two"), asked("two", "one")), (answers("..."), answers("rrr"))):
        refused(lambda a=a, b=b: compare(a, b), "nothing to compare")


@pytest.mark.parametrize("wild", [{"row": [1]}, {"row": None}, {"outcome": "great"}, {"outcome": ["correct"]}])
def test_a_row_that_is_no_answer_is_named(wild):
    good = {"row": 0, "question": "q", "outcome": "correct"}
    for bad in (good | wild, {"completion": "x"}):
        refused(lambda bad=bad: collect([good, bad], "f.jsonl"), "row 2 is not an answer")


@pytest.mark.parametrize("reward", [None, "nan", "inf"])
def test_a_reward_that_is_no_finite_number_does_not_count(reward):
    assert "reward" not in collect([{"row": 0, "question": "q", "outcome": None, "reward": reward}], "x")


def test_a_file_that_is_missing_is_named_as_it_was_typed(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    for typed, missing in (("no.json", "no.json"), ("no.jsonl", "no.jsonl"), ("result.json", "result.jsonl")):
        assert str(tmp_path / missing) in refused(lambda typed=typed: read_answers(tmp_path / typed)).why
