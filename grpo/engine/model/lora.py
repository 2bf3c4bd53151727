"""Linear layers, and LoRA (2106.09685) as one matrix product over an augmented inner dimension.

    y = x Wᵀ + s (x Aᵀ) Bᵀ + b   =   [x | x Aᵀ] [W | s B]ᵀ + b                                    Eq. 15

The right-hand form adds the adapter's small change to the large base term *inside* the product, where sums are float32.
In bf16, the left-hand form rounds both terms before it adds them, and merging rounds W + s B A. Both lose most of an
update while it is small. The price of the right-hand form is R more columns. The reference policy is then a view of W.
Replaces `LoraLinear` of minimal.py, which forms W + s B A, and its copy of the model as reference.

While a model samples, its layers have other forms, made from these: sampling_forms.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from grpo.engine.device.products import Product, add_product, linear, weight_gradient
from grpo.engine.model.build import Build, ModuleList, make_matrix, make_weight, sharing_inputs
from grpo.engine.model.int8_weight import Int8Product, Int8Rows, Int8Weight, dense, frozen_linear
from grpo.engine.model.master_weight import master_dtype

# A joint weight may hold this many zeros off the diagonal of s B; with more, its projections stay apart.
MAX_ZERO_SHARE = 0.07  # of the weight, if products are bound by arithmetic
MAX_ZERO_BYTES = 8 << 20  # on a GPU, where decoding is bound by memory and by the number of launches


@dataclass(frozen=True)
class Mode:
    """How a forward pass treats the adapters.

    use_adapter: False gives the reference policy. dropout_seed: None for no dropout; otherwise the masks depend only on
    this seed and the module's number, so that a recomputed or repeated pass has the same masks.
    """

    use_adapter: bool = True
    dropout_seed: int | None = None


POLICY, REFERENCE = Mode(), Mode(use_adapter=False)


class Linear(nn.Module):
    """y = x Wᵀ + b: one product for several projections of one input, called parts.

    sizes: the number of outputs of each part. num_columns: of the weight, to the right of W; a LoraLinear has some.
    inputs: the processes that share the inputs. The first one of them adds the bias.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build, num_columns: int = 0):
        super().__init__()
        out_features = sum(sizes.values())
        self.in_features, self.out_slices, self.inputs = in_features, _slices(sizes), sharing_inputs(build, sizes)
        self.rank_slices: dict[str, slice] = {}  # the rows of A that belong to each adapted part
        self.weight = make_matrix(build, out_features, in_features, num_columns, self.inputs)
        trained = build.train_weights and not num_columns
        self.bias = make_weight(build, out_features, trained=trained) if bias else None

    def forward(self, x_TI: torch.Tensor, mode: Mode = POLICY) -> torch.Tensor:
        outputs = self.products(x_TI, mode)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def forward_parts(self, x_TI: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, ...]:
        """Return the output of each part."""
        return self.split(self.products(x_TI, mode))

    def products(self, x_TI: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, ...]:
        """Return the output of each product; here there is one."""
        product = Int8Product if isinstance(self.weight, Int8Weight) else Product
        return (product.apply(x_TI, self.weight(), self.added_bias()),)

    def split(self, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Split the outputs of the products, or their gradients, into one tensor per part."""
        sizes = [rows.stop - rows.start for rows in self.out_slices.values()]
        return outputs[0].split(sizes, dim=-1) if len(outputs) == 1 else outputs

    def added_bias(self) -> torch.Tensor | None:
        """Return the bias, if this process adds it."""
        return None if self.bias is None or self.inputs.rank else self.bias()

    def base(self, part: str) -> tuple[torch.Tensor | Int8Rows, torch.Tensor | None]:
        """Return views of a part's own weight [O, I] and bias [O], to read and write."""
        rows = self.out_slices[part]
        return self.weight.base_rows(rows), None if self.bias is None else self.bias.source[rows]


class LoraLinear(Linear):
    """Eq. 15: `Linear` with frozen weights and an adapter on some of its parts.

    A: [R, I], with the rows of all adapted parts, one part after the other. B: one [O_part, r] per adapted part.
    weight: [O, I + R]. The columns from I on hold s B: a block for each adapted part, and zeros elsewhere.
    separate: all parts are adapted, and each is a product of its own with its part of x Aᵀ. Then weight is [O, I + r],
    and has no zeros.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build, separate: bool = False):
        assert build.lora is not None
        adapted, rank = [part for part in sizes if part in build.lora.targets], build.lora.rank
        num_columns = rank if separate else rank * len(adapted)
        super().__init__(in_features, sizes, bias, build, num_columns)
        self.lora, self.num_columns = build.lora, num_columns
        self.rank_slices = _slices(dict.fromkeys(adapted, rank))
        self.product_rows = list(self.out_slices.values()) if separate else [slice(0, sum(sizes.values()))]
        self.A = make_weight(build, rank * len(adapted), in_features, trained=True)
        self.B, exact = nn.ParameterDict(), master_dtype(build.dtype)
        for part in adapted:
            self.B[part] = nn.Parameter(torch.zeros(sizes[part], rank, dtype=exact, device=build.device))
        self.number = 0  # among the model's LoraLinears, set by the model; makes their dropout masks differ

    def products(self, x_TI: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, ...]:
        if not mode.use_adapter:
            return (frozen_linear(x_TI, self.weight.base_rows(), self.added_bias()),)
        seed = None
        if mode.dropout_seed is not None and self.lora.dropout:
            seed = mode.dropout_seed * 1_000_003 + self.number
        return _AugmentedLinear.apply(x_TI, self.A.master, self, seed, *(self.B[part] for part in self.rank_slices))

    def multiply(
        self, inputs: Iterable[torch.Tensor], weights: Iterable[torch.Tensor | Int8Rows]
    ) -> tuple[torch.Tensor, ...]:
        """Multiply each [x | its part of x Aᵀ] with its [W | s B], outside autograd."""
        bias_O = self.added_bias()
        biases = [None if bias_O is None else bias_O[rows] for rows in self.product_rows]
        return tuple(map(frozen_linear, inputs, weights, biases))  # Eq. 15

    def weights(self) -> list[torch.Tensor | Int8Rows]:
        """Return [W | s B] of each product."""
        return [self.weight.all_rows(rows) for rows in self.product_rows]

    def dropped(self, x_TI: torch.Tensor, seed: int | None) -> torch.Tensor:
        """Apply the dropout mask of this seed, the same one at every call. seed: None for no dropout.

        Processes that share the inputs apply their parts of one mask.
        """
        if seed is None:
            return x_TI
        probability, width = self.lora.dropout, x_TI.shape[1] * self.inputs.world
        generator = torch.Generator(x_TI.device).manual_seed(seed % 2**63)
        drawn_TI = torch.rand(len(x_TI), width, generator=generator, device=x_TI.device)
        keep_TI = drawn_TI[:, self.inputs.part(width)] >= probability
        return x_TI * (keep_TI.to(x_TI.dtype) / (1 - probability))

    def adapter(self, part: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a part's master A [r, I] and B [O, r]; call `refresh` after writing."""
        return self.A.source[self.rank_slices[part]], self.B[part].data

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters into the tensors that the products use; call it after every change of the masters."""
        self.A.refresh()
        for part, columns in self.rank_slices.items():
            own = columns if len(self.product_rows) == 1 else slice(None)
            self.weight.tail_rows(self.out_slices[part])[:, own] = self.lora.scale * self.B[part]

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Draw A from ±1/sqrt(I), as PEFT does, and set B to zero: the policy starts as the reference."""
        width = self.in_features * self.inputs.world
        for part in self.rank_slices:
            A, B = self.adapter(part)
            uniform = torch.rand(len(A), width, generator=generator, dtype=A.dtype)[:, self.inputs.part(width)]
            A.copy_((uniform * 2 - 1) / width**0.5)
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
        ctx.module, ctx.seed = module, seed
        inputs = (torch.cat([x_TI, h_TX], dim=-1) for h_TX in h_TR.split(module.num_columns, dim=-1))
        return module.multiply(inputs, module.weights())

    @staticmethod
    def backward(ctx, *gradients):
        (x_TI, h_TR), module, seed = ctx.saved_tensors, ctx.module, ctx.seed
        lora, A_RI, exact = module.lora, module.A.value, module.A.master.dtype
        dx_TI, dh_TR = _input_gradients(module, gradients, ctx.needs_input_grad[0])
        dA_RI = weight_gradient(dh_TR, module.dropped(x_TI, seed))
        g_of_part = dict(zip(module.out_slices, module.split(gradients), strict=True))
        dB = []
        for part, columns in module.rank_slices.items():
            dB_OR = weight_gradient(g_of_part[part], h_TR[:, columns])
            dB.append(lora.scale * dB_OR.to(exact))
        if dx_TI is not None and seed is None:
            dx_TI = add_product(dx_TI, dh_TR, A_RI.T)
        elif dx_TI is not None:
            dx_TI = dx_TI + module.dropped(linear(dh_TR, A_RI.T), seed)
        return dx_TI, dA_RI.to(exact), None, None, *dB


def _input_gradients(
    module: LoraLinear, gradients: tuple[torch.Tensor, ...], needs_dx: bool
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the base part of dL/dx (None below the first adapted layer, where nobody needs it), and dL/d(x Aᵀ)."""
    dx_TI, dh_TR = None, gradients[0].new_empty(len(gradients[0]), len(module.A.value))
    places = dh_TR.split(module.num_columns, dim=-1)
    for g_TO, rows, dh_TX in zip(gradients, module.product_rows, places, strict=True):
        if needs_dx:
            both_TX = linear(g_TO, dense(module.weight.all_rows(rows)).T)
            base_TI, adapter_TX = both_TX.split([module.in_features, module.num_columns], dim=-1)
            dx_TI = base_TI if dx_TI is None else dx_TI.add_(base_TI)
        else:
            adapter_TX = linear(g_TO, module.weight.tail_rows(rows).contiguous().T)
        dh_TX.copy_(adapter_TX)
    return dx_TI, dh_TR


def make_linear(
    in_features: int, sizes: dict[str, int], bias: bool, build: Build, separate: bool = False
) -> Linear | LoraLinear:
    """Make the module for these projections of one input, with an adapter if one of them is a target."""
    if build.lora is not None and any(name in build.lora.targets for name in sizes):
        return LoraLinear(in_features, sizes, bias, build, separate)
    return Linear(in_features, sizes, bias, build)


class JointLinear(nn.Module):
    """Several projections of one input, which share one x Aᵀ: in one product, or each adapted one in its own.

    `layout` decides. The masters have the same order either way, so checkpoints do not depend on it.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build):
        super().__init__()
        self.names = list(sizes)
        self.linears = ModuleList(
            make_linear(in_features, some, bias, build, separate)
            for some, separate in layout(in_features, sizes, build)
        )

    def forward(self, x_TI: torch.Tensor, mode: Mode = POLICY) -> tuple[torch.Tensor, ...]:
        outputs: dict[str, torch.Tensor] = {}
        for module in self.linears:
            outputs |= zip(module.out_slices, module.forward_parts(x_TI, mode), strict=True)
        return tuple(outputs[name] for name in self.names)


def layout(in_features: int, sizes: dict[str, int], build: Build) -> list[tuple[dict[str, int], bool]]:
    """Return the modules of several projections of one input: the parts of each, and whether its products are separate.

    One product for all is best if the zeros in s B waste little. Otherwise the adapted projections are separate
    products, and those without an adapter are another module.
    """
    out_features, rank = sum(sizes.values()), build.lora.rank if build.lora else 0
    adapted = {name: size for name, size in sizes.items() if build.lora and name in build.lora.targets}
    others = {name: size for name, size in sizes.items() if name not in adapted}
    zeros = sum((out_features - size) * rank for size in adapted.values())
    if few_zeros(zeros, out_features * in_features, build.dtype, build.device):
        return [(sizes, False)]
    return [(some, some is adapted) for some in (adapted, others) if some]


def few_zeros(zeros: int, weights: int, dtype: torch.dtype, device: torch.device | str) -> bool:
    """Return whether a joint weight of `weights` numbers has few enough zeros to be the faster way."""
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
