"""The shape of a checkpoint, from its config.json: what this decoder can compute, and what is damaged or malicious."""

from dataclasses import dataclass, field

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

    ValueError if a value is impossible.
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
        tables = cos_sin_tables(self.raw, self.head_dim, 2, torch.float32, "cpu")
        if not 0 <= self.norm_eps < 1 or not all(bool(table.isfinite().all()) for table in tables):
            raise ValueError("rms_norm_eps or the rope settings give numbers that are not finite")

    @property
    def held(self) -> str:
        """Return how the file holds the projections: "nf4", "int8" (quantization_config of bitsandbytes), or ""."""
        quantised = self.raw.get("quantization_config") or {}
        return "nf4" if quantised.get("load_in_4bit") else "int8" if quantised.get("load_in_8bit") else ""

    @classmethod
    def from_hf(cls, raw: Json) -> "ModelConfig":
        """Read a parsed config.json. UserError (exit 3) if it needs something that this decoder does not compute."""
        _check_supported(raw)
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


def _check_supported(raw: Json) -> None:
    """Raise UserError (exit 3) if a checkpoint needs something that this decoder does not compute."""
    family, activation = raw.get("model_type"), raw.get("hidden_act", "silu")
    method = (raw.get("quantization_config") or {"quant_method": BITSANDBYTES}).get("quant_method")
    unsupported = {
        f"model_type {family!r}": family not in FAMILIES,
        "sliding-window attention": _has_window(raw),
        f"activation {activation!r}": activation != "silu",
        f"weights quantised by {method}": method != BITSANDBYTES,
    }
    problems = [what for what, is_needed in unsupported.items() if is_needed]
    if problems:
        raise UserError(
            f"the checkpoint needs {problems[0]}, which this decoder does not have",
            f"it knows {', '.join(FAMILIES)} with full attention and SwiGLU",
            "use another checkpoint",
            PREFLIGHT,
        )


def _has_window(raw: Json) -> bool:
    """Return whether a token attends to fewer tokens than the model has positions, as in Mistral's first version."""
    family = FAMILIES.get(raw.get("model_type", ""), Family())
    if family.window is None:
        return bool(raw.get("use_sliding_window"))
    window = raw.get("sliding_window", family.window)
    return window is not None and window < raw.get("max_position_embeddings", 131072)
