"""Linear layers, and LoRA (2106.09685) as one matrix product over an augmented inner dimension.

    y = x Wᵀ + s (x Aᵀ) Bᵀ + b   =   [x | x Aᵀ] [W | s B]ᵀ + b                                    Eq. 15

The right-hand form adds the adapter's small change to the large base term *inside* the product, where sums are float32.
In bf16, the left-hand form rounds both terms before it adds them, and merging rounds W + s B A. Both lose most of an
update while it is small. The price of the right-hand form is R more columns. The reference policy is then a view of W.
Counterpart of `LoraLinear` in minimal.py, which forms W + s B A, and its copy of the model as reference.

Several projections of one input may take several products: joint_linear.py. While a model samples, its layers have
other forms, made from these: sampling_forms.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo.engine.device.products import Product, add_product, linear, weight_gradient
from grpo.engine.model.build import Build, make_matrix, make_weight, sharing_inputs
from grpo.engine.model.int8_weight import Int8Product, Int8Rows, Int8Weight, dense, frozen_linear
from grpo.engine.model.master_weight import master_dtype


@dataclass(frozen=True)
class Mode:
    """How a forward pass treats the adapters.

    use_adapter: False gives the reference policy. dropout_seed: None for no dropout; otherwise the masks depend only on
    this seed and the module's number, so that a recomputed or repeated pass has the same masks.
    """

    use_adapter: bool = True
    dropout_seed: int | None = None


POLICY = Mode()
REFERENCE = Mode(use_adapter=False)


class Linear(nn.Module):
    """y = x Wᵀ + b: one product for several projections of one input, called parts.

    sizes: the number of outputs of each part. num_columns: of the weight, to the right of W; a LoraLinear has some.
    input_shard: this process among those that share the inputs. The first one of them adds the bias.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build, num_columns: int = 0):
        super().__init__()
        out_features = sum(sizes.values())
        self.in_features = in_features
        self.out_slices = _slices(sizes)
        self.rank_slices: dict[str, slice] = {}  # the rows of A that belong to each adapted part
        self.input_shard = sharing_inputs(build, sizes)
        self.weight = make_matrix(build, out_features, in_features, num_columns, self.input_shard)
        trained = build.train_weights and not num_columns
        self.bias = make_weight(build, out_features, trained=trained) if bias else None

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> Tensor:
        product = Int8Product if isinstance(self.weight, Int8Weight) else Product
        return product.apply(x_TI, self.weight(), self.added_bias())

    def forward_parts(self, x_TI: Tensor, mode: Mode) -> tuple[Tensor, ...]:
        """Return the output of each part."""
        return self.split(self(x_TI, mode))

    def split(self, y_TO: Tensor) -> tuple[Tensor, ...]:
        """Split the outputs, or their gradients, into one tensor per part."""
        sizes = [rows.stop - rows.start for rows in self.out_slices.values()]
        return y_TO.split(sizes, dim=-1)

    def added_bias(self) -> Tensor | None:
        """Return the bias, if this process adds it."""
        if self.bias is None or self.input_shard.rank:
            return None
        return self.bias()

    def base(self, part: str) -> tuple[Tensor | Int8Rows, Tensor | None]:
        """Return views of a part's own weight [O, I] and bias [O], to read and write."""
        rows = self.out_slices[part]
        bias_O = None if self.bias is None else self.bias.stored[rows]
        weight_OI = self.weight.base_rows(rows)
        return weight_OI, bias_O


class LoraLinear(Linear):
    """Eq. 15: `Linear` with frozen weights and an adapter on some of its parts.

    A: [R, I], with the rows of all adapted parts, one part after the other. B: one [O_part, r] per adapted part.
    weight: [O, I + R]. The columns from I on hold s B: a block for each adapted part, and zeros elsewhere.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build):
        assert build.lora is not None
        rank = build.lora.rank
        adapted = [part for part in sizes if part in build.lora.targets]
        super().__init__(in_features, sizes, bias, build, self.count_columns(rank, len(adapted)))
        self.lora = build.lora
        self.rank_slices = _slices(dict.fromkeys(adapted, rank))
        self.A = make_weight(build, rank * len(adapted), in_features, trained=True)
        self.B = nn.ParameterDict()
        for part in adapted:
            zeros_OR = torch.zeros(sizes[part], rank, dtype=master_dtype(build.dtype), device=build.device)
            self.B[part] = nn.Parameter(zeros_OR)
        self.number = 0  # among the model's LoraLinears, set by the model; makes their dropout masks differ

    @staticmethod
    def count_columns(rank: int, num_adapted: int) -> int:
        """Return how many columns the weight has to the right of W."""
        return rank * num_adapted

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> Tensor:
        if not mode.use_adapter:
            return self.reference(x_TI)
        seed = self.dropout_seed(mode)
        return _AugmentedLinear.apply(x_TI, self.A.master, self, seed, *self.B.values())

    def reference(self, x_TI: Tensor) -> Tensor:
        """Compute x Wᵀ + b."""
        return frozen_linear(x_TI, self.weight.base_rows(), self.added_bias())

    def dropout_seed(self, mode: Mode) -> int | None:
        """Return the seed of this layer's mask; None for no dropout."""
        if mode.dropout_seed is None or not self.lora.dropout:
            return None
        return mode.dropout_seed * 1_000_003 + self.number

    def dropped(self, x_TI: Tensor, seed: int | None) -> Tensor:
        """Apply the dropout mask of this seed, the same one at every call. seed: None for no dropout.

        Processes that share the inputs apply their parts of one mask.
        """
        if seed is None:
            return x_TI
        probability = self.lora.dropout
        width = x_TI.shape[1] * self.input_shard.world
        generator = torch.Generator(x_TI.device).manual_seed(seed % 2**63)
        drawn_TI = torch.rand(len(x_TI), width, generator=generator, device=x_TI.device)
        own_TI = drawn_TI[:, self.input_shard.part(width)]
        keep_TI = own_TI >= probability
        return x_TI * (keep_TI.to(x_TI.dtype) / (1 - probability))

    def adapter(self, part: str) -> tuple[Tensor, Tensor]:
        """Return views of a part's master A [r, I] and B [O, r]; call `refresh` after writing."""
        own = self.rank_slices[part]
        return self.A.stored[own], self.B[part].data

    def sB_of(self, part: str) -> Tensor:
        """Return a view of a part's block of s B in the weight."""
        beside_OR = self.weight.tail_rows(self.out_slices[part])
        return beside_OR[:, self.rank_slices[part]]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters into the tensors that the products use; call it after every change of the masters."""
        self.A.refresh()
        self.refresh_sB()

    @torch.no_grad()
    def refresh_sB(self) -> None:
        """Copy s B into the weight: `refresh` without A."""
        for part in self.rank_slices:
            sB_OR = self.lora.scale * self.B[part]
            self.sB_of(part).copy_(sB_OR)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Draw A from ±1/sqrt(I), as PEFT does, and set B to zero: the policy starts as the reference."""
        width = self.in_features * self.input_shard.world
        own = self.input_shard.part(width)
        for part in self.rank_slices:
            A, B = self.adapter(part)
            uniform = torch.rand(len(A), width, generator=generator, dtype=A.dtype)  # the same in all processes
            centred = uniform[:, own] * 2 - 1
            A.copy_(centred / width**0.5)
            B.zero_()
        self.refresh()


