"""Several projections of one input, which share one x Aᵀ: in one product, or each adapted one in its own.

Counterpart of the calls of q_proj, k_proj and v_proj, or of gate_proj and up_proj, in minimal.py: fewer products.

One product for all is best if the zeros in s B waste little. Otherwise the adapted projections are separate products,
and those without an adapter are another module. The masters have the same order either way, so checkpoints do not
depend on it.
"""

import torch
from torch import Tensor, nn

from grpo.engine.device.products import linear
from grpo.engine.model.build import Build, ModuleList
from grpo.engine.model.int8_weight import frozen_linear
from grpo.engine.model.lora import POLICY, Linear, LoraLinear, Mode, adapter_gradients, input_gradients, make_linear

# A joint weight may hold this many zeros off the diagonal of s B; with more, its projections stay apart.
MAX_ZERO_SHARE = 0.07  # of the weight, if products are bound by arithmetic
MAX_ZERO_BYTES = 8 << 20  # on a GPU, where decoding is bound by memory and by the number of launches


class JointLinear(nn.Module):
    """y = x Wᵀ + b for several projections, with adapters on some of them."""

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build):
        super().__init__()
        self.names = list(sizes)
        self.linears = ModuleList(make_linears(in_features, sizes, bias, build))

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> tuple[Tensor, ...]:
        outputs: dict[str, Tensor] = {}
        for module in self.linears:
            parts = module.forward_parts(x_TI, mode)
            named = zip(module.out_slices, parts, strict=True)
            outputs.update(named)
        return tuple(outputs[name] for name in self.names)


def make_linears(in_features: int, sizes: dict[str, int], bias: bool, build: Build) -> list[Linear]:
    """Make the modules for several projections of one input."""
    lora = build.lora
    if lora is None:
        return [Linear(in_features, sizes, bias, build)]
    adapted = {name: size for name, size in sizes.items() if name in lora.targets}
    out_features = sum(sizes.values())
    other_rows = [out_features - size for size in adapted.values()]  # zeros in each column of s B
    zeros = lora.rank * sum(other_rows)
    weights = out_features * in_features
    if few_zeros(zeros, weights, build.dtype, build.device):
        return [make_linear(in_features, sizes, bias, build)]
    linears: list[Linear] = [SeparateLoraLinear(in_features, adapted, bias, build)]
    others = {name: size for name, size in sizes.items() if name not in adapted}
    if others:
        linears.append(Linear(in_features, others, bias, build))
    return linears


def few_zeros(zeros: int, weights: int, dtype: torch.dtype, device: torch.device | str) -> bool:
    """Return whether a joint weight of `weights` numbers has few enough zeros to be the faster way."""
    is_few = zeros <= MAX_ZERO_SHARE * weights
    if torch.device(device).type == "cuda":
        return is_few or zeros * dtype.itemsize <= MAX_ZERO_BYTES
    return is_few


class SeparateLoraLinear(LoraLinear):
    """Eq. 15 for several parts, each adapted, and each a product of its own with its part of x Aᵀ.

    weight: [O, I + r], without zeros.
    """

    @staticmethod
    def count_columns(rank: int, num_adapted: int) -> int:
        return rank

    def sB_of(self, part: str) -> Tensor:
        return self.weight.tail_rows(self.out_slices[part])

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> Tensor:
        return torch.cat(self.forward_parts(x_TI, mode), dim=-1)

    def forward_parts(self, x_TI: Tensor, mode: Mode) -> tuple[Tensor, ...]:
        if not mode.use_adapter:
            return self.split(self.reference(x_TI))
        seed = self.dropout_seed(mode)
        return _SeparateProducts.apply(x_TI, self.A.master, self, seed, *self.B.values())

    def biases(self) -> list[Tensor | None]:
        """Return the bias of each part."""
        bias_O = self.added_bias()
        if bias_O is None:
            return [None] * len(self.out_slices)
        return [bias_O[rows] for rows in self.out_slices.values()]


class _SeparateProducts(torch.autograd.Function):
    """Eq. 15 and its gradient, part by part; as _AugmentedLinear otherwise."""

    @staticmethod
    def forward(ctx, x_TI, A_master, module, seed, *B_masters):
        h_TR = linear(module.dropped(x_TI, seed), module.A.value)
        ctx.save_for_backward(x_TI, h_TR)
        ctx.module = module
        ctx.seed = seed
        outputs = []
        for part, bias_O in zip(module.out_slices, module.biases(), strict=True):
            h_TX = h_TR[:, module.rank_slices[part]]
            augmented_TX = torch.cat([x_TI, h_TX], dim=-1)
            weight_OX = module.weight.all_rows(module.out_slices[part])
            y_TO = frozen_linear(augmented_TX, weight_OX, bias_O)  # Eq. 15
            outputs.append(y_TO)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        x_TI, h_TR = ctx.saved_tensors
        module, seed = ctx.module, ctx.seed
        needs_dx = ctx.needs_input_grad[0]
        dx_TI = None
        dh_TR = torch.empty_like(h_TR)
        for g_TO, part in zip(gradients, module.out_slices, strict=True):
            rows = module.out_slices[part]
            columns = module.rank_slices[part]
            base_TI, dh_TX = input_gradients(module, g_TO, needs_dx, rows)
            dh_TR[:, columns] = dh_TX
            if dx_TI is None:
                dx_TI = base_TI
            elif base_TI is not None:
                dx_TI.add_(base_TI)
        return adapter_gradients(module, seed, x_TI, h_TR, gradients, dx_TI, dh_TR)
