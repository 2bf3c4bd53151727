"""Drawing a token: the right distribution, the same as the slow twin, safe at the edges."""

import math

import pytest
import torch
from grpo.kernels.twins import draw as draw_slowly
from grpo.kernels.twins import kept_tokens
from grpo.kernels.twins import uniform as uniform_slowly

from grpo.engine.device.draw import LIKELIEST, SamplingParams, _largest_share, _threshold, draw, uniforms

CASES = [
    (1.0, 1.0, 0),
    (1.3, 0.9, 0),
    (1.0, 1.0, 5),
    (0.7, 0.8, 20),
    (1.0, 0.05, 0),
    (0.0, 1.0, 0),
    (1.0, 0.999999, 1),
]


@pytest.mark.parametrize("temperature, top_p, top_k", CASES)
@pytest.mark.parametrize("width", [7, 128, 129, 1500])
def test_equals_the_twin(temperature, top_p, top_k, width):
    logits = torch.randn(40, width, dtype=torch.float64) * 3
    uniform = torch.rand(40, dtype=torch.float64)
    ids, logps, _ = draw(logits, uniform, SamplingParams(1, temperature, top_p, top_k))
    for row in range(40):
        token, logp = draw_slowly(logits[row], float(uniform[row]), temperature, top_p, top_k)
        assert int(ids[row]) == token
        assert float(logps[row]) == pytest.approx(logp, abs=1e-9)


def cuts(logp_BV, top_k, top_p):
    return _threshold(logp_BV, _largest_share(logp_BV.exp()), top_k, top_p)[1]


def wide_rows(width):
    """Rows whose nucleus is hard to find. From 2 * LIKELIEST entries on, the likeliest ones are looked at first."""
    logits = torch.randn(11, width, dtype=torch.float64)
    logits[0] *= 4
    logits[1] *= 0.01  # nearly uniform, as a model is in the beginning: 95 % of the mass are most of the entries
    logits[2, 5] = 60.0  # all others together have less than 1e-12
    logits[3] = 0.0
    logits[3, : LIKELIEST - 1] = 9.0  # 99.99 % of the mass, and the tie of all others is the first dropped
    logits[4, :] = (torch.arange(width) < LIKELIEST).double()  # one value for all that are looked at
    logits[5, 9:] = float("-inf")
    logits[6] = (logits[6] * 4).round()  # many ties, at the threshold too
    logits[7, : LIKELIEST + 1] += 30.0  # one token more than is looked at
    logits[8] = 1.0
    logits[9, : width // 2] -= 1000
    logits[10] *= 0.1
    logits[10, :20] += 12.0  # a small nucleus among nearly equal ones
    return logits


@pytest.mark.parametrize("width", [1025, 3000, 2 * LIKELIEST])
@pytest.mark.parametrize(
    "top_p, top_k",
    [(0.5, 0), (0.9, 0), (0.9999, 0), (0.9, LIKELIEST + 7), (0.9, 40), (1.0, LIKELIEST), (0.9, 1024)],
)
def test_what_is_kept_of_wide_rows(top_p, top_k, width):
    """The twin keeps the same tokens, whether the likeliest ones were enough or not. The cut parts them from the
    rest, half way."""
    logp = wide_rows(width).log_softmax(-1)
    for row, cut in zip(logp, cuts(logp, top_k, top_p), strict=True):
        kept = kept_tokens(row, 1.0, top_p, top_k)
        assert (row >= cut).nonzero()[:, 0].tolist() == kept or cut == row.min() == -math.inf
        dropped = row.index_fill(0, torch.tensor(kept), -math.inf)
        if len(kept) < width:
            assert float(cut) == pytest.approx(float((row[kept].min() + dropped.max()) / 2), abs=1e-9)


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.9999])
def test_where_top_p_ends_in_float32(top_p):
    """What is kept has at least that mass, and less without its least likely entries, but for rounding."""
    logp = wide_rows(4000).float().log_softmax(-1)
    for row, cut in zip(logp, cuts(logp, 0, top_p), strict=True):
        kept = row[row.isfinite() & (row >= cut)].double()
        assert kept.exp().sum() >= top_p - 1e-6
        assert kept[kept > kept.min()].exp().sum() < top_p + 1e-6


def test_a_wide_rows_cut_does_not_depend_on_the_others():
    logp = wide_rows(4000).float().log_softmax(-1)
    assert torch.equal(torch.cat([cuts(row, 0, 0.9) for row in logp[:, None]]), cuts(logp, 0, 0.9))


def test_distribution_by_chi_square():
    """50,000 draws from one distribution, uniforms as the sampler makes them. z < 4: a right sampler fails once in
    30,000 runs, and the seed is fixed."""
    logits = torch.randn(300) * 2
    number = torch.arange(50_000)
    uniform = uniforms(number // 500 * 7919 + 13, number % 500)
    ids, _, _ = draw(logits.expand(50_000, -1), uniform, SamplingParams(1, 0.7))
    counts, expected = torch.bincount(ids, minlength=300), 50_000 * (logits / 0.7).softmax(0)
    is_common = expected >= 10
    chi2 = ((counts - expected) ** 2 / expected)[is_common].sum()
    freedom = is_common.sum() - 1
    assert (chi2 - freedom) / (2 * freedom) ** 0.5 < 4


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_edges_of_the_uniform_draw_no_impossible_token(uniform):
    """Neither before the possible ones nor in the block behind, though a block's sum in float32 may be above that of
    its entries."""
    logits = torch.full((200, 256), float("-inf"))
    logits[:, 1:128] = torch.randn(200, 127)
    ids, logps, _ = draw(logits, torch.full((200,), uniform, dtype=torch.float64), SamplingParams(1))
    assert ids.min() > 0 and ids.max() < 128 and logps.isfinite().all()


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63 - 1, -(2**62) - 5])
def test_uniforms_equal_their_twin(seed):
    positions = torch.tensor([0, 1, 2, 1000, 2**31])
    found = uniforms(torch.full_like(positions, seed), positions)
    assert found.tolist() == [uniform_slowly(seed, position) for position in positions.tolist()]


def test_no_uniform_is_0_or_1():
    """SplitMix64 takes (0, 0) to 0, and a uniform of 0 would draw the first entry, however improbable."""
    seeds = torch.arange(100_000)
    uniform_B = uniforms(seeds, torch.zeros_like(seeds))
    assert float(uniform_B.min()) > 0 and float(uniform_B.max()) < 1
    logits_BV = torch.zeros(1, 300)
    logits_BV[0, 0] = -103.0  # e^-103 is the smallest float32 above 0
    ids_B, _, _ = draw(logits_BV, uniform_B[:1], SamplingParams(1))
    assert int(ids_B) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"temperature": 0.0}], ids=str)
@pytest.mark.parametrize("width", [300, 3000])
def test_logits_that_are_not_finite_spoil_their_own_row_and_crash_nothing(width, bad, options):
    """The recorded log-prob is NaN, so that the step's gradient is not finite and the step is skipped."""
    logits = torch.randn(3, width)
    uniform, others = torch.full((3,), 0.5, dtype=torch.float64), [0, 2]
    wanted_ids, wanted_logps, _ = draw(logits, uniform, SamplingParams(1, **options))
    logits[1] = bad
    ids, logps, _ = draw(logits, uniform, SamplingParams(1, **options))
    assert 0 <= int(ids[1]) < width and ("temperature" in options or logps[1].isnan())
    assert torch.equal(ids[others], wanted_ids[others])
    assert torch.equal(logps[others], wanted_logps[others])