class _AugmentedLinear(torch.autograd.Function):
    """Eq. 15 and its gradient.

    With g = dL/dy, one product g [W | sB] gives the base part of dL/dx and dh = dL/d(x Aᵀ); then dL/dA = dhᵀ x,
    dL/dB = s gᵀ h, dL/dx += dh A. The base weight's gradient is never computed. Slow twin: kernels/reference.py
    `lora_linear`.
    """

    @staticmethod
    def forward(ctx, x_TI, A_master, module, seed, *B_masters):
        h_TR = linear(module.dropped(x_TI, seed), module.A.value)
        ctx.save_for_backward(x_TI, h_TR)  # x is shared by all projections of one input
        ctx.module = module
        ctx.seed = seed
        augmented_TX = torch.cat([x_TI, h_TR], dim=-1)
        return frozen_linear(augmented_TX, module.weight.all_rows(), module.added_bias())  # Eq. 15

    @staticmethod
    def backward(ctx, g_TO):
        x_TI, h_TR = ctx.saved_tensors
        module, seed = ctx.module, ctx.seed
        needs_dx = ctx.needs_input_grad[0]
        dx_TI, dh_TR = input_gradients(module, g_TO, needs_dx)
        g_of_parts = module.split(g_TO)
        return adapter_gradients(module, seed, x_TI, h_TR, g_of_parts, dx_TI, dh_TR.contiguous())


def input_gradients(
    module: LoraLinear, g_TO: Tensor, needs_dx: bool, rows: slice = slice(None)
) -> tuple[Tensor | None, Tensor]:
    """Return the base part of dL/dx, and dL/d(x Aᵀ), of a product with these rows of the weight.

    needs_dx: below the first adapted layer nobody needs dL/dx, and it is None.
    """
    if not needs_dx:
        sB_OR = module.weight.tail_rows(rows).contiguous()
        return None, linear(g_TO, sB_OR.T)
    augmented_OX = dense(module.weight.all_rows(rows))
    both_TX = linear(g_TO, augmented_OX.T)
    I = module.in_features
    return both_TX[:, :I], both_TX[:, I:]


def adapter_gradients(
    module: LoraLinear,
    seed: int | None,
    x_TI: Tensor,
    h_TR: Tensor,
    gradients: Sequence[Tensor],
    dx_TI: Tensor | None,
    dh_TR: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, A and all B, in the order of a Function's inputs.

    gradients: of the outputs of each part. dx_TI: the base part of dL/dx, changed in place; None if nobody needs it.
    """
    A_RI = module.A.value
    exact_dtype = master_dtype(A_RI.dtype)
    dA_RI = weight_gradient(dh_TR, module.dropped(x_TI, seed))
    g_of_part = dict(zip(module.out_slices, gradients, strict=True))
    dB = []
    for part, columns in module.rank_slices.items():
        dB_OR = weight_gradient(g_of_part[part], h_TR[:, columns])
        dB.append(module.lora.scale * dB_OR.to(exact_dtype))
    if dx_TI is not None and seed is None:
        dx_TI = add_product(dx_TI, dh_TR, A_RI.T)
    elif dx_TI is not None:
        change_TI = linear(dh_TR, A_RI.T)
        change_TI = module.dropped(change_TI, seed)
        dx_TI = dx_TI + change_TI
    return dx_TI, dA_RI.to(exact_dtype), None, None, *dB


def make_linear(in_features: int, sizes: dict[str, int], bias: bool, build: Build) -> Linear:
    """Make the module for these projections of one input, with an adapter if one of them is a target."""
    if build.lora is not None and any(name in build.lora.targets for name in sizes):
        return LoraLinear(in_features, sizes, bias, build)
    return Linear(in_features, sizes, bias, build)


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    """Lay parts of these sizes one after the other."""
    slices = {}
    start = 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices
