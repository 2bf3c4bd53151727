"""Choose the implementation of each attention on this machine: the first one of a table that passes its self-test.

Inside a micro-batch: FlashAttention, else torch's scaled_dot_product_attention. For one new token per slot:
DECODE_KERNELS. The log names what was chosen, and why not those before it. On a CPU, packed.py chooses by dtype, and
decode.py takes the kernel in C where there is one.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.base.errors import reason
from grpo.engine.attention.decode import DECODE_KERNELS, DecodeKernel, sdpa
from grpo.engine.attention.packed import MicroBatchAttention, PackedAttention
from grpo.engine.device.kernel_choice import HALF, ProcessSettings, triton_problem

if TYPE_CHECKING:
    from grpo.engine.model.decoder import Decoder

# Largest relative error that a self-test allows, against float64.
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-10}
TRIAL_ROWS, TRIAL_POSITIONS = 33, 700
TRIAL_LAYOUT = Layout.of((70, (40, 1, 129)), (1, (65,)), (33, ()))


class Heads(NamedTuple):
    """What an implementation has to serve: the heads of a model, their width, dtype and device."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device | str

    @classmethod
    def of(cls, model: "Decoder") -> Self:
        """Return the heads that this process computes."""
        config, build = model.shape, model.build
        return cls(config.num_heads, config.num_kv_heads, config.head_dim, build.dtype, build.device)

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def drawn(self, *sizes: tuple[int, ...]) -> list[Tensor]:
        """Return random tensors of these sizes, by a generator of their own."""
        generator = torch.Generator(self.device).manual_seed(0)
        return [
            torch.randn(size, generator=generator, dtype=torch.float32, device=self.device).to(self.dtype)
            for size in sizes
        ]


def describe(model: "Decoder") -> str:
    """Return, for the log, which attentions of a model were chosen, and why not those before them."""
    heads = Heads.of(model)
    decode = {name: decode_problem(name, heads) for name in DECODE_KERNELS}
    packed = {"FlashAttention": flash_problem(heads), "sdpa": ""}
    graphs = "" if model.can_be_captured else "; no CUDA graphs, since its modules wait for the host"
    return f"decode attention {_in_words(decode)}; packed attention {_in_words(packed)}{graphs}"


def _in_words(problems: Mapping[str, str]) -> str:
    chosen = next(name for name, problem in problems.items() if not problem)
    reasons = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    return f"{chosen} ({', '.join(reasons)})" if reasons else chosen


def _problem(error: Callable[[], float], tolerance: float) -> str:
    """Run a self-test, which returns a relative error; return what is wrong, or ""."""
    try:
        with warnings.catch_warnings(action="ignore"):  # those of implementations that are not chosen
            wrong = error()
    except ModuleNotFoundError:
        return "not installed"
    except Exception as problem:  # a compiler has many ways to fail, and torch's own operations do as well
        return reason(problem)
    return "" if wrong <= tolerance else f"wrong by {wrong:.1e}"  # NaN is wrong, too


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    difference = found.double() - wanted
    return float(difference.norm() / wanted.norm())


# --- attention of one new token per slot ---------------------------------------------------------------------------


def decode_kernel(model: "Decoder") -> str:
    """Return the first of DECODE_KERNELS that can serve a model."""
    heads = Heads.of(model)
    return next(name for name in DECODE_KERNELS if not decode_problem(name, heads))


def decode_problem(name: str, heads: Heads) -> str:
    """Return why one of DECODE_KERNELS cannot serve these heads; "" if it can. The last one always can."""
    if name == "sdpa":
        return ""
    if not heads.on_gpu or not ProcessSettings.kernels:
        return "kernels: none" if heads.on_gpu else "it needs a GPU"
    return _tried(name, heads)


@cache
def _tried(name: str, heads: Heads) -> str:
    if name == "triton" and (problem := triton_problem()):
        return problem
    return _problem(lambda: decode_error(DECODE_KERNELS[name], heads), TOLERANCE[heads.dtype])


