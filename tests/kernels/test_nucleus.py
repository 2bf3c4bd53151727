"""The thresholds of top-k and top-p against the twin's and the plain path's, and draws within them."""

import pytest
import torch
from grpo.kernels.inverse_cdf import PIECE
from grpo.kernels.nucleus import thresholds
from grpo.kernels.twins import kept_tokens
from test_layers import random

from grpo.engine.device.draw import SamplingParams, _largest_share, _threshold, draw, uniforms
from grpo.engine.device.ops import draw_tokens

CUTS = [(0, 0.9), (0, 0.3), (5, 1.0), (1, 1.0), (40, 0.8), (0, 1.0), (10**6, 0.5)]


def rows(width, number=2, spread=3.0, device="cpu"):
    return random(number, width, device=device) * spread


def check_kept(logits, top_k, top_p, temperature=0.8):
    """The kernel and the plain path keep what the twin keeps, of what is possible. The thresholds are the same."""
    least, cut = thresholds(logits, temperature, top_k, top_p)
    logp = (logits.double() / temperature).log_softmax(-1)
    plain = (
        _threshold(logp, _largest_share(logp.exp()), top_k, top_p)[1]
        if top_k or top_p < 1
        else torch.full_like(logp[:, 0], float("-inf"))
    )
    possible = logits > float("-inf")
    ours, theirs = (logits >= least[:, None]) & possible, (logp >= plain[:, None]) & possible
    for row in range(len(logits)):
        wanted = torch.zeros_like(possible[row])
        wanted[kept_tokens(logits[row].cpu(), temperature, top_p, top_k)] = True
        assert torch.equal(ours[row], wanted & possible[row])
        assert torch.equal(theirs[row], ours[row])
    nothing_dropped = plain == float("-inf")
    assert torch.equal(cut == float("-inf"), nothing_dropped)
    assert ((cut - plain).abs() <= 1e-5 * plain.abs().clamp_min(1))[~nothing_dropped].all()


@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
@pytest.mark.parametrize("width", [1, 6, 1000, PIECE + 9])
def test_equals_the_twin(device, width, top_k, top_p):
    check_kept(rows(width, device=device), top_k, top_p)


HARD = {
    "all equal": lambda x: x * 0 + 2.5,
    "many ties, at the threshold too": lambda x: x.round(),
    "few steps of rounding apart": lambda x: 10 + 1e-6 * x,
    "one far above": lambda x: x.scatter(1, torch.full((len(x), 1), 17, device=x.device), 90.0),
    "most impossible": lambda x: x.masked_fill(torch.arange(x.shape[1], device=x.device) > 5, float("-inf")),
    "whole pieces impossible": lambda x: x.masked_fill(torch.arange(x.shape[1], device=x.device) < PIECE, -1e38),
    "huge": lambda x: x * 1e37,
    "zeros of both signs": lambda x: torch.where(x > 2, x, torch.copysign(torch.zeros_like(x), x)),
}


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (0, 1e-9), (4000, 0.7)])
@pytest.mark.parametrize("name", HARD)
def test_hard_rows(device, name, top_k, top_p):
    check_kept(HARD[name](rows(PIECE + 500, 1, device=device)), top_k, top_p)


def test_a_row_as_wide_as_a_vocabulary(device):
    """Among 152,064 nearly equal entries a step of the mass is 7e-6: sums in float32 must not move the threshold."""
    check_kept(rows(152_064, 1, 1e-3, device), 0, 0.9, 1.0)


def test_as_many_are_kept_as_top_k_says(device):
    """Also where k / V · V is a little more than k in float64, as for 7 of 25."""
    for top_k, width in ((7, 25), (15, 29), (21, 38), (500, 1000)):
        logits = rows(width, 1, device=device)
        least, cut = thresholds(logits, 1.0, top_k, 1.0)
        assert int((logits >= least[:, None]).sum()) == top_k
        assert int((logits.log_softmax(-1) >= cut[:, None]).sum()) == top_k


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
    assert torch.equal(ids, wanted[0])
    assert torch.equal(drawn, ids)
    assert (logps - wanted[1]).abs().max() <= 5e-6
    assert (cuts - wanted[2]).abs().max() <= 1e-5
    beside = torch.arange(9, device=device) != seeds[:, None]
    assert all((values[beside] == 0).all() for values in record)
