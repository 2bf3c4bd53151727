"""Any causal model of transformers under our attention, cache, packing and LoRA.

Its modules compute what is between: norms, rotary positions, activations, experts. Attention goes where `attend` says,
as in the hand-written decoder, and each linear layer of a block becomes one of ours (Eq. 15), under its own name. So
the weights and the arithmetic that sample are those that are trained. Routers and experts stay as they are: frozen.

The check of sampling/check.py decides whether that is what transformers computes, not a list of families.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from grpo.algorithm.schema import POLICY, Layout, Mode
from grpo.base.errors import PREFLIGHT, UserError
from grpo.engine.attention import special
from grpo.engine.attention.choice import packed_attention
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.attention.packed import MicroBatchAttention
from grpo.engine.attention.special import Special
from grpo.engine.device.ops import Packed
from grpo.engine.model.build import ALL_PROJECTIONS, Build, for_layer, layer_number
from grpo.engine.model.decoder import Attend, Decoder, Pass, check_lora
from grpo.engine.model.lora import Linear
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weight import Weight, master_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OURS = "grpo"  # the name of our attention in transformers
ROUTERS = ("router", "gate")
SPARSE = ("experts", *ROUTERS)  # modules of a layer of experts; all that is in this layer stays frozen
MEASURED = 128  # tokens of the pass that measures activations
NARROW = 8  # tokens of a window in the check
PROMPT = 16  # tokens of its prompt


@dataclass
class Now:
    """What transformers' modules do not pass on: the forward pass that they are part of, and what is special in it."""

    this_pass: Pass = field(init=False)
    special: Special = field(default_factory=Special)


def attend_as_ours(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: None = None, **given: Any):
    """Attend as the pass says. transformers calls it in each layer, with rotated q [1, H, T, E], and k, v [1, K, T, E].

    given: scaling, sliding_window, softcap and s_aux, where a family has them.
    """
    q_THE, k_TKE, v_TKE = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
    if k_TKE.shape != v_TKE.shape or q_THE.shape[-1] != k_TKE.shape[-1]:
        raise ValueError("its keys and values have other widths (latent attention)")
    now = module.now
    layer = module.layer_idx
    how = now.special
    attend = now.this_pass.attend
    usual_scale = q_THE.shape[-1] ** -0.5
    scale = given.get("scaling")
    how.scale = usual_scale if scale is None else scale
    how.window = given.get("sliding_window")
    how.cap = given.get("softcap")
    how.sink_H = given.get("s_aux")
    if how.is_plain and how.scale != usual_scale:
        q_THE = q_THE * (how.scale / usual_scale)
    if isinstance(attend, MicroBatchAttention):
        out_THE = attend.attend(q_THE, k_TKE, v_TKE)
    elif isinstance(attend, DecodeAttention) and not how.is_plain:
        out_THE = special.decode(attend, layer, q_THE, k_TKE, v_TKE, how)
    else:
        out_THE = attend(layer, q_THE, k_TKE, v_TKE, now.this_pass.cos_sin)
    return out_THE[None], None


class Projection(nn.Module):
    """Stands for one of transformers' linear layers; `linear` computes it. is_turned: its weight is [I, O] (GPT-2)."""

    def __init__(self, layer: Any, part: str, build: Build, now: Now):
        super().__init__()
        self.is_turned = not isinstance(layer, nn.Linear)
        weight_OI = layer.weight.T if self.is_turned else layer.weight
        self.linear = Linear(weight_OI.shape[1], {part: len(weight_OI)}, layer.bias is not None, build)
        self.part, self.now = part, now
        own_OI, own_O = self.linear.base(part)
        own_OI.copy_(weight_OI)
        if own_O is not None:
            own_O.copy_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        (y_TO,) = self.linear(x.flatten(0, -2), self.now.this_pass.mode)
        return y_TO.unflatten(0, x.shape[:-1])


