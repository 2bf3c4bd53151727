"""Logits to log-prob, entropy and gradient in place, against float64."""

import pytest
import torch
from grpo.kernels.log_softmax_rows import TILE, log_softmax_rows
from grpo.kernels.reference import log_softmax_rows as slow


def rows(width, number=5, offset=0.0, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(width)
    logits = (torch.randn(number, width, generator=generator) * 4 + offset).to(dtype).to(device)
    targets = torch.randint(width, (number,), generator=generator)
    targets[0], targets[-1] = 0, width - 1  # in the first tile and in the last
    return logits, targets.to(device)


@pytest.mark.parametrize("width", [1, 7, 1000, TILE - 1, TILE, TILE + 1, 2 * TILE + 333])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_float32_equals_the_twin(device, width, temperature):
    logits, targets = rows(width, device=device)
    wanted = slow(logits, targets, temperature)
    logp, entropy, slope = log_softmax_rows(logits, targets, temperature, logits.dtype)
    assert slope.data_ptr() == logits.data_ptr() and torch.equal(slope, logits)
    assert (logp - wanted[0]).abs().max() <= 5e-6 and (entropy - wanted[1]).abs().max() <= 1e-5
    assert (slope - wanted[2]).abs().max() <= 1e-6


@pytest.mark.parametrize("width", [1, 999, TILE + 77, 3 * TILE])
def test_bfloat16_logits_lose_only_their_own_rounding(device, width, bf16_step):
    logits, targets = rows(width, dtype=torch.bfloat16, device=device)
    wanted = slow(logits, targets, 1.0)  # of the rounded logits
    logp, entropy, slope = log_softmax_rows(logits, targets, 1.0, logits.dtype)
    assert (
        slope.dtype == torch.bfloat16
        and slope.data_ptr() == logits.data_ptr()
        and (logp - wanted[0]).abs().max() <= 5e-6
        and (entropy - wanted[1]).abs().max() <= 1e-5
    )
    assert ((slope - wanted[2]).abs() <= bf16_step * wanted[2].abs() + 1e-6).all()


@pytest.mark.parametrize("width", [1, 2, 1001, TILE + 77, 3 * TILE + 1])
def test_a_narrower_slope_fills_the_front_of_each_row(device, width, bf16_step):
    """float32 logits, bfloat16 slope: what the product with the head wants. The first tile's writes land on its own
    reads."""
    logits, targets = rows(width, device=device)
    wanted = slow(logits, targets, 0.9)
    logp, _, slope = log_softmax_rows(logits, targets, 0.9, torch.bfloat16)
    assert slope.dtype == torch.bfloat16 and slope.shape == logits.shape and slope.data_ptr() == logits.data_ptr()
    assert (logp - wanted[0]).abs().max() <= 5e-6 and (
        (slope - wanted[2]).abs() <= bf16_step * wanted[2].abs() + 1e-6
    ).all()


@pytest.mark.parametrize(
    "masked", [slice(0, TILE), slice(TILE, 2 * TILE), slice(5, None)], ids=["first tile", "middle tile", "all but five"]
)
def test_masked_logits(device, masked):
    """Logits of -inf have no probability and no gradient, even where a whole tile consists of them; the maximum may
    come last."""
    logits, targets = rows(3 * TILE, device=device)
    logits[:, masked] = float("-inf")
    targets[:] = 3 if masked.start else 2 * TILE + 1
    wanted = slow(logits, targets, 1.0)
    logp, entropy, slope = log_softmax_rows(logits, targets, 1.0, logits.dtype)
    assert (logp - wanted[0]).abs().max() <= 5e-6 and (entropy - wanted[1]).abs().max() <= 1e-5
    assert (slope - wanted[2]).abs().max() <= 1e-6 and (slope[:, masked] == 0).all()


@pytest.mark.parametrize("cut", [-3.0, -6.0, -1e-3, float("-inf")])
@pytest.mark.parametrize("width", [9, TILE + 77])
def test_a_cut(device, width, cut):
    """The distribution over what is left; the target stays even where it lies below the cut."""
    logits, targets = rows(width, device=device)
    cuts = torch.full((5,), cut, device=device)
    wanted = slow(logits, targets, 0.9, cuts)
    logp, entropy, slope = log_softmax_rows(logits, targets, 0.9, logits.dtype, cuts)
    assert (logp - wanted[0]).abs().max() <= 5e-6 and (entropy - wanted[1]).abs().max() <= 1e-5
    dropped = (wanted[2] == 0).scatter(1, targets[:, None], False)
    assert (slope - wanted[2]).abs().max() <= 1e-6 and (slope[dropped] == 0).all()


def test_same_bits_again_and_in_other_company(device):
    logits, targets = rows(TILE + 999, 7, device=device)
    first = [x.clone() for x in log_softmax_rows(logits.clone(), targets, 1.0, logits.dtype)]
    again = log_softmax_rows(logits.clone(), targets, 1.0, logits.dtype)
    alone = log_softmax_rows(logits[3:4].clone(), targets[3:4], 1.0, logits.dtype)
    assert all(torch.equal(a, b) and torch.equal(a[3:4], c) for a, b, c in zip(first, again, alone, strict=True))


@pytest.mark.parametrize("cut", [None, -3.0])
def test_without_a_slope_the_logits_stay(device, cut):
    logits, targets = rows(TILE + 99, device=device)
    cuts, before = None if cut is None else torch.full((5,), cut, device=device), logits.clone()
    logp, entropy, slope = log_softmax_rows(logits, targets, 0.9, None, cuts)
    assert slope is None and torch.equal(logits, before)
    wanted = log_softmax_rows(before, targets, 0.9, logits.dtype, cuts)
    assert torch.equal(logp, wanted[0]) and torch.equal(entropy, wanted[1])


def test_no_rows(device):
    logp, entropy, slope = log_softmax_rows(
        torch.empty(0, 9, device=device), torch.empty(0, dtype=torch.int64, device=device), 1.0, torch.float32
    )
    assert len(logp) == len(entropy) == len(slope) == 0
