"""What a list of verdicts is worth: KnowRL's two formulas and the default one."""

import math

import pytest

from rewards.knowrl.factuality import binary_rar, knowrl, knowrl_v1, knowrl_v2

S, R, U = "supported", "refuted", "unknown"


def test_the_formula_of_version_1():
    for n in range(40):
        assert knowrl_v1([S] * n + [R, U]) == min(n / 15, 1)
    assert knowrl_v1([]) == 0


def test_the_formula_of_version_2():
    assert knowrl_v2([]) == 0
    for n in range(1, 40):
        penalty = 1.0 if n > 10 else math.exp(1 - 10 / n)
        for supported in range(n + 1):
            assert knowrl_v2([S] * supported + [U] * (n - supported)) == pytest.approx(supported / n * penalty)
    assert knowrl_v2([S] * 10) == 1 and knowrl_v2([S]) == pytest.approx(math.exp(-9))


def test_the_binary_formula_pays_whatever_is_not_refuted_silence_included():
    assert [binary_rar(labels) for labels in ([], [U], [S, U], [S] * 20)] == [1.0] * 4
    assert [binary_rar(labels) for labels in ([R], [S, U, R], [S] * 20 + [R])] == [0.0] * 3


def test_the_default_formula_as_its_docstring_tells_it():
    assert [knowrl([S] * n) for n in (0, 1, 3, 10)] == [0, 1 / 4, 1 / 2, 10 / 13]
    for s in range(8):
        for r in range(8):
            for u in range(8):
                labels = [S] * s + [R] * r + [U] * u
                value = knowrl(labels)
                assert 0 <= value < 1 and value <= knowrl([*labels, S])
                if value > 0:
                    assert knowrl([*labels, S]) > value > knowrl([*labels, U]) > knowrl([*labels, R])
