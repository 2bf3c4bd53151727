"""How the modules of a model are built: which projections have adapters, what is trained, in which dtype and where."""

from dataclasses import dataclass, replace

import torch

from grpo.engine.device.quantised import Format
from grpo.engine.parallel.shard import ALONE, Shard

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LoraSpec:
    """Which projections have an adapter, and of which rank; its output is scaled by s = alpha / rank.

    layers: the numbers of the layers that have adapters, from 0; None for all of them.
    """

    rank: int
    alpha: float
    dropout: float = 0.0
    targets: tuple[str, ...] = ALL_PROJECTIONS
    layers: tuple[int, ...] | None = None

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class Build:
    """The settings of every module: adapters, if any; whether the weights themselves are trained; dtype and device.

    quantised: the format of the projections' own weights, if they are in few bits. They are then frozen.
    shard: this process among those that share the model; sizes given to modules are those of its part.
    backend: "transformers" runs transformers' modules, whatever the family (transformers_model.py).
    """

    lora: LoraSpec | None
    train_weights: bool
    dtype: torch.dtype
    device: torch.device | str
    quantised: Format | None = None
    shard: Shard = ALONE
    backend: str = "auto"


def layer_number(name: str) -> int:
    """Return the number of the layer that a module belongs to: the first number in its name."""
    return next(int(word) for word in name.split(".") if word.isdigit())


def for_layer(build: Build, number: int) -> Build:
    """Return how to build this layer, which may have no adapters."""
    if build.lora is None or build.lora.layers is None or number in build.lora.layers:
        return build
    return replace(build, lora=None)
