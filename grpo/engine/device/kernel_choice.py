"""Which kernels may be used in this process: those of Triton on a GPU, those in C on a CPU, or none.

Either set is tried against torch's own operations when it is first asked for: Triton by its norm, C by a product and
attention. If that fails, none of the set is used, and `describe` says why. ops.py runs them.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.base.errors import reason
from grpo.base.folders import cache_folder
from grpo.kernels.cpu import CpuKernels

HALF = (torch.bfloat16, torch.float16)
LARGEST_ERROR = 1e-5  # in a self-test, in float32


class ProcessSettings:
    """Whether kernels/ may be used in this process: run/libraries.py sets it."""

    kernels = True


@cache
def triton_problem() -> str:
    """Return why the kernels cannot be used in this process; "" if they can."""
    try:
        import triton
    except ImportError:
        return "Triton is not installed"
    if triton.knobs.runtime.interpret:
        return "Triton is set to interpret"
    try:
        from grpo.kernels.rms_norm import rms_norm

        x, weight = _waves(3, 100, device="cuda"), _waves(100, device="cuda")
        normed, _ = rms_norm(x, weight, 1e-6)
        wanted = F.rms_norm(x, (100,), weight, 1e-6)
        wrong = float((normed - wanted).abs().max())
    except Exception as problem:  # a compiler has many ways to fail, and torch's own operations do as well
        return f"Triton failed: {reason(problem)}"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"they are made for sm_80 and later, and this is sm_{major}{minor}"
    return "" if wrong < LARGEST_ERROR else f"Triton's results are off by {wrong:.1e}"


def uses_kernels(x: Tensor) -> bool:
    """Return whether kernels/ takes the place of torch's operations on this tensor."""
    return x.is_cuda and x.dtype in (*HALF, torch.float32) and ProcessSettings.kernels and not triton_problem()


@cache
def _cpu_kernels() -> tuple[CpuKernels | None, str]:
    """Return the kernels in C; or None, and why they cannot be used on this machine."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX2":
        return None, f"for {capability} there are no kernels in C"
    try:
        folder = cache_folder()
        kernels = CpuKernels(folder and folder / "kernels")
    except (OSError, ValueError) as problem:
        return None, f"the kernels in C failed: {reason(problem)}"
    wrong = _error_of(kernels)
    return (kernels, "") if wrong < LARGEST_ERROR else (None, f"the kernels in C are off by {wrong:.1e}")


def _error_of(kernels: CpuKernels) -> float:
    """Return how far these kernels are from torch's operations."""
    x_TI, weight_OI = _waves(5, 7), _waves(30, 7)
    product_TO = kernels.product(x_TI, kernels.prepack(weight_OI))
    q_1HE = _waves(1, 4, 8)
    k_1KSE, v_1KSE = _waves(2, 1, 2, 3, 8)
    attended_1HE = kernels.decode_attention(q_1HE, k_1KSE, v_1KSE, torch.tensor([3], device="cpu"))
    wanted_1H1E = F.scaled_dot_product_attention(q_1HE[:, :, None], k_1KSE, v_1KSE, enable_gqa=True)
    errors = (product_TO - F.linear(x_TI, weight_OI)).abs().max(), (attended_1HE - wanted_1H1E[:, :, 0]).abs().max()
    return float(max(errors))


def _waves(*shape: int, device: str = "cpu") -> Tensor:
    """Return numbers between -1 and 1 for a self-test, in float32 whatever torch's default dtype is.

    Nothing is drawn: a self-test leaves the random generators as a run has seeded them.
    """
    number = torch.arange(math.prod(shape), dtype=torch.float32, device=device)
    return number.sin().view(shape)


def on_cpu(x: Tensor) -> CpuKernels | None:
    """Return the kernels in C if they take the place of torch's operations on this tensor; outside autograd."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not ProcessSettings.kernels:
        return None
    return _cpu_kernels()[0]


def describe(device: torch.device | str) -> str:
    """Return, for the log, whether kernels or torch's own operations are used."""
    is_cuda = torch.device(device).type == "cuda"
    problem = "kernels: none"
    if ProcessSettings.kernels:
        problem = triton_problem() if is_cuda else _cpu_kernels()[1]
    if problem:
        return f"torch's own operations ({problem})"
    return "fused kernels (Triton)" if is_cuda else "kernels in C while it generates in float32"
