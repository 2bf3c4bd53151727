"""Any causal model of transformers under our attention, cache, packing and LoRA.

Its modules compute what is between: norms, rotary positions, activations, experts. Attention goes where `attend` says,
as in the hand-written decoder, and each linear layer of a block becomes one of ours (Eq. 15), under its own name. So
the weights and the arithmetic that sample are those that are trained. Routers and experts stay as they are: frozen.

The check of sampling/check.py decides whether that is what transformers computes, not a list of families.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from grpo.algorithm.schema import POLICY, Layout, Mode
from grpo.base.errors import PREFLIGHT, UserError
from grpo.engine.attention.choice import packed_attention
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.attention.packed import MicroBatchAttention
from grpo.engine.attention.special import Special
from grpo.engine.device.ops import Prepacked, RowSettings
from grpo.engine.model.build import ALL_PROJECTIONS, Build, for_layer, layer_number
from grpo.engine.model.decoder import Attend, Decoder, ForwardContext, check_lora, recomputed
from grpo.engine.model.lora import Linear
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weight import Weight, master_dtype

Affine: TypeAlias = nn.Linear | Conv1D  # GPT-2 has the second kind
OURS = "grpo"  # the name of our attention in transformers
MEASURED = 128  # tokens of the pass that measures activations
PROMPT = 16  # tokens of its prompt
ANOTHER = "use another model: configs/README.md names families that pass"
UNREADABLE = "use another checkpoint, or transformers 5.24, with which this has been tried"


class AttentionLayer(Protocol):
    """A layer of transformers that attends. whole: the model that it belongs to."""

    whole: "TransformersModel"
    layer_idx: int


def attend_as_ours(
    module: AttentionLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Callable[..., Tensor] | Tensor | None,
    scaling: float | None = None,
    **given: object,
) -> tuple[Tensor, None]:
    """Attend as the pass says. transformers calls it in each layer, by these names.

    query: [1, H, T, E], rotated. key, value: [1, K, T, E]. attention_mask: which token sees which, as in `Special`.
    given: softcap and s_aux (sinks), where a family has them. What is narrower than the cache is widened: values of
    latent attention, or the heads of some of Gemma 4's layers, of which there may be fewer.
    """
    special, this_pass, shape = module.whole.special, module.whole.this_pass, module.whole.shape
    scaling = scaling or query.shape[-1] ** -0.5
    narrow_dim = value.shape[-1]
    if narrow_dim < shape.head_dim:
        query, key, value = (F.pad(x, (0, shape.head_dim - x.shape[-1])) for x in (query, key, value))
    if key.shape[1] < shape.num_kv_heads:
        key, value = (x.repeat_interleave(shape.num_kv_heads // x.shape[1], dim=1) for x in (key, value))
    q_THE, k_TKE, v_TKE = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    if not callable(attention_mask):
        raise ValueError("its layers do not say which token sees which")
    special.sees, special.function = attention_mask, None
    if given.get("softcap") is not None or given.get("s_aux") is not None:
        by_family = sys.modules[type(module).__module__].eager_attention_forward
        special.function = partial(by_family, module, scaling=scaling, **given)
    else:
        q_THE = q_THE * (scaling * shape.head_dim**0.5)
    attend = this_pass.attend
    if isinstance(attend, MicroBatchAttention):
        out_THE = attend.attend(q_THE, k_TKE, v_TKE)
    else:
        if isinstance(attend, DecodeAttention) and not special.is_plain(attend.num_positions):
            attend = special.decoding(attend)
        out_THE = attend(module.layer_idx, q_THE, k_TKE, v_TKE, this_pass.cos_sin)
    return out_THE[None, ..., :narrow_dim], None


class StandIn(Linear):
    """Takes the place of one of transformers' linear layers. whole: the model that it belongs to."""

    whole: "TransformersModel"

    def __init__(self, layer: Affine, projection: str, build: Build):
        weight_OI = weight_of(layer)
        super().__init__(weight_OI.shape[1], {projection: len(weight_OI)}, layer.bias is not None, build)
        own_OI, own_O = self.base(projection)
        own_OI.copy_(weight_OI)
        del layer.weight  # so that one weight at a time is there twice
        if own_O is not None:
            own_O.copy_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        (y_TO,) = super().forward(x.flatten(0, -2), self.whole.this_pass.mode)
        return y_TO.unflatten(0, x.shape[:-1])


