"""Rotary position embedding (RoFormer, 2104.09864) and the frequency scalings that Qwen and Llama checkpoints use.

Counterpart of `rotate` in minimal.py: tables made once, and checkpoints that scale their frequencies.

Pairs are (e, e + E/2), the "rotate half" layout of Hugging Face checkpoints. Tables are computed in float32 (float64
for a float64 model); the rotation uses the model's dtype, as the checkpoints' own implementation does.
"""

import math

import torch

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.storage import Json


def read_rope(config: Json) -> Json:
    """Read the rope settings of a config.json: from `rope_parameters`, or from `rope_theta` and `rope_scaling`."""
    given = config.get("rope_parameters") or config.get("rope_scaling")
    rope = dict(given or {})
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope["rope_type"]
    if kind in ("yarn", "llama3"):
        original = config.get("original_max_position_embeddings") or config.get("max_position_embeddings")
        rope.setdefault("original_max_position_embeddings", original)
    if kind == "yarn" and not rope.get("factor"):
        rope["factor"] = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
    is_partial = rope.get("partial_rotary_factor", 1.0) != 1.0
    if kind not in _FREQUENCIES or is_partial:
        raise UserError(
            f"the checkpoint's rope type {kind!r} is not supported",
            f"known types: {', '.join(_FREQUENCIES)}, over all of the head",
            "use another checkpoint",
            PREFLIGHT,
        )
    return rope


def cos_sin_tables(
    rope: Json, head_dim: int, num_positions: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos_SE and sin_SE for positions 0 ... num_positions - 1; the second half of E repeats the first."""
    exact_dtype = torch.promote_types(dtype, torch.float32)
    number = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device)
    exponent = number.to(exact_dtype) / head_dim
    plain = 1.0 / rope["rope_theta"] ** exponent
    scale = _FREQUENCIES[rope["rope_type"]]
    frequency, amplitude = scale(plain, rope)
    position_S = torch.arange(num_positions, dtype=exact_dtype, device=device)
    angle = position_S[:, None] * frequency
    angle_SE = torch.cat([angle, angle], dim=-1)
    cos_SE = angle_SE.cos() * amplitude
    sin_SE = angle_SE.sin() * amplitude
    return cos_SE.to(dtype), sin_SE.to(dtype)


def _default(frequency: torch.Tensor, rope: Json) -> tuple[torch.Tensor, float]:
    return frequency, 1.0


def _linear(frequency: torch.Tensor, rope: Json) -> tuple[torch.Tensor, float]:
    return frequency / rope["factor"], 1.0


def _llama3(frequency: torch.Tensor, rope: Json) -> tuple[torch.Tensor, float]:
    """Scale as Llama 3.1: slow long waves down by `factor`, keep short ones, and blend those in between."""
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)  # turns within the original context
    low = rope["low_freq_factor"]
    width = rope["high_freq_factor"] - low
    keep = ((turns - low) / width).clamp(0, 1)
    slowed = (1 - keep) / rope["factor"]
    return frequency * (keep + slowed), 1.0


def _yarn(frequency: torch.Tensor, rope: Json) -> tuple[torch.Tensor, float]:
    """Scale as YaRN (2309.00071): slow down dimensions that turn rarely in the original context; sharpen attention.

    Dimensions with fewer than beta_slow turns are slowed down by `factor`, those with more than beta_fast are kept.
    Attention is sharpened by scaling cos and sin.
    """
    context = rope["original_max_position_embeddings"]
    factor = rope["factor"]
    half = frequency.numel()

    def dimension(turns: float) -> float:
        wavelengths = context / (turns * 2 * math.pi)
        return half * math.log(wavelengths) / math.log(rope["rope_theta"])

    low = dimension(rope.get("beta_fast") or 32)
    high = dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low = max(low, 0)
    high = min(high, 2 * half - 1)
    width = max(high - low, 0.001)
    number = torch.arange(half, dtype=frequency.dtype, device=frequency.device)
    slow = ((number - low) / width).clamp(0, 1)
    scaled = frequency * (1 - slow + slow / factor)
    return scaled, _yarn_amplitude(rope, factor)


def _yarn_amplitude(rope: Json, factor: float) -> float:
    def sharpen(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = rope.get("attention_factor")
    if given is not None:
        return given
    scale, scale_of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and scale_of_all:
        return sharpen(scale) / sharpen(scale_of_all)
    return sharpen(1.0)


_FREQUENCIES = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
