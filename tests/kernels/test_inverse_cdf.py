"""Tokens drawn by the kernel against the plain path with the same uniforms, and against the running sum in float64."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from grpo.kernels.inverse_cdf import PIECE, _first, draw_rows
from grpo.kernels.nucleus import thresholds
from grpo.kernels.twins import draw as slow
from grpo.kernels.twins import uniform
from test_layers import random

from grpo.engine.device.draw import SamplingParams, draw, uniforms


def rows(width, number=3, device="cpu", dtype=torch.float32):
    seeds = torch.randint(2**62, (number,), generator=torch.Generator().manual_seed(width))
    logits = (random(number, width, device=device) * 3).to(dtype)
    return logits, seeds.to(device), torch.arange(number, device=device)


def drawn(logits, seeds, positions, temperature, cut=None):
    """The tokens, and the log-probs that are recorded."""
    empty = torch.zeros(len(logits), len(logits), device=logits.device)
    record = empty.long(), empty.clone(), empty.clone()
    ids = draw_rows(logits, seeds, positions, temperature, cut, record)
    found, logps = (values.gather(1, positions[:, None])[:, 0] for values in record[:2])
    assert torch.equal(found, ids)
    return ids, logps


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("width", "dtype"), [
    *((width, torch.float32) for width in (1, 5, 1000, PIECE, PIECE + 1, 3 * PIECE + 77)),
    (2 * PIECE + 5, torch.bfloat16),
])  # fmt: skip
def test_tokens_and_logprobs_equal_the_twin(device, width, dtype, temperature):
    logits, seeds, positions = rows(width, 5, device, dtype)
    ids, logps = drawn(logits, seeds, positions, temperature)
    for row in range(len(ids)):
        token, logp = slow(logits[row].cpu(), uniform(int(seeds[row]), int(positions[row])), temperature, 1.0, 0)
        assert int(ids[row]) == token
        assert abs(float(logps[row]) - logp) <= 5e-6


def test_greedy_takes_the_first_of_equals(device):
    logits, seeds, positions = rows(3 * PIECE, device=device)
    logits[0, [7, PIECE + 3, 2 * PIECE]] = 50.0
    ids, logps = drawn(logits, seeds, positions, 0.0)
    assert int(ids[0]) == 7
    assert torch.equal(ids[1:], logits[1:].argmax(-1))
    assert (logps == 0).all()


NOT_FINITE = {
    "infinity": lambda x: x.fill_(float("inf")),
    "nothing possible": lambda x: x.fill_(float("-inf")),
    "NaN": lambda x: x.fill_(float("nan")),
    "one NaN": lambda x: x[PIECE + 3].fill_(float("nan")),
    "two infinities": lambda x: x[7::PIECE].fill_(float("inf")),
    "only NaN in the last piece": lambda x: x[PIECE:].fill_(float("nan")),
}


@pytest.mark.filterwarnings("ignore:All-NaN")
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", NOT_FINITE)
def test_rows_that_are_not_finite_have_the_plain_token_and_no_finite_log_prob(device, name, temperature, top_p):
    """The token is one of the vocabulary, so the embedding takes it. The other rows do not notice."""
    logits, seeds, positions = rows(PIECE + 77, 2, device)
    NOT_FINITE[name](logits[0])
    cut = thresholds(logits, temperature, 0, top_p) if temperature and top_p < 1 else None
    with np.errstate(all="ignore"):
        ids, logps = drawn(logits, seeds, positions, temperature, cut)
    wanted, wanted_logps, _ = draw(logits, uniforms(seeds, positions), SamplingParams(1, temperature, top_p))
    assert torch.equal(ids, wanted)
    assert int(ids.max()) < logits.shape[1]
    assert logps.isfinite().tolist() == wanted_logps.isfinite().tolist() == [False, True]


@triton.jit
def _first_of(passed, possible, out, size: tl.constexpr):
    index = tl.arange(0, size)
    tl.store(out, _first(tl.load(passed + index) > 0, tl.load(possible + index) > 0, index, size))


@pytest.mark.parametrize(("passed", "possible"), [("0111", "1011"), ("0000", "1110"), ("0010", "0111")])
def test_rounding_never_picks_the_impossible(device, passed, possible):
    """A running sum made as a tree may pass the target on an entry of weight 0, or nowhere: here the third is right."""
    given = torch.tensor([list(map(int, bits)) for bits in (passed, possible)], dtype=torch.int32, device=device)
    out = torch.empty(1, dtype=torch.int32, device=device)
    _first_of[(1,)](*given, out, size=4)
    assert int(out) == 2
