"""The decoder of Qwen2, Qwen3, Llama and Mistral: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

One forward serves all uses: tokens come packed [T], and `attend` decides which token sees which (attention/: inside a
micro-batch, or one new token per cache slot). The head is not applied here: hidden states are small, and logits large.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from grpo.base.errors import PREFLIGHT, UserError
from grpo.engine.device import ops
from grpo.engine.device.ops import CosSin
from grpo.engine.device.products import SpareColumns
from grpo.engine.model.int8_weight import share_scratch
from grpo.engine.model.lora import POLICY, Build, JointLinear, Linear, LoraLinear, Mode, make_linear
from grpo.engine.model.master_weight import MasterWeight
from grpo.engine.model.rope import cos_sin_tables, read_rope

# Attention of a layer: (layer, q_THE, k_TKE, v_TKE, cos_sin) to out_THE. It rotates queries and keys, stores keys and
# values if it has a cache, and decides which token sees which.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, CosSin], torch.Tensor]


@dataclass(frozen=True)
class Pass:
    """What all layers of a forward pass share. recomputes_mlp: MLPs keep no activations for the backward pass."""

    attend: Attend
    cos_sin: CosSin
    mode: Mode
    recomputes_mlp: bool


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
    rope_settings: dict[str, Any]
    raw: dict[str, Any] = field(repr=False)

    def of_shard(self, num_shards: int) -> "ModelConfig":
        """Return the shape of what each shard computes; UserError (exit 3) if that many cannot share the model."""
        if num_shards == 1:
            return self
        shared = {name: getattr(self, name) for name in ("num_heads", "num_kv_heads", "intermediate_size")}
        if any(size % num_shards for size in shared.values()):
            fitting = [number for number in range(1, min(shared.values()) + 1) if not gcd(*shared.values()) % number]
            raise UserError(
                f"tensor_parallel_size is {num_shards}, and the model cannot be cut into that many parts",
                "it must divide " + ", ".join(f"{name} {size}" for name, size in shared.items()),
                f"set tensor_parallel_size to one of {', '.join(map(str, fitting))}",
                PREFLIGHT,
            )
        sizes = {name: size // num_shards for name, size in shared.items()}
        return replace(self, **sizes, vocab_size=-(-self.vocab_size // num_shards))

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
        tables = cos_sin_tables(self.rope_settings, self.head_dim, 2, torch.float32, "cpu")
        if not 0 <= self.norm_eps < 1 or not all(bool(table.isfinite().all()) for table in tables):
            raise ValueError("rms_norm_eps or the rope settings give numbers that are not finite")

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> "ModelConfig":
        """Read a parsed config.json. UserError (exit 3) if it needs something that this decoder does not compute."""
        family, activation = raw.get("model_type"), raw.get("hidden_act", "silu")
        unsupported = {
            f"model_type {family!r}": family not in FAMILIES,
            "sliding-window attention": _has_window(raw),
            f"activation {activation!r}": activation != "silu",
            "a quantised checkpoint": raw.get("quantization_config"),
        }
        problems = [what for what, is_needed in unsupported.items() if is_needed]
        if problems:
            raise UserError(
                f"the checkpoint needs {problems[0]}, which this decoder does not have",
                f"it knows {', '.join(FAMILIES)} with full attention and SwiGLU",
                "use another checkpoint",
                PREFLIGHT,
            )
        kind = FAMILIES[family]
        names = ("attention_bias", "mlp_bias", "tie_word_embeddings")
        attention_bias, mlp_bias, tied_head = (False if raw.get(name) is None else raw[name] for name in names)
        return cls(
            family,
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
            rope_settings=read_rope(raw),
            raw=raw,
        )


def _has_window(raw: dict[str, Any]) -> bool:
    """Return whether a token attends to fewer tokens than the model has positions, as in Mistral's first version."""
    family = FAMILIES.get(raw.get("model_type"), Family())
    if family.window is None:
        return bool(raw.get("use_sliding_window"))
    window = raw.get("sliding_window", family.window)
    return window is not None and window < raw.get("max_position_embeddings", 131072)


