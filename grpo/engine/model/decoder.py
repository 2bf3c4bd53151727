"""The decoder of Qwen2, Qwen3, Llama and Mistral: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Counterpart of `Transformer` and `Block` in minimal.py: packed, not padded; with fused kernels and a cache.

One forward serves all uses: tokens come packed [T], and `attend` decides which token sees which (attention/: inside a
micro-batch, or one new token per cache slot). The head is not applied here: hidden states are small, and logits large.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grpo.algorithm.schema import POLICY, Mode
from grpo.base.errors import PREFLIGHT, UserError
from grpo.engine.device import ops
from grpo.engine.device.ops import CosSin, Prepacked, RowSettings, SpareColumns
from grpo.engine.device.quantised import QuantisedRows
from grpo.engine.model.build import ALL_PROJECTIONS, Build, for_layer
from grpo.engine.model.lora import Linear
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.rope import cos_sin_tables
from grpo.engine.model.weight import Weight, share_scratch

if TYPE_CHECKING:
    from grpo.engine.attention.special import Special

EMBEDDING = "model.embed_tokens.weight"
NORMS = {  # of a layer: our name and Hugging Face's
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
}

# Attention of a layer: (layer, q_THE, k_TKE, v_TKE, cos_sin) to out_THE. It rotates queries and keys, stores keys and
# values if it has a cache, and decides which token sees which.
Attend = Callable[[int, Tensor, Tensor, Tensor, CosSin], Tensor]


@dataclass(frozen=True)
class ForwardContext:
    """What all layers of a forward pass share. recomputes_mlp: MLPs keep no activations for the backward pass."""

    attend: Attend
    cos_sin: CosSin
    mode: Mode
    recomputes_mlp: bool


class RMSNorm(nn.Module):
    """x / sqrt(mean x² + eps) · weight over the last axis, computed in float32 (1910.07467)."""

    def __init__(self, width: int, eps: float, build: Build):
        super().__init__()
        self.weight = Weight(build, width)
        self.eps = eps

    def forward(
        self,
        x: Tensor,
        added: Tensor | None = None,
        room: SpareColumns | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of x + added, and that sum. room: what the norm leaves for x Aᵀ (`Linear.room`)."""
        return ops.rms_norm(x, self.weight(), self.eps, added, room)


class Attention(nn.Module):
    """Grouped-query attention (2305.13245). `attend` computes what lies between the projections."""

    def __init__(self, c: ModelConfig, build: Build, layer: int):
        super().__init__()
        self.layer = layer
        self.head_dim = c.head_dim
        q_width = c.num_heads * c.head_dim
        kv_width = c.num_kv_heads * c.head_dim
        sizes = {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv = Linear(c.hidden_size, sizes, c.qkv_bias, build)
        self.o = Linear(q_width, {"o_proj": c.hidden_size}, c.o_bias, build)
        self.q_norm = RMSNorm(c.head_dim, c.norm_eps, build) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.norm_eps, build) if c.qk_norm else None

    def forward(self, x_TD: Tensor, context: ForwardContext) -> Tensor:
        projections = self.qkv(x_TD, context.mode)
        heads = (-1, self.head_dim)
        q_THE, k_TKE, v_TKE = (x_TX.unflatten(-1, heads) for x_TX in projections)
        if self.q_norm is not None and self.k_norm is not None:
            q_THE, _ = self.q_norm(q_THE)
            k_TKE, _ = self.k_norm(k_TKE)
        out_THE = context.attend(self.layer, q_THE, k_TKE, v_TKE, context.cos_sin)
        (out_TD,) = self.o(out_THE.flatten(1), context.mode)
        return out_TD


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x)), SwiGLU (2002.05202)."""

    def __init__(self, c: ModelConfig, build: Build):
        super().__init__()
        sizes = {"gate_proj": c.intermediate_size, "up_proj": c.intermediate_size}
        self.gate_up = Linear(c.hidden_size, sizes, c.mlp_bias, build)
        self.down = Linear(c.intermediate_size, {"down_proj": c.hidden_size}, c.mlp_bias, build)

    def forward(self, x_TD: Tensor, mode: Mode) -> Tensor:
        gate_TF, up_TF = self.gate_up(x_TD, mode)
        hidden_TF = ops.swiglu(gate_TF, up_TF, self.down.room)
        (out_TD,) = self.down(hidden_TF, mode)
        return out_TD


class Block(nn.Module):
    """A layer: attention and MLP, each on a norm of the residual stream.

    The stream is the sum of two tensors, x + added. It is added up when a norm reads it, because one kernel does both:
    that saves a pass over the activations for each of the two plus signs of `Block` in minimal.py.
    """

    def __init__(self, c: ModelConfig, build: Build, layer: int):
        super().__init__()
        self.attention = Attention(c, build, layer)
        self.mlp = MLP(c, build)
        self.attention_norm = RMSNorm(c.hidden_size, c.norm_eps, build)
        self.mlp_norm = RMSNorm(c.hidden_size, c.norm_eps, build)

    def forward(self, x_TD: Tensor, added_TD: Tensor | None, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Return the stream after the layer, given that before it."""
        normed_TD, x_TD = self.attention_norm(x_TD, added_TD, self.attention.qkv.room)
        added_TD = self.attention(normed_TD, context)
        if context.recomputes_mlp:
            x_TD = x_TD + added_TD
            return x_TD, recomputed(self._normed_mlp, x_TD, context.mode)
        normed_TD, x_TD = self.mlp_norm(x_TD, added_TD, self.mlp.gate_up.room)
        return x_TD, self.mlp(normed_TD, context.mode)

    def _normed_mlp(self, x_TD: Tensor, mode: Mode) -> Tensor:
        normed_TD, _ = self.mlp_norm(x_TD)
        return self.mlp(normed_TD, mode)

    def recomputed(self, x_TD: Tensor, context: ForwardContext) -> Tensor:
        """Compute the layer, and keep one tensor of it for the backward pass. So the stream is one tensor here."""
        return recomputed(lambda x_TD: torch.add(*self(x_TD, None, context)), x_TD)


