"""The settings of libraries that hold for a process: a run sets them, and puts back what its caller had."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import torch

from grpo.config.options import AnyConfig
from grpo.engine.device.distributed import ALLOCATOR_VARIABLES
from grpo.engine.device.kernel_choice import ProcessSettings
from grpo.run.checkpoint import random_state, restore_random_state

CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
FILL = "fill_uninitialized_memory"
VARIABLES = (CUBLAS_VARIABLE, "NCCL_GRAPH_REGISTER", *ALLOCATOR_VARIABLES)
SETTINGS = (
    (torch.backends.cuda.matmul, "fp32_precision"),
    (torch.backends.mkldnn.matmul, "fp32_precision"),  # type: ignore[attr-defined]
    (torch.utils.deterministic, FILL),
    (ProcessSettings, "kernels"),
)


def configure(config: AnyConfig) -> None:
    """Set precision, determinism and seeds of the libraries as the configuration says."""
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    if config.full_determinism:  # cuBLAS reads this before its first product
        os.environ.setdefault(CUBLAS_VARIABLE, ":4096:8")
    torch.use_deterministic_algorithms(config.full_determinism, warn_only=True)
    setattr(torch.utils.deterministic, FILL, False)  # it would cost time, and only helps debugging
    ProcessSettings.kernels = config.kernels == "auto"
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)


def remember() -> Callable[[], None]:
    """Return a function that brings back the settings, variables and random states of this moment."""
    settings = [(owner, name, getattr(owner, name)) for owner, name in SETTINGS]
    variables = {name: os.environ.get(name) for name in VARIABLES}
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    generators = random_state()
    precision = "highest"
    with suppress(RuntimeError):  # a caller who has set the newer names cannot read this one
        precision = torch.get_float32_matmul_precision()

    def bring_back() -> None:
        torch.set_float32_matmul_precision(precision)  # it sets the newer names, too
        for owner, name, value in settings:
            setattr(owner, name, value)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
        restore_random_state(generators)

    return bring_back


@contextmanager
def usual_modes() -> Iterator[None]:
    """Give the code inside torch's modes as a new process has them, whatever its caller is in the middle of."""
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield
