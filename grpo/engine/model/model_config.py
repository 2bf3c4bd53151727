"""The shape of a checkpoint, from its config.json: what this decoder can compute, and what is damaged or malicious."""

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.storage import Json
from grpo.engine.model.rope import cos_sin_tables


@dataclass(frozen=True)
class Family:
    """What the config.json of one `model_type` implies without saying it.

    qkv_bias, o_bias: whether there are biases; None if `attention_bias` says it. qk_norm: whether queries and keys are
    normalised. window: how many tokens a token attends to if `sliding_window` is missing; None if there is a window
    only with `use_sliding_window`.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: bool = False
    window: int | None = None


FAMILIES = {
    "llama": Family(),
    "mistral": Family(window=4096),
    "qwen2": Family(qkv_bias=True, o_bias=False),
    "qwen3": Family(qk_norm=True),
}
PLAIN_STATES = {"DynamicLayer", "DynamicSlidingWindowLayer"}  # cache layers of transformers: keys and values alone
PLAIN_LAYERS = {"full_attention", "sliding_attention"}
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
    """The shape of a checkpoint, read from its config.json; `raw` is that file, kept for writing checkpoints.

    by_transformers: transformers' modules compute it. ValueError if a value is impossible.
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
    raw: Json = field(repr=False)
    by_transformers: bool = False

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} is {value!r:.80}, and must be a whole number from 1 to {largest}")
        for name in ("tied_head", "qkv_bias", "o_bias", "mlp_bias"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r:.80}, and must be true or false")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ValueError(
                f"{self.num_heads} heads, {self.num_kv_heads} key-value heads of {self.head_dim} do not fit"
            )
        if self.by_transformers:
            return
        tables = cos_sin_tables(self.raw, self.head_dim, 2, torch.float32, "cpu")
        if not 0 <= self.norm_eps < 1 or not all(bool(table.isfinite().all()) for table in tables):
            raise ValueError("rms_norm_eps or the rope settings give numbers that are not finite")

    @property
    def held(self) -> str:
        """Return how the file holds the projections: "nf4", "int8" (quantization_config of bitsandbytes), or ""."""
        quantised = self.raw.get("quantization_config") or {}
        return "nf4" if quantised.get("load_in_4bit") else "int8" if quantised.get("load_in_8bit") else ""

    @classmethod
    def from_hf(cls, raw: Json, backend: str = "auto") -> "ModelConfig":
        """Read a parsed config.json. UserError (exit 3) if nothing here can compute it. backend: as in Build."""
        quantised = raw.get("quantization_config")
        by_transformers = backend == "transformers" or not _is_ours(raw)
        method = quantised.get("quant_method") if quantised else BITSANDBYTES
        if method != BITSANDBYTES or (quantised and by_transformers):
            raise _unsupported(f"its weights are quantised by {method}", "use the checkpoint that it was made from")
        if by_transformers:
            return cls._of_transformers(raw)
        kind = FAMILIES[raw["model_type"]]
        names = ("attention_bias", "mlp_bias", "tie_word_embeddings")
        attention_bias, mlp_bias, tied_head = (False if raw.get(name) is None else raw[name] for name in names)
        return cls(
            raw["model_type"],
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=raw["num_attention_heads"],
            num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            norm_eps=raw.get("rms_norm_eps", 1e-6),
            max_positions=raw.get("max_position_embeddings", 32768),
            tied_head=tied_head,
            qkv_bias=attention_bias if kind.qkv_bias is None else kind.qkv_bias,
            o_bias=attention_bias if kind.o_bias is None else kind.o_bias,
            mlp_bias=mlp_bias,
            qk_norm=kind.qk_norm,
            raw=raw,
        )

    @classmethod
    def _of_transformers(cls, raw: Json) -> "ModelConfig":
        """Read the config.json of a family that transformers knows. UserError (exit 3) if it keeps a state besides keys
        and values, which the cache has no place for."""
        from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache

        family = str(raw.get("model_type"))
        if family not in CONFIG_MAPPING or CONFIG_MAPPING[family] not in MODEL_FOR_CAUSAL_LM_MAPPING:
            text = "save its text part, `language_model`, as a checkpoint of its own; else "
            fix = f"{text * ('text_config' in raw)}use another checkpoint"
            raise _unsupported(f"no causal language model of transformers has the model_type {family!r}", fix)
        raw = json.loads(json.dumps(raw), object_hook=_as_float)
        c = CONFIG_MAPPING[family].from_dict(raw).get_text_config()
        states = {type(layer).__name__ for layer in DynamicCache(config=c).layers} - PLAIN_STATES
        states |= set(getattr(c, "layer_types", None) or ()) - PLAIN_LAYERS
        if states:
            raise _unsupported(f"{family} keeps more than keys and values: {', '.join(sorted(states))}")
        if getattr(c, "kv_lora_rank", None):
            raise _unsupported(f"keys and values of {family} have different widths (latent attention)")
        width, num_heads = c.hidden_size, c.num_attention_heads
        mlp_width = getattr(c, "intermediate_size", None) or 4 * width
        return cls(
            family,
            vocab_size=c.vocab_size,
            hidden_size=width,
            intermediate_size=max(mlp_width) if isinstance(mlp_width, list) else mlp_width,
            num_layers=c.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=getattr(c, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(c, "head_dim", None) or width // num_heads,
            norm_eps=0.0,
            max_positions=getattr(c, "max_position_embeddings", None) or 32768,
            tied_head=bool(c.tie_word_embeddings),
            qkv_bias=False,
            o_bias=False,
            mlp_bias=False,
            qk_norm=False,
            raw=raw,
            by_transformers=True,
        )


def _as_float(entry: Json) -> Any:
    """Return the number that transformers writes as {"__float__": "Infinity"}."""
    return float(entry["__float__"]) if set(entry) == {"__float__"} else entry


def _unsupported(why: str, fix: str = "use another checkpoint") -> UserError:
    known = f"{', '.join(FAMILIES)} are written here, and others run by transformers' modules"
    return UserError("the checkpoint cannot be computed here", why, f"{fix}: {known}", PREFLIGHT)


def _is_ours(raw: Json) -> bool:
    """Return whether the hand-written decoder computes this checkpoint: with full attention and SwiGLU."""
    is_known = raw.get("model_type") in FAMILIES
    return is_known and raw.get("hidden_act", "silu") == "silu" and not _has_window(raw)


def _has_window(raw: Json) -> bool:
    """Return whether a token attends to fewer tokens than the model has positions, as in Mistral's first version."""
    family = FAMILIES.get(raw.get("model_type", ""), Family())
    if family.window is None:
        return bool(raw.get("use_sliding_window"))
    window = raw.get("sliding_window", family.window)
    return window is not None and window < raw.get("max_position_embeddings", 131072)
