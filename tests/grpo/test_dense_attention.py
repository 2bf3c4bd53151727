"""Attention by two products, forward and backward, against the formula in float64."""

import pytest
import torch
import torch.nn.functional as F
from grpo.kernels.twins import attention as slow

from grpo.engine.attention import dense as dense_attention
from grpo.engine.attention.dense import DenseAttention


def tensors(N, S, T, H, K, E):
    torch.manual_seed(0)
    shapes = (N, S, H, E), (N, T, K, E), (N, T, K, E), (N, S, H, E)
    return [torch.randn(*shape).bfloat16() for shape in shapes]


def additive(visible_NST):
    return torch.zeros(visible_NST.shape, dtype=torch.bfloat16).masked_fill(~visible_NST, float("-inf"))[:, None]


def run(attend, inputs, g):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = attend(*inputs)
    out.backward(g.to(out.dtype))
    return [out.detach(), *(x.grad for x in inputs)]


def error(got, wanted):
    return float((got.double() - wanted).abs().mean() / wanted.abs().mean())


@pytest.mark.parametrize("shape", [(3, 5, 9, 4, 2, 8), (2, 7, 7, 6, 1, 16), (5, 1, 13, 3, 3, 8), (3, 3, 9, 4, 2, 8)])
@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize("bytes_at_a_time", [1, 1 << 22])
def test_equals_the_formula_with_gradients(shape, has_masks, bytes_at_a_time, monkeypatch):
    """With a mask for all rows, or one per row, whose prompts have other lengths, as in a batch of completions."""
    monkeypatch.setattr(dense_attention, "SCORES_BYTES", bytes_at_a_time)  # one row at a time, and all at once
    N, S, T, *_ = shape
    *inputs, g = tensors(*shape)
    visible_NTT = torch.ones(T, T, dtype=torch.bool).tril().repeat(N, 1, 1)  # the twin wants as many queries as keys
    if has_masks:
        for row in range(N):
            visible_NTT[row, T - S :, 1 + row : T - S] = False
    masks = additive(visible_NTT[:, T - S :] if has_masks else visible_NTT[:1, T - S :])

    def formula(q, k, v):
        padded = F.pad(q, (0, 0, 0, 0, T - S, 0))
        return torch.stack([slow(padded[n], k[n], v[n], visible_NTT[n])[T - S :] for n in range(N)])

    wanted = run(formula, [x.double() for x in inputs], g)
    got = run(lambda q, k, v: DenseAttention.apply(q, k, v, masks), inputs, g)
    for ours, exact in zip(got, wanted, strict=True):
        assert all(error(ours[row], exact[row]) < 0.02 for row in range(N))


def test_where_there_is_one_key_to_look_at_no_score_matters():
    """So queries and keys get no gradient: the sum of p dp is dp itself, in the same rounding."""
    *inputs, g = tensors(64, 1, 1, 4, 2, 32)
    mask = additive(torch.ones(1, 1, 1, dtype=torch.bool))
    _, dq, dk, dv = run(lambda q, k, v: DenseAttention.apply(q, k, v, mask), inputs, g)
    assert (dq.count_nonzero() + dk.count_nonzero()) / (dq.numel() + dk.numel()) < 0.05 and dv.any()
