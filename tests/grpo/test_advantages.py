"""Advantages against hand-worked numbers, and the rules for what cannot be scored."""

import math

import pytest

from grpo.algorithm.advantages import group_advantages, reward_std
from grpo.algorithm.variants import normalize_then_sum

EACH_SCALE = pytest.mark.parametrize("scale", ["group", "batch", "none"])


def step_advantages(groups, scale):
    """Those of several groups, with the deviation of all their rewards."""
    batch_std = reward_std([reward for group in groups for reward in group])
    return [group_advantages(group, scale, batch_std) for group in groups]


def test_hand_worked_group():
    """Rewards 1, 0, 0, 3: mean 1, deviations 0 -1 -1 2, std with n - 1: sqrt(6 / 3) = 1.41421."""
    got = group_advantages([1, 0, 0, 3])
    divisor = math.sqrt(2) + 1e-4
    assert got == pytest.approx([0, -1 / divisor, -1 / divisor, 2 / divisor], abs=1e-12)


@EACH_SCALE
def test_unscorable_rows_leave_mean_and_deviation(scale):
    with_gap = step_advantages([[1.0, None, 0.0, 2.0]], scale)[0]
    without = step_advantages([[1.0, 0.0, 2.0]], scale)[0]
    assert [with_gap[0], *with_gap[2:]] == without and with_gap[1] == 0.0


@EACH_SCALE
@pytest.mark.parametrize("group", [[0.01] * 29, [None, 2.0], [None, None], [5.0], [0.1 + 0.2, 0.1 + 0.2, None]])
def test_no_signal_is_exactly_zero(scale, group):
    assert step_advantages([group, [1.0, 2.0]], scale)[0] == [0.0] * len(group)


@EACH_SCALE
def test_a_constant_added_to_one_group_changes_nothing_within_it(scale):
    moved, plain = (group_advantages(rewards, scale, 3.0) for rewards in ([11.0, 10.0, 13.0], [1.0, 0.0, 3.0]))
    assert moved == pytest.approx(plain, abs=1e-12)


def test_hand_worked_normalize_then_sum():
    """Rewards 2 -1 | 0 0.1 with weights 1 and 2: deviations from the mean in units of std + 1e-4 are +-1 / sqrt 2."""
    first, second = 1.5 / (3 / math.sqrt(2) + 1e-4), 0.05 / (0.1 / math.sqrt(2) + 1e-4)
    got = normalize_then_sum([[2.0, -1.0], [0.0, 0.1]], [1.0, 2.0])
    assert got == pytest.approx([first - 2 * second, -first + 2 * second], abs=1e-12)


def test_a_row_without_one_reward_is_in_no_mean():
    got = normalize_then_sum([[1.0, 0.0, 5.0], [0.0, 1.0, None]], [1.0, 1.0])
    assert got[2] is None
    assert got[:2] == normalize_then_sum([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0])


def test_a_reward_of_weight_0_changes_nothing_even_if_it_is_missing():
    rewards = [1.0, 0.0, 5.0]
    assert normalize_then_sum([rewards, [None, 0.1, None]], [1.0, 0.0]) == normalize_then_sum([rewards], [1.0])
