"""The health of a run: collapse is named, failing rewards and steps that are not finite end it."""

import math
from types import SimpleNamespace

import pytest

from grpo.base.errors import NON_FINITE, SERVICE, UserError
from grpo.diagnosis.health import Health


def metrics(refused=0.1, unscored=0.0):
    return {"refusal_rate": refused, "rewards/a/unscored_frac": 0.0, "rewards/b/unscored_frac": unscored}


def test_a_collapse_into_refusing_is_named_once():
    said = []
    health = Health(said.append, 0.2)
    for step, refused in enumerate([0.1, 0.3, 0.8, 0.97, 1.0, 1.0], 1):
        health.check(step, metrics(refused))
    assert len(said) == 1 and "step 4" in said[0] and "97%" in said[0]


def test_a_policy_that_refuses_from_the_start_has_not_collapsed():
    said = []
    health = Health(said.append, 0.2)
    for step in range(5):
        health.check(step, metrics(1.0))
    assert not said


def test_unscorable_rewards_end_the_run_after_three_steps_in_a_row():
    health = Health(print, 0.2)
    for step, share in enumerate([0.5, 0.5, 0.1, 0.3, 0.3]):
        health.check(step, metrics(unscored=share))
    with pytest.raises(UserError) as caught:
        health.check(6, metrics(unscored=0.21))
    assert caught.value.exit_code == SERVICE and "rewards/b" in caught.value.what


def test_three_gradients_in_a_row_that_are_not_finite_end_the_run():
    health = Health(print, 0.2)
    plain, scaled = SimpleNamespace(scale=1), SimpleNamespace(scale=2)
    for norm in (math.nan, math.inf, 1.0, math.nan, math.nan):
        health.updated(plain, norm)
        health.check(1, metrics())
    for _ in range(5):
        health.updated(scaled, math.inf)  # float16: the scale is still being found
        health.check(1, metrics())
    for _ in range(3):
        health.updated(plain, math.inf)
    with pytest.raises(UserError) as caught:
        health.check(2, metrics())
    assert caught.value.exit_code == NON_FINITE


def test_a_users_function_may_leave_out_what_it_likes():
    health = Health(print, 0.2)
    for step in range(5):
        health.check(step, {"rewards/mine:sometimes/unscored_frac": 0.9})


@pytest.mark.parametrize(("refused", "named"), [(0.9499, 0), (0.95, 1)])
def test_from_which_share_on_a_policy_refuses_all(refused, named):
    said = []
    health = Health(said.append, 0.2)
    for step, share in enumerate([0.0, 0.0, refused]):
        health.check(step, metrics(share))
    assert len(said) == named


@pytest.mark.parametrize(("answered", "named"), [(0.49, 0), (0.5, 1)])
def test_a_policy_has_answered_if_it_once_answered_half_of_the_questions(answered, named):
    said = []
    health = Health(said.append, 0.2)
    for step, share in enumerate([answered, 0.3, 0.0], 2):
        health.check(step, metrics(1 - share))
    assert len(said) == named


def test_exactly_the_share_that_is_allowed_ends_nothing():
    health = Health(print, 0.2)
    for step in range(5):
        health.check(step, metrics(unscored=0.2))
    assert health.unscored == 0
