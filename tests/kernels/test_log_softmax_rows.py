"""Logits to log-prob, entropy and gradient in place, against float64."""

import pytest
import torch
from grpo.kernels.log_softmax_rows import TILE, log_softmax_rows
from grpo.kernels.twins import log_softmax_rows as slow
from test_layers import random


def rows(width, number=5, dtype=torch.float32, device="cpu"):
    targets = torch.randint(width, (number,), generator=torch.Generator().manual_seed(width))
    targets[0], targets[-1] = 0, width - 1  # in the first tile and in the last
    return (random(number, width, device=device) * 4).to(dtype), targets.to(device)


def check(logits, targets, temperature, slope_dtype, bf16_step, cuts=None):
    """Equal to the twin of the logits as they are; the slope lies where they were, rounded if it is bfloat16. Returns
    the slope, and the twin's. What a cut leaves may lie far below the maximum, where float32 rounds the argument of
    exp."""
    wanted = slow(logits, targets, temperature, cuts)
    depth = (logits.amax(1) - logits.gather(1, targets[:, None])[:, 0]).float() / temperature
    rounding = 2**-22 * depth * (cuts is not None)
    logp, entropy, slope = log_softmax_rows(logits, targets, temperature, slope_dtype, cuts)
    assert slope.dtype == slope_dtype
    assert slope.shape == logits.shape
    assert slope.data_ptr() == logits.data_ptr()
    assert ((logp - wanted[0]).abs() <= 5e-6 + rounding).all()
    assert ((entropy - wanted[1]).abs() <= 1e-5 + rounding).all()
    step = bf16_step if slope_dtype == torch.bfloat16 else 0.0
    assert ((slope - wanted[2]).abs() <= step * wanted[2].abs() + 1e-6 + rounding[:, None]).all()
    return slope, wanted[2]


@pytest.mark.parametrize("width", [1, 2, 7, 1000, TILE - 1, TILE, TILE + 1, 3 * TILE + 1])
@pytest.mark.parametrize(("dtype", "slope_dtype", "temperature"), [
    (torch.float32, torch.float32, 1.0),
    (torch.float32, torch.float32, 0.6),
    (torch.bfloat16, torch.bfloat16, 1.0),
    (torch.float32, torch.bfloat16, 0.9),  # what the product with the head wants: it fills the front of each row
])  # fmt: skip
def test_equals_the_twin(device, width, dtype, slope_dtype, temperature, bf16_step):
    """A narrower slope's writes in the first tile land on its own reads."""
    check(*rows(width, dtype=dtype, device=device), temperature, slope_dtype, bf16_step)


@pytest.mark.parametrize("masked", [slice(0, TILE), slice(TILE, 2 * TILE), slice(5, None)])  # the last: all but five
def test_masked_logits(device, masked, bf16_step):
    """Logits of -inf have no probability and no gradient, even where a whole tile consists of them; the maximum may
    come last."""
    logits, targets = rows(3 * TILE, device=device)
    logits[:, masked] = float("-inf")
    targets[:] = 3 if masked.start else 2 * TILE + 1
    slope, _ = check(logits, targets, 1.0, logits.dtype, bf16_step)
    assert (slope[:, masked] == 0).all()


@pytest.mark.parametrize("cut", [-3.0, -6.0, -1e-3, float("-inf")])
@pytest.mark.parametrize("width", [9, TILE + 77])
def test_a_cut(device, width, cut, bf16_step):
    """The distribution over what is left; the target stays even where it lies below the cut."""
    logits, targets = rows(width, device=device)
    slope, wanted = check(logits, targets, 0.9, logits.dtype, bf16_step, torch.full((5,), cut, device=device))
    dropped = (wanted == 0).scatter(1, targets[:, None], False)
    assert (slope[dropped] == 0).all()


@pytest.mark.parametrize("cut", [None, -3.0])
def test_without_a_slope_the_logits_stay(device, cut):
    logits, targets = rows(TILE + 99, device=device)
    cuts, before = None if cut is None else torch.full((5,), cut, device=device), logits.clone()
    logp, entropy, slope = log_softmax_rows(logits, targets, 0.9, None, cuts)
    assert slope is None
    assert torch.equal(logits, before)
    wanted = log_softmax_rows(before, targets, 0.9, logits.dtype, cuts)
    assert torch.equal(logp, wanted[0])
    assert torch.equal(entropy, wanted[1])
