"""`refusal_target` (Eq. 14): a step says which questions to decline, and how many only as far as the target is away."""

import math
import random

import pytest
from making import make_group

from grpo.algorithm.advantages import group_advantages
from grpo.algorithm.schema import Call, Score
from grpo.algorithm.variants import refusal_shift, shifted_rewards
from grpo.engine.device.peers import Peers

VALUES = {"correct": 1.0, "wrong": -0.5, "refused": 0.2, None: -2.0}


def groups_at_random(rng):
    """Return groups of rewards and outcomes, some of them malformed."""
    outcomes = [[rng.choice(["correct", "wrong", "refused", "refused"]) for _ in range(8)] for _ in range(6)]
    return [([VALUES[outcome] + rng.random() / 10 for outcome in group], group) for group in outcomes]


def push(groups, shift):
    """Return the sum of the advantages of what declines: slowly, from the advantages themselves."""
    total = 0.0
    for rewards, outcomes in groups:
        moved = [reward + shift * (outcome == "refused") for reward, outcome in zip(rewards, outcomes, strict=True)]
        advantages = group_advantages(moved, "none")
        total += sum(advantage for advantage, outcome in zip(advantages, outcomes, strict=True) if outcome == "refused")
    return total


def graded(rewards, outcomes):
    """Return a group whose completions have these rewards and outcomes."""
    group = make_group((1,), *([5] for _ in rewards), reward=list(rewards))
    for completion, outcome in zip(group.completions, outcomes, strict=True):
        completion.scores = {"abstention": Score(0.0, "", outcome)}
    return group


def shift_of(groups, target):
    return refusal_shift([graded(*group) for group in groups], target, Peers())


@pytest.mark.parametrize("seed", range(20))
def test_at_the_target_nothing_pushes_all_questions_one_way(seed):
    groups = groups_at_random(random.Random(seed))
    outcomes = [outcome for _, group in groups for outcome in group]
    share = (outcomes.count("refused") + 0.5) / (len(outcomes) + 1)
    assert push(groups, shift_of(groups, share)) == pytest.approx(0, abs=1e-12)
    assert push(groups, shift_of(groups, share + 0.1)) > 0.01 > -0.01 > push(groups, shift_of(groups, share - 0.1))


def test_what_has_no_reward_or_no_outcome_counts_for_nothing():
    rewards, outcomes = [0.0, 1.0, -1.0], ["refused", "correct", "wrong"]
    shift = shift_of([([*rewards, None, 5.0], [*outcomes, "refused", None])], 0.3)
    assert shift == shift_of([(rewards, outcomes)], 0.3)


def test_without_a_pair_only_the_target_counts():
    """Nothing declines, everything does, nothing is known: log-odds of the target, less those of what declines."""
    none, all_, unknown = ["correct", "wrong"], ["refused", "refused"], [None, None]
    for outcomes, odds in ((none, 0.5 / 2.5), (all_, 2.5 / 0.5), (unknown, 1)):
        wanted = math.log(0.3 / 0.7) - math.log(odds)
        assert shift_of([([0.0, 0.0], outcomes)], 0.3) == pytest.approx(wanted)


CALLED = [Call("search", "q", "r", 0, 0, (0, 0))]


@pytest.mark.parametrize("outcome, calls", [("refused", []), ("correct", CALLED), ("wrong", CALLED), (None, CALLED)])
def test_a_call_of_a_tool_counts_as_declining_whatever_is_answered_then(outcome, calls):
    """It earns 0.2 beside 1 and -1, so 0.2 less than they in the mean; 1 of 3 declines, and 0.4 should."""
    group = graded([0.2, 1.0, -1.0], [outcome, "correct", "wrong"])
    group.completions[0].calls = calls
    wanted = -0.2 + math.log(0.4 / 0.6) - math.log(1.5 / 2.5)
    assert refusal_shift([group], 0.4, Peers()) == pytest.approx(wanted)
    assert shifted_rewards(group, 3.0) == [3.2, 1.0, -1.0]
