"""The numbers about graded answers, each worked by hand."""

from fractions import Fraction

import pytest
from making import cases, make_group, outcomes_of

from grpo.algorithm.schema import Score
from grpo.evaluation.measures import note_on_unscored, summary


def question(letters, details=None, rewards=None, length=2):
    """One question and how its answers turned out, a letter for each; -: no reward could tell."""
    outcomes = outcomes_of(letters)
    scores = [{"r": Score(1.0, "", outcome, details=details or {})} for outcome in outcomes]
    return make_group((), *[[1] * length] * len(outcomes), scores=scores, reward=rewards or [1.0] * len(outcomes))


def answers(right, wrong, refused=0):
    """One answer per question."""
    return [question(letter) for letter in "c" * right + "w" * wrong + "r" * refused]


def test_every_question_counts_the_same():
    """7 of 9 answers are known. Right: 2 of 4, 1 of 2, 0 of 1; wrong: 1 of 4, 1 of 2, 0; declined: 1 of 4, 0, 1."""
    found = summary(
        [
            question("ccwr", length=3, rewards=[2.0, None, -1.0, 1.0]),
            question("cw", length=6, rewards=[3.0, None]),
            question("r-", length=9, rewards=[0.0, None]),
            question("-", length=9, rewards=[None]),
        ]
    )
    for name, value in cases(__file__, "every question"):
        assert found[name] == pytest.approx(float(Fraction(value))), name
    assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]
    assert "supported_frac" not in found


def test_simple_qas_f_score_is_the_harmonic_mean():
    """Of 3/5 and 3/4."""
    assert summary(answers(3, 1, 1))["f_score"] == pytest.approx(2 / (5 / 3 + 4 / 3))
    assert summary(answers(0, 3, 1))["f_score"] == 0


def test_nobody_knows_how_right_those_are_who_all_declined():
    found = summary(answers(0, 0, 3))
    assert [found[name] for name in ("accuracy", "incorrect", "not_attempted", "f_score")] == [0, 0, 1, 0]
    assert found["correct_given_attempted"] is None and found["incorrect_given_attempted"] is None


def test_without_outcomes_there_is_no_accuracy():
    """A reward that cannot tell right from wrong, such as `format`, has scored nothing wrong."""
    found = summary([question("--", rewards=[None, 1.0]), question("-", rewards=[1.0])])
    rates = ("accuracy", "incorrect", "not_attempted", "f_score", "truthfulness", "accuracy_low")
    assert {found[name] for name in rates} == {None}
    assert (found["unscored_frac"], found["reward"]) == (pytest.approx(1 / 3), 1.0)
    assert not any(name.startswith("pass@") for name in found)
    assert "no reward could tell right from wrong" in note_on_unscored(found)


def test_what_could_not_be_scored_is_said():
    assert note_on_unscored(summary(answers(2, 1))) == ""
    uneven = summary([question("c--"), question("wwc"), question("--")])
    assert note_on_unscored(uneven) == "50.0% of the answers could not be scored and count nowhere"


def test_cut_answers_are_counted():
    group = question("cc")
    group.completions[0].finish_reason = "length"
    assert summary([group])["clipped_ratio"] == 0.5


@pytest.mark.parametrize(("outcomes", "low", "high"), [  # a letter for each answer, a word for each question
    # Wilson's, for one answer per question
    ("c c c w w w w w w w", 0.10779, 0.60322),  # (0.3 + 0.192073 -+ 1.959964 sqrt(0.021 + 0.0096037)) / 1.384146
    ("w " * 5, 0.0, 0.43448),  # z^2 / (5 + z^2)
    ("c " * 5, 0.56552, 1.0),
    ("c", 0.20654, 1.0),  # 1 / (1 + z^2)
    ("c " * 81 + "w " * 182, 0.2553, 0.3662),  # Newcombe (1998), table I
    # over the means of questions: 1, 1/2, 1/2, 0; one of which nothing is known has none. Error sqrt(0.5 / 3) / 2
    ("cc cw rc ww --", 0.09992, 0.90008),
    ("cwww cc cc", 0.26001, 1.0),  # 1/4, 1, 1: around the mean of means, and within 0 and 1
    ("ww cc", 0.0, 1.0),
    ("cccc " * 5, 0.56552, 1.0),  # equal means say nothing about their spread: as of five right answers
])  # fmt: skip
def test_intervals_of_the_accuracy(outcomes, low, high):
    found = summary([question(word) for word in outcomes.split()])
    assert (found["accuracy_low"], found["accuracy_high"]) == pytest.approx((low, high), abs=1e-4)


def test_pass_at_k_up_to_the_fewest_answers():
    """Of five answers one right, of three one right (and one unknown): the chance that two draws hold a right one is
    1 - C(4,2) / C(5,2) = 2/5, and 1 - C(2,2) / C(3,2) = 2/3."""
    found = summary([question("cwwww"), question("w-cr")])
    assert found["pass@1"] == pytest.approx((1 / 5 + 1 / 3) / 2)
    assert found["pass@2"] == pytest.approx((2 / 5 + 2 / 3) / 2)
    assert [name for name in found if name.startswith("pass@")] == ["pass@1", "pass@2"]


def test_the_facts_of_an_answer_count_once():
    """KnowRL's reward has checked the wrong answer, and factuality, which is logged beside it, both."""
    wrong, right = question("w"), question("c")
    wrong.completions[0].scores |= {
        name: Score(0.0, details={"facts": 4, "supported": 0, "refuted": 3}) for name in ("knowrl", "factuality")
    }
    right.completions[0].scores["factuality"] = Score(1.0, details={"facts": 4, "supported": 4, "refuted": 0})
    found = summary([wrong, right])
    assert [found[name] for name in ("supported_frac", "supported_facts", "refuted_facts")] == [1 / 2, 2, 1.5]


def test_supported_facts_of_all_facts():
    """2 of 3, and 0 of 1: one half of all facts, where the mean of the two shares is a third."""
    groups = [
        question("c", details={"facts": 3, "supported": 2, "refuted": 0}),
        question("w", details={"facts": 1, "supported": 0, "refuted": 1}),
        question("r", details={"facts": 0, "supported": 0, "refuted": 0}),
        question("c", details={"other": 1}),
    ]
    found = summary(groups)
    assert found["supported_frac"] == pytest.approx(2 / 4)
    assert (found["supported_facts"], found["refuted_facts"]) == pytest.approx((2 / 3, 1 / 3))  # of three checked
    assert summary(groups[2:3])["supported_frac"] == 0.0
