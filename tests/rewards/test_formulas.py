"""What the facts of a text are worth: KnowRL's two formulas, the default one, and the binary one."""

import math

import pytest

from rewards.knowrl.reward import FORMULAS

knowrl, knowrl_v1, knowrl_v2, binary_rar = FORMULAS.values()


def test_the_formulas_of_versions_1_and_2():
    assert [knowrl_v1(n, 1, n + 2) for n in (0, 3, 15, 30)] == [0, 1 / 5, 1, 1]
    assert knowrl_v2(0, 0, 0) == 0
    assert knowrl_v2(10, 0, 10) == 1
    assert knowrl_v2(5, 0, 20) == 1 / 4
    assert knowrl_v2(1, 0, 2) == pytest.approx(math.exp(-4) / 2)


def test_the_binary_formula_pays_whatever_is_not_refuted_silence_included():
    assert [binary_rar(*numbers) for numbers in ((0, 0, 0), (20, 0, 21), (20, 1, 21))] == [1, 1, 0]


def test_the_default_formula_as_its_comment_tells_it():
    assert [knowrl(n, 0, n) for n in (0, 1, 3, 10)] == [0, 1 / 4, 1 / 2, 10 / 13]
    for s in range(8):
        for r in range(8):
            for n in range(s + r, s + r + 8):
                value = knowrl(s, r, n)
                assert 0 <= value < 1
                assert value <= knowrl(s + 1, r, n + 1)
                if value > 0:
                    assert knowrl(s + 1, r, n + 1) > value > knowrl(s, r, n + 1) > knowrl(s, r + 1, n + 1)
