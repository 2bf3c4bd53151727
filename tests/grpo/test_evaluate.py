"""The summary of an evaluation, every number of it worked by hand."""

import math

import pytest
from making import make_group

from grpo.run.summary import Z95, summary
from grpo.schema import Score


def question(*outcomes, details=None, rewards=None, length=2):
    """One question and how its answers turned out; None: no reward could tell."""
    scores = [{"r": Score(1.0, "", outcome, details or {})} for outcome in outcomes]
    return make_group((), *[[1] * length] * len(outcomes), scores=scores, reward=rewards or [1.0] * len(outcomes))


def answers(right, wrong, refused=0):
    """One answer per question."""
    outcomes = ["correct"] * right + ["wrong"] * wrong + ["refused"] * refused
    return [question(outcome) for outcome in outcomes]


def test_rates():
    """8 answers, of which 7 are known: 3 right, 2 wrong, 2 refused."""
    found = summary(
        [
            question("correct", "correct", "wrong", "refused", length=3, rewards=[2.0, None, -1.0, 1.0]),
            question("correct", "wrong", length=6, rewards=[3.0, None]),
            question("refused", None, length=9, rewards=[0.0, None]),
        ]
    )
    assert (found["num_questions"], found["num_answers"]) == (3, 8)
    assert found["unscored_frac"] == pytest.approx(1 / 8)
    assert found["accuracy"] == pytest.approx(3 / 7)
    assert found["attempted_accuracy"] == pytest.approx(3 / 5)
    assert found["hallucination_rate"] == pytest.approx(2 / 5)
    assert found["wrong_rate"] == pytest.approx(2 / 7)
    assert found["refusal_rate"] == pytest.approx(2 / 7)
    assert found["mean_length"] == pytest.approx((4 * 3 + 2 * 6 + 2 * 9) / 8)
    assert found["reward"] == pytest.approx((2 - 1 + 1 + 3 + 0) / 5)
    assert "supported_frac" not in found


def test_nothing_is_known():
    found = summary([question(None, None, rewards=[None, None])])
    assert (found["unscored_frac"], found["accuracy"], found["attempted_accuracy"]) == (1, 0, 0)
    assert (found["accuracy_low"], found["accuracy_high"]) == (0, 1) and math.isnan(found["reward"])
    assert not any(name.startswith("pass@") for name in found)


@pytest.mark.parametrize(
    ("right", "wrong", "low", "high"),
    [
        (3, 7, 0.10779, 0.60322),  # z^2 = 3.84146: (0.3 + 0.192073 -+ 1.959964 sqrt(0.021 + 0.0096037)) / 1.384146
        (0, 5, 0.0, 0.43448),  # z^2 / (5 + z^2)
        (5, 0, 0.56552, 1.0),
        (1, 0, 0.20654, 1.0),  # 1 / (1 + z^2)
        (81, 182, 0.2553, 0.3662),  # Newcombe (1998), table I
    ],
)
def test_wilsons_interval_for_one_answer_per_question(right, wrong, low, high):
    found = summary(answers(right, wrong))
    assert (found["accuracy_low"], found["accuracy_high"]) == pytest.approx((low, high), abs=1e-4)


def test_a_refusal_is_an_answer_that_is_not_right():
    one, other = summary(answers(3, 4, 3)), summary(answers(3, 7))
    assert (one["accuracy_low"], one["accuracy_high"]) == (other["accuracy_low"], other["accuracy_high"])


def test_interval_over_the_means_of_questions():
    """Means 1, 1/2, 1/2, 0: mean 1/2, standard deviation sqrt((1/4 + 1/4) / 3), standard error half of it. A question
    of which nothing is known is no mean."""
    groups = [question("correct", "correct"), question("correct", "wrong"), question("refused", "correct")]
    groups += [question("wrong", "wrong"), question(None, None)]
    found, error = summary(groups), math.sqrt(0.5 / 3) / 2
    assert found["accuracy_low"] == pytest.approx(0.5 - Z95 * error) == pytest.approx(0.09992, abs=1e-5)
    assert found["accuracy_high"] == pytest.approx(0.5 + Z95 * error)


def test_the_interval_is_around_the_mean_of_means_and_within_0_and_1():
    """Four answers to one question, two to the others: 1/4, 1, 1. Standard deviation 3/4 / sqrt(3), error 1/4."""
    groups = [
        question("correct", "wrong", "wrong", "wrong"),
        question("correct", "correct"),
        question(*["correct"] * 2),
    ]
    found = summary(groups)
    assert found["accuracy_low"] == pytest.approx(0.75 - Z95 / 4) and found["accuracy_high"] == 1.0
    assert summary([question("wrong", "wrong"), question("correct", "correct")])["accuracy_low"] == 0.0


def test_pass_at_k_up_to_the_fewest_answers():
    """Of five answers one right, of three one right (and one unknown): the chance that two draws hold a right one is
    1 - C(4,2) / C(5,2) = 2/5, and 1 - C(2,2) / C(3,2) = 2/3."""
    found = summary([question("correct", *["wrong"] * 4), question("wrong", None, "correct", "refused")])
    assert found["pass@1"] == pytest.approx((1 / 5 + 1 / 3) / 2)
    assert found["pass@2"] == pytest.approx((2 / 5 + 2 / 3) / 2)
    assert [name for name in found if name.startswith("pass@")] == ["pass@1", "pass@2"]


@pytest.mark.parametrize(("n", "names"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (7, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_pass_at_powers_of_two(n, names):
    found = summary([question("correct", *["wrong"] * (n - 1))])
    assert {name: found[name] for name in found if name.startswith("pass@")} == {
        f"pass@{k}": pytest.approx(k / n) for k in names
    }


def test_supported_facts_of_all_facts():
    """2 of 3, and 0 of 1: one half of all facts, where the mean of the two shares is a third."""
    groups = [
        question("correct", details={"facts": 3, "supported": 2}),
        question("wrong", details={"facts": 1, "supported": 0}),
        question("refused", details={"facts": 0, "supported": 0}),
        question("correct", details={"other": 1}),
    ]
    assert summary(groups)["supported_frac"] == pytest.approx(2 / 4)
    assert summary(groups[2:3])["supported_frac"] == 0.0