@torch.inference_mode()
def decode_error(make: Callable[[Tensor, int], DecodeKernel], heads: Heads) -> float:
    """Return the relative error of a decode attention. RuntimeError if it cannot be part of a CUDA graph.

    The sequences have different lengths, and large values beyond their ends, so that reading these would show.
    """
    q_BHE, kv_2BKSE = heads.drawn(
        (TRIAL_ROWS, heads.num_heads, heads.head_dim),
        (2, TRIAL_ROWS, heads.num_kv_heads, TRIAL_POSITIONS, heads.head_dim),
    )
    lengths_B = torch.linspace(TRIAL_POSITIONS, 1, TRIAL_ROWS, device=heads.device).long()
    wanted_BHE = sdpa(lengths_B, TRIAL_POSITIONS)(q_BHE.double(), *kv_2BKSE.double())
    position_S = torch.arange(TRIAL_POSITIONS, device=heads.device)
    beyond_BS = position_S >= lengths_B[:, None]
    kv_2BKSE.masked_fill_(beyond_BS[None, :, None, :, None], 10.0)
    attend = make(lengths_B, TRIAL_POSITIONS)
    found_BHE = attend(q_BHE, *kv_2BKSE)
    if heads.on_gpu:
        with no_waiting():
            attend(q_BHE, *kv_2BKSE)
    return _relative_error(found_BHE, wanted_BHE)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise RuntimeError if the host would wait for the GPU inside the `with` block: such work cannot be captured.

    In torch 2.11, an attempt to capture it damages the allocator for the rest of the process. The setting holds for all
    threads, so use this before others are at work.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # torch says that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# --- attention inside a micro-batch --------------------------------------------------------------------------------


@cache
def flash_problem(heads: Heads) -> str:
    """Return why FlashAttention cannot serve these heads inside micro-batches; "" if it can."""
    if not heads.on_gpu or heads.dtype not in HALF:
        return "it needs half precision on a GPU"
    return _problem(lambda: flash_error(heads), 2 * TOLERANCE[heads.dtype])


@torch.inference_mode(False)
@torch.enable_grad()
def flash_error(heads: Heads) -> float:
    """Return the relative error of FlashAttention's output and gradients, together."""
    T = TRIAL_LAYOUT.num_tokens
    per_head, per_kv_head = (T, heads.num_heads, heads.head_dim), (T, heads.num_kv_heads, heads.head_dim)
    inputs = heads.drawn(per_head, per_kv_head, per_kv_head, per_head)

    def run(attention: MicroBatchAttention, dtype: torch.dtype) -> Tensor:
        q_THE, k_TKE, v_TKE, dout_THE = (x.to(dtype).requires_grad_() for x in inputs)
        out_THE = attention.attend(q_THE, k_TKE, v_TKE)
        grads = torch.autograd.grad(out_THE, (q_THE, k_TKE, v_TKE), dout_THE)
        return torch.cat([x.detach().flatten() for x in (out_THE, *grads)])

    wanted = run(PackedAttention(TRIAL_LAYOUT, torch.float64, heads.device), torch.float64)
    found = run(flash_attention(TRIAL_LAYOUT, heads), heads.dtype)
    return _relative_error(found, wanted)


def flash_attention(layout: Layout, heads: Heads) -> MicroBatchAttention:
    """Make FlashAttention for one micro-batch."""
    from grpo.engine.attention.flash import FlashPackedAttention  # on a GPU

    return FlashPackedAttention(layout, heads.device)


def will_be_fused(model: "Decoder") -> bool:
    """Return whether training uses kernels/ and FlashAttention on a GPU; without a GPU, whether it would try."""
    heads = Heads.of(model)
    has_problem = (torch.cuda.is_available() and triton_problem()) or (heads.on_gpu and flash_problem(heads))
    return heads.dtype in HALF and ProcessSettings.kernels and not has_problem


def packed_attention(model: "Decoder", layout: Layout) -> MicroBatchAttention:
    """Make the attention of `model` for one micro-batch."""
    heads = Heads.of(model)
    plain: MicroBatchAttention
    padding = layout, heads.dtype, heads.device
    plain = PackedAttention(*padding) if flash_problem(heads) else flash_attention(layout, heads)
    if model.special is None:
        return plain
    from grpo.engine.attention.special import SpecialPackedAttention  # for few models of transformers

    return SpecialPackedAttention(plain, model.special, *padding)
