"""Packed attention from FlashAttention's pieces: with a plain float64 stand-in for torch's operations on a CPU, with
themselves on a GPU."""

import math
from itertools import pairwise

import pytest
import torch
from grpo.kernels.merge_attention import merge_attention
from grpo.kernels.twins import attention as slow
from making import visible_in
from test_layers import random

from grpo.algorithm.schema import Layout
from grpo.engine.attention.flash import FlashPackedAttention
from grpo.engine.attention.packed import PackedAttention

LAYOUTS = {
    "shared": ((5, (3, 1, 4)), (2, (2,)), (7, (6, 6))),
    "prompts alone": ((4, ()), (9, ())),
    "mixed": ((3, ()), (1, (5,)), (0, (4, 2)), (6, (0, 1))),
}


def spans(starts):
    return [slice(*pair) for pair in pairwise(starts.tolist())]


def visible(q_rows, k_rows, causal):
    """FlashAttention aligns the last query with the last key."""
    queries, keys = (rows.stop - rows.start for rows in (q_rows, k_rows))
    all_keys = torch.ones(queries, keys, dtype=torch.bool)
    return all_keys.tril(keys - queries) if causal else all_keys


def spread(x_TKE, rows, num_heads):
    """These rows, with each key or value of a group for every query of it."""
    return x_TKE[rows].repeat_interleave(num_heads // x_TKE.shape[1], 1)


def scores(q_THE, k_TKE, q_rows, k_rows, causal):
    found_HTT = torch.einsum("qhe,khe->hqk", q_THE[q_rows], spread(k_TKE, k_rows, q_THE.shape[1]))
    return (found_HTT / math.sqrt(q_THE.shape[2])).masked_fill(~visible(q_rows, k_rows, causal), float("-inf"))


def plain_forward(q, k, v, q_starts, k_starts, max_q, max_k, dropout, causal, debug):
    assert dropout == 0
    assert not debug
    assert q_starts.dtype == k_starts.dtype == torch.int32
    assert [max(s.stop - s.start for s in spans(starts)) for starts in (q_starts, k_starts)] == [max_q, max_k]
    exact = torch.promote_types(q.dtype, torch.float32)
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], q.shape[0], dtype=exact)
    for q_rows, k_rows in zip(spans(q_starts), spans(k_starts), strict=True):
        s_HTT = scores(q, k, q_rows, k_rows, causal)
        lse[:, q_rows] = s_HTT.logsumexp(-1)
        out[q_rows] = torch.einsum("hqk,khe->qhe", s_HTT.softmax(-1), spread(v, k_rows, q.shape[1]))
    return out, lse, torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), torch.empty(0)


def plain_backward(dout, q, k, v, out, lse, q_starts, k_starts, max_q, max_k, dropout, causal, state, unused):
    """From the probabilities exp(score - lse) and the row sums of dout out, as FlashAttention's own backward pass has
    it: both may be those of more keys."""
    assert all(x.is_contiguous() for x in (dout, lse))
    assert state.dtype == torch.uint64
    q, k, v = leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    total = torch.zeros(())
    with torch.enable_grad():
        for q_rows, k_rows in zip(spans(q_starts), spans(k_starts), strict=True):
            p_HTT = (scores(q, k, q_rows, k_rows, causal) - lse[:, q_rows, None]).exp()
            dp_HTT = torch.einsum("qhe,khe->hqk", dout[q_rows], spread(v, k_rows, q.shape[1]))
            total = total + (p_HTT * (dp_HTT - (dout * out)[q_rows].sum(-1).T[:, :, None])).sum()
    return torch.autograd.grad(total, leaves)


def inputs(layout, heads=4, kv_heads=2, width=8, dtype=torch.float64, device="cpu"):
    sizes = enumerate((heads, kv_heads, kv_heads, heads))
    return [random(layout.num_tokens, h, width, seed=n, dtype=dtype, device=device).requires_grad_() for n, h in sizes]


def run(attention, tensors):
    *leaves, dout = tensors
    out = attention.attend(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, dout.detach())


