"""The forms that a model's layers take while it samples: weights packed, merged, or with room for x Aᵀ in their inputs.

Counterpart of the layers of minimal.py while it samples: a step of decoding multiplies few rows by large weights.

The layers themselves (lora.py, decoder.py) know nothing of it: `sampling_forms` puts these in their places, and takes
them out again. What each form computes is the same, Eq. 15, bit for bit, with exceptions in float32 on a CPU: kernels
in C, where there are any, add in another order, and a layer with an adapter is a merged copy, W + s B A. float32 has
the digits for that. The copy saves x Aᵀ and a copy of x in every product: a tenth of generation if the layers are thin.
Log-probs of sampler and trainer then differ by float32 rounding. Weights in 8 bits (`base_weights: int8`) are never
merged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from grpo.engine.device import ops
from grpo.engine.device.ops import Packed, SpareColumns, prepack
from grpo.engine.model.decoder import Block, Decoder, RMSNorm
from grpo.engine.model.int8_weight import Int8Rows, Int8Weight, dense, frozen_linear
from grpo.engine.model.joint_linear import JointLinear, SeparateLoraLinear
from grpo.engine.model.lora import POLICY, Linear, LoraLinear, Mode
from grpo.engine.model.residual import Residual

Form = TypeVar("Form", bound=nn.Module)
Layer = TypeVar("Layer", bound=Linear)


@contextmanager
def sampling_forms(model: Decoder) -> Iterator[Packed]:
    """Give the layers of a model their sampling forms for the `with` block, in which its weights must not change.

    Yields the packed head [V, D]. Frozen weights without an adapter stay packed afterwards, for the next time.
    """
    places = _Places()
    head = model.untied_head or model.embedding
    try:
        for block in model.blocks:
            _put_forms(places, block)
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


def _put_forms(places: _Places, block: Block) -> None:
    """Give the layers of a block their forms, and the norms and the activation before them room for x Aᵀ."""
    _put_joint_form(places, block, "attention_norm", block.attention.qkv)
    places.put(block.attention, "o", form_of(block.attention.o))
    _put_joint_form(places, block, "mlp_norm", block.mlp.gate_up)
    down = places.put(block.mlp, "down", form_of(block.mlp.down))
    if down.spare_columns:
        places.put(block.mlp, "activation", SparingSwiGLU(down.spare_columns))


def _put_joint_form(places: _Places, block: Block, norm: str, joint: JointLinear) -> None:
    """Give several projections their forms. norm: the name of the norm whose output is their input."""
    forms = []
    for number, module in enumerate(joint.linears):
        form = places.put(joint.linears, str(number), form_of(module))
        forms.append(form)
    if len(forms) == 1 and forms[0].spare_columns:
        sparing = SparingNorm(getattr(block, norm), forms[0].spare_columns)
        places.put(block, norm, sparing)


def form_of(module: Linear) -> "PackedLinear":
    """Return the sampling form of a layer."""
    if not isinstance(module, LoraLinear):
        return PackedLinear(module)
    weight = module.weight
    if not isinstance(weight, Int8Weight):
        is_on_cpu = weight.value.device.type == "cpu"
        if is_on_cpu and weight.value.dtype == torch.float32:
            return MergedLinear(module)
    if isinstance(module, SeparateLoraLinear):
        return PackedSeparateLinear(module)
    return PackedLoraLinear(module)


class PackedLinear(nn.Module, Generic[Layer]):
    """A layer without an adapter, whose weight is packed."""

    spare_columns: SpareColumns | None = None  # what its input should have to its right: see PackedLoraLinear

    def __init__(self, module: Layer):
        super().__init__()
        self.module: Layer = module
        self.out_slices = module.out_slices
        self.pack()

    def pack(self) -> None:
        self.packed: Packed | Int8Rows = self.module.weight.prepack()

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> Tensor:
        assert mode is POLICY  # nothing else is sampled from
        return self.product(x_TI)

    def forward_parts(self, x_TI: Tensor, mode: Mode) -> tuple[Tensor, ...]:
        return self.module.split(self(x_TI, mode))

    def product(self, x_TI: Tensor) -> Tensor:
        return frozen_linear(x_TI, self.packed, self.module.added_bias())


class MergedLinear(PackedLinear[LoraLinear]):
    """W + s B A, packed: for float32 on a CPU."""

    def pack(self) -> None:
        self.packed = prepack(merge(self.module))


class PackedLoraLinear(PackedLinear[LoraLinear]):
    """Eq. 15 with A and [W | s B] packed.

    spare_columns: how many copies of its input, and how many columns to the right of each, spare it copying x.
    """

    def pack(self) -> None:
        self.packed = _packed(self.module.weight.all_rows())
        self.A_RI = prepack(self.module.A.value)
        self.spare_columns = 1, len(self.module.A.value)

    def product(self, x_TI: Tensor) -> Tensor:
        (augmented_TX,) = ops.append_product(x_TI, self.A_RI)
        return frozen_linear(augmented_TX, self.packed, self.module.added_bias())  # Eq. 15


class PackedSeparateLinear(PackedLinear[SeparateLoraLinear]):
    """Eq. 15 with A and each part's [W | s B] packed."""

    def pack(self) -> None:
        module = self.module
        self.weights = [_packed(module.weight.all_rows(rows)) for rows in module.out_slices.values()]
        self.A_RI = prepack(module.A.value)
        self.spare_columns = len(self.weights), module.lora.rank

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> Tensor:
        return torch.cat(self.forward_parts(x_TI, mode), dim=-1)

    def forward_parts(self, x_TI: Tensor, mode: Mode) -> tuple[Tensor, ...]:
        assert mode is POLICY
        inputs = ops.append_product(x_TI, self.A_RI, len(self.weights))
        return tuple(map(frozen_linear, inputs, self.weights, self.module.biases()))  # Eq. 15


def _packed(weight: Tensor | Int8Rows) -> Packed | Int8Rows:
    """Pack a weight, unless it is in 8 bits: a packed copy would take the memory that 8 bits save."""
    return weight if isinstance(weight, Int8Rows) else prepack(weight)


class SparingNorm(nn.Module):
    """A norm whose output has spare columns to its right."""

    def __init__(self, norm: RMSNorm, spare_columns: SpareColumns):
        super().__init__()
        self.norm, self.spare_columns = norm, spare_columns

    def forward(self, x: Residual) -> Tensor:
        weight_D, eps = self.norm.weight(), self.norm.eps
        return x.normed(lambda x_TD, added_TD: ops.rms_norm(x_TD, weight_D, eps, added_TD, self.spare_columns))


class SparingSwiGLU(nn.Module):
    """SwiGLU whose output has spare columns to its right."""

    def __init__(self, spare_columns: SpareColumns):
        super().__init__()
        self.spare_columns = spare_columns

    def forward(self, gate_TF: Tensor, up_TF: Tensor) -> Tensor:
        return ops.swiglu(gate_TF, up_TF, self.spare_columns)


def merge(module: LoraLinear) -> Tensor:
    """Return W + s B A, [O, I]."""
    base_OI = dense(module.weight.base_rows())
    A_RI = module.A.value
    merged_OI = torch.empty_like(base_OI, memory_format=torch.contiguous_format)
    if not isinstance(module, SeparateLoraLinear):
        return torch.addmm(base_OI, module.weight.tail_rows(), A_RI, out=merged_OI)
    for part, rows in module.out_slices.items():
        A_XI = A_RI[module.rank_slices[part]]
        torch.addmm(base_OI[rows], module.sB_of(part), A_XI, out=merged_OI[rows])
    return merged_OI
