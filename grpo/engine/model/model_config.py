"""The shape of a checkpoint, from its config.json: what this decoder can compute, and what is damaged or malicious."""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.storage import Json
from grpo.engine.model.rope import KINDS, cos_sin_tables

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # what the hand-written decoder computes
PLAIN_LAYERS = {"full_attention", "sliding_attention"}  # of transformers, with no state but keys and values
BITSANDBYTES = "bitsandbytes"
LARGEST = {  # far more than any model has; a config.json with larger values is damaged or malicious
    "vocab_size": 10**7,
    "hidden_size": 10**6,
    "intermediate_size": 10**7,
    "num_layers": 1000,
    "num_heads": 10**4,
    "num_kv_heads": 10**4,
    "head_dim": 10**4,
    "max_positions": 10**9,
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a checkpoint, from its config.json as transformers reads it. ValueError if a value is impossible.

    raw: that file, kept for writing checkpoints. hf: transformers' reading of it. by_transformers: transformers'
    modules compute it.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    tied_head: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    by_transformers: bool
    raw: Json = field(repr=False)
    hf: "PreTrainedConfig" = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} is {value!r:.80}, and must be a whole number from 1 to {largest}")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ValueError(
                f"{self.num_heads} heads, {self.num_kv_heads} key-value heads of {self.head_dim} do not fit"
            )
        if self.by_transformers:
            return
        tables = cos_sin_tables(self.hf, self.head_dim, 2, torch.float32, "cpu")
        if not 0 <= self.norm_eps < 1 or not all(bool(table.isfinite().all()) for table in tables):
            raise ValueError("rms_norm_eps or the rope settings give numbers that are not finite")

    @property
    def base_weights(self) -> str:
        """Return in which few bits the file holds the projections: "nf4", "int8" (bitsandbytes), or "" for none."""
        settings = self.raw.get("quantization_config") or {}
        return "nf4" if settings.get("load_in_4bit") else "int8" if settings.get("load_in_8bit") else ""

    @classmethod
    def from_hf(cls, raw: Json, backend: str = "auto") -> "ModelConfig":
        """Read a parsed config.json. UserError (exit 3) if nothing here can compute it. backend: as in Build."""
        from transformers import CONFIG_MAPPING

        family = str(raw.get("model_type"))
        if family not in FAMILIES:
            _check_family(family, raw)
        raw = json.loads(json.dumps(raw), object_hook=_as_float)
        layers = (raw.get("text_config") or raw).get("num_hidden_layers")
        if isinstance(layers, int) and layers > LARGEST["num_layers"]:  # transformers makes a list of them
            raise ValueError(f"num_hidden_layers is {layers!r:.80}, and must be at most {LARGEST['num_layers']}")
        complete = CONFIG_MAPPING[family].from_dict(deepcopy(raw))
        c = complete.get_text_config()
        by_transformers = backend == "transformers" or not _is_ours(family, c)
        settings = raw.get("quantization_config")
        method = settings.get("quant_method") if settings else BITSANDBYTES
        if method != BITSANDBYTES or (settings and by_transformers):
            raise _unsupported(f"its weights are quantised by {method}", "use the checkpoint that it was made from")
        if by_transformers:
            _check_layers(family, c)
        layers = getattr(c, "per_layer_config", [c]) if by_transformers else [c]
        width, num_heads = c.hidden_size, c.num_attention_heads
        positions = getattr(c, "max_position_embeddings", None)
        rope = getattr(c, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":  # one longer sequence would change how all of its batch are turned
            positions = rope["original_max_position_embeddings"]
        mlp_width = getattr(c, "intermediate_size", None) or 4 * width
        has_bias = bool(getattr(c, "attention_bias", False))
        return cls(
            family,
            vocab_size=c.vocab_size,
            hidden_size=width,
            intermediate_size=max(mlp_width) if isinstance(mlp_width, list) else mlp_width,
            num_layers=c.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=max(getattr(one, "num_key_value_heads", None) or num_heads for one in layers),
            head_dim=max(
                getattr(one, "qk_head_dim", None) or getattr(one, "head_dim", None) or width // num_heads
                for one in layers
            ),
            norm_eps=getattr(c, "rms_norm_eps", 0.0),
            max_positions=32768 if positions is None else positions,
            tied_head=bool(c.tie_word_embeddings),
            qkv_bias=has_bias or family == "qwen2",
            o_bias=bool(getattr(c, "attention_out_bias", has_bias and family != "qwen2")),
            mlp_bias=bool(getattr(c, "mlp_bias", False)),
            qk_norm=family == "qwen3",
            by_transformers=by_transformers,
            raw=raw,
            hf=complete,
        )


def _as_float(entry: Json) -> Json | float:
    """Return the number that transformers writes as {"__float__": "Infinity"}."""
    return float(entry["__float__"]) if set(entry) == {"__float__"} else entry


def _unsupported(why: str, fix: str = "use another checkpoint") -> UserError:
    known = f"{', '.join(FAMILIES)} are written here, and others run by transformers' modules"
    return UserError("the checkpoint cannot be computed here", why, f"{fix}: {known}", PREFLIGHT)


def _is_ours(family: str, c: "PreTrainedConfig") -> bool:
    """Return whether the hand-written decoder computes this checkpoint: full attention, SwiGLU, rotation by rope.py.

    A window that is no shorter than what the model can read hides nothing.
    """
    if family not in FAMILIES:
        return False
    window = None if family == "llama" else getattr(c, "sliding_window", None)  # Llama's attention has none
    is_full = window is None or window >= c.max_position_embeddings
    rope = c.rope_parameters
    rotates_all = rope["rope_type"] in KINDS and rope.get("partial_rotary_factor", 1.0) == 1.0
    return c.hidden_act == "silu" and is_full and rotates_all


def _check_family(family: str, raw: Json) -> None:
    """Raise UserError (exit 3) if transformers has no causal language model of this model_type, or our attention has no
    place in it."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    if family not in CONFIG_MAPPING or CONFIG_MAPPING[family] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        text = "save its text part, `language_model`, as a checkpoint of its own; else "
        fix = f"{text * ('text_config' in raw)}use another checkpoint"
        raise _unsupported(f"no causal language model of transformers has the model_type {family!r}", fix)
    can_set = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[family]]._can_set_attn_implementation()
    if "text_config" not in raw and not can_set:  # a text part is looked at once it is there
        raise _unsupported(f"{family} attends by functions of its own, in whose place ours cannot be put")


def _check_layers(family: str, c: "PreTrainedConfig") -> None:
    """Raise UserError (exit 3) if layers keep a state that the cache has no place for, or attend in unknown ways."""
    if others := set(getattr(c, "layer_types", None) or ()) - PLAIN_LAYERS:
        names = ", ".join(sorted(others))
        raise _unsupported(f"{family} keeps more than keys and values, or attends in another way: {names}")
