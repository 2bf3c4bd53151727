"""Linear layers, and LoRA (2106.09685) as one matrix product over an augmented inner dimension.

    y = x Wᵀ + s (x Aᵀ) Bᵀ + b   =   [x | x Aᵀ] [W | s B]ᵀ + b                                    Eq. 15

The right-hand form adds the adapter's small change to the large base term *inside* the product, where sums are float32.
In bf16, the left-hand form rounds both terms before it adds them, and merging rounds W + s B A. Both lose most of an
update while it is small. The price of the right-hand form is R more columns. The reference policy is then a view of W.
Counterpart of `LoraLinear` in minimal.py, which forms W + s B A, and its copy of the model as reference.

A layer computes several projections of one input: q, k and v; or gate and up; or o or down alone. They share x Aᵀ.
One product for all of them is best if the zeros in s B waste little. Otherwise each has a product of its own. The
masters have the same order either way, so checkpoints do not depend on it.

A step of decoding multiplies few rows by large weights. So a layer prepacks its weights while it samples (`sampling`).
What it computes is the same, Eq. 15, bit for bit, with exceptions in float32 on a CPU: kernels in C, where there are
any, add in another order, and a layer with an adapter multiplies by a merged copy, W + s B A. float32 has the digits
for that. The copy saves x Aᵀ and a copy of x in every product: a tenth of generation if the layers are thin. Log-probs
of sampler and trainer then differ by float32 rounding. Weights in few bits (`base_weights`) are never merged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo.algorithm.schema import POLICY, Mode
from grpo.engine.device import ops
from grpo.engine.device.ops import Prepacked, SpareColumns, prepack
from grpo.engine.device.products import Product, add_product, linear, weight_gradient
from grpo.engine.device.quantised import QuantisedRows
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.weight import QuantisedWeight, Weight, dense, master_dtype
from grpo.engine.parallel.shard import ALONE

# A product for several projections may hold this many zeros off the diagonal of s B; with more, each has its own.
MAX_ZERO_SHARE = 0.07  # of the weight, if products are bound by arithmetic
MAX_ZERO_BYTES = 8 << 20  # on a GPU, where decoding is bound by memory and by the number of launches
NO_ADAPTERS = LoraSpec(rank=1, alpha=0.0, targets=())
NO_RANKS = slice(0, 0)  # of a projection without an adapter


class _Augmented(torch.autograd.Function):
    """Eq. 15 with a frozen weight, and its gradient, product by product. Without an adapter, R is 0.

    With g = dL/dy, one product g [W | sB] gives the base part of dL/dx and dh = dL/d(x Aᵀ); then dL/dA = dhᵀ x,
    dL/dB = s gᵀ h, dL/dx += dh A. The base weight's gradient is never computed. Slow twin: kernels/twins.py
    `lora_linear`.
    """

    @staticmethod
    def forward(ctx, x_TI, A_master, layer, seed, *B_masters):
        h_TR = None if layer.A is None else linear(layer.dropped(x_TI, seed), layer.A.value)
        ctx.save_for_backward(x_TI if layer.A is not None else None, h_TR)  # x is shared by all projections
        ctx.layer, ctx.seed = layer, seed
        outputs = []
        for (rows, ranks), bias_O in zip(layer.products, layer.biases(), strict=True):
            augmented_TX = x_TI if h_TR is None else torch.cat([x_TI, h_TR[:, ranks]], dim=-1)
            weight_OX = layer.weight.rows(rows, _width(ranks))
            outputs.append(ops.linear(augmented_TX, weight_OX, bias_O))  # Eq. 15
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *g_of_products):
        x_TI, h_TR = ctx.saved_tensors
        layer, seed = ctx.layer, ctx.seed
        dx_TI = None
        dh_of_products = []
        for (rows, ranks), g_TO in zip(layer.products, g_of_products, strict=True):
            R = _width(ranks)
            if not ctx.needs_input_grad[0]:  # below the first adapted layer nobody needs dL/dx
                sB_OR = layer.weight.tail_rows(rows)[:, :R].contiguous()
                dh_of_products.append(linear(g_TO, sB_OR.T))
                continue
            augmented_OX = dense(layer.weight.rows(rows, R))
            both_TX = linear(g_TO, augmented_OX.T)
            base_TI, dh_TR = both_TX.split([layer.in_features, R], dim=1)
            dh_of_products.append(dh_TR)
            dx_TI = base_TI if dx_TI is None else dx_TI.add_(base_TI)
        if layer.A is None:
            return dx_TI, None, None, None

        A_RI = layer.A.value
        dh_TR = torch.cat(dh_of_products, dim=-1)
        dA_RI = weight_gradient(dh_TR, layer.dropped(x_TI, seed))
        dB = []
        for projection, g_TO in zip(layer.out_slices, layer.split(g_of_products), strict=True):
            if projection in layer.rank_slices:
                dB_OR = weight_gradient(g_TO, h_TR[:, layer.rank_slices[projection]])
                dB.append(dB_OR * layer.scale_1)
        if dx_TI is not None and seed is None:
            dx_TI = add_product(dx_TI, dh_TR, A_RI.T)
        elif dx_TI is not None:
            change_TI = linear(dh_TR, A_RI.T)
            change_TI = layer.dropped(change_TI, seed)
            dx_TI = dx_TI + change_TI
        return dx_TI, dA_RI.to(layer.scale_1.dtype), None, None, *dB


@dataclass(frozen=True)
class PrepackedWeights:
    """What a layer multiplies by while it samples. It is one of these:

        W               without an adapter; if it is frozen, it stays prepacked for the next time
        W + s B A       with one, in float32 on a CPU, unless W is in few bits
        [W | s B], A    otherwise: A once for all products, and a weight for each of them

    room: in x, for x Aᵀ, if each product needs it: how many copies of x, and how many columns beside each of them.
    """

    weights: list[Prepacked | QuantisedRows]
    A_RI: Prepacked | None = None
    room: SpareColumns | None = None


class Linear(nn.Module):
    """y = x Wᵀ + b for several projections, by Eq. 15 if one of them is a target of LoRA: then W and b are frozen.

    sizes: the number of outputs of each projection.
    A: [R, I], with the rows of all adapted projections, one projection after the other; None without any.
    B: one [O_projection, r] per adapted projection.
    weight: [W | s B]. If one product serves all projections, s B has R columns: a block for each adapted one, and zeros
    elsewhere. If each projection has a product of its own, s B has r columns.
    products: of each one its outputs, and its columns of x Aᵀ.
    input_shard: this process among those that share the inputs. The first one of them adds the bias.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], bias: bool, build: Build):
        super().__init__()
        out_features = sum(sizes.values())
        self.lora = build.lora or NO_ADAPTERS
        adapted = [projection for projection in sizes if projection in self.lora.targets]
        rank = self.lora.rank
        self.in_features = in_features
        self.input_shard = ALONE
        self.out_slices = _slices(sizes)
        self.rank_slices = _slices(dict.fromkeys(adapted, rank))  # rows of A

        all_outputs = slice(0, out_features)
        all_ranks = slice(0, rank * len(adapted))
        zeros = sum(rank * (out_features - sizes[name]) for name in adapted)  # in the columns of s B of each of them
        if few_zeros(zeros, out_features * in_features, build.dtype, build.device):
            self.products = [(all_outputs, all_ranks)]
            self.sB_columns = self.rank_slices
            num_columns = all_ranks.stop
        else:
            self.products = [(rows, self.rank_slices.get(name, NO_RANKS)) for name, rows in self.out_slices.items()]
            self.sB_columns = dict.fromkeys(adapted, slice(0, rank))
            num_columns = rank

        self.num_augmented = sum(_width(ranks) > 0 for _, ranks in self.products)  # with columns of x Aᵀ in their input
        self.trains_weight = build.train_weights and not adapted
        self.weight: Weight | QuantisedWeight
        if build.quantised:
            self.weight = QuantisedWeight(build, out_features, in_features, num_columns)
        else:
            self.weight = Weight(build, out_features, in_features, trained=self.trains_weight, tail=num_columns)
        self.bias = Weight(build, out_features, trained=self.trains_weight) if bias else None
        self.A = Weight(build, all_ranks.stop, in_features, trained=True) if adapted else None
        self.B = nn.ParameterDict()
        exact_dtype = master_dtype(build.dtype)
        for projection in adapted:  # in this order: given a dict, torch would sort the names
            zeros_OR = torch.zeros(sizes[projection], rank, dtype=exact_dtype, device=build.device)
            self.B[projection] = nn.Parameter(zeros_OR)
        # s as a tensor: times one in half precision, it gives float32 in one launch.
        self.scale_1 = torch.full((1,), self.lora.scale, dtype=exact_dtype, device=build.device)
        self.number = 0  # among the model's adapted layers, set by the model; makes their dropout masks differ

        self.prepacked: PrepackedWeights | None = None  # while it samples

    @property
    def room(self) -> SpareColumns | None:
        """Return what is to be left free in x while the layer samples, by the operation that makes x."""
        return self.prepacked.room if self.prepacked else None

    def forward(self, x_TI: Tensor, mode: Mode = POLICY) -> tuple[Tensor, ...]:
        """Return the output of each projection."""
        if self.prepacked:
            assert mode is POLICY  # nothing else is sampled from
            outputs = self._sampled(x_TI, self.prepacked)
        elif self.trains_weight:
            outputs = [Product.apply(x_TI, self.weight(), self.added_bias())]
        elif not mode.use_adapter:
            outputs = [ops.linear(x_TI, self.weight.rows(), self.added_bias())]
        else:
            A_master = None if self.A is None else self.A.master
            outputs = _Augmented.apply(x_TI, A_master, self, self.dropout_seed(mode), *self.B.values())
        return self.split(outputs)

    def split(self, of_products: list[Tensor] | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs of the projections, or their gradients, given those of the products."""
        if len(of_products) == len(self.out_slices):
            return tuple(of_products)
        (of_all,) = of_products
        sizes = [rows.stop - rows.start for rows in self.out_slices.values()]
        return of_all.split(sizes, dim=-1)

    def added_bias(self) -> Tensor | None:
        """Return the bias, if this process adds it."""
        if self.bias is None or self.input_shard.rank:
            return None
        return self.bias()

    def biases(self) -> list[Tensor | None]:
        """Return the bias of each product."""
        bias_O = self.added_bias()
        return [None if bias_O is None else bias_O[rows] for rows, _ in self.products]

    # --- dropout -----------------------------------------------------------------------------------------------------

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

    # --- weights of a projection -------------------------------------------------------------------------------------

    def base(self, projection: str) -> tuple[Tensor | QuantisedRows, Tensor | None]:
        """Return views of a projection's own weight [O, I] and bias [O], to read and write."""
        rows = self.out_slices[projection]
        bias_O = None if self.bias is None else self.bias.stored[rows]
        weight_OI = self.weight.rows(rows)
        return weight_OI, bias_O

    def adapter(self, projection: str) -> tuple[Tensor, Tensor]:
        """Return views of a projection's master A [r, I] and B [O, r]; call `refresh` after writing."""
        assert self.A is not None
        own = self.rank_slices[projection]
        return self.A.stored[own], self.B[projection].data

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters into the tensors that the products use; call it after every change of the masters."""
        if self.A is not None:
            self.A.refresh()
        self.refresh_sB()

    @torch.no_grad()
    def refresh_sB(self) -> None:
        """Copy s B into the weight: `refresh` without A."""
        for projection, columns in self.sB_columns.items():
            beside_OR = self.weight.tail_rows(self.out_slices[projection])
            beside_OR[:, columns].copy_(self.lora.scale * self.B[projection])

    @torch.no_grad()
    def init_adapter(self, generator: torch.Generator) -> None:
        """Draw A from ±1/sqrt(I), as PEFT does, and set B to zero: the policy starts as the reference."""
        width = self.in_features * self.input_shard.world
        own = self.input_shard.part(width)
        for projection in self.rank_slices:
            A, B = self.adapter(projection)
            uniform = torch.rand(len(A), width, generator=generator, dtype=A.dtype)  # the same in all processes
            centred = uniform[:, own] * 2 - 1
            A.copy_(centred / width**0.5)
            B.zero_()
        self.refresh()

    # --- sampling ----------------------------------------------------------------------------------------------------

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Prepack the weights for the `with` block, in which they must not change."""
        try:
            self.prepacked = self._prepack()
            yield
        finally:
            self.prepacked = None
            self.weight.release()

    def _prepack(self) -> PrepackedWeights:
        if self.A is None:
            return PrepackedWeights([self.weight.prepack()])
        A_RI = self.A.value
        is_exact = A_RI.dtype == torch.float32 and A_RI.device.type == "cpu"
        if is_exact and isinstance(self.weight, Weight):
            return PrepackedWeights([prepack(self.merged())])
        weights: list[Prepacked | QuantisedRows] = []
        for rows, ranks in self.products:
            weight_OX = self.weight.rows(rows, _width(ranks))
            # Prepacked copies of weights in few bits would take the memory that these save.
            weights.append(weight_OX if isinstance(weight_OX, QuantisedRows) else prepack(weight_OX))
        room: SpareColumns | None = None
        if self.num_augmented == len(self.products):
            room = self.num_augmented, len(A_RI) // self.num_augmented
        return PrepackedWeights(weights, prepack(A_RI), room)

    def _sampled(self, x_TI: Tensor, prepacked: PrepackedWeights) -> list[Tensor]:
        """Return the output of each product, or that of one product for all. x_TI: with `room`, if a kernel left it."""
        if prepacked.A_RI is None:
            return [ops.linear(x_TI, prepacked.weights[0], self.added_bias())]
        augmented = iter(ops.append_product(x_TI, prepacked.A_RI, self.num_augmented))
        inputs = [next(augmented) if _width(ranks) else x_TI for _, ranks in self.products]
        return list(map(ops.linear, inputs, prepacked.weights, self.biases()))  # Eq. 15

    def merged(self) -> Tensor:
        """Return W + s B A, [O, I], in the model's dtype."""
        assert self.A is not None
        W_OI = dense(self.weight.rows())
        merged_OI = torch.empty_like(W_OI, memory_format=torch.contiguous_format)
        for rows, ranks in self.products:
            sB_OR = self.weight.tail_rows(rows)[:, : _width(ranks)]
            torch.addmm(W_OI[rows], sB_OR, self.A.value[ranks], out=merged_OI[rows])
        return merged_OI


def few_zeros(zeros: int, weights: int, dtype: torch.dtype, device: torch.device | str) -> bool:
    """Return whether one product with `weights` numbers has few enough zeros to be the faster way."""
    is_few = zeros <= MAX_ZERO_SHARE * weights
    if torch.device(device).type == "cuda":
        return is_few or zeros * dtype.itemsize <= MAX_ZERO_BYTES
    return is_few


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    """Lay projections of these sizes one after the other."""
    slices = {}
    start = 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices


def _width(columns: slice) -> int:
    return columns.stop - columns.start
