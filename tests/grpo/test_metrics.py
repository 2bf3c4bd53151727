"""The numbers of a step, all worked by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from making import ALONE, cases, loss_batch, make_completion, make_group, outcomes_of

from grpo.algorithm.meter import TokenMeter
from grpo.algorithm.schema import Score
from grpo.algorithm.variants import is_mixed
from grpo.run import metrics
from grpo.run.diagnosis.glossary import check_names
from grpo.run.metrics import Clock, completion_metrics


def add(meter, iteration, loss, weight, logp, sampler, kl, entropy, low, high, has_ref=True):
    """One micro-batch; the arguments are numbers per token."""
    ref = logp if has_ref else None
    batch = loss_batch(weight, [1.0] * len(weight), old=logp if iteration else None, ref=ref, sampler=sampler)
    stats = {"kl": torch.tensor(kl), "clipped_low": torch.tensor(low), "clipped_high": torch.tensor(high)}
    loss, logp_C = torch.tensor(loss, requires_grad=True), torch.tensor(logp, requires_grad=True)
    meter.add(batch, loss, logp_C, torch.tensor(entropy), stats)


def two_iterations(*meters):
    """Two iterations over two micro-batches, into the two meters."""
    for meter, iteration, *columns in cases(__file__, "passes"):
        (loss,), *numbers = (list(map(float, column.split())) for column in columns)
        add(meters[int(meter)], int(iteration), loss, *numbers)


# Three tokens count, each of them twice.
BY_HAND = {
    "kl": (0.1 + 0.3 + 0.2 + 0.5 + 0.7 + 0.6) / 6,
    "entropy": (1 + 2 + 3 + 2 + 2.5 + 1.5) / 6,
    "clip_ratio/low_mean": 1 / 6,
    "clip_ratio/high_mean": 2 / 6,
    "clip_ratio/region_mean": 3 / 6,
    "sampler/logp_diff_mean": (0.5 + 0.1 + 0.3) / 3,  # of the first iteration alone
    "sampler/logp_diff_max": 0.5,
    "loss": (0.4 + 0.8) / 2,  # the mean of the iterations' losses, each the sum of its micro-batches
}


def test_token_means_over_two_micro_batches_and_two_iterations():
    meter = TokenMeter()
    two_iterations(meter, meter)
    assert meter.result(ALONE) == pytest.approx(BY_HAND, rel=1e-6)


def test_without_a_reference_no_kl_is_measured_and_without_tokens_no_mean():
    meter = TokenMeter()
    assert meter.result(ALONE) == {"loss": 0.0}
    add(meter, 0, 0.5, [0.1], [-3.0], [-2.7], [0.0], [3.0], [0], [0], has_ref=False)
    assert meter.result(ALONE).keys() == BY_HAND.keys() - {"kl"}


@pytest.mark.parametrize("rank", [0, 1])
def test_token_means_over_two_ranks(rank):
    """Each rank has one of the micro-batches; both tell the means over all tokens, not the mean of two means."""
    meters = [TokenMeter(), TokenMeter()]
    two_iterations(*meters)
    other = meters[1 - rank]
    ranks = SimpleNamespace(
        sum=lambda values: list(map(sum, zip(values, other.sums().values(), strict=True))),
        max=lambda value: max(value, other.largest_diff),
    )
    assert meters[rank].result(ranks) == pytest.approx(BY_HAND, rel=1e-6)


def group(lengths, rewards, others, letters, advantages=()):
    """Completions with two rewards, of which the second knows the outcome.

    lengths: of the completions, negative for those that were cut off, which are not trained. Of all others, all tokens
    but the first are scored.
    """
    graded = zip(rewards, others, outcomes_of(letters), strict=True)
    fields = {"scores": [{"a": Score(a), "b": Score(b, "", outcome)} for a, b, outcome in graded], "reward": rewards}
    fields |= {"advantage": advantages or [0.0] * len(lengths), "logps": [[-1 / abs(n)] * abs(n) for n in lengths]}
    fields |= {"finish_reason": ["stop" if n > 0 else "length" for n in lengths]}
    fields |= {"loss_weight": [float(n > 0) for n in lengths], "trained_from": [1] * len(lengths)}
    return make_group((), *([7] * abs(n) for n in lengths), **fields)


GROUPS = [
    group([2, -4, 3], [1.0, None, 3.0], [0.0, 1.0, 1.0], "cwc", [-1.5, 0.0, 1.0]),
    group([5, -6], [2.0, 2.0], [0.0, None], "r-"),
    group([-7, 1], [None, 4.0], [0.0, 1.0], "wc"),
]


def test_completion_metrics():
    """Rewards 1, 3, 2, 2, 4: mean 2.4, squares of the deviations 1.96 + 0.36 + 0.16 + 0.16 + 2.56 = 5.2. The second
    reward is 0, 1, 1, 0, 0, 1. Groups without a signal: the one of equal rewards, and the one with a lone reward."""
    assert completion_metrics(GROUPS, ["a", "b"]) == pytest.approx(
        {
            "reward": 2.4,
            "reward_std": math.sqrt(5.2 / 4),
            "frac_reward_zero_std": 2 / 3,
            "advantage_abs_mean": 2.5 / 7,
            "completions/mean_length": 28 / 7,
            "completions/min_length": 1,
            "completions/max_length": 7,
            "completions/mean_terminated_length": (2 + 3 + 5 + 1) / 4,
            "completions/clipped_ratio": 3 / 7,
            "sampler/entropy": 7 / 28,  # of tokens, not of completions
            "completions/trained_frac": (1 + 2 + 4) / 28,
            "rewards/a/mean": 2.4,
            "rewards/a/std": math.sqrt(5.2 / 4),
            "rewards/a/unscored_frac": 2 / 7,
            "rewards/b/mean": 0.5,
            "rewards/b/std": math.sqrt(6 * 0.25 / 5),
            "rewards/b/unscored_frac": 1 / 7,
            "accuracy": 3 / 6,
            "refusal_rate": 1 / 6,
            "coverage": 2 / 3,
            "refusal_rate_known": 0,
        }
    )


@pytest.mark.parametrize(("outcomes", "coverage", "refused"), cases(__file__, "what a group knows"))
def test_what_a_group_knows(outcomes, coverage, refused):
    zeros = [0.0] * len(outcomes)
    found = completion_metrics([group([1] * len(outcomes), zeros, zeros, outcomes)], ["a", "b"])
    assert found["coverage"] == float(coverage) and str(found.get("refusal_rate_known")) == refused


def test_nothing_scorable_has_no_mean():
    found = completion_metrics([group([-3, -3], [None, None], [1.0, None], "--")], ["a", "b"])
    assert not {"reward", "rewards/a/mean"} & set(found)
    assert (found["reward_std"], found["rewards/a/std"], found["rewards/a/unscored_frac"]) == (0, 0, 1)
    assert (found["rewards/b/mean"], found["rewards/b/std"], found["rewards/b/unscored_frac"]) == (1, 0, 0.5)
    assert (found["completions/clipped_ratio"], found["completions/mean_terminated_length"]) == (1, 0)
    assert "accuracy" not in found and "refusal_rate" not in found


def test_a_reward_that_does_not_apply_to_a_prompt_has_left_nothing_unscored_unless_there_is_no_reward():
    def share(other):
        told = {"a": Score(None, applies=False), "b": Score(other)}
        found = completion_metrics([make_group((), [7], reward=[other], scores=[told])], ["a", "b"])
        return found["rewards/a/unscored_frac"], found["rewards/b/unscored_frac"]

    assert share(1.0) == (0, 0) and share(None) == (1, 1)


def test_the_first_reward_that_can_tell_gives_the_outcome():
    silent, wrong, right = Score(1.0), Score(1.0, "", "wrong"), Score(0.0, "", "correct")

    def outcome_of(**scores):
        return make_completion([1], scores=scores).outcome

    assert outcome_of(a=silent, b=wrong, c=right) == "wrong"
    assert outcome_of(a=right, b=wrong) == "correct"
    assert outcome_of(a=silent) is None and outcome_of() is None


@pytest.mark.parametrize(("outcomes", "rewards", "mixed"), cases(__file__, "dynamic sampling"))
def test_what_dynamic_sampling_keeps(outcomes, rewards, mixed):
    """By the outcome, or by the value where no reward knows."""
    paid = [None if reward == "-" else float(reward) for reward in rewards.split()]
    assert is_mixed(group([1] * len(paid), paid, paid, outcomes)) is bool(mixed)


PHASES = ("time/generate", "time/reference", "time/reward")


def test_the_clock(monkeypatch):
    now = SimpleNamespace(perf_counter=lambda: seconds)
    monkeypatch.setattr(metrics, "time", now)
    seconds = 90.0
    clock = Clock()
    with clock.timed("time/reference"):
        seconds = 100.0
    clock.restart()
    assert clock.result() == dict.fromkeys([*PHASES, "time/train", "step_time"], 0.0)
    with clock.timed("time/generate"):
        seconds = 102.0
    for wait in (1.5, 0.5):
        with clock.timed("time/reward"):
            seconds += wait
    seconds = 110.0
    with clock.timed("time/reference"):
        seconds = 111.0
    seconds = 112.0  # of the 12 seconds 2, 2 and 1 are claimed
    assert clock.result() == dict(zip(PHASES, (2.0, 1.0, 2.0), strict=True)) | {"time/train": 7.0, "step_time": 12.0}


def test_metrics_of_rewards_and_services_are_known_by_name():
    """A reward may have the path of its file for a name. There are two services."""
    name = "rewards/./my rewards/mine.py:score"
    check_names([f"{name}/mean", f"{name}/std", f"{name}/unscored_frac", f"{name}/time"])
    check_names(["judge/calls", "decomposer/cache_hits"])
    for unknown in (f"{name}/median", "jugde/calls", "kb/calls"):
        with pytest.raises(KeyError, match=unknown.rpartition("/")[2]):
            check_names([unknown])


def test_a_service_that_fails_cannot_hide_behind_completions_that_are_all_scored():
    """Two of four completions needed the decomposer, and one of them got no answer."""
    asked = [{}, {"decomposer": True, "judge": True}, {"decomposer": False, "judge": True}, {"judge": True}]
    scores = [{"a": Score(1.0, asked=each)} for each in asked]
    found = completion_metrics([make_group((), *[[7]] * 4, reward=[1.0] * 4, scores=scores)], "a")
    assert found["rewards/a/unscored_frac"] == 0.5
