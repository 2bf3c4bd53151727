"""The forms that a model's layers take while it samples: weights packed, merged, or with room for x Aᵀ in their inputs.

Replaces the layers of minimal.py while it samples: a step of decoding multiplies few rows by large weights.

The layers themselves (lora.py, decoder.py) know nothing of it: `sampling_forms` puts these in their places, and takes
them out again. What each form computes is the same, Eq. 15, bit for bit, with one exception: in float32 on a CPU, a
layer with an adapter is a merged copy, W + s B A. float32 has the digits for that. The copy saves x Aᵀ and a copy of x
in every product: a tenth of generation if the layers are thin. Log-probs of sampler and trainer then differ by float32
rounding. Weights in 8 bits (`base_weights: int8`) are never merged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import nn

from grpo.engine.device import ops
from grpo.engine.device.products import SpareColumns, append_product, prepack
from grpo.engine.model.decoder import Decoder, RMSNorm
from grpo.engine.model.int8_weight import Int8Rows, Int8Weight, dense, frozen_linear
from grpo.engine.model.lora import POLICY, Linear, LoraLinear, Mode
from grpo.engine.model.residual import Residual

Form = TypeVar("Form", bound=nn.Module)
Layer = TypeVar("Layer", bound=Linear)


@contextmanager
def sampling_forms(model: Decoder) -> Iterator[torch.Tensor]:
    """Give the layers of a model their sampling forms for the `with` block, in which its weights must not change.

    Yields the packed head [V, D]. Frozen weights without an adapter stay packed afterwards, for the next time.
    """
    places = _Places()
    head = model.untied_head or model.embedding
    try:
        for block in model.blocks:
            attention, mlp = block.attention, block.mlp
            for joint, norm in ((attention.qkv, "attention_norm"), (mlp.gate_up, "mlp_norm")):
                forms = [places.put(joint.linears, str(n), form_of(module)) for n, module in enumerate(joint.linears)]
                if len(forms) == 1 and forms[0].spare_columns:
                    places.put(block, norm, SparingNorm(getattr(block, norm), forms[0].spare_columns))
            places.put(attention, "o", form_of(attention.o))
            down = places.put(mlp, "down", form_of(mlp.down))
            if down.spare_columns:
                places.put(mlp, "activation", SparingSwiGLU(down.spare_columns))
        yield head.prepack()
    finally:
        places.restore()
        for module in model.linears():
            module.weight.release()
        head.release()


class _Places:
    """The modules that were replaced, and where they belong."""

    def __init__(self):
        self.replaced: list[tuple[nn.Module, str, nn.Module]] = []

    def put(self, owner: nn.Module, name: str, form: Form) -> Form:
        self.replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, form)
        return form

    def restore(self) -> None:
        for owner, name, module in self.replaced:
            setattr(owner, name, module)


def form_of(module: Linear) -> "PackedLinear":
    """Return the sampling form of a layer."""
    if not isinstance(module, LoraLinear):
        return PackedLinear(module)
    weight = module.weight
    is_merged = not isinstance(weight, Int8Weight) and weight.value.dtype == torch.float32
    return MergedLinear(module) if is_merged and weight.value.device.type == "cpu" else PackedLoraLinear(module)


class PackedLinear(nn.Module, Generic[Layer]):
    """A layer without an adapter, whose weight is packed."""

    spare_columns: SpareColumns | None = None  # what its input should have to its right: see PackedLoraLinear

    def __init__(self, module: Layer):
        super().__init__()
        self.module: Layer = module
        self.out_slices = module.out_slices
        self.pack()

    def pack(self) -> None:
        self.packed: torch.Tensor | Int8Rows = self.module.weight.prepack()

    def forward(self, x_TI: torch.Tensor, mode: Mode = POLICY) -> torch.Tensor:
        outputs = self.products(x_TI) if mode.use_adapter else self.module.products(x_TI, mode)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def forward_parts(self, x_TI: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, ...]:
        return self.module.split(self.products(x_TI) if mode.use_adapter else self.module.products(x_TI, mode))

    def products(self, x_TI: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (frozen_linear(x_TI, self.packed, self.module.added_bias()),)


class MergedLinear(PackedLinear[LoraLinear]):
    """W + s B A, packed: for float32 on a CPU."""

    def pack(self) -> None:
        self.packed = prepack(merge(self.module))


class PackedLoraLinear(PackedLinear[LoraLinear]):
    """Eq. 15 with A and each [W | s B] packed.

    spare_columns: how many copies of its input, and how many columns to the right of each, spare it copying x.
    """

    def pack(self) -> None:
        module, weights = self.module, self.module.weights()
        self.weights = [weight if isinstance(weight, Int8Rows) else prepack(weight) for weight in weights]
        self.A_RI = prepack(module.A.value)
        self.spare_columns = len(module.product_rows), module.num_columns

    def products(self, x_TI: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = append_product(x_TI, self.A_RI, len(self.weights))
        return self.module.multiply(inputs, self.weights)  # Eq. 15


class SparingNorm(nn.Module):
    """A norm whose output has spare columns to its right."""

    def __init__(self, norm: RMSNorm, spare_columns: SpareColumns):
        super().__init__()
        self.norm, self.spare_columns = norm, spare_columns

    def forward(self, x: Residual) -> torch.Tensor:
        weight_D, eps = self.norm.weight(), self.norm.eps
        return x.normed(lambda x_TD, added_TD: ops.rms_norm(x_TD, weight_D, eps, added_TD, self.spare_columns))


class SparingSwiGLU(nn.Module):
    """SwiGLU whose output has spare columns to its right."""

    def __init__(self, spare_columns: SpareColumns):
        super().__init__()
        self.spare_columns = spare_columns

    def forward(self, gate_TF: torch.Tensor, up_TF: torch.Tensor) -> torch.Tensor:
        return ops.swiglu(gate_TF, up_TF, self.spare_columns)


def merge(module: LoraLinear) -> torch.Tensor:
    """Return W + s B A, [O, I], for all products together."""
    base_OI, sB_OX = dense(module.weight.base_rows()), module.weight.tail_rows()
    merged_OI = torch.empty_like(base_OI, memory_format=torch.contiguous_format)
    for rows, A_XI in zip(module.product_rows, module.A.value.split(module.num_columns), strict=True):
        torch.addmm(base_OI[rows], sB_OX[rows], A_XI, out=merged_OI[rows])
    return merged_OI