class TransformersModel(Decoder):
    """Tokens to hidden states, by the modules of `net`, which it takes apart. Without one: shapes alone, on "meta".

    this_pass, special: what transformers' modules do not pass on to each other. expected: log-probs of `probe` by
    transformers itself, for the check at load.
    """

    this_pass: ForwardContext
    special: Special
    expected: Tensor

    @torch.no_grad()
    def __init__(self, config: ModelConfig, build: Build, net: PreTrainedModel | None = None):
        if build.shard.world > 1 or build.quantised:
            keys = "base_weights and tensor_parallel_size"
            why = f"{config.family} runs by transformers' modules, and these are neither split nor held in few bits"
            raise UserError(f"{keys} are not for this model", why, "leave them out", PREFLIGHT)
        net = skeleton(config, build.dtype) if net is None else net
        linears = linears_of(net)
        if not linears:
            why = "none of its layers has a linear part that could be adapted"
            raise UserError(f"{config.family} cannot be computed here", why, ANOTHER, PREFLIGHT)
        names = tuple(dict.fromkeys(name.rpartition(".")[2] for name in linears))
        if build.lora and build.lora.targets == ALL_PROJECTIONS:
            build = replace(build, lora=replace(build.lora, targets=names))
        super().__init__(config, build)
        check_lora(build, config.num_layers, names)
        self.net = net
        if torch.device(build.device).type != "meta":
            self.expected = probed_by_transformers(net, config.vocab_size, build.device)
        self.special = Special()
        text = net.config.get_text_config()
        self.cap = getattr(text, "final_logit_softcapping", None)
        self.scale = getattr(text, "logit_scale", None) or 1 / getattr(text, "logits_scaling", 1)
        self.take_apart(linears)
        self.number_linears()
        self.refresh()

    def take_apart(self, linears: dict[str, Affine]) -> None:
        """Put our linear layers in the place of transformers', and every other parameter into a Weight."""
        net = self.net
        head = net.get_output_embeddings()
        embedding = net.get_input_embeddings()
        is_tied = head.weight is embedding.weight
        if is_tied:
            del head.weight
        sparse = sparse_layers(net).values()
        self.experts = [layer.get_submodule("experts") for layer in sparse]
        trained = {*net.get_decoder().modules(), head} - {inner for layer in sparse for inner in layer.modules()}
        self.found: dict[str, tuple[Linear, str]] = {}
        self.others = {}
        self.borrowers = []
        for name, module in list(net.named_modules()):
            if name in linears:
                where, _, last = name.rpartition(".")
                module = StandIn(linears[name], last, for_layer(self.build, layer_number(name)))
                setattr(net.get_submodule(where), last, module)
                self.found[name] = module, last
            else:
                build = replace(self.build, train_weights=self.build.train_weights and module in trained)
                for last, value in list(module.named_parameters(recurse=False)):
                    weight = Weight(replace(build, dtype=value.dtype), *value.shape)
                    weight.stored.copy_(value)
                    delattr(module, last)
                    self.borrowers.append((module, last, weight))
                    self.others[f"{name}.{last}"] = weight
                if module is (embedding if is_tied else head):
                    self.head_weight = self.others[f"{name}.weight"]
            vars(module)["whole"] = self
        self.weights = nn.ModuleList(self.others.values())
        self.lend()
        for layer in layers_of(net):
            layer.forward = partial(self._layer, layer.forward)

    def lend(self) -> None:
        """Give the modules of transformers the tensors to compute with."""
        for module, name, weight in self.borrowers:
            setattr(module, name, weight())

    # --- a pass ------------------------------------------------------------------------------------------------------

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, mode: Mode = POLICY) -> Tensor:
        num_angles = len(ids_T) if ids_T.is_cuda else 0  # keys and queries come rotated; a kernel turns them by none
        one_T1E = torch.ones(num_angles, 1, self.shape.head_dim, dtype=self.build.dtype, device=ids_T.device)
        unrotated = one_T1E, torch.zeros_like(one_T1E)
        self.this_pass = ForwardContext(attend, unrotated, mode, recomputes_mlp=False)
        if self.build.train_weights:  # each pass has tensors of its own
            self.lend()
        done = self.net.get_decoder()(
            input_ids=ids_T[None],
            position_ids=positions_T[None],
            attention_mask=torch.ones_like(ids_T)[None],  # without it, transformers waits for the device and makes one
            use_cache=False,
        )
        return done.last_hidden_state[0] * self.scale

    def _layer(self, forward: Callable[..., Tensor], *inputs: object, **named: object) -> Tensor:
        """Compute a layer, and where activations are computed again, keep none; then in the pass it belongs to."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return forward(*inputs, **named)
        this_pass = self.this_pass

        def again() -> Tensor:
            self.this_pass = this_pass
            return forward(*inputs, **named)

        return recomputed(again)

    def output(self) -> Weight:
        return self.head_weight

    def logits(self, hidden_XD: Tensor, head_VD: Prepacked) -> Tensor:
        return self._finished(super().logits(hidden_XD, head_VD))

    def log_softmax_rows(self, logits_XV: Tensor, *settings: *RowSettings) -> tuple[Tensor, Tensor, Tensor | None]:
        """Normalise what the family makes of the logits. The slope is with respect to these."""
        finished_XV = self._finished(logits_XV)
        bend_XV = 1 if self.cap is None else 1 - (finished_XV / self.cap) ** 2
        logp_X, entropy_X, slope_XV = super().log_softmax_rows(finished_XV, *settings)
        if slope_XV is not None and self.cap is not None:
            slope_XV = (slope_XV * bend_XV).to(slope_XV.dtype)
        return logp_X, entropy_X, slope_XV

    def _finished(self, logits_XV: Tensor) -> Tensor:
        """Add the bias of the head, and cap the logits, in a family that does."""
        bias_V = getattr(self.net.get_output_embeddings(), "bias", None)
        if bias_V is not None:
            logits_XV = logits_XV + bias_V.detach()
        return logits_XV if self.cap is None else self.cap * torch.tanh(logits_XV / self.cap)

    # --- files and memory --------------------------------------------------------------------------------------------

    def other_tensors(self) -> dict[str, Tensor]:
        return {name: weight.stored for name, weight in self.others.items()}

    def projections(self) -> dict[str, tuple[Linear, str]]:
        return self.found

    def write(self, tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
        """Write a checkpoint of these tensors as transformers does, which may have other names for them in files."""
        net = skeleton(self.config, dtype)
        for name, layer in linears_of(net).items():
            if not isinstance(layer, nn.Linear):
                tensors[f"{name}.weight"] = tensors[f"{name}.weight"].T
        held = self.net.state_dict()
        buffers = {name: held[name] for name, _ in net.named_buffers() if name in held}  # a router's biases
        exact = {name: weight.stored for name, weight in self.others.items() if weight.value.dtype != self.build.dtype}
        net.save_pretrained(folder, state_dict=tensors | buffers | exact)

    def activation_bytes(self, recompute: str) -> float | None:
        """Return a packed token's share of the peak, by what autograd keeps in a pass of MEASURED tokens."""
        try:
            kept = self._measured
        except Exception:  # some experts' kernels cannot be asked for shapes alone; the check at load tells the rest
            return None
        config, item = self.config, self.build.dtype.itemsize
        if recompute != "none":
            inputs = item * config.hidden_size * config.num_layers
            kept = inputs + 2 * kept / config.num_layers
        gradients = 5 * item * config.intermediate_size
        return kept + gradients

    @cached_property
    def _measured(self) -> float:
        """Run a pass, and return the bytes that it keeps for a token."""
        seen = {tensor.untyped_storage()._cdata for tensor in (*self.parameters(), *self.buffers())}
        sizes = []

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                sizes.append(storage.nbytes())
            return tensor

        position_T = torch.arange(MEASURED, device=self.build.device)
        attend = packed_attention(self, Layout.of((MEASURED, ())))
        with torch.enable_grad(), self.keeping_activations(), saved_tensors_hooks(keep, lambda tensor: tensor):
            self(0 * position_T, position_T, attend)
        return sum(sizes) / MEASURED


