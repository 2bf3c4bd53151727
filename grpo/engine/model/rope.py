"""Rotary position embedding (RoFormer, 2104.09864), with the frequency scalings that Qwen and Llama checkpoints use.

Counterpart of `rotate` in minimal.py: tables made once. transformers reads the settings and scales the frequencies.

Pairs are (e, e + E/2), the "rotate half" layout of Hugging Face checkpoints. Tables are computed in float32 (float64
for a float64 model); the rotation uses the model's dtype, as the checkpoints' own implementation does.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KINDS = ("default", "linear", "llama3", "yarn")  # over all of a head; others are left to transformers' modules


def cos_sin_tables(
    config: "PreTrainedConfig",
    head_dim: int,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[Tensor, Tensor]:
    """Return cos_SE and sin_SE for positions 0 ... num_positions - 1; the second half of E repeats the first.

    config: as transformers reads a config.json, of one of the KINDS.
    """
    exact_dtype = torch.promote_types(dtype, torch.float32)
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        number = torch.arange(0, head_dim, 2, dtype=torch.int64)
        exponent = number.to(exact_dtype) / head_dim
        frequency, amplitude = 1.0 / rope["rope_theta"] ** exponent, 1.0
    else:  # YaRN sharpens attention by the amplitude
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # transformers takes seconds

        frequency, amplitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, device="cpu")
    position_S = torch.arange(num_positions, dtype=exact_dtype, device=device)
    angle = position_S[:, None] * frequency.to(device, exact_dtype)
    angle_SE = torch.cat([angle, angle], dim=-1)
    cos_SE = angle_SE.cos() * amplitude
    sin_SE = angle_SE.sin() * amplitude
    return cos_SE.to(dtype), sin_SE.to(dtype)
