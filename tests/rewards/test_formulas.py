"""What the facts of a text are worth: KnowRL's two formulas, the default one, and the binary one."""

import math

import pytest

from rewards.knowrl.reward import FORMULAS

knowrl, knowrl_v1, knowrl_v2, binary_rar = FORMULAS.values()


def test_the_formula_of_version_1():
    assert [knowrl_v1(n, 1, n + 2) for n in range(40)] == [min(n / 15, 1) for n in range(40)]


def test_the_formula_of_version_2():
    assert knowrl_v2(0, 0, 0) == 0
    for n in range(1, 40):
        penalty = 1.0 if n > 10 else math.exp(1 - 10 / n)
        for supported in range(n + 1):
            assert knowrl_v2(supported, 0, n) == pytest.approx(supported / n * penalty)
    assert knowrl_v2(10, 0, 10) == 1 and knowrl_v2(1, 0, 1) == pytest.approx(math.exp(-9))


def test_the_binary_formula_pays_whatever_is_not_refuted_silence_included():
    assert [binary_rar(*numbers) for numbers in ((0, 0, 0), (0, 0, 1), (20, 0, 20), (0, 1, 1), (20, 1, 21))] == [
        1,
        1,
        1,
        0,
        0,
    ]


def test_the_default_formula_as_its_comment_tells_it():
    assert [knowrl(n, 0, n) for n in (0, 1, 3, 10)] == [0, 1 / 4, 1 / 2, 10 / 13]
    for s in range(8):
        for r in range(8):
            for n in range(s + r, s + r + 8):
                value = knowrl(s, r, n)
                assert 0 <= value < 1 and value <= knowrl(s + 1, r, n + 1)
                if value > 0:
                    assert knowrl(s + 1, r, n + 1) > value > knowrl(s, r, n + 1) > knowrl(s, r + 1, n + 1)
