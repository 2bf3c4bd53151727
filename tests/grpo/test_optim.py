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


def test_equals_torch_with_clipping_and_decay():
    ours, theirs = parameters(), parameters()
    optimizer = Optimizer(FlatParameters(ours), (0.9, 0.99), 0.5, 0.1)
    reference = torch.optim.AdamW(
        [
            {"params": [theirs[0], theirs[2]], "weight_decay": 0.1},
            {"params": [theirs[1], theirs[3]], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.99),
        eps=0.5,
    )
    for step in range(5):
        for group in (ours, theirs):
            (sum((p * (i + 1) * (step - 2)).square().sum() for i, p in enumerate(group))).backward()
        for g in reference.param_groups:
            g["lr"] = 0.01 * (step + 1)
        wanted = float(torch.nn.utils.clip_grad_norm_(theirs, 1.0))
        reference.step()
        reference.zero_grad()
        assert optimizer.step(0.01 * (step + 1), 1.0) == pytest.approx(wanted, rel=1e-5)
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(ours, theirs, strict=True))
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in ours)


def test_parameters_stay_views_of_the_flat_buffer():
    ours = parameters()
    optimizer = Optimizer(FlatParameters(ours), (0.9, 0.99), 1e-8, 0.0)
    ours[0].square().sum().backward()
    assert optimizer.flat.grad.abs().max() > 0
    optimizer.flat.values.zero_()
    assert all(p.abs().max() == 0 for p in ours)


def test_state_round_trip_continues_bit_for_bit():
    def run(interrupt):
        ours = parameters()
        optimizer = Optimizer(FlatParameters(ours), (0.9, 0.99), 1e-8, 0.1)
        for step in range(6):
            if interrupt and step == 3:
                saved = {k: v.clone() for k, v in optimizer.state().items()}
                ours = parameters(seed=9)
                optimizer = Optimizer(FlatParameters(ours), (0.9, 0.99), 1e-8, 0.1)
                optimizer.load_state(saved)
            sum((p * p.detach().sin()).sum() for p in ours).backward()
            optimizer.step(0.01, 1.0)
        return optimizer.flat.values

    assert torch.equal(run(False), run(True))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup", "constant"])
def test_schedules_equal_transformers(schedule):
    from transformers import get_scheduler

    dummy = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = get_scheduler(schedule, dummy, num_warmup_steps=4, num_training_steps=25)
    for step in range(25):
        assert scheduled_rate(step, 3e-4, schedule, 4, 25) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        dummy.step()
        theirs.step()


@pytest.mark.parametrize("step", [25, 26, 31, 60])
@pytest.mark.parametrize(
    ("schedule", "rate"), [("linear", 0.0), ("cosine", 0.0), ("constant_with_warmup", 3e-4), ("constant", 3e-4)]
)
def test_the_rate_stays_where_it_ended(step, schedule, rate):
    """A resumed run may go on past the end: the line would become negative, the cosine rise again."""
    assert scheduled_rate(step, 3e-4, schedule, 4, 25) == pytest.approx(rate, abs=1e-18)


@pytest.mark.parametrize(
    ("max_norm", "factor"), [(0.0, 1.0), (10.0, 1.0), (2.5, 0.5)], ids=["off", "large enough", "half"]
)
@pytest.mark.parametrize("scales_loss", [False, True], ids=["float32", "float16"])
def test_clipping_by_hand(monkeypatch, scales_loss, max_norm, factor):
    """The gradient (3, 4) has norm 5. With a guard the loss, and so the sum, is 1024 times that."""
    parameter = torch.nn.Parameter(torch.zeros(1, 2))
    optimizer, applied = Optimizer(FlatParameters([parameter]), (0.9, 0.99), 1e-8, 0.0, scales_loss), []
    monkeypatch.setattr(optimizer.adamw, "step", lambda: applied.append(optimizer.flat.grad.tolist()))
    optimizer.backward((parameter * torch.tensor([3.0, 4.0])).sum())
    assert optimizer.step(0.1, max_norm) == pytest.approx(5.0)
    assert applied == [pytest.approx([3.0 * factor, 4.0 * factor], rel=1e-5)] and optimizer.flat.grad.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    """Neither weights nor moments nor the count of steps; the next step is as if it had never been."""
    results = []
    for interrupted in (True, False):
        ours = parameters()
        optimizer = Optimizer(FlatParameters(ours), (0.9, 0.99), 1e-8, 0.1)
        for step in range(4):
            if interrupted and step == 2:
                optimizer.flat.grad[3] = bad
                assert not math.isfinite(optimizer.step(0.01, 1.0)) and not optimizer.flat.grad.any()
            sum((p * (step + 1)).square().sum() for p in ours).backward()
            optimizer.step(0.01, 1.0)
        results.append(optimizer.state())
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="nothing to train"):
        Optimizer(FlatParameters([]), (0.9, 0.99), 1e-8, 0.0)


@pytest.mark.parametrize(("number", "is_finite"), [(1e38, True), (math.inf, False), (math.nan, False)])
def test_weights_that_are_not_finite_are_noticed(number, is_finite):
    """Large ones, whose sum overflows, are finite."""
    optimizer = Optimizer(FlatParameters(parameters()), (0.9, 0.99), 1e-8, 0.0)
    optimizer.flat.values[:9] = number
    if is_finite:
        return optimizer.check_finite()
    refused(optimizer.check_finite, "not finite", exit_code=5)
