"""The decoder against transformers' own: same checkpoint, same logits."""

import pytest
import torch
from grpo.kernels.twins import attention, decode_attention
from making import from_transformers, hidden_states, load, logits_of, refused, visible_in, write_checkpoint

from grpo.algorithm.schema import Layout, Mode
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.attention.packed import PackedAttention
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import RMSNorm
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.sampling.decode_step import KVCache

LENGTH = 24


SHAPES = {
    **{family: (family, {}) for family in ("qwen2", "qwen3", "llama", "mistral")},
    **{f"tied {family}": (family, {"tie_word_embeddings": True}) for family in ("qwen2", "qwen3", "llama", "mistral")},
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "attention bias": ("llama", {"attention_bias": True}),
    "mlp bias": ("llama", {"mlp_bias": True}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "a head size of its own": ("llama", {"head_dim": 16}),
    "every head its own keys": ("qwen2", {"num_key_value_heads": 4}),
    "one head of keys": ("qwen2", {"num_key_value_heads": 1}),
    "a large epsilon": ("qwen3", {"rms_norm_eps": 0.3}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers_before_and_after_a_step(tmp_path, shape):
    """A step of SGD over a random sum of the logits: so gradients are equal, too."""
    family, changes = SHAPES[shape]
    write_checkpoint(tmp_path, family, **changes)
    generator = torch.Generator().manual_seed(1)
    ids, slope_TV = torch.randint(0, 96, (LENGTH,), generator=generator), torch.randn(LENGTH, 96, generator=generator)
    ours, theirs = load(tmp_path, train_weights=True), from_transformers(tmp_path)
    for bound in (2e-5, 1e-4):
        found = hidden_states(ours, ids) @ ours.head().T, theirs(ids[None]).logits[0]
        assert (found[0] - found[1]).abs().max() <= bound
        for model, logits_TV in zip((ours, theirs), found, strict=True):
            (logits_TV * slope_TV).sum().backward()
            for parameter in model.parameters():
                parameter.data -= 1e-3 * parameter.grad
        ours.refresh()


RAW = {"model_type": "qwen2", "vocab_size": 8, "hidden_size": 24, "intermediate_size": 8}
RAW |= {"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3}


def test_what_a_config_leaves_out_means_what_it_does_in_transformers():
    """A head's share of the width, no bias but Qwen2's of q, k and v."""
    c = ModelConfig.from_hf(RAW)
    assert (c.num_kv_heads, c.head_dim, c.norm_eps, c.max_positions, c.tied_head) == (3, 8, 1e-6, 32768, False)
    for family, *wanted in (("qwen2", True, False), ("qwen3", True, True), ("llama", True, True)):
        c = ModelConfig.from_hf({**RAW, "model_type": family, "attention_bias": True})
        assert [c.qkv_bias, c.o_bias] == wanted and not c.mlp_bias and c.qk_norm == (family == "qwen3")


MISTRAL = {"model_type": "mistral", "max_position_embeddings": 256}


@pytest.mark.parametrize(("changes", "by_transformers"), [
    ({}, False),
    ({"use_sliding_window": True}, True),
    ({"hidden_act": "gelu"}, True),
    ({"model_type": "gemma"}, True),
    *(({**MISTRAL, "sliding_window": window}, window == 255) for window in (None, 255, 256, 4096)),
    (MISTRAL, False),
    ({**MISTRAL, "max_position_embeddings": 32768}, True),
])  # fmt: skip
def test_what_would_be_computed_wrongly_runs_by_transformers(changes, by_transformers):
    """A window at least as long as the context hides nothing. transformers takes an absent one as 4096."""
    assert ModelConfig.from_hf({**RAW, "head_dim": 8, **changes}).by_transformers == by_transformers


def test_a_quantised_checkpoint_of_another_kind_is_refused():
    refused(lambda: ModelConfig.from_hf({**RAW, "quantization_config": {"bits": 4}}), "quantised")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_a_bfloat16_model_is_as_near_to_float64_as_transformers(tmp_path, family):
    """200 positions. The same weights, bfloat16's, in both; the mean error of the logits is that of rounding."""
    write_checkpoint(tmp_path, family, dtype=torch.bfloat16)
    ids = torch.randint(0, 96, (200,), generator=torch.Generator().manual_seed(1))
    exact = logits_of(load(tmp_path, dtype=torch.float64), ids)
    with torch.no_grad():
        theirs = from_transformers(tmp_path, dtype=torch.bfloat16)(ids[None]).logits[0].double()
    ours = logits_of(load(tmp_path, dtype=torch.bfloat16), ids).double()
    error, usual = ((logits - exact).abs().mean() / exact.abs().mean() for logits in (ours, theirs))
    assert 0 < error < max(1.2 * usual, 0.002) and error < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_rounds_where_transformers_rounds(dtype):
    """Bit for bit: the mean of squares in float32, its product with x rounded once, then the weight."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    torch.manual_seed(0)
    x, residual, weight = torch.randn(64, 96).to(dtype), torch.randn(64, 96).to(dtype), torch.randn(96).to(dtype)
    norm, theirs = RMSNorm(96, 1e-3, Build(None, False, dtype, "cpu")), Qwen2RMSNorm(96, 1e-3).to(dtype)
    norm.weight.stored.copy_(weight)
    theirs.weight.data.copy_(weight)
    alone, _ = norm(x)
    assert torch.equal(alone, theirs(x))
    normed, added = norm(x, residual)
    assert torch.equal(added, x + residual) and torch.equal(normed, theirs(x + residual))


@pytest.mark.parametrize("recompute", ["mlp", "all"])
def test_recomputation_changes_no_gradient(checkpoint, recompute):
    ids, gradients = torch.arange(20) + 3, []
    for level in ("none", recompute):
        model = load(checkpoint, rank=4, dropout=0.1)
        model.recompute = level
        attend = PackedAttention(Layout.of((8, (7, 5))), torch.float32, "cpu")
        hidden = model(ids, torch.cat([torch.arange(15), torch.arange(8, 13)]), attend, Mode(dropout_seed=5))
        hidden.square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


TWIN_LAYOUTS = {  # groups: tokens of the prompt: of its completions
    "two prompts": "3: 2 4 | 5: 1",
    "prompts of one length": "4: 2 1 | 4: 3",
    "the longer prompt first": "6: 3 | 2: 1 4 2",
    "prompts alone": "3: | 5:",
    "one group": "2: 5 3 1",
}


def layout_of(text):
    groups = (group.partition(":") for group in text.split("|"))
    return Layout.of(*((int(prompt), tuple(map(int, lengths.split()))) for prompt, _, lengths in groups))


BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("layout", TWIN_LAYOUTS)
def test_packed_attention_equals_its_twin_forward_and_backward(dtype, layout):
    """Each token sees its prompt and its own completion up to itself. In bfloat16 it is another program
    (attention/dense.py), whose rounding costs a hundredth."""
    layout, generator = layout_of(TWIN_LAYOUTS[layout]), torch.Generator().manual_seed(0)
    visible, tokens = visible_in(layout), layout.num_tokens
    q, k, v = (torch.randn(tokens, heads, 8, generator=generator).to(dtype).requires_grad_() for heads in (4, 2, 2))
    upstream, gradients = torch.randn(tokens, 4, 8, generator=generator).to(dtype), []
    for out in (PackedAttention(layout, dtype, "cpu").attend(q, k, v), attention(q, k, v, visible)):
        gradients.append((out.detach(), *torch.autograd.grad(out, (q, k, v), upstream.to(out.dtype))))
    bound = BOUNDS[dtype]
    for ours, slow in zip(*gradients, strict=True):
        assert ours.dtype == dtype
        lengths = [group.prompt_length + sum(group.completion_lengths) for group in layout.groups]
        for mine, wanted in zip(ours.split(lengths), slow.double().split(lengths), strict=True):
            assert (mine.double() - wanted).norm() <= bound * wanted.norm()  # a small group cannot hide behind a large


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rows", [3, 8, 11])  # from 8 rows on bfloat16 is computed by attention/dense.py
def test_decode_attention_equals_its_twin_and_writes_its_cache(dtype, rows):
    generator = torch.Generator().manual_seed(rows)
    cache = KVCache(torch.zeros(2, 2, 12, 2, 32, 8, dtype=dtype))
    cache.kv_L2BKSE.copy_(torch.randn(cache.kv_L2BKSE.shape, generator=generator))
    before = cache.kv_L2BKSE.clone()
    positions = torch.randint(0, 20, (rows,), generator=generator)
    positions[0], positions[1] = 0, 19
    q, k, v = (torch.randn(rows, heads, 8, generator=generator).to(dtype) for heads in (4, 2, 2))
    unturned = torch.ones(rows, 1, 8, dtype=dtype), torch.zeros(rows, 1, 8, dtype=dtype)
    out = DecodeAttention.over_used_positions(cache, positions, 20)(1, q, k, v, unturned)
    for row, position in enumerate(positions.tolist()):
        before[1, 0, row, :, position], before[1, 1, row, :, position] = k[row], v[row]
    assert torch.equal(cache.kv_L2BKSE, before)
    wanted = decode_attention(q, before[1, 0, :rows], before[1, 1, :rows], positions + 1)
    assert ((out.double() - wanted).norm(dim=(1, 2)) <= BOUNDS[dtype] * wanted.norm(dim=(1, 2))).all()
