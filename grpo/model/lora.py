"""Linear layers, and LoRA (2106.09685) as one matrix product over an augmented inner dimension.

    y = x Wᵀ + s (x Aᵀ) Bᵀ + b   =   [x | x Aᵀ] [W | s B]ᵀ + b                                    Eq. 12

The right-hand form adds the adapter's small change to the large base term *inside* the product, where sums are float32.
The usual form rounds both terms to bf16 first, and merging rounds W + sBA: both lose most of an update while it is
small. The price is R more columns; the gain is that sampling and training run the very same arithmetic, and that the
reference policy is a view, `weight[:, :I]`.
"""

from dataclasses import dataclass

import torch
from torch import nn

from grpo.device.products import Product, add_product, append_product, linear, prepack, weight_gradient
from grpo.model.master_weight import MasterWeight, master_dtype

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# How many zeros off the diagonal of s B a joint weight may hold; above it projections stay apart.
MAX_ZERO_SHARE = 0.07  # of the weight, where products are bound by arithmetic
MAX_ZERO_BYTES = 8 << 20  # on a GPU, where decoding is bound by memory and by the number of launches


@dataclass(frozen=True)
class LoraSpec:
    """Which projections have an adapter, of which rank; the change is scaled by s = alpha / rank."""

    rank: int
    alpha: float
    dropout: float = 0.0
    targets: tuple[str, ...] = ALL_PROJECTIONS

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class Mode:
    """How a forward pass treats the adapters.

    use_adapter: False gives the reference policy. dropout_seed: None for no dropout; otherwise the masks are a function
    of this seed and the layer alone, so that a pass that is recomputed or repeated sees the same masks.
    """

    use_adapter: bool = True
    dropout_seed: int | None = None


POLICY, REFERENCE = Mode(), Mode(use_adapter=False)


@dataclass(frozen=True)
class Build:
    """How every layer is built: adapters, if any; whether the weights themselves are trained; dtype and device."""

    lora: LoraSpec | None
    train_weights: bool
    dtype: torch.dtype
    device: torch.device | str

    def weight(self, *shape: int) -> MasterWeight:
        """Make a weight of this shape, all zeros."""
        return MasterWeight(*shape, trained=self.train_weights, dtype=self.dtype, device=self.device)


