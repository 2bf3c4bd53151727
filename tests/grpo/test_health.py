"""The health of a run: collapse is named, failing rewards and steps that are not finite end it."""

import math

from making import refused

from grpo.base.errors import NON_FINITE, SERVICE
from grpo.run.diagnosis.health import Health


def metrics(unscored=0.0):
    return {"refusal_rate": 0.1, "rewards/a/unscored_frac": 0.0, "rewards/b/unscored_frac": unscored}


def test_unscorable_rewards_end_the_run_after_three_steps_in_a_row():
    health = Health(print, {}, 0.2)
    for step, share in enumerate([0.5, 0.5, 0.2, 0.3, 0.3]):  # exactly the share that is allowed is well
        health.after_step(step, metrics(unscored=share))
    refused(lambda: health.after_step(6, metrics(unscored=0.21)), "rewards/b", exit_code=SERVICE)


def test_three_gradients_in_a_row_that_are_not_finite_end_the_run():
    health = Health(print, {}, 0.2)
    for norm in (math.nan, math.inf, 1.0, math.nan, math.nan):
        health.updated(norm, has_overflowed=False)
        health.after_step(1, metrics())
    for _ in range(5):
        health.updated(math.inf, has_overflowed=True)  # float16: the scale is still being found
        health.after_step(1, metrics())
    for _ in range(3):
        health.updated(math.inf, has_overflowed=False)
    refused(lambda: health.after_step(2, metrics()), exit_code=NON_FINITE)


def test_a_users_function_may_leave_out_what_it_likes():
    health = Health(print, {}, 0.2)
    for step in range(5):
        health.after_step(step, {"rewards/mine:sometimes/unscored_frac": 0.9})
