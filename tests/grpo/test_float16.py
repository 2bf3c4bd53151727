"""float16: gradients too small for it survive, an overflow costs one step and not the run."""

import pytest
import torch
from test_train import run
from torch import nn

from grpo.algorithm.optimizer import FIRST_SCALE, SCALE_GROWS_AFTER, Optimizer
from grpo.engine.model.flat import FlatParameters


def make(scales_loss=True):
    parameter = nn.Parameter(torch.ones(4, 4))
    return parameter, Optimizer(FlatParameters([parameter]), (0.9, 0.999), 1e-8, 0.0, scales_loss)


def overflow(optimizer):
    optimizer.flat.grad.fill_(torch.inf)
    optimizer.step(0.1, 0.0)


@pytest.mark.parametrize("scales_loss", [True, False])
def test_a_gradient_below_float16s_smallest_number(scales_loss):
    parameter, optimizer = make(scales_loss)
    optimizer.backward((parameter.half().float() * 1e-8).sum())  # 1e-8 rounds to 0 in float16
    norm = optimizer.step(0.1, 0.0)
    assert norm == (pytest.approx(4e-8, rel=1e-2) if scales_loss else 0.0)
    assert bool((parameter < 0.95).all()) if scales_loss else bool((parameter == 1).all())


def test_an_overflow_halves_the_scale_and_a_loss_that_is_not_finite_is_none():
    parameter, optimizer = make()
    optimizer.backward((parameter * torch.nan).sum())
    optimizer.step(0.1, 0.0)
    assert not optimizer.has_overflowed
    assert optimizer.scale.value == FIRST_SCALE
    assert (parameter == 1).all()
    optimizer.backward((parameter.half().float() * 1e3).sum())
    optimizer.step(0.1, 0.0)
    assert optimizer.has_overflowed
    assert optimizer.scale.value == FIRST_SCALE / 2
    assert (parameter == 1).all()
    optimizer.backward((parameter * 0.01).sum())
    assert optimizer.step(0.1, 0.0) == pytest.approx(0.04)
    assert not optimizer.has_overflowed
    assert (parameter < 1).all()


def test_the_scale_never_falls_below_1():
    """At 1 the loss is as it is; below, the smallest gradients would vanish sooner than without a guard."""
    _, optimizer = make()
    for wanted in [2.0**n for n in range(9, -1, -1)] + [1.0] * 3:
        overflow(optimizer)
        assert optimizer.scale.value == wanted


def test_the_scale_doubles_after_so_many_finite_steps_in_a_row():
    _, optimizer = make()

    def scale_after(steps):
        for _ in range(steps):
            optimizer.step(0.1, 0.0)
        return optimizer.scale.value

    scale_after(SCALE_GROWS_AFTER - 1)
    overflow(optimizer)  # the count begins anew
    assert scale_after(SCALE_GROWS_AFTER - 1) == FIRST_SCALE / 2 and scale_after(1) == FIRST_SCALE
    assert scale_after(SCALE_GROWS_AFTER) == 2 * FIRST_SCALE


def test_the_scale_is_part_of_a_checkpoint():
    _, optimizer = make()
    optimizer.scale.value, optimizer.scale.finite_steps = 64.0, 17
    _, other = make()
    other.load_state(optimizer.state())
    assert (other.scale.value, other.scale.finite_steps) == (64.0, 17)


def test_a_run_in_float16(tmp_path, chat_checkpoint):
    """Two whole steps with finite gradients, and the log-probs of sampler and trainer closer than bfloat16's."""
    keys = {"max_steps": 2, "max_completion_length": 8, "torch_dtype": "float16", "learning_rate": 1e-3}
    steps = run(tmp_path, chat_checkpoint, **keys)
    assert [0 < step["grad_norm"] < 1e3 and step["sampler/logp_diff_mean"] <= 5e-3 for step in steps] == [True, True]
