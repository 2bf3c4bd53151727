"""Each kernel test runs on a CPU in Triton's interpreter, and, marked `gpu`, on a GPU. Fresh memory is filled with NaN
in all of them."""

import sys

import pytest
import torch

from grpo.engine.device import ops

triton = pytest.importorskip("triton")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    if request.param == "cuda" and triton.knobs.runtime.interpret:
        pytest.fail("the interpreter would run instead of the GPU: set TRITON_INTERPRET=0")
    return request.param


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty gives NaN, and integers at their largest: an output that is not written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def switch_kernels_on(monkeypatch):
    """Switches the kernels on, on a CPU too; returns a set that will hold the names of the operations that asked."""

    def switch_on() -> set[str]:
        asked = set()
        monkeypatch.setattr(ops, "uses_kernels", lambda x: asked.add(sys._getframe(1).f_code.co_name) or True)
        return asked

    return switch_on


@pytest.fixture
def bf16_step(device) -> float:
    """Largest relative error of a rounding to bfloat16: half a step on a GPU; the interpreter cuts off, which costs a
    whole one."""
    return 2**-7 if device == "cpu" else 2**-8