class TransformersModel(Decoder):
    """Tokens to hidden states, by the modules of `net`, which it takes apart. Without one: shapes alone, on "meta".

    expected: log-probs of `probe` by transformers itself, for the check at load.
    """

    expected: Tensor
    bytes_per_token: float | None = None

    @torch.no_grad()
    def __init__(self, config: ModelConfig, build: Build, net: "PreTrainedModel | None" = None):
        if build.shard.world > 1 or build.held:
            key = "base_weights" if build.held else "tensor_parallel_size"
            why = f"{config.family} runs by transformers' modules, and these are neither split nor held in few bits"
            raise UserError(f"{key} is not for this model", why, f"leave {key} out", PREFLIGHT)
        net = skeleton(config, build.dtype) if net is None else net
        found = linears_of(net, config.num_layers)
        parts = tuple(dict.fromkeys(name.rpartition(".")[2] for name in found))
        if build.lora and build.lora.targets == ALL_PROJECTIONS:
            build = replace(build, lora=replace(build.lora, targets=parts))
        super().__init__(config, build)
        check_lora(build, config.num_layers, parts)
        self.net = net
        self.now = Now()
        self.special = self.now.special
        text = net.config.get_text_config()
        self.cap: float | None = getattr(text, "final_logit_softcapping", None)
        factor = getattr(text, "logit_scale", None)
        divisor = getattr(text, "logits_scaling", None)
        self.scale = factor or 1 / (divisor or 1)
        self.take_apart(found)
        self.number_linears()
        self.refresh()

    def take_apart(self, linears: dict[str, Any]) -> None:
        """Put our linear layers in the place of transformers', and every other parameter into a Weight."""
        net = self.net
        names = list(net.state_dict())
        head = net.get_output_embeddings()
        embedding = net.get_input_embeddings()
        is_tied = head.weight is embedding.weight
        if is_tied:
            del head.weight
        bias_V = getattr(head, "bias", None)
        self.output_bias = None if bias_V is None else bias_V.detach()
        self.routers = [module for name, module in net.named_modules() if name.rpartition(".")[2] in ROUTERS]
        self.found = {name: self._replace_linear(name, layer) for name, layer in linears.items()}
        frozen = tuple(sparse_layers(net))
        self.others: dict[str, Weight] = {}
        for name in names:
            self._take_parameter(name, is_frozen=name.startswith(frozen))
        self.weights = nn.ModuleList(self.others.values())
        source = embedding if is_tied else head
        (self.head_weight,) = (
            self.others[f"{name}.weight"] for name, module in net.named_modules() if module is source
        )
        for module in net.modules():
            module.now = self.now
        for layer in layers_of(net, self.config.num_layers):
            layer.forward = partial(self._layer, layer.forward)

    def _replace_linear(self, name: str, layer: Any) -> Projection:
        where, _, part = name.rpartition(".")
        build = for_layer(self.build, layer_number(name))
        projection = Projection(layer, part, build, self.now)
        setattr(self.net.get_submodule(where), part, projection)
        return projection

    def _take_parameter(self, name: str, is_frozen: bool) -> None:
        """Put a parameter that is in no projection into a Weight.

        If it is trained, its module is lent the tensor when it computes; if it is frozen, it has the tensor for good.
        """
        where, _, last = name.rpartition(".")
        module = self.net.get_submodule(where)
        value = module._parameters.get(last)
        if value is None or isinstance(module, Projection):
            return
        is_trained = self.build.train_weights and not is_frozen
        build = replace(self.build, dtype=value.dtype)
        weight = Weight(build, *value.shape, trained=is_trained)
        weight.stored.copy_(value)
        self.others[name] = weight
        delattr(module, last)
        if is_trained:
            module.register_forward_pre_hook(partial(_lend, last, weight))
        else:
            setattr(module, last, weight.value)

    # --- a pass ------------------------------------------------------------------------------------------------------

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, mode: Mode = POLICY) -> Tensor:
        still = torch.ones(len(ids_T), 1, self.shape.head_dim, dtype=self.build.dtype, device=ids_T.device)
        unrotated = still, torch.zeros_like(still)  # keys and queries come rotated
        self.now.this_pass = Pass(attend, unrotated, mode, recomputes_mlp=False)
        done = self.net.get_decoder()(
            input_ids=ids_T[None],
            position_ids=positions_T[None],
            # Given a mask of four axes, transformers makes none, for which it would wait for the device. None is read.
            attention_mask=still[:1, None],
            use_cache=False,
        )
        hidden_TD = done.last_hidden_state[0]
        return hidden_TD if self.scale == 1 else hidden_TD * self.scale

    def _layer(self, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        """Compute a layer, and where activations are computed again, keep none; then in the pass it belongs to."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return forward(*inputs, **named)
        this_pass = self.now.this_pass

        def again(*inputs: Any, **named: Any) -> Any:
            self.now.this_pass = this_pass
            return forward(*inputs, **named)

        return checkpoint(again, *inputs, use_reentrant=False, preserve_rng_state=False, **named)

    @contextmanager
    def recording_routers(self) -> Iterator[list[Tensor]]:
        """Yield a list to which each router adds the experts that it chooses for each token."""
        chosen: list[Tensor] = []

        def record(_: nn.Module, __: Any, outputs: Any) -> None:
            tensors = outputs if isinstance(outputs, tuple) else (outputs,)
            numbers = [x for x in tensors if not x.is_floating_point()]
            likeliest = tensors[0].argmax(-1, keepdim=True)
            of_tokens = numbers[0] if numbers else likeliest
            chosen.append(of_tokens.sort(dim=-1).values)

        hooks = [router.register_forward_hook(record) for router in self.routers]
        try:
            yield chosen
        finally:
            for hook in hooks:
                hook.remove()

    def output(self) -> Weight:
        return self.head_weight

    def logits(self, hidden_XD: Tensor, head_VD: Packed) -> Tensor:
        return self._finished(super().logits(hidden_XD, head_VD))

    def log_softmax_rows(self, logits_XV: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Normalise what the family makes of the logits. The slope is with respect to these."""
        finished_XV = self._finished(logits_XV)
        bend_XV = None if self.cap is None else 1 - (finished_XV / self.cap) ** 2
        logp_X, entropy_X, slope_XV = super().log_softmax_rows(finished_XV, *settings)
        if slope_XV is not None and bend_XV is not None:
            slope_XV = slope_XV * bend_XV.to(slope_XV.dtype)
        return logp_X, entropy_X, slope_XV

    def _finished(self, logits_XV: Tensor) -> Tensor:
        """Add the bias of the head, and cap the logits, in a family that does."""
        if self.output_bias is not None:
            logits_XV = logits_XV + self.output_bias
        return logits_XV if self.cap is None else self.cap * torch.tanh(logits_XV / self.cap)

    # --- files and memory --------------------------------------------------------------------------------------------

    def other_tensors(self) -> dict[str, Tensor]:
        return {name: weight.stored for name, weight in self.others.items()}

    def projections(self) -> dict[str, tuple[Linear, str]]:
        return {name: (projection.linear, projection.part) for name, projection in self.found.items()}

    def write(self, tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
        """Write a checkpoint of these tensors as transformers does, which may have other names for them in files."""
        net = skeleton(self.config, dtype)
        for name, projection in self.found.items():
            if projection.is_turned:
                weight_OI = tensors[f"{name}.weight"]
                tensors[f"{name}.weight"] = weight_OI.T.contiguous()
        state = net.state_dict()
        state |= self.net.state_dict()
        state |= tensors
        net.load_state_dict(state, strict=False, assign=True)
        net.tie_weights()
        net.save_pretrained(folder)

    def activation_bytes(self, recompute: str) -> float | None:
        """Return a packed token's share of the peak, by what autograd keeps in a pass of MEASURED tokens."""
        if self.bytes_per_token is None:
            try:
                self.bytes_per_token = self._measure()
            except RuntimeError:  # some experts' kernels cannot be asked for shapes alone
                return None
        config = self.config
        item = self.build.dtype.itemsize
        gradients = 5 * item * config.intermediate_size
        if recompute == "none":
            return self.bytes_per_token + gradients
        inputs = item * config.hidden_size * config.num_layers
        of_a_layer = self.bytes_per_token / config.num_layers
        return inputs + 2 * of_a_layer + gradients

    def _measure(self) -> float:
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
            return tensor

        id_T = torch.zeros(MEASURED, dtype=torch.int64, device=self.build.device)
        position_T = torch.arange(MEASURED, device=id_T.device)
        attend = packed_attention(self, Layout.of((MEASURED, ())))
        with torch.enable_grad(), self.keeping_activations(), saved_tensors_hooks(keep, lambda tensor: tensor):
            self(id_T, position_T, attend)
        own = {tensor.untyped_storage()._cdata for tensor in (*self.parameters(), *self.buffers())}
        return sum(size for storage, size in kept.items() if storage not in own) / MEASURED


def _lend(name: str, weight: Weight, module: nn.Module, _: Any) -> None:
    """Give a module the tensor of a trained weight, for the pass that begins."""
    setattr(module, name, weight())


# --- models of transformers ------------------------------------------------------------------------------------------


def _auto() -> Any:
    """Return transformers' class of causal models, once it knows our attention, which needs no mask."""
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

    AttentionInterface.register(OURS, attend_as_ours)
    AttentionMaskInterface.register(OURS, lambda *_, **__: None)
    return AutoModelForCausalLM


def skeleton(config: ModelConfig, dtype: torch.dtype) -> "PreTrainedModel":
    """Build a model without weights."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[config.family]
    read = kind.from_dict(config.raw)
    with torch.device("meta"):
        net = _auto().from_config(read, dtype=dtype, attn_implementation=OURS)
    return net.eval()


def read_net(folder: Path, dtype: torch.dtype, device: torch.device | str) -> tuple["PreTrainedModel", list[str]]:
    """Load a checkpoint; return the model, and what its files do not have, or have and should not."""
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}  # their kernels have no float64
    net, info = _auto().from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation=OURS,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        **experts,
    )
    problems = []
    for kind, names in info.items():
        what = kind.removesuffix("_keys")
        problems += [f"{what} {name}" for name in sorted(map(str, names))]
    for name, tensor in net.state_dict().items():
        if not torch.isfinite(tensor).all():
            problems.append(f"{name} holds numbers that are not finite in {dtype}")
    return net.eval().to(device), problems


def layers_of(net: "PreTrainedModel", num_layers: int) -> nn.ModuleList:
    """Return the layers of a model, in order."""
    lists = (module for module in net.get_decoder().modules() if isinstance(module, nn.ModuleList))
    return next(layers for layers in lists if len(layers) == num_layers)


def sparse_layers(net: "PreTrainedModel") -> Iterator[str]:
    """Yield the beginnings of the names of layers of experts, which stay frozen."""
    for name, _ in net.named_modules():
        where, _, last = name.rpartition(".")
        if last in SPARSE:
            yield f"{where}."


def linears_of(net: "PreTrainedModel", num_layers: int) -> dict[str, Any]:
    """Return the linear layers that can have adapters, by their names: those of the layers, outside of experts."""
    from transformers.pytorch_utils import Conv1D

    inside = set(layers_of(net, num_layers).modules())
    sparse = tuple(sparse_layers(net))
    found = {}
    for name, module in net.named_modules():
        is_linear = type(module) in (nn.Linear, Conv1D)
        if is_linear and module in inside and not name.startswith(sparse):
            found[name] = module
    return found


# --- what it is checked against --------------------------------------------------------------------------------------


def probe(vocab_size: int) -> Tensor:
    """Return two sequences that begin with the same PROMPT tokens, 64 different ones in all, [2, S]."""
    id_T = 7919 * torch.arange(64) % vocab_size
    first_S = id_T[:40]
    second_S = torch.cat([id_T[:PROMPT], id_T[40:]])
    return torch.stack([first_S, second_S])


def probe_logps(logits_CV: Tensor) -> Tensor:
    """Return the log-probs of the tokens of `probe` after its prompt, given the logits that predict them."""
    target_C = probe(logits_CV.shape[1])[:, PROMPT:].flatten()
    target_C = target_C.to(logits_CV.device)
    exact_CV = logits_CV.to(master_dtype(logits_CV.dtype))
    logp_CV = exact_CV.log_softmax(-1)
    return logp_CV.gather(1, target_C[:, None])[:, 0]


@torch.no_grad()
def probed_by_transformers(net: "PreTrainedModel", config: ModelConfig, device: torch.device | str) -> Tensor:
    """Return transformers' own `probe_logps`."""
    row_2S = probe(config.vocab_size).to(device)
    net.set_attn_implementation("eager")
    with narrow(net):
        logits_2SV = net(input_ids=row_2S, use_cache=False).logits
    net.set_attn_implementation(OURS)
    predicting_2SV = logits_2SV[:, PROMPT - 1 : -1]
    return probe_logps(predicting_2SV.flatten(0, 1))


@contextmanager
def narrow(net: "PreTrainedModel") -> Iterator[None]:
    """Make all windows narrow, so that a few tokens show what they do."""
    candidates = [net.config.get_text_config(), *net.modules()]
    owners = [one for one in candidates if getattr(one, "sliding_window", None)]
    usual = [one.sliding_window for one in owners]
    for one in owners:
        one.sliding_window = min(NARROW, one.sliding_window)
    try:
        yield
    finally:
        for one, window in zip(owners, usual, strict=True):
            one.sliding_window = window