class RMSNorm(nn.Module):
    """x / sqrt(mean x² + eps) · weight over the last axis, computed in float32 (1910.07467)."""

    def __init__(self, width: int, eps: float, build: Build):
        super().__init__()
        self.weight, self.eps = build.weight(width), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after_adding(x, None)[0]

    def after_adding(
        self, x: torch.Tensor, residual: torch.Tensor | None, spare_columns: SpareColumns | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x + residual, and that sum. spare_columns: see `ops.rms_norm`."""
        return ops.rms_norm(x, self.weight(), self.eps, residual, spare_columns)


class Attention(nn.Module):
    """Grouped-query attention (2305.13245). `attend` computes what lies between the projections.

    A shard has some of the heads. `spread` and `collect` return their argument if one process has them all.
    """

    def __init__(self, c: ModelConfig, build: Build, layer: int):
        super().__init__()
        self.head_dim, self.shard, self.layer = c.head_dim, build.shard, layer
        sizes = {
            "q_proj": c.num_heads * c.head_dim,
            "k_proj": c.num_kv_heads * c.head_dim,
            "v_proj": c.num_kv_heads * c.head_dim,
        }
        self.qkv = JointLinear(c.hidden_size, sizes, c.qkv_bias, build)
        self.o = make_linear(c.num_heads * c.head_dim, {"o_proj": c.hidden_size}, c.o_bias, build)
        self.q_norm = RMSNorm(c.head_dim, c.norm_eps, build) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(c.head_dim, c.norm_eps, build) if c.qk_norm else nn.Identity()

    def forward(self, x_TD: torch.Tensor, this_pass: Pass) -> torch.Tensor:
        parts = self.qkv(self.shard.spread(x_TD), this_pass.mode)
        q_THE, k_TKE, v_TKE = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        q_THE, k_TKE = self.q_norm(q_THE), self.k_norm(k_TKE)
        out_THE = this_pass.attend(self.layer, q_THE, k_TKE, v_TKE, this_pass.cos_sin)
        return self.shard.collect(self.o(out_THE.flatten(1), this_pass.mode))


class MLP(nn.Module):
    """SwiGLU (2002.05202): down(silu(gate(x)) · up(x))."""

    def __init__(self, c: ModelConfig, build: Build):
        super().__init__()
        self.shard = build.shard
        sizes = {"gate_proj": c.intermediate_size, "up_proj": c.intermediate_size}
        self.gate_up = JointLinear(c.hidden_size, sizes, c.mlp_bias, build)
        self.down = make_linear(c.intermediate_size, {"down_proj": c.hidden_size}, c.mlp_bias, build)

    def forward(self, x_TD: torch.Tensor, mode: Mode) -> torch.Tensor:
        gate_TF, up_TF = self.gate_up(self.shard.spread(x_TD), mode)
        return self.shard.collect(self.down(ops.swiglu(gate_TF, up_TF, self.down.spare_columns), mode))


class Block(nn.Module):
    """A layer: attention and MLP, each on a norm of the residual stream.

    In plain words x = x + attention(norm(x)), then x = x + mlp(norm(x)). The MLP's output is added by the next layer's
    norm, because one kernel does both. On a GPU, norms leave columns free for x Aᵀ (lora.py).
    """

    def __init__(self, c: ModelConfig, build: Build, layer: int):
        super().__init__()
        self.attention, self.mlp = Attention(c, build, layer), MLP(c, build)
        self.attention_norm = RMSNorm(c.hidden_size, c.norm_eps, build)
        self.mlp_norm = RMSNorm(c.hidden_size, c.norm_eps, build)

    def forward(
        self, x_TD: torch.Tensor, added_TD: torch.Tensor | None, this_pass: Pass
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual stream before the MLP's output is added, and that output, which the next norm adds.

        x_TD, added_TD: the same two of the layer before.
        """
        normed_TD, x_TD = self.attention_norm.after_adding(x_TD, added_TD, self.attention.qkv.spare_columns)
        attended_TD = self.attention(normed_TD, this_pass)
        if this_pass.recomputes_mlp:
            x_TD = x_TD + attended_TD
            return x_TD, _recomputed(lambda x: self.mlp(self.mlp_norm(x), this_pass.mode), x_TD)
        normed_TD, x_TD = self.mlp_norm.after_adding(attended_TD, x_TD, self.mlp.gate_up.spare_columns)
        return x_TD, self.mlp(normed_TD, this_pass.mode)


def _recomputed(function: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """Call the function without keeping its activations; the backward pass computes them again."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def check_layers(build: Build, num_layers: int) -> None:
    """Refuse adapters for layers that are not there; UserError (exit 3)."""
    chosen = build.lora.layers if build.lora else None
    unknown = [number for number in chosen or () if number not in range(num_layers)]
    if unknown or chosen == ():
        raise UserError(
            f"lora_layers_to_transform names no layer {unknown[0]}" if unknown else "lora_layers_to_transform is empty",
            f"the model has {num_layers} layers, 0 to {num_layers - 1}",
            "name some of these, or leave the key out for all",
            PREFLIGHT,
        )


class Decoder(nn.Module):
    """Tokens to hidden states. `weights.load_decoder` builds one from a checkpoint.

    recompute: which activations are computed again in the backward pass instead of being kept: "none", "mlp" or "all".
    shard_config: the shape of what this process computes; with `build.shard` alone, that is `config`.
    """

    def __init__(self, config: ModelConfig, build: Build):
        super().__init__()
        self.config, self.build, self.recompute = config, build, "none"
        self.shard_config = own = config.of_shard(build.shard.world)
        check_layers(build, config.num_layers)
        self.embedding = build.weight(own.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(own, build.for_layer(number), number) for number in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.untied_head = None if config.tied_head else build.weight(own.vocab_size, config.hidden_size)
        self.tables: tuple[torch.Tensor, torch.Tensor] | None = None
        for number, linear in enumerate(self.lora_linears()):
            linear.number = number
        share_scratch(self)

    def forward(
        self, ids_T: torch.Tensor, positions_T: torch.Tensor, attend: Attend, mode: Mode = POLICY
    ) -> torch.Tensor:
        """Compute the final hidden states [T, D], after the last norm; multiply by `head` for logits."""
        recompute = self.recompute if torch.is_grad_enabled() else "none"
        x_TD, added_TD = self._embed(ids_T), None
        cos_sin = tuple(table_SE[positions_T][:, None] for table_SE in self._cos_sin())
        this_pass = Pass(attend, cos_sin, mode, recomputes_mlp=recompute == "mlp")
        for block in self.blocks:
            if recompute == "all":
                x_TD, added_TD = _recomputed(block, x_TD, None, this_pass)
                x_TD, added_TD = x_TD + added_TD, None  # so that one tensor per layer is kept
            else:
                x_TD, added_TD = block(x_TD, added_TD, this_pass)
        return self.norm.after_adding(x_TD, added_TD)[0]

    def head(self) -> torch.Tensor:
        """Return the output matrix [V, D]: the embedding if the head is tied to it. A shard has some of its rows."""
        return self.embedding() if self.untied_head is None else self.untied_head()

    def _embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        """Look up the embeddings of tokens. A shard has some of them, and 0 for the others; then all shards add up."""
        shard = self.build.shard
        if shard.world == 1:
            return F.embedding(ids_T, self.embedding())
        own_T = ids_T - shard.part(self.config.vocab_size).start
        is_here_T1 = ((own_T >= 0) & (own_T < self.shard_config.vocab_size))[:, None]
        found_TD = F.embedding(own_T.clamp(0, self.shard_config.vocab_size - 1), self.embedding())
        return shard.collect(found_TD.where(is_here_T1, 0.0))

    def linears(self) -> Iterator[Linear]:
        return (module for module in self.modules() if isinstance(module, Linear))

    @contextmanager
    def prepacked(self) -> Iterator[torch.Tensor]:
        """Pack all weights for the `with` block, in which they must not change. Yield the packed head.

        Frozen weights without an adapter stay packed afterwards. The others are packed anew each time; in float32 on
        a CPU, those with an adapter are merged with it (lora.py).
        """
        head = self.untied_head or self.embedding
        try:
            for linear in self.linears():
                linear.prepack()
            yield head.prepack()
        finally:
            for weight in (*self.linears(), head):
                weight.release()

    def lora_linears(self) -> Iterator[LoraLinear]:
        return (module for module in self.modules() if isinstance(module, LoraLinear))

    def refresh(self) -> None:
        """Update the copies that forward passes use, after the float32 masters have changed."""
        for module in self.modules():
            if isinstance(module, LoraLinear) or (isinstance(module, MasterWeight) and module.master is not None):
                module.refresh()

    def _cos_sin(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.tables is None:
            c, build = self.config, self.build
            self.tables = cos_sin_tables(c.rope_settings, c.head_dim, c.max_positions, build.dtype, build.device)
        return self.tables
