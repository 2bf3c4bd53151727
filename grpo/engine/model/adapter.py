"""LoRA adapters in PEFT's layout, in and out.

If a tensor's name does not fit, PEFT only warns, and the projection keeps its untrained adapter. Here every name is
checked, and the tests compare logits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.base.storage import Json, read_json, save_tensors, write_json
from grpo.engine.model.build import layer_number
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.tensor_files import DAMAGED, NAMES_SHOWN, finite
from grpo.engine.parallel.splits import split_of, splits_of_adapter

PREFIX = "base_model.model."
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"  # of older versions of PEFT and LLaMA-Factory
CONVERT = (  # torch loads its weights, and nothing else that a pickle may hold
    "python -c \"import torch; from safetensors.torch import save_file; d = '{folder}/adapter_model'; "
    "w = torch.load(d + '.bin', 'cpu'); "
    "save_file({{k: v.contiguous() for k, v in w.items()}}, d + '.safetensors')\""
)
# Keys of PEFT's LoraConfig with which an adapter is still W + s B A. Any other key that is set, even one that a later
# PEFT adds, means that a layer is computed differently or that base weights were changed.
PLAIN_KEYS = set(
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode runtime_config "
    "r lora_alpha lora_dropout use_rslora rank_pattern alpha_pattern bias init_lora_weights eva_config "
    "target_modules exclude_modules layers_to_transform layers_pattern ensure_weight_tying "
    "megatron_core qalora_group_size".split()
)
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")  # initialisations that keep the base weights
MERGE = f"it must hold {CONFIG_FILE} and {WEIGHTS_FILE}; merge any other adapter into its base with PEFT first"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: for each adapted projection (Hugging Face's module name) A [r, I] and B [O, r].

    The scale alpha / r is already in B; both are float32 on the CPU. layers: those that it adapts; None for all.
    """

    pairs: dict[str, tuple[Tensor, Tensor]]
    base_model: str | None
    base_revision: str = "main"  # of a base on the hub
    layers: tuple[int, ...] | None = None

    def check_shapes(self, shapes: Mapping[str, torch.Size]) -> None:
        """Raise UserError (exit 3) unless it is of a model with projections of these names and shapes."""
        known = {name.rpartition(".")[2] for name in shapes}
        if foreign := sorted(module for module in self.pairs if module.rpartition(".")[2] not in known):
            what = f"the adapter changes {', '.join(foreign[:NAMES_SHOWN])}"
            raise UserError(what, f"only {', '.join(sorted(known))} can have adapters here", MERGE, PREFLIGHT)
        for module, (A, B) in self.pairs.items():
            here = tuple(shapes.get(module, (0,)))
            there = B.shape[0], A.shape[1]
            if here != there:
                why = f"{module} is {here} here, {there} there"
                fix = f"it was trained on {self.base_model}"
                raise UserError("the adapter belongs to another model", why, fix, PREFLIGHT)


def is_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter in PEFT's layout."""
    return (folder / CONFIG_FILE).exists()


def read_settings(folder: Path) -> Json:
    """Read adapter_config.json, which may hold anything; UserError (exit 3) if it is not of a plain LoRA adapter."""
    with explained(DAMAGED, f"{folder} is not a plain LoRA adapter", MERGE):
        config = read_json(folder / CONFIG_FILE)
        if extras := _extras(config):
            raise ValueError(f"its layers are not W + s B A, or its base weights were changed: {', '.join(extras)}")
        return config


def check_safe(folder: Path) -> None:
    """Raise UserError (exit 3) if an adapter's weights are a pickle alone."""
    if (folder / PICKLE_FILE).exists() and not (folder / WEIGHTS_FILE).exists():
        raise UserError(
            f"{folder} holds {PICKLE_FILE} and no {WEIGHTS_FILE}",
            "a .bin file is a pickle, which can run any code, and is never read here",
            f"convert it, if you trust it: {CONVERT.format(folder=folder)}",
            PREFLIGHT,
        )


def load_adapter(folder: Path) -> Adapter:
    """Read an adapter written by PEFT or by `save_adapter`; UserError (exit 3) if it is not a plain LoRA adapter."""
    config = read_settings(folder)
    check_safe(folder)
    with explained((*DAMAGED, re.error), f"{folder} is not a plain LoRA adapter", MERGE):
        pairs = _scaled_pairs(load_file(folder / WEIGHTS_FILE), config)
    return Adapter(pairs, config.get("base_model_name_or_path"), config.get("revision") or "main")


def _extras(config: Json) -> list[str]:
    """Return the settings of an adapter that W + s B A cannot represent."""
    extras = [key for key, value in config.items() if value and key not in PLAIN_KEYS]
    plain = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": PLAIN_STARTS}
    found = {"bias": "none"} | config
    return extras + [f"{key} {found.get(key)}" for key, values in plain.items() if found.get(key) not in values]