def recomputed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Call the function without keeping its activations; the backward pass computes them again."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def check_lora(build: Build, num_layers: int, names: Iterable[str]) -> None:
    """Refuse adapters for layers and projections that are not there; UserError (exit 3, and 2).

    names: the projections that can have adapters.
    """
    lora = build.lora
    if lora is None:
        return
    unknown = [number for number in lora.layers or () if number not in range(num_layers)]
    if unknown or lora.layers == ():
        what = f"names no layer {unknown[0]}" if unknown else "is empty"
        raise UserError(
            f"lora_layers_to_transform {what}",
            f"the model has {num_layers} layers, 0 to {num_layers - 1}",
            "name some of these, or leave the key out for all",
            PREFLIGHT,
        )
    if foreign := [name for name in lora.targets if name not in names]:
        raise UserError(
            f"lora_target_modules names {', '.join(foreign)}",
            f"the projections that can have adapters are {', '.join(names)}",
            "name some of these, or all",
        )


class Decoder(nn.Module):
    """What sampling, training and files need of a model: `OwnDecoder` below, or a model of transformers.

    `weights.load_decoder` builds one from a checkpoint.
    recompute: which activations are computed again in the backward pass instead of being kept: "none", "mlp" or "all".
    config: of the checkpoint. shape: of what this process computes, which may be a part of that (parallel/).
    can_be_captured: its decode steps as CUDA graphs.
    special: how the layer that is being computed scores its keys, if that is not always plain (attention/special.py).
    """

    special: "Special | None" = None
    can_be_captured = True

    def __init__(self, config: ModelConfig, build: Build):
        super().__init__()
        self.config = self.shape = config
        self.build = build
        self.recompute = "none"

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, mode: Mode = POLICY) -> Tensor:
        """Compute the final hidden states [T, D], after the last norm; multiply by `head` for logits."""
        raise NotImplementedError

    def output(self) -> Weight:
        """Return the weight of the head [V, D]: the embedding if the head is tied to it."""
        raise NotImplementedError

    def other_tensors(self) -> dict[str, Tensor]:
        """Map Hugging Face's name of each tensor outside of the projections to the model's view of that tensor."""
        raise NotImplementedError

    def projections(self) -> dict[str, tuple[Linear, str]]:
        """Map Hugging Face's module name of each projection to the layer that computes it, and its name there."""
        raise NotImplementedError

    def named_tensors(self) -> dict[str, Tensor | QuantisedRows]:
        """Map Hugging Face's name of each tensor in the checkpoint to the model's view of that tensor."""
        named: dict[str, Tensor | QuantisedRows] = {**self.other_tensors()}
        for name, (linear, projection) in self.projections().items():
            weight, bias = linear.base(projection)
            named[name + ".weight"] = weight
            if bias is not None:
                named[name + ".bias"] = bias
        return named

    def head(self) -> Tensor:
        """Return the output matrix [V, D] to compute with."""
        return self.output()()

    def activation_bytes(self, recompute: str) -> float | None:
        """Return a packed token's share of the peak in training, as measured; None to count it (memory.py)."""
        return None

    def logits(self, hidden_XD: Tensor, head_VD: Prepacked) -> Tensor:
        """Return the logits of hidden states. head_VD: may be prepacked."""
        return ops.exact_logits(hidden_XD, head_VD)

    def log_softmax_rows(self, logits_XV: Tensor, *settings: *RowSettings) -> tuple[Tensor, Tensor, Tensor | None]:
        """Call `ops.log_softmax_rows`."""
        return ops.log_softmax_rows(logits_XV, *settings)

    @contextmanager
    def keeping_activations(self) -> Iterator[None]:
        """Recompute nothing for passes inside: for small ones with many backward passes each."""
        usual, self.recompute = self.recompute, "none"
        try:
            yield
        finally:
            self.recompute = usual

    @contextmanager
    def sampling(self) -> Iterator[Prepacked]:
        """Prepack the weights for the `with` block, in which they must not change. Yields the head [V, D]."""
        with ExitStack() as stack:
            for linear in self.linears():
                stack.enter_context(linear.sampling())
            stack.callback(self.output().release)
            yield self.output().prepack()

    def linears(self) -> Iterator[Linear]:
        return (module for module in self.modules() if isinstance(module, Linear))

    def lora_linears(self) -> Iterator[Linear]:
        return (linear for linear in self.linears() if linear.A is not None)

    def number_linears(self) -> None:
        """Number the adapted layers, so that their dropout masks differ."""
        for number, linear in enumerate(self.lora_linears()):
            linear.number = number

    def refresh(self) -> None:
        """Update the copies that forward passes use, after the float32 masters have changed."""
        for module in self.modules():
            if isinstance(module, Weight) and module.master is not None:
                module.refresh()
            elif isinstance(module, Linear):
                module.refresh_sB()  # its A is a Weight


