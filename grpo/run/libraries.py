"""The settings of libraries that hold for a process: a run sets them, and puts back what its caller had."""

import os
import random
from collections.abc import Callable

import numpy as np
import torch

from grpo.config.options import AnyConfig
from grpo.engine.device.distributed import ALLOCATOR_VARIABLES
from grpo.engine.device.kernel_choice import ProcessSettings
from grpo.run.checkpoint import random_state, restore_random_state

CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
VARIABLES = (CUBLAS_VARIABLE, "NCCL_GRAPH_REGISTER", *ALLOCATOR_VARIABLES)
SETTINGS = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
    (ProcessSettings, "kernels"),
)


def configure(config: AnyConfig) -> None:
    """Set precision, determinism and seeds of the libraries as the configuration says."""
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.allow_tf32 = config.tf32
    if config.full_determinism:  # cuBLAS reads this before its first product
        os.environ.setdefault(CUBLAS_VARIABLE, ":4096:8")
    torch.use_deterministic_algorithms(config.full_determinism, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would cost time, and only helps debugging
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

    def bring_back() -> None:
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
