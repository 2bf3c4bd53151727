"""Rotary tables by the formula, and against transformers' for every setting that a checkpoint may have."""

import pytest
import torch
from making import refused

from grpo.engine.model.rope import cos_sin_tables, read_rope

HEAD, POSITIONS = 16, 512
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
    """A config.json of 512 positions with these settings of its rope, in either layout."""
    shape = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": POSITIONS}
    return {"model_type": "llama", **shape, **heads, **rope}


def theirs(raw):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**raw))
    cos, sin = rotary(torch.zeros(1), torch.arange(POSITIONS)[None])
    return cos[0], sin[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tables_are_the_cosines_and_sines_of_position_times_frequency(dtype):
    """Column e and e + E/2 turn by position / theta^(2e/E). In bfloat16 a table may be off by the rounding of its
    entries alone, half a step of 2^-8 below 1: the angles themselves are never rounded."""
    cos, sin = cos_sin_tables({"rope_type": "default", "rope_theta": 1e4}, HEAD, 4096, dtype, "cpu")
    angle = [[p / 1e4 ** (2 * (e % 8) / HEAD) for e in range(HEAD)] for p in range(4096)]
    angle = torch.tensor(angle, dtype=torch.float64)
    bound = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 2**-8}[dtype]
    assert cos.dtype == sin.dtype == dtype
    assert (cos.double() - angle.cos()).abs().max() <= bound
    assert (sin.double() - angle.sin()).abs().max() <= bound


YARNS = [
    {},
    {"factor": 0.5},
    {"factor": None},
    {"beta_fast": 8, "beta_slow": 2},
    {"beta_fast": 8, "beta_slow": 2, "truncate": False},
    {"original_max_position_embeddings": 128},
    {"rope_theta": 1e6},
    {"rope_theta": 10.0, "original_max_position_embeddings": 256},  # all but the first turn more than once
    {"attention_factor": 0.7},
    {"attention_factor": 1.0},
    {"mscale": 0.7},
    {"mscale_all_dim": 0.7},
    {"mscale": 0.7, "mscale_all_dim": 0.3},
    {"mscale": 0.7, "mscale_all_dim": 0.3, "attention_factor": 1.5},
]
LLAMAS = [
    {},
    {"low_freq_factor": 2.0, "high_freq_factor": 3.0},
    {"original_max_position_embeddings": 200},
    {"factor": 2.0},
]
OTHERS = [{"rope_type": "default", "rope_theta": 5e3}, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}]


@pytest.mark.parametrize(
    "rope", [*({**YARN, **x} for x in YARNS), *({**LLAMA3, **x} for x in LLAMAS), *OTHERS], ids=str
)
def test_tables_equal_transformers(rope):
    """attention_factor comes before mscale, which needs its partner; a factor that is not given is the ratio of the
    contexts."""
    tables = cos_sin_tables(read_rope(config(rope_parameters=dict(rope))), HEAD, POSITIONS, torch.float32, "cpu")
    for ours, wanted in zip(tables, theirs(config(rope_parameters=dict(rope))), strict=True):
        assert (ours - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
@pytest.mark.parametrize("inside", [None, 64])
@pytest.mark.parametrize("beside", [None, 128])
def test_the_old_layout_finds_the_original_context_where_transformers_does(kind, inside, beside):
    """In rope_scaling itself, else beside it, else it is max_position_embeddings."""
    scaling = {key: value for key, value in {"yarn": YARN, "llama3": LLAMA3}[kind].items() if key != "rope_theta"}
    scaling = {**scaling, "type": scaling.pop("rope_type"), "original_max_position_embeddings": inside}
    scaling = {key: value for key, value in scaling.items() if value is not None}
    raw = config(rope_theta=1e4, rope_scaling=scaling)
    if beside:
        raw["original_max_position_embeddings"] = beside
    rope = read_rope(raw)
    assert rope["original_max_position_embeddings"] == (inside or beside or POSITIONS)
    if inside is None or beside is None:  # of two values that differ transformers' own choice has changed
        wanted = theirs(config(**{key: raw[key] for key in raw if key not in config()}))
        for ours, other in zip(cos_sin_tables(rope, HEAD, POSITIONS, torch.float32, "cpu"), wanted, strict=True):
            assert (ours - other).abs().max() <= 1e-4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        {"rope_type": "longrope", "rope_theta": 1e4},
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    ],
    ids=str,
)
def test_what_the_tables_cannot_say_is_refused(rope):
    for layout in ("rope_parameters", "rope_scaling"):
        refused(lambda layout=layout: read_rope(config(**{layout: rope})), "not supported")
    assert read_rope(config(rope_parameters={"rope_type": "default", "partial_rotary_factor": 1.0}))


@pytest.mark.parametrize(("raw", "theta"), [
    ({"rope_theta": 5e5}, 5e5),
    ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, 5e5),
    ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}, 7e5),
    ({}, 1e4),
])  # fmt: skip
def test_the_base_of_the_frequencies_may_be_beside_the_scaling_or_left_out(raw, theta):
    assert read_rope(raw)["rope_theta"] == theta


@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling"])
def test_reading_the_settings_leaves_the_config_as_it_is(layout):
    """It is written again, with every checkpoint."""
    raw, same = (config(**{layout: {"type": "yarn", "original_max_position_embeddings": 64}}) for _ in range(2))
    assert read_rope(raw)["factor"] == POSITIONS / 64 and raw == same