class Linear(nn.Module):
    """Projections of one input as one product; `parts` maps each projection's name to its number of outputs."""

    spare_columns = 0  # see LoraLinear

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, build: Build):
        super().__init__()
        self.out_slices = _slices(parts)
        self.weight = build.weight(sum(parts.values()), in_features)
        self.bias = build.weight(sum(parts.values())) if bias else None
        self.prepacked: torch.Tensor | None = None  # see Decoder.prepacked

    def base(self, part: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return views of a projection's own weight [O, I] and bias [O], to read and write."""
        rows = self.out_slices[part]
        return self.weight.source[rows], None if self.bias is None else self.bias.source[rows]

    def forward(self, x_TI: torch.Tensor, mode: Mode = POLICY) -> torch.Tensor:
        bias_O = None if self.bias is None else self.bias()
        if self.prepacked is not None:
            return linear(x_TI, self.prepacked, bias_O)
        return Product.apply(x_TI, self.weight(), bias_O)

    def prepack(self) -> None:
        self.prepacked = prepack(self.weight.value)


class LoraLinear(nn.Module):
    """`Linear` with frozen weights and an adapter on some of its parts.

    weight: [O, I + R]; the columns from I on hold s B, one block per adapted part and zeros elsewhere.
    A: [R, I], the adapted parts below one another. B: one [O_part, r] per adapted part.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, build: Build):
        super().__init__()
        self.in_features, self.lora, self.out_slices = in_features, build.lora, _slices(parts)
        adapted = [name for name in parts if name in build.lora.targets]
        self.rank_slices = _slices(dict.fromkeys(adapted, build.lora.rank))
        rank, out_features = len(adapted) * build.lora.rank, sum(parts.values())
        where = {"dtype": build.dtype, "device": build.device}
        self.register_buffer("weight", torch.zeros(out_features, in_features + rank, **where))
        self.register_buffer("bias", torch.zeros(out_features, **where) if bias else None)
        self.A = MasterWeight(rank, in_features, trained=True, **where)
        self.B = nn.ParameterDict()
        for name in adapted:
            B_OR = torch.zeros(parts[name], build.lora.rank, dtype=master_dtype(build.dtype), device=build.device)
            self.B[name] = nn.Parameter(B_OR)
        self.number = 0  # among the model's adapted layers: makes dropout masks differ; set by the model
        self.prepacked: tuple[torch.Tensor, torch.Tensor] | None = None  # A and weight: see Decoder.prepacked

    @property
    def spare_columns(self) -> int:
        """Columns that its input should have to the right while decoding: `append_product` writes x Aᵀ there."""
        return len(self.A.value) if self.prepacked else 0

    def base(self, part: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return views of a projection's own weight [O, I] and bias [O], to read and write."""
        rows = self.out_slices[part]
        return self.weight[rows, : self.in_features], None if self.bias is None else self.bias[rows]

    def adapter(self, part: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a projection's master A [r, I] and B [O, r]; call `refresh` after writing."""
        return self.A.source[self.rank_slices[part]], self.B[part].data

    def forward(self, x_TI: torch.Tensor, mode: Mode = POLICY) -> torch.Tensor:
        if not mode.use_adapter:
            return linear(x_TI, self.weight[:, : self.in_features], self.bias)
        if self.prepacked is not None:
            A_RI, weight_OX = self.prepacked
            return linear(append_product(x_TI, A_RI), weight_OX, self.bias)  # Eq. 12
        seed = None
        if mode.dropout_seed is not None and self.lora.dropout:
            seed = mode.dropout_seed * 1_000_003 + self.number
        return _AugmentedLinear.apply(x_TI, self.A.master, self, seed, *(self.B[part] for part in self.rank_slices))

    def prepack(self) -> None:
        self.prepacked = prepack(self.A.value), prepack(self.weight)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters into the tensors that the products use; call it after every change of the masters."""
        self.A.refresh()
        for part, columns in self.rank_slices.items():
            sB_OR = self.lora.scale * self.B[part]
            self.weight[self.out_slices[part], self.in_features :][:, columns] = sB_OR

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Draw A from ±1/sqrt(I), as PEFT does, and set B to zero: the policy starts as the reference."""
        for part in self.rank_slices:
            A, B = self.adapter(part)
            uniform = torch.rand(A.shape, generator=generator, dtype=A.dtype)
            A.copy_((uniform * 2 - 1) / self.in_features**0.5)
            B.zero_()
        self.refresh()


class _AugmentedLinear(torch.autograd.Function):
    """Eq. 12 and its gradient.

    With g = dL/dy, one product g [W | sB] gives the base part of dL/dx and dh = dL/d(x Aᵀ); then dL/dA = dhᵀ x,
    dL/dB = s gᵀ h, dL/dx += dh A. The base weight's gradient is never computed. Slow twin: kernels/reference.py
    `lora_linear`.
    """

    @staticmethod
    def forward(ctx, x_TI, A_master, layer, seed, *B_masters):
        h_TR = linear(_dropped(x_TI, layer, seed), layer.A.value)
        ctx.save_for_backward(x_TI, h_TR)  # x is shared by all projections of one input
        ctx.layer, ctx.seed = layer, seed
        return linear(torch.cat([x_TI, h_TR], dim=-1), layer.weight, layer.bias)  # Eq. 12

    @staticmethod
    def backward(ctx, g_TO):
        (x_TI, h_TR), layer, seed = ctx.saved_tensors, ctx.layer, ctx.seed
        dx_TI, dh_TR = linear(g_TO, layer.weight.T).split([layer.in_features, h_TR.shape[-1]], dim=-1)
        dA_RI = weight_gradient(dh_TR, _dropped(x_TI, layer, seed))
        dB = []
        for part, columns in layer.rank_slices.items():
            dB_OR = weight_gradient(g_TO[:, layer.out_slices[part]], h_TR[:, columns])
            dB.append(layer.lora.scale * dB_OR.to(layer.A.master.dtype))
        if seed is None:
            dx_TI = add_product(dx_TI, dh_TR, layer.A.value.T)
        else:
            dx_TI = dx_TI + _dropped(linear(dh_TR, layer.A.value.T), layer, seed)
        return dx_TI, dA_RI.to(layer.A.master.dtype), None, None, *dB


def _dropped(x_TI: torch.Tensor, layer: LoraLinear, seed: int | None) -> torch.Tensor:
    """Apply the dropout mask of this seed, which is the same whenever it is made; None for no dropout."""
    if seed is None:
        return x_TI
    probability = layer.lora.dropout
    generator = torch.Generator(x_TI.device).manual_seed(seed % 2**63)
    keep_TI = torch.rand(x_TI.shape, generator=generator, device=x_TI.device) >= probability
    return x_TI * (keep_TI.to(x_TI.dtype) / (1 - probability))


def make_linear(in_features: int, parts: dict[str, int], bias: bool, build: Build) -> Linear | LoraLinear:
    """Make the layer for these projections: with an adapter if one of them has one."""
    adapted = build.lora is not None and any(name in build.lora.targets for name in parts)
    return (LoraLinear if adapted else Linear)(in_features, parts, bias, build)


class JointLinear(nn.Module):
    """Several projections of one input: as one product if the zeros in s B waste little, else as one each."""

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, build: Build):
        super().__init__()
        out_features = sum(parts.values())
        adapted = [name for name in parts if build.lora and name in build.lora.targets]
        zeros = sum((out_features - parts[name]) * build.lora.rank for name in adapted)
        is_joint = few_zeros(zeros, out_features * in_features, build.dtype, build.device)
        products = [parts] if is_joint else [{name: size} for name, size in parts.items()]
        self.linears = nn.ModuleList(make_linear(in_features, product, bias, build) for product in products)
        self.sizes = list(parts.values())

    @property
    def spare_columns(self) -> int:
        """Spare columns of the input that its products share: they use them one after the other."""
        return min(layer.spare_columns for layer in self.linears)

    def forward(self, x_TI: torch.Tensor, mode: Mode = POLICY) -> tuple[torch.Tensor, ...]:
        if len(self.linears) == 1:
            return self.linears[0](x_TI, mode).split(self.sizes, dim=-1)
        return tuple(layer(x_TI, mode) for layer in self.linears)


def few_zeros(zeros: int, weights: int, dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether a joint product of so many weights is worth its zeros."""
    is_few = zeros <= MAX_ZERO_SHARE * weights
    if torch.device(device).type == "cuda":
        return is_few or zeros * dtype.itemsize <= MAX_ZERO_BYTES
    return is_few


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    """Lay parts of these sizes one after the other."""
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices
