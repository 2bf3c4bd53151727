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
    cuts = None if recompute == "none" else torch.linspace(-6, -1, 20)
    logp, entropy = token_logprobs(hidden, decoder.head(), ids + 7, 0.9, cuts, chunk=8)
    (logp * torch.linspace(-1, 1, 20)).sum().backward()
    return [logp.detach(), entropy, *(p.grad.clone() for p in decoder.parameters() if p.grad is not None)]


@pytest.mark.parametrize("recompute", ["none", "mlp", "all"])
@pytest.mark.parametrize(("family", "rank"), [("qwen2", 4), ("qwen3", 4), ("llama", 0)])
def test_a_training_pass(tmp_path, switch_kernels_on, family, rank, recompute):
    """Rank 0 trains all weights, norms included. Two of three are scored by what a cut leaves."""
    decoder = load(write_checkpoint(tmp_path, family, num_hidden_layers=1), rank=rank, train_weights=not rank)
    plain = training_pass(decoder, recompute)
    asked = switch_kernels_on()
    ours = training_pass(decoder, recompute)
    assert asked == {"rms_norm", "swiglu", "rotate", "log_softmax_rows"}
    assert len(ours) == len(plain) > 3
    assert all((a - b).norm() <= 3e-6 * b.norm() + 1e-7 for a, b in zip(ours, plain, strict=True))
