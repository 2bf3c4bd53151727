"""Multiply by a weight matrix, y = x Wᵀ + b: on a CPU with oneDNN, elsewhere with torch. (Generating: ops.linear.)

oneDNN rounds a row in the same way whatever the number of rows (from two on), so a completion does not depend on those
sampled with it. MKL, which torch uses for float32, does not. The exception is bfloat16 on a CPU with matrix units
(AMX), where few rows are added in another order.

oneDNN is up to twice as fast for few rows; without AVX-512, MKL is up to 10 % faster for many (bench/LOG.md). oneDNN
works on blocks: a weight that stays the same for many products is packed into blocks once (`prepack`), with the same
results bit for bit. Where oneDNN lacks a build, a dtype or a layout, torch computes the product.
"""

import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# These settings are made at import, not by a run: whoever multiplies (a script, a test) gets the same bits.

# oneDNN compiles code for each shape of a product, some 0.25 MB, and keeps it for 1,024 shapes; torch keeps as many
# again. With lengths that vary, nearly every step brings new shapes, and the old code fragments the memory. The layers
# of one step share far fewer shapes than 128. Both caches read these variables at their first product.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")

# By default cuBLAS may split the inner dimension and add the parts in 16 bits, which would undo the gain of Eq. 15.
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _works(dtype: torch.dtype) -> bool:
    """Return whether this build of torch has oneDNN's two operations, and they work on this CPU in this dtype."""
    weight = torch.ones(16, 16, dtype=dtype)
    onednn = torch.ops.mkldnn
    try:
        packed = onednn._reorder_linear_weight(weight)
        onednn._linear_pointwise(weight, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


@cache
def onednn_dtypes() -> tuple[torch.dtype, ...]:
    """Return the dtypes in which oneDNN multiplies on this machine. CPUs without AVX-512 lack bfloat16."""
    return tuple(filter(_works, (torch.float32, torch.bfloat16)))


def slow_dtype(dtype: torch.dtype, device: torch.device) -> str:
    """Return a warning if products in this dtype are emulated on this device, else an empty text."""
    is_emulated = dtype == torch.bfloat16 and dtype not in onednn_dtypes()
    if device.type == "cpu" and is_emulated:
        return "warning: this CPU emulates bfloat16, and is much faster in float32: set torch_dtype=float32"
    return ""


def _by_onednn(weight_OI: Tensor) -> bool:
    """Return whether to use oneDNN for this matrix. With gaps between the rows, oneDNN would be slow."""
    if weight_OI.device.type != "cpu" or weight_OI.dtype not in onednn_dtypes():
        return False
    return weight_OI.is_mkldnn or weight_OI.is_contiguous() or weight_OI.T.is_contiguous()


def prepack(weight_OI: Tensor) -> Tensor:
    """Return the weight in the layout that `linear` reads fastest. Only `linear` can read the result."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI) if _by_onednn(weight_OI) else weight_OI


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, outside autograd; `weight_OI` may be prepacked."""
    if not _by_onednn(weight_OI):
        return F.linear(x_TI, weight_OI, bias_O)
    if len(x_TI) == 1:  # one row alone would be rounded differently
        return linear(x_TI.expand(2, -1), weight_OI, bias_O)[:1]
    return torch.ops.mkldnn._linear_pointwise(x_TI, weight_OI, bias_O, "none", [], "")


def add_product(y_TO: Tensor, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """Add x Wᵀ to y in place, outside autograd."""
    if y_TO.is_cuda:
        return y_TO.addmm_(x_TI, weight_OI.T)
    return y_TO.add_(linear(x_TI, weight_OI))


def weight_gradient(g_TO: Tensor, x_TI: Tensor) -> Tensor:
    """Compute gᵀ x, the gradient of a weight [O, I], outside autograd: a sum over tokens."""
    if g_TO.dtype != torch.float32:
        return g_TO.T @ x_TI  # torch uses oneDNN itself in bfloat16
    if g_TO.shape[1] > x_TI.shape[1]:
        return linear(x_TI.T, g_TO.T).T  # oneDNN is faster with the smaller matrix first
    return linear(g_TO.T, x_TI.T)


class Product(torch.autograd.Function):
    """`linear` with its gradients: dx = g W, dW = gᵀ x, db = Σ g."""

    @staticmethod
    def forward(ctx, x_TI, weight_OI, bias_O):
        ctx.save_for_backward(x_TI, weight_OI)
        return linear(x_TI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx, g_TO):
        x_TI, weight_OI = ctx.saved_tensors
        for_x, _, for_bias = ctx.needs_input_grad
        dx_TI = linear(g_TO, weight_OI.T) if for_x else None
        dbias_O = g_TO.sum(dim=0) if for_bias else None
        return dx_TI, weight_gradient(g_TO, x_TI), dbias_O
