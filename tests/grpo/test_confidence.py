"""Stated confidences against what came true, by hand."""

import pytest
from making import fill, make_answers

from grpo.algorithm.schema import Score
from grpo.evaluation.measures import aurc, calibration, ece, risk_coverage, summary

STATED = [(0.95, True), (0.91, False), (0.55, True), (0.5, False), (0.0, False)]


def test_expected_calibration_error():
    """Bins: {0.95, 0.91}: accuracy 1/2, confidence 0.93; {0.55, 0.5}: 1/2 and 0.525; {0}: 0 and 0."""
    assert ece(STATED) == pytest.approx((2 * 0.43 + 2 * 0.025 + 0) / 5)
    assert ece([(1.0, False), (0.9, True)]) == pytest.approx((1.9 - 1) / 2)  # one bin, also for 1


def test_risk_coverage_curve():
    assert risk_coverage(STATED[::-1]) == [(0.2, 0), (0.4, 1 / 2), (0.6, 1 / 3), (0.8, 2 / 4), (1, 3 / 5)]


def test_equal_confidences_enter_together_in_any_order():
    same = [(0.7, True), (0.7, False), (0.2, False)]
    assert risk_coverage(same) == risk_coverage([same[1], same[0], same[2]]) == [(2 / 3, 1 / 2), (1.0, 2 / 3)]
    assert aurc([(0.5, True), (0.5, False)]) == 0.5  # without order: the error rate


def test_only_attempts_with_a_known_outcome_count():
    group = make_answers({}, *[f"<confidence>{c}</confidence>" for c in (0.9, 0.2, 0.3, 0.4)], "no confidence")
    outcomes = ["correct", "wrong", "refused", None, "wrong"]
    fill(group, scores=[{"r": Score(1.0, "", outcome)} for outcome in outcomes])
    found = summary([group])
    assert found["confidence_frac"] == pytest.approx(2 / 3)
    assert found["brier"] == pytest.approx((0.01 + 0.04) / 2)
    assert found["aurc"] == pytest.approx((0 + 1 / 2) / 2)
    assert calibration([make_answers({}, "x")]) == {}
