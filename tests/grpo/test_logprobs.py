"""Linear to log-prob: value, entropy and gradient against the slow twin; memory that does not grow with tokens."""

import math
from functools import partial

import pytest
import torch
from grpo.kernels import twins
from making import measured_in_forks

from grpo.algorithm.logprobs import token_logprobs
from grpo.engine.device.draw import SamplingParams, draw
from grpo.engine.device.ops import log_softmax_rows

NO_CUT = float("-inf")


def slow(hidden, head, targets, temperature, cuts=None):
    logits = hidden.double() @ head.double().T
    return twins.log_softmax_rows(logits, targets, temperature, cuts)[:2]


def inputs(rows=37, width=16, vocabulary=101):
    """All logits are offset by 1000, where a log-softmax without its maximum subtracted would overflow."""
    hidden = torch.randn(rows, width, dtype=torch.float64)
    head = torch.randn(vocabulary, width, dtype=torch.float64)
    hidden[:, 0], head[:, 0] = 1.0, 1000.0
    targets = torch.randint(0, vocabulary, (rows,))
    targets[:2] = torch.tensor([0, vocabulary - 1])
    return hidden, head, targets


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 10, 37, 1000])
@pytest.mark.parametrize("cut", [None, -4.0, -1.0, "mixed"])
@pytest.mark.parametrize("rows_in_cache", [3, 1000])
@pytest.mark.parametrize("bonus", [0.0, 0.3])
def test_equals_the_twin_with_gradients(monkeypatch, temperature, chunk, cut, rows_in_cache, bonus):
    """Also where a chunk is worked on in several parts, and where rows are cut at different places or not at all."""
    monkeypatch.setattr("grpo.engine.device.ops.CACHE_BYTES", rows_in_cache * 101 * 8)
    hidden, head, targets = inputs()
    cuts = None if cut is None else torch.full((37,), -1.0 if cut == "mixed" else cut, dtype=torch.float64)
    if cut == "mixed":
        cuts[5:20], cuts[20:] = NO_CUT, torch.linspace(-6, -1, 17, dtype=torch.float64)
    weight, results = torch.linspace(-1, 1, 37, dtype=torch.float64), []
    for function in (partial(token_logprobs, chunk=chunk, trains_entropy=bonus > 0), slow):
        h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        logp, entropy = function(h, w, targets, temperature, cuts)
        (logp * weight + bonus * entropy * weight.flip(0).exp()).sum().backward()
        results.append((logp.detach(), entropy.detach(), h.grad, w.grad))
    assert all((a - b).abs().max() < 1e-9 for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("cuts", [None, torch.full((7,), -3.0)], ids=["whole", "cut"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logits_in_bfloat16_are_worked_on_in_float32(temperature, cuts):
    """The logits are rounded once; nothing after them is. Seven tokens' log-probs in bfloat16 would be off by 0.01."""
    logits = (3 * torch.randn(7, 200)).bfloat16()
    targets = torch.randint(0, 200, (7,))
    identity = torch.eye(200, dtype=torch.float64)
    wanted = slow(logits.double(), identity, targets, temperature, cuts)
    rows = log_softmax_rows(logits.clone(), targets, temperature, torch.float32, cuts)[:2]
    tokens = token_logprobs(logits, identity.bfloat16(), targets, temperature, cuts)
    for found, exact in zip((*rows, tokens[0]), (*wanted, wanted[0]), strict=True):
        assert found.dtype == torch.float32 and (found - exact).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature, top_p, top_k", [(1.0, 1.0, 2), (0.7, 0.5, 0), (1.3, 0.5, 4)])
def test_ties_at_the_cut_are_kept_by_sampler_and_trainer(dtype, temperature, top_p, top_k):
    """Logits 2, 2, 2, 0, ...: neither the two best nor the better half can be told from the third. All three are drawn,
    with probability 1/3 each, and scored so."""
    logits = torch.zeros(30, 9, dtype=dtype)
    logits[:, [1, 4, 6]] = 2.0
    uniform = (torch.arange(30, dtype=torch.float64) + 0.5) / 30
    ids, logps, cuts = draw(logits, uniform, SamplingParams(1, temperature, top_p, top_k))
    assert ids.tolist() == [1] * 10 + [4] * 10 + [6] * 10
    scored, entropy = token_logprobs(logits, torch.eye(9, dtype=dtype), ids, temperature, cuts)
    for found in (logps, scored, -entropy):
        assert found.tolist() == pytest.approx([-math.log(3)] * 30, abs=1e-6)


def test_a_token_exactly_at_the_cut_is_kept():
    """The sampler puts the cut between two log-probs; one that lies on them drops none of those it names."""
    logits, target = torch.zeros(1, 4), torch.tensor([2])
    cut = torch.log_softmax(logits, -1)[:, 0]
    for lower, kept in ((cut, 4), (cut + 0.1, 1)):
        scored, entropy = token_logprobs(logits, torch.eye(4), target, 1.0, lower)
        assert scored.item() == pytest.approx(-math.log(kept))
        assert entropy.item() == pytest.approx(math.log(kept))


def test_memory_is_flat_in_tokens():
    """Peak memory of forward and backward at 4 times the tokens, in forks of one process. The logits of the 3,072 more
    tokens would take 393 MB; what is allowed is the allocator's mood."""
    code = """
from grpo.algorithm.logprobs import token_logprobs
def measure(rows):
    hidden = torch.randn(rows, 64, requires_grad=True)
    head, targets = torch.randn(32000, 64), torch.randint(0, 32000, (rows,))
    token_logprobs(hidden, head, targets, 1.0, chunk=128)[0].sum().backward()
    return status("VmHWM")
"""
    few, many = measured_in_forks(code, [(1024,), (4096,)])
    assert many - few < 150e6


def test_the_heads_gradient_is_summed_over_chunks_in_float32():
    """512 chunks of one token: in bfloat16, whose steps are 1/128, the later ones would no longer count."""
    hidden = torch.randn(1, 16).expand(512, -1).bfloat16()
    head = torch.randn(40, 16).bfloat16().requires_grad_()
    exact = head.detach().double().requires_grad_()
    targets = torch.full((512,), 3)
    token_logprobs(hidden, head, targets, 1.0, chunk=1)[0].sum().backward()
    slow(hidden.double(), exact, targets, 1.0)[0].sum().backward()
    assert (head.grad.double() - exact.grad).norm() / exact.grad.norm() < 0.02