# --- models of transformers ------------------------------------------------------------------------------------------


class Sees(partial):
    """A function of transformers' masks. Any part of it is the whole: Gemma 4 drops queries that need no answer."""

    def __getitem__(self, part: object) -> "Sees":
        return self


AttentionInterface.register(OURS, attend_as_ours)
AttentionMaskInterface.register(OURS, lambda mask_function, **_: Sees(mask_function))


def skeleton(config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Build a model without weights."""
    with torch.device("meta"):
        net = AutoModelForCausalLM.from_config(config.hf, dtype=dtype, attn_implementation=OURS)
    return net.eval()


def read_net(folder: Path, dtype: torch.dtype, device: torch.device | str) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint; return the model, and what its files do not have, or have and should not."""
    net, info = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation=OURS,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        experts_implementation="eager" if dtype == torch.float64 else None,  # their kernels have no float64
    )
    problems = _misfits(info)
    for name, tensor in net.state_dict().items():
        if not torch.isfinite(tensor).all():
            problems.append(f"{name} holds numbers that are not finite in {dtype}")
    return net.eval().to(device), problems


def read_headers(
    config: ModelConfig, dtype: torch.dtype, state: dict[str, Tensor]
) -> tuple[PreTrainedModel, list[str]]:
    """Load names and shapes alone, by transformers' own steps: `read_net` without weights. state: on "meta"."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.modeling_utils import LoadStateDictConfig

    net = skeleton(config, dtype)
    names = get_model_conversion_mapping(net)
    how = LoadStateDictConfig(device_map={"": "meta"}, dtype=dtype, weight_mapping=names)
    info, _ = net._load_pretrained_model(net, state, None, how)
    info = net._finalize_model_loading(net, how, info)
    return net, _misfits(info.to_dict())


def _misfits(info: dict[str, Iterable[object]]) -> list[str]:
    return [f"{kind.removesuffix('_keys')} {name}" for kind, names in info.items() for name in sorted(map(str, names))]


def layers_of(net: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of a model, in order."""
    return [module for module in net.get_decoder().modules() if isinstance(module, GradientCheckpointingLayer)]


