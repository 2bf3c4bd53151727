"""Attention by two products, forward and backward, against the formula in float64 and against torch's kernel in the
same dtype."""

import pytest
import torch
import torch.nn.functional as F
from grpo.kernels.reference import attention as slow

from grpo.attention import dense as dense_attention
from grpo.attention.dense import DenseAttention


def tensors(N, S, T, H, K, E):
    torch.manual_seed(0)
    q, k, v, g = torch.randn(N, S, H, E), torch.randn(N, T, K, E), torch.randn(N, T, K, E), torch.randn(N, S, H, E)
    visible_ST = torch.ones(S, T, dtype=torch.bool).tril(T - S)
    return (q.bfloat16(), k.bfloat16(), v.bfloat16(), g.bfloat16()), visible_ST


def additive(visible_ST):
    return torch.zeros(visible_ST.shape, dtype=torch.bfloat16).masked_fill(~visible_ST, float("-inf"))[None, None]


def run(attend, inputs, g):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = attend(*inputs)
    out.backward(g.to(out.dtype))
    return [out.detach(), *(x.grad for x in inputs)]


def error(got, wanted):
    return float((got.double() - wanted).abs().mean() / wanted.abs().mean())


@pytest.mark.parametrize("shape", [(3, 5, 9, 4, 2, 8), (2, 7, 7, 6, 1, 16), (5, 1, 13, 3, 3, 8)])
@pytest.mark.parametrize("bytes_at_a_time", [1, 1 << 22])
def test_equals_the_formula_with_gradients(shape, bytes_at_a_time, monkeypatch):
    monkeypatch.setattr(dense_attention, "SCORES_BYTES", bytes_at_a_time)  # one row at a time, and all at once
    (*inputs, g), visible = tensors(*shape)

    def formula(q, k, v):
        S, T = visible.shape  # the twin wants as many queries as keys
        square = torch.ones(T, T, dtype=torch.bool).tril()
        square[T - S :] = visible
        return torch.stack(
            [slow(F.pad(q[n], (0, 0, 0, 0, T - S, 0)), k[n], v[n], square)[T - S :] for n in range(len(q))]
        )

    wanted = run(formula, [x.double() for x in inputs], g)
    got = run(lambda q, k, v: DenseAttention.apply(q, k, v, additive(visible)), inputs, g)
    theirs = run(
        lambda q, k, v: F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), additive(visible), enable_gqa=True
        ).transpose(1, 2),
        inputs,
        g,
    )
    for ours, torchs, exact in zip(got, theirs, wanted, strict=True):
        assert error(ours, exact) < max(3 * error(torchs, exact), 0.01)


@pytest.mark.parametrize("bytes_at_a_time", [1, 1 << 22])
def test_gradients_with_a_mask_per_row(bytes_at_a_time, monkeypatch):
    """Rows whose prompts have 4, 1 and 6 of 6 keys, and then three of their own, as in a batch of completions."""
    monkeypatch.setattr(dense_attention, "SCORES_BYTES", bytes_at_a_time)
    (*inputs, g), _ = tensors(3, 3, 9, 4, 2, 8)
    square = torch.ones(9, 9, dtype=torch.bool).tril().repeat(3, 1, 1)
    for row, length in enumerate((4, 1, 6)):
        square[row, 6:, length:6] = False
    masks = torch.cat([additive(square[row, 6:]) for row in range(3)])

    def formula(q, k, v):
        return torch.stack([slow(F.pad(q[n], (0, 0, 0, 0, 6, 0)), k[n], v[n], square[n])[6:] for n in range(3)])

    wanted = run(formula, [x.double() for x in inputs], g)
    got = run(lambda q, k, v: DenseAttention.apply(q, k, v, masks), inputs, g)
    for ours, exact in zip(got, wanted, strict=True):
        for row in range(3):
            assert error(ours[row], exact[row]) < 0.02


def test_where_there_is_one_key_to_look_at_no_score_matters():
    """So queries and keys get no gradient: the sum of p dp is dp itself, in the same rounding."""
    (*inputs, g), visible = tensors(64, 1, 1, 4, 2, 32)
    _, dq, dk, dv = run(lambda q, k, v: DenseAttention.apply(q, k, v, additive(visible)), inputs, g)
    assert (dq.count_nonzero() + dk.count_nonzero()) / (dq.numel() + dk.numel()) < 0.05 and dv.any()
