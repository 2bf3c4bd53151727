"""The thresholds of top-k and top-p against the plain path's, and draws within them against the twin."""

import pytest
import torch
from grpo.kernels.inverse_cdf import draw_rows
from grpo.kernels.nucleus import TILE, thresholds
from grpo.kernels.reference import draw as slow
from grpo.kernels.reference import uniform

from grpo.device.draw import SamplingParams, _cut, draw, uniforms
from grpo.device.ops import draw_tokens

CUTS = [(0, 0.9), (0, 0.3), (5, 1.0), (1, 1.0), (40, 0.8), (0, 1.0), (10**6, 0.5)]


def rows(width, number=2, spread=3.0, device="cpu"):
    generator = torch.Generator().manual_seed(width)
    return (torch.randn(number, width, generator=generator) * spread).to(device)


@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
@pytest.mark.parametrize("width", [1, 6, 1000, TILE + 9])
def test_equals_the_plain_path(device, width, top_k, top_p):
    logits = rows(width, device=device)
    least, cut = thresholds(logits, 0.8, top_k, top_p)
    wanted = torch.full((len(logits),), float("-inf"), dtype=torch.float64, device=device)
    if top_k or top_p < 1:
        wanted = _cut((logits.double() / 0.8).log_softmax(-1), top_k, top_p)
    dropped = wanted > float("-inf")
    assert torch.equal(cut > float("-inf"), dropped) and torch.equal(least > float("-inf"), dropped)
    assert ((cut - wanted)[dropped].abs() <= 1e-5).all()
    kept = (logits / 0.8).double().log_softmax(-1) >= wanted[:, None]
    assert torch.equal(logits >= least[:, None], kept)


@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
def test_draws_within_them_equal_the_twin(device, top_k, top_p):
    logits = rows(700, 4, device=device)
    seeds, positions = torch.arange(4, device=device) * 77, torch.arange(4, device=device)
    ids, logps = draw_rows(logits, seeds, positions, 0.7, thresholds(logits, 0.7, top_k, top_p))
    for row in range(4):
        token, logp = slow(logits[row].cpu(), uniform(int(seeds[row]), int(positions[row])), 0.7, top_p, top_k)
        assert int(ids[row]) == token and abs(float(logps[row]) - logp) <= 5e-6


def test_negative_and_masked_logits(device):
    """All logits below zero, some -inf; the order of the keys must hold across signs."""
    logits = torch.tensor(
        [[-5.0, -1.0, float("-inf"), -3.0], [1.0, -1.0, 0.0, -0.0], [-1e30, 1e30, 0.0, -2.0]], device=device
    )
    least, _ = thresholds(logits, 1.0, 2, 1.0)
    assert (logits >= least[:, None]).tolist() == [
        [False, True, False, True],
        [True, False, True, True],
        [False, True, True, False],
    ]


def test_cut_tokens_in_the_sampling_path(device, switch_kernels_on):
    """What is drawn with cuts: the cut that is recorded is the one that the plain path records."""
    logits, seeds = rows(300, 6, device=device), torch.arange(6, device=device)
    sampling = SamplingParams(1, 0.7, 0.9, 50)
    wanted = draw(logits, uniforms(seeds, seeds), sampling)
    asked = switch_kernels_on()
    record = torch.zeros(6, 9, dtype=torch.int64, device=device), *torch.zeros(2, 6, 9, device=device)
    drawn = draw_tokens(logits, seeds, seeds, sampling, record)
    assert asked == {"draw_tokens"}
    ids, logps, cuts = (values.gather(1, seeds[:, None])[:, 0] for values in record)
    assert torch.equal(ids, wanted[0]) and torch.equal(drawn, ids)
    assert (logps - wanted[1]).abs().max() <= 5e-6 and (cuts - wanted[2]).abs().max() <= 1e-5
    beside = torch.arange(9, device=device) != seeds[:, None]
    assert all((values[beside] == 0).all() for values in record)
