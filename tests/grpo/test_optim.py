"""AdamW on the flat buffer against torch's own on separate parameters; the schedules against transformers'."""

import math

import pytest
import torch
from making import refused

from grpo.algorithm.optimizer import Optimizer, scheduled_rate
from grpo.engine.model.flat import FlatParameters


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (5,), (2, 2), (3,))]


def optimizer_of(parameters):
    return Optimizer(FlatParameters(parameters), (0.9, 0.99), 1e-8, 0.1)


@pytest.mark.parametrize("max_norm", [0.0, 1.0], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("scales_loss", [False, True], ids=["float32", "float16"])
def test_equals_torch_with_clipping_and_decay(scales_loss, max_norm):
    ours, theirs = parameters(), parameters()
    optimizer = Optimizer(FlatParameters(ours), (0.9, 0.99), 0.5, 0.1, scales_loss)
    matrices, vectors = theirs[::2], theirs[1::2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=0.5)
    for step in range(5):
        for group, backward in ((ours, optimizer.backward), (theirs, torch.Tensor.backward)):
            backward(sum((p * (i + 1) * (step - 2)).square().sum() for i, p in enumerate(group)))
        for g in reference.param_groups:
            g["lr"] = 0.01 * (step + 1)
        wanted = float(torch.nn.utils.clip_grad_norm_(theirs, max_norm or math.inf))
        reference.step()
        reference.zero_grad()
        assert optimizer.step(0.01 * (step + 1), max_norm) == pytest.approx(wanted, rel=1e-5)
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(ours, theirs, strict=True))
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in ours)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup", "constant"])
def test_schedules_equal_transformers_and_stay_where_they_end(schedule):
    """A resumed run may go on past the end: the line would become negative, the cosine rise again."""
    from transformers import get_scheduler

    dummy = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = get_scheduler(schedule, dummy, num_warmup_steps=4, num_training_steps=25)
    for step in range(25):
        assert scheduled_rate(step, 3e-4, schedule, 4, 25) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        dummy.step()
        theirs.step()
    last = 3e-4 if "constant" in schedule else 0.0
    assert {scheduled_rate(step, 3e-4, schedule, 4, 25) for step in (25, 26, 31, 60)} == {last}


@pytest.mark.parametrize("event", ["resumed", math.nan, math.inf])
def test_an_interruption_changes_nothing(event):
    """Neither a resume nor a gradient that is not finite: weights, moments and steps are as if it had never been."""
    results = []
    for happens in (event, None):
        optimizer = optimizer_of(parameters())
        for step in range(6):
            if step == 3 and happens == "resumed":
                saved = {name: value.clone() for name, value in optimizer.state().items()}
                optimizer = optimizer_of(parameters(seed=9))
                optimizer.load_state(saved)
            elif step == 3 and happens:
                optimizer.flat.grad[3] = event
                assert not math.isfinite(optimizer.step(0.01, 1.0)) and not optimizer.flat.grad.any()
            sum((p * p.detach().sin()).sum() for p in optimizer.flat.parameters).backward()
            optimizer.step(0.01, 1.0)
        results.append(optimizer.state())
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="nothing to train"):
        optimizer_of([])


def test_weights_that_are_not_finite_are_noticed():
    """Large ones, whose sum overflows, are finite."""
    optimizer = optimizer_of(parameters())
    optimizer.flat.values[:9] = 1e38
    optimizer.check_finite()
    for number in (math.inf, math.nan):
        optimizer.flat.values[:9] = number
        refused(optimizer.check_finite, "not finite", exit_code=5)
