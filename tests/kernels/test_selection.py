"""With the kernels in use (in the interpreter on a CPU), the log-probs and a training pass give what they give
without."""

import pytest
import torch
from making import load, write_checkpoint

from grpo.algorithm.logprobs import token_logprobs
from grpo.algorithm.schema import Layout
from grpo.engine.attention.packed import PackedAttention

LAYOUT = Layout.of((5, (3, 4)), (2, (6,)))


def training_pass(decoder, recompute):
    decoder.zero_grad()
    decoder.recompute = recompute
    ids, positions = (
        torch.arange(20),
        torch.cat([torch.arange(n) + s for n, s in ((5, 0), (3, 5), (4, 5), (2, 0), (6, 2))]),
    )
    hidden = decoder(ids, positions, PackedAttention(LAYOUT, torch.float32, "cpu"))
    logp, entropy = token_logprobs(hidden, decoder.head(), ids + 7, 0.9, chunk=8)
    (logp * torch.linspace(-1, 1, 20)).sum().backward()
    return [logp.detach(), entropy, *(p.grad.clone() for p in decoder.parameters() if p.grad is not None)]


@pytest.mark.parametrize("recompute", ["none", "mlp", "all"])
@pytest.mark.parametrize(("family", "rank"), [("qwen2", 4), ("qwen3", 4), ("llama", 0)])
def test_a_training_pass(tmp_path, switch_kernels_on, family, rank, recompute):
    """Rank 0 trains all weights, norms included."""
    decoder = load(write_checkpoint(tmp_path, family, num_hidden_layers=1), rank=rank, train_weights=not rank)
    plain = training_pass(decoder, recompute)
    asked = switch_kernels_on()
    ours = training_pass(decoder, recompute)
    assert asked == {"rms_norm", "swiglu", "rotate", "log_softmax_rows"} and len(ours) == len(plain) > 3
    assert all((a - b).norm() <= 3e-6 * b.norm() + 1e-7 for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("cut", [-4.0, -1.0, float("-inf")])
def test_logprobs_of_what_a_cut_leaves(switch_kernels_on, cut):
    hidden, head, targets = torch.randn(9, 8), torch.randn(50, 8), torch.arange(9)
    cuts = torch.full((9,), cut)
    cuts[0] = -3.0
    plain = token_logprobs(hidden.requires_grad_(), head, targets, 0.8, cuts)
    plain_grad = torch.autograd.grad(plain[0].sum(), hidden)[0]
    asked = switch_kernels_on()
    ours = token_logprobs(hidden, head, targets, 0.8, cuts)
    assert asked == {"log_softmax_rows"}
    for got, wanted in (*zip(ours, plain, strict=True), (torch.autograd.grad(ours[0].sum(), hidden)[0], plain_grad)):
        assert torch.allclose(got, wanted, atol=2e-6)