@pytest.mark.parametrize(("merge", "sizes", "dtype", "bound"), [
    ("torch", (4, 2, 8), torch.float64, 1e-12),
    ("kernel", (6, 3, 12), torch.float32, 2e-6),  # heads and widths that are no powers of two
])  # fmt: skip
@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_the_padded_attention_with_gradients(name, merge, sizes, dtype, bound, switch_kernels_on):
    layout = Layout.of(*LAYOUTS[name])
    tensors = inputs(layout, *sizes, dtype)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    padded = run(PackedAttention(layout, torch.float64, "cpu"), exact)
    asked = switch_kernels_on() if merge == "kernel" else set()
    ours = run(FlashPackedAttention(layout, "cpu", plain_forward, plain_backward), tensors)
    assert asked == ({"merge_attention"} if merge == "kernel" and name != "prompts alone" else set())
    assert torch.allclose(padded[0], slow(*exact[:3], visible_in(layout)).detach(), atol=1e-12)
    assert all((a - b).norm() <= bound * b.norm() for a, b in zip(ours, padded, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merge_is_the_attention_over_all_keys(device, dtype, bf16_step):
    """Also where one part outweighs the other by e^100."""
    scores = random(5, 9, 8, dtype=torch.float64) * 2  # heads, tokens, keys
    scores[:, 0, 3:] += 100
    scores[:, 8, 3:] -= 100
    values = random(5, 8, 12, dtype=torch.float64)

    def attended(first, last):
        """The attention over some keys, and its log-sum-exp."""
        of_keys = scores[..., first:last]
        return (of_keys.softmax(-1) @ values[:, first:last]).transpose(0, 1), of_keys.logsumexp(-1)

    (out, lse), (part, part_lse), (wanted, wanted_lse) = attended(0, 3), attended(3, 8), attended(0, 8)
    tokens = torch.tensor([8, 0, 3, 5])
    out, part = (x.to(dtype).to(device).contiguous() for x in (out, part[tokens]))
    lse, part_lse = (x.float().to(device).contiguous() for x in (lse, part_lse[:, tokens]))
    merge_attention(out, lse, part, part_lse, tokens.to(device))
    wanted = wanted[tokens]
    bound = 1e-6 if dtype == torch.float32 else 2 * bf16_step
    assert (out[tokens].cpu().double() - wanted).norm() <= bound * wanted.norm()
    assert torch.allclose(lse[:, tokens].cpu().double(), wanted_lse[:, tokens], rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(28, 4, 128), (14, 2, 64)])
def test_torchs_operations_on_a_gpu(name, heads, kv_heads, width):
    layout = Layout.of(*((17 * prompt, tuple(31 * n for n in completions)) for prompt, completions in LAYOUTS[name]))
    tensors = inputs(layout, heads, kv_heads, width, torch.bfloat16, "cuda")
    ours, again = (run(FlashPackedAttention(layout, "cuda"), tensors) for _ in range(2))
    assert all(map(torch.equal, ours, again))
    exact = run(PackedAttention(layout, torch.float64, "cuda"), [x.detach().double().requires_grad_() for x in tensors])
    padded = run(PackedAttention(layout, torch.bfloat16, "cuda"), tensors)
    for mine, theirs, wanted in zip(ours, padded, exact, strict=True):
        error, peer = (float((x.double() - wanted).norm() / wanted.norm()) for x in (mine, theirs))
        assert error <= max(1.5 * peer, 8e-3)


def test_the_backward_pass_is_demanded_to_repeat_where_others_are_only_warned():
    """As with full_determinism; conftest.py sets what it sets."""
    layout, seen = Layout.of(*LAYOUTS["shared"]), []

    def backward(*arguments):
        seen.append(torch.is_deterministic_algorithms_warn_only_enabled())
        return plain_backward(*arguments)

    run(FlashPackedAttention(layout, "cpu", plain_forward, backward), inputs(layout))
    assert seen == [False, False]
    assert torch.is_deterministic_algorithms_warn_only_enabled()