def _scaled_pairs(tensors: dict[str, Tensor], config: Json) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and s B of every adapted projection; ValueError if the tensors are not such pairs."""
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(PREFIX).removesuffix(".weight").removesuffix(".default")
        module, _, half = name.rpartition(".")
        if half != "base_layer":
            halves.setdefault(module, {})[half] = tensor.float()
    wrong = [f"{module} ({', '.join(sorted(found))})" for module, found in halves.items() if not _is_pair(found)]
    if wrong or not halves:
        raise ValueError(f"no pairs lora_A, lora_B of finite numbers: {', '.join(wrong[:NAMES_SHOWN])}")
    pairs = {}
    for module, found in halves.items():
        A, B = found["lora_A"], found["lora_B"]
        scale = _scale(config, module, A.shape[0])
        sB = scale * B
        if not sB.isfinite().all():
            raise ValueError(f"{module} is scaled by {scale}, and is not finite then")
        pairs[module] = A, sB
    return pairs


def _is_pair(found: dict[str, Tensor]) -> bool:
    """Return whether these are A [r, I] and B [O, r], with finite numbers and r > 0."""
    if set(found) != {"lora_A", "lora_B"}:
        return False
    A, B = found["lora_A"], found["lora_B"]
    if not (A.dim() == B.dim() == 2 and A.shape[0] == B.shape[1] > 0):
        return False
    return bool(A.isfinite().all() and B.isfinite().all())


def _of_module(config: Json, patterns: str, module: str, default: float) -> float:
    """Return a setting of a projection. The keys of patterns are regular expressions, as in PEFT."""
    named = config.get(patterns) or {}
    fitting = [value for pattern, value in named.items() if re.match(rf"(.*\.)?({pattern})$", module)]
    return float(fitting[0] if fitting else default)


def _scale(config: Json, module: str, rank: int) -> float:
    """Return alpha / r of a projection. ValueError if its factors have another r than the settings say."""
    r = _of_module(config, "rank_pattern", module, config["r"])
    if r != rank:
        raise ValueError(f"the settings say r = {r:g} for {module}, whose factors have {rank}")
    alpha = _of_module(config, "alpha_pattern", module, config["lora_alpha"])
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def trained_adapter(
    model: Decoder,
    start: Adapter | None,
    base_model: str | None,
    base_revision: str = "main",
) -> Adapter:
    """Return the result of training as one adapter of the checkpoint on disk. All shards of a model call it together.

    It stacks the model's adapter on the one that training started from: B₁A₁ + B₂A₂ = [B₁ B₂] [A₁; A₂], exactly.
    """
    pairs = {}
    for module, (linear, projection) in model.projections().items():
        stack = [start.pairs[module]] if start and module in start.pairs else []
        if projection in linear.rank_slices:
            weight, _ = linear.base(projection)
            split = split_of(model, f"{module}.weight", weight)
            A, B = map(model.build.shard.join, linear.adapter(projection), splits_of_adapter(split))
            sB = linear.lora.scale * B.detach().float().cpu()
            stack.append((A.detach().float().cpu(), sB))
        if stack:
            A_stack = torch.cat([A for A, _ in stack])
            B_stack = torch.cat([B for _, B in stack], dim=1)
            pairs[module] = A_stack, B_stack
    layers = sorted(set(map(layer_number, pairs)))
    is_whole = len(layers) == model.config.num_layers
    return Adapter(pairs, base_model, base_revision, None if is_whole else tuple(layers))


def save_adapter(adapter: Adapter, folder: Path, lora_alpha: float | None = None, dropout: float = 0.0) -> None:
    """Write PEFT's two files. The scale stays in B (so alpha = rank) unless lora_alpha is given."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {module: A.shape[0] for module, (A, _) in adapter.pairs.items()}
    rank = max(ranks.values())
    other = {module: r for module, r in ranks.items() if r != rank}
    scale = 1.0 if lora_alpha is None else lora_alpha / rank
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base_model,
        "revision": adapter.base_revision,
        "r": rank,
        "lora_alpha": rank * scale,
        "lora_dropout": dropout,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in ranks}),
        "layers_to_transform": adapter.layers,
        "rank_pattern": other,
        "alpha_pattern": {module: r * scale for module, r in other.items()},
    }
    tensors = {}
    for module, (A, B) in adapter.pairs.items():
        for name, half in (("lora_A", A), ("lora_B", B / scale)):
            checked = finite(f"{name} of {module}", half, half.dtype)
            tensors[f"{PREFIX}{module}.{name}.weight"] = checked.contiguous()
    save_tensors(tensors, folder / WEIGHTS_FILE)
    write_json(folder / CONFIG_FILE, config)