def sparse_layers(net: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the layers of experts, by their names; they stay frozen."""
    return {name: module for name, module in net.named_modules() if hasattr(module, "experts")}


def linears_of(net: PreTrainedModel) -> dict[str, Affine]:
    """Return the linear layers that can have adapters, by their names: those of the layers.

    None that has the place of a layer of experts, as the first MLPs of some models, or the name of a part of experts,
    as a gate of attention: PEFT takes these for experts.
    """
    places = {name.rpartition(".")[2] for name in sparse_layers(net)}
    if places:
        places.add("gate_proj")
    inside = {inner for layer in layers_of(net) for inner in layer.modules() if type(inner) in (nn.Linear, Conv1D)}
    named = net.named_modules()
    return {name: inner for name, inner in named if inner in inside and places.isdisjoint(name.split("."))}


def weight_of(linear: Affine) -> Tensor:
    """Return the weight [O, I] of a linear layer; GPT-2's have it turned."""
    return linear.weight if isinstance(linear, nn.Linear) else linear.weight.T


# --- what it is checked against --------------------------------------------------------------------------------------


def probe(vocab_size: int) -> Tensor:
    """Return two sequences that begin with the same PROMPT tokens and go on for 32, all of them different, [2, S]."""
    id_T = 7919 * torch.arange(PROMPT + 64) % vocab_size
    own_NX = id_T[PROMPT:].view(2, 32)
    return torch.cat([id_T[:PROMPT].expand(2, -1), own_NX], dim=1)


def probe_logps(logits_CV: Tensor) -> Tensor:
    """Return the log-probs of the tokens of `probe` after its prompt, given the logits after each of them."""
    token_C = probe(logits_CV.shape[1])[:, PROMPT:].flatten().to(logits_CV.device)
    return -F.cross_entropy(logits_CV.to(master_dtype(logits_CV.dtype)), token_C, reduction="none")


@torch.no_grad()
def probed_by_transformers(net: PreTrainedModel, vocab_size: int, device: torch.device | str) -> Tensor:
    """Return transformers' own `probe_logps`."""
    row_2S = probe(vocab_size).to(device)
    net.set_attn_implementation("eager")
    logits_2SV = net(input_ids=row_2S, use_cache=False).logits
    net.set_attn_implementation(OURS)
    return probe_logps(logits_2SV[:, PROMPT:].flatten(0, 1))