class OwnDecoder(Decoder):
    """Tokens to hidden states, by the layers above."""

    def __init__(self, config: ModelConfig, build: Build):
        super().__init__(config, build)
        check_lora(build, config.num_layers, ALL_PROJECTIONS)
        self.embedding = Weight(build, config.vocab_size, config.hidden_size)
        blocks = []
        for number in range(config.num_layers):
            blocks.append(Block(config, for_layer(build, number), number))
        self.blocks = cast(Sequence[Block], nn.ModuleList(blocks))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.untied_head = None if config.tied_head else Weight(build, config.vocab_size, config.hidden_size)
        self.number_linears()
        share_scratch(self)

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, mode: Mode = POLICY) -> Tensor:
        recompute = self.recompute if torch.is_grad_enabled() else "none"
        context = ForwardContext(attend, self.cos_sin(positions_T), mode, recomputes_mlp=recompute == "mlp")
        x_TD, added_TD = self.embed(ids_T), None
        for block in self.blocks:
            if recompute == "all":
                x_TD = block.recomputed(x_TD, context)
            else:
                x_TD, added_TD = block(x_TD, added_TD, context)
        normed_TD, _ = self.norm(x_TD, added_TD)
        return normed_TD

    def output(self) -> Weight:
        return self.untied_head or self.embedding

    def embed(self, ids_T: Tensor) -> Tensor:
        """Look up the embeddings of tokens."""
        return F.embedding(ids_T, self.embedding())

    def other_tensors(self) -> dict[str, Tensor]:
        named = {EMBEDDING: self.embedding.stored}
        named["model.norm.weight"] = self.norm.weight.stored
        if self.untied_head is not None:
            named["lm_head.weight"] = self.untied_head.stored
        for number, block in enumerate(self.blocks):
            for name, norm in block.named_modules():
                if isinstance(norm, RMSNorm):
                    named[f"model.layers.{number}.{NORMS[name]}.weight"] = norm.weight.stored
        return named

    def projections(self) -> dict[str, tuple[Linear, str]]:
        found = {}
        for number, block in enumerate(self.blocks):
            for where, module in (("self_attn", block.attention), ("mlp", block.mlp)):
                for linear in module.modules():
                    if isinstance(linear, Linear):
                        for projection in linear.out_slices:
                            found[f"model.layers.{number}.{where}.{projection}"] = linear, projection
        return found

    def cos_sin(self, positions_T: Tensor) -> CosSin:
        """Return the cosines and sines [T, 1, E] of the angles by which heads are rotated at these positions."""
        cos_SE, sin_SE = self.tables
        return cos_SE[positions_T][:, None], sin_SE[positions_T][:, None]

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines [S, E] of all positions."""
        c, build = self.config, self.build
        return cos_sin_tables(c.hf, c.head_dim, c.max_positions, build.dtype, build.device)
