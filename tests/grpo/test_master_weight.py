"""Weights in the model's dtype with a float32 master: what each is for, and where the gradient arrives."""

import pytest
import torch

from grpo.engine.model.build import Build
from grpo.engine.model.weight import Weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_frozen_weight_is_one_tensor_that_no_optimizer_sees(dtype):
    weight = Weight(Build(None, False, dtype, "cpu"), 3, 2)
    weight.refresh()
    assert not list(weight.parameters()) and weight.stored is weight.value is weight()
    assert weight().dtype == dtype and not weight().requires_grad


def test_a_trained_float32_weight_is_its_own_master():
    weight = Weight(Build(None, True, torch.float32, "cpu"), 3, 2)
    assert weight() is weight.master and weight.value.data_ptr() == weight.stored.data_ptr() == weight.master.data_ptr()


def test_a_trained_bfloat16_weight_adds_up_what_its_copy_rounds_away():
    """At 1 the step of bfloat16 is 2^-7. Updates of 2^-10 do nothing to it one by one; five of them reach 1 + 5/1024,
    which is nearer to 1 + 2^-7."""
    weight = Weight(Build(None, True, torch.bfloat16, "cpu"), 1)
    weight.stored.fill_(1.0)
    weight.refresh()
    seen = []
    for _ in range(5):
        weight.master.data += 2**-10
        weight.refresh()
        seen.append(float(weight.value))
    assert weight.master.dtype == torch.float32 and seen == [1.0, 1.0, 1.0, 1.0, 1 + 2**-7]


def test_the_gradient_of_the_copy_arrives_at_the_master_in_float32():
    weight = Weight(Build(None, True, torch.bfloat16, "cpu"), 2)
    weight.stored.copy_(torch.tensor([1 + 2**-10, 3.0]))
    weight.refresh()
    assert weight().tolist() == [1.0, 3.0] and weight().dtype == torch.bfloat16
    (weight() * torch.tensor([2.0, -5.0], dtype=torch.bfloat16)).sum().backward()
    assert weight.master.grad.dtype == torch.float32 and weight.master.grad.tolist() == [2.0, -5.0]
