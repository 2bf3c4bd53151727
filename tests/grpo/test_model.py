"""The decoder against transformers' own: same checkpoint, same logits."""

import pytest
import torch
from grpo.kernels.reference import attention
from making import load, randomise_adapter, write_checkpoint

from grpo.attention.packed import PackedAttention
from grpo.errors import UserError
from grpo.model.decoder import ModelConfig
from grpo.model.lora import Mode
from grpo.schema import Layout

LENGTH = 24
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
}


def hf_model(folder, dtype):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def our_logits(model, ids):
    attend = PackedAttention(Layout.of((len(ids), ())), model.build.dtype, "cpu")
    with torch.no_grad():
        return model(ids, torch.arange(len(ids)), attend) @ model.head().T


def lift_to_double(model):
    """transformers computes norms and rotary angles in float32 whatever the model's dtype; for a comparison in float64
    these two are replaced by the same formulas in float64."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon) * m.weight
            )
        if type(module).__name__.endswith("RotaryEmbedding"):
            theta, width = model.config.rope_parameters["rope_theta"], 2 * len(module.inv_freq)
            frequency = 1.0 / theta ** (torch.arange(0, width, 2).double() / width)

            def rotary(x, position_ids, layer_type=None, frequency=frequency):
                angle = position_ids.double()[..., None] * frequency
                angle = torch.cat([angle, angle], -1)
                return angle.cos(), angle.sin()

            module.forward = rotary
    return model


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_transformers_fp32(tmp_path, family, tied):
    write_checkpoint(tmp_path, family, tie_word_embeddings=tied)
    ids = torch.randint(0, 96, (LENGTH,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = hf_model(tmp_path, torch.float32)(ids[None]).logits[0]
    assert (our_logits(load(tmp_path), ids) - wanted).abs().max() <= 2e-5


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_logits_equal_transformers_fp64(tmp_path, family):
    write_checkpoint(tmp_path, family, dtype=torch.float64)
    ids = torch.randint(0, 96, (LENGTH,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = lift_to_double(hf_model(tmp_path, torch.float64))(ids[None]).logits[0]
    assert wanted.abs().max() > 0.1
    assert (our_logits(load(tmp_path, dtype=torch.float64), ids) - wanted).abs().max() <= 1e-10


@pytest.mark.parametrize("rope", ROPES)
def test_rope_variants(tmp_path, rope):
    write_checkpoint(tmp_path, "llama", rope_parameters=ROPES[rope])
    ids = torch.randint(0, 96, (200,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = hf_model(tmp_path, torch.float32)(ids[None]).logits[0]
    assert (our_logits(load(tmp_path), ids) - wanted).abs().max() <= 2e-5


def test_rope_old_config_layout_means_the_same():
    """transformers 4 wrote rope_theta and rope_scaling, 5 writes rope_parameters; the distilled 7B checkpoints have the
    old form."""
    base = {
        "model_type": "qwen2",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
    }
    old = ModelConfig.from_hf(
        {
            **base,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        }
    )
    new = ModelConfig.from_hf(
        {
            **base,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        }
    )
    assert old.rope == new.rope
    assert ModelConfig.from_hf({**base, "rope_theta": 1e6, "rope_scaling": None}).rope == {
        "rope_type": "default",
        "rope_theta": 1e6,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
        {"model_type": "gemma"},
        {"quantization_config": {"bits": 4}},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}},
    ],
)
def test_what_would_be_computed_wrongly_is_refused(change):
    base = {
        "model_type": "qwen2",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    with pytest.raises(UserError) as error:
        ModelConfig.from_hf({**base, **change})
    assert error.value.exit_code == 3


@pytest.mark.parametrize("recompute", ["mlp", "all"])
def test_recomputation_changes_no_gradient(checkpoint, recompute):
    ids, gradients = torch.arange(20) + 3, []
    for level in ("none", recompute):
        model = load(checkpoint, rank=4, dropout=0.1)
        randomise_adapter(model)
        model.recompute = level
        attend = PackedAttention(Layout.of((8, (7, 5))), torch.float32, "cpu")
        hidden = model(ids, torch.cat([torch.arange(15), torch.arange(8, 13)]), attend, Mode(dropout_seed=5))
        hidden.square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_packed_prompts_and_completions_equal_separate_sequences(checkpoint):
    """Groups of different sizes in one row: each completion's hidden states are those of prompt + completion alone."""
    model, generator = load(checkpoint, rank=4), torch.Generator().manual_seed(3)
    layout = Layout.of((5, (4, 1, 0)), (2, ()), (9, (3,)), (1, (6, 2)))
    ids, positions, wanted = [], [], []
    for group in layout.groups:
        prompt = torch.randint(0, 96, (group.prompt,), generator=generator)
        for length in (None, *group.completions):
            new = prompt if length is None else torch.randint(0, 96, (length,), generator=generator)
            whole = new if length is None else torch.cat([prompt, new])
            with torch.no_grad():
                alone = model(
                    whole, torch.arange(len(whole)), PackedAttention(Layout.of((len(whole), ())), torch.float32, "cpu")
                )
            ids.append(new)
            positions.append(torch.arange(len(whole) - len(new), len(whole)))
            wanted.append(alone[len(whole) - len(new) :])
    with torch.no_grad():
        packed = model(torch.cat(ids), torch.cat(positions), PackedAttention(layout, torch.float32, "cpu"))
    assert (packed - torch.cat(wanted)).abs().max() <= 5e-6


def test_packed_attention_equals_its_twin_forward_and_backward():
    layout, generator = Layout.of((3, (2, 4)), (5, (1,))), torch.Generator().manual_seed(0)
    owner = [(0, -1)] * 3 + [(0, 0)] * 2 + [(0, 1)] * 4 + [(1, -1)] * 5 + [(1, 0)]
    visible = torch.tensor(
        [
            [g == h and (d == -1 or d == c) and j <= i for j, (h, d) in enumerate(owner)]
            for i, (g, c) in enumerate(owner)
        ]
    )
    q, k, v = (
        torch.randn(15, heads, 8, generator=generator, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)
    )
    upstream, gradients = torch.randn(15, 4, 8, generator=generator, dtype=torch.float64), []
    for out in (PackedAttention(layout, torch.float64, "cpu")(0, q, k, v), attention(q, k, v, visible)):
        gradients.append((out.detach(), *torch.autograd.grad(out, (q, k, v), upstream)))
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(*gradients, strict=True))
