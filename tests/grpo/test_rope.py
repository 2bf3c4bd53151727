"""Rotary tables by the formula, and against transformers' for the settings that a checkpoint may have."""

import copy

import pytest
import torch

from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.rope import cos_sin_tables

HEAD, POSITIONS = 16, 512
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(**rope):
    """A config.json of 512 positions with these settings of its rope."""
    shape = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": POSITIONS}
    return {"model_type": "llama", **shape, **heads, **rope}


def ours(raw, dtype=torch.float32, positions=POSITIONS):
    return cos_sin_tables(ModelConfig.from_hf(raw).hf, HEAD, positions, dtype, "cpu")


def theirs(raw):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**copy.deepcopy(raw)))
    cos, sin = rotary(torch.zeros(1), torch.arange(POSITIONS)[None])
    return cos[0], sin[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tables_are_the_cosines_and_sines_of_position_times_frequency(dtype):
    """Column e and e + E/2 turn by position / theta^(2e/E). In bfloat16 a table may be off by the rounding of its
    entries alone, half a step of 2^-8 below 1: the angles themselves are never rounded."""
    cos, sin = ours(config(rope_theta=1e4), dtype, 4096)
    angle = torch.arange(4096)[:, None] / 1e4 ** (2 * (torch.arange(HEAD, dtype=torch.float64) % 8) / HEAD)
    bound = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 2**-8}[dtype]
    for found, wanted in ((cos, angle.cos()), (sin, angle.sin())):
        assert found.dtype == dtype and (found.double() - wanted).abs().max() <= bound


def without_theta(rope):
    return {key: value for key, value in rope.items() if key != "rope_theta"}


LAYOUTS = [
    {"rope_theta": 5e3},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e3}},
    {"rope_parameters": LINEAR},
    {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": YARN},
    {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}},
    {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **without_theta(YARN)}},
    {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 128},
    {"rope_parameters": LLAMA3},
    {"rope_theta": 1e6, "rope_scaling": without_theta(LLAMA3)},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": YARN},  # YaRN added by hand
    {"rope_parameters": LINEAR, "rope_theta": 7e5},
]


@pytest.mark.parametrize("rope", LAYOUTS, ids=str)
def test_tables_equal_transformers_and_the_config_stays_as_it_is(rope):
    """It is written again, with every checkpoint."""
    raw = config(**rope)
    assert all(map(torch.equal, ours(raw), theirs(raw)))
    assert ModelConfig.from_hf(raw).raw == raw


@pytest.mark.parametrize("rope", [
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": ["default"]},
], ids=str)  # fmt: skip
def test_what_the_tables_cannot_say_runs_by_transformers(rope):
    for layout in ("rope_parameters", "rope_scaling"):
        assert ModelConfig.from_hf(config(**{layout: rope})).by_transformers
    whole = {"rope_type": "default", "partial_rotary_factor": 1.0}
    assert not ModelConfig.from_hf(config(rope_parameters=whole)).by_transformers
