"""Every kernel compiled for sm_80 and sm_90 without a GPU: registers, spills, tensor-core instructions, wide and
asynchronous loads."""

import json
from pathlib import Path

import pytest
import triton
from commands import ROOT, python

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
STREAMING = set(
    "log_softmax_rows._rows inverse_cdf._masses rms_norm._forward rms_norm._backward rotary._heads swiglu._forward "
    "swiglu._backward decode_attention._stretches nucleus._sum_digits nucleus._gap quantised_linear._tile".split()
)  # bound by memory traffic
SCALARS = 3  # loads of one number per program: a target, a cut, a length
SPILLS = {  # instructions that a version of Triton spills: see kernels/README.md
    ("3.5", "decode_attention._stretches"): 3,
    ("3.6", "log_softmax_rows._rows"): 2,
    ("3.9", "quantised_linear._tile"): 4,
}
NARROW = {  # also what the launch before found out, and the scales and biases of a tile
    "nucleus._sum_digits": 6,
    "nucleus._gap": 5,
    "quantised_linear._tile": 6,
    "rotary._heads": 4,  # of keys, which have few heads
}


@pytest.fixture(scope="module")
def compiled():
    missing = [tool for tool in ("ptxas", "cuobjdump") if not (TOOLS / tool).exists()]
    if missing:
        pytest.skip(f"this build of Triton has no {' and no '.join(missing)}")
    done = python(Path(__file__).with_name("offline.py"), TRITON_INTERPRET="0", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_kernel_is_compiled_for_both(compiled):
    files = {path.stem for path in (ROOT / "kernels").glob("*.py") if "import triton" in path.read_text()}
    for capability in (80, 90):
        names = {kernel["kernel"] for kernel in compiled if kernel["capability"] == capability}
        assert {name.partition(".")[0] for name in names} == files and names >= STREAMING


def test_nothing_is_spilled(compiled):
    """No more than is known of this version; and at least two programs fit on a multiprocessor (65,536 registers,
    160 KB shared), but for the one that takes a whole row of logits."""
    version = ".".join(triton.__version__.split(".")[:2])
    for kernel in compiled:
        assert kernel["spills"] <= SPILLS.get((version, kernel["kernel"]), 0) and not kernel["LOCAL"], kernel
        assert kernel["STACK"] == 0 or kernel["spills"], kernel
        assert kernel["REG"] * kernel["warps"] * 32 <= 65536 and kernel["shared"] <= 80 << 10, kernel
        assert (
            kernel["kernel"] == "log_softmax_rows._rows" or 2 * kernel["REG"] * kernel["warps"] * 32 <= 65536 * 1.1
        ), kernel


def test_loads_are_16_bytes_wide(compiled):
    for kernel in compiled:
        looks_up = kernel["dtypes"][1] == "*u8"  # the levels of 4-bit codes, in 64 bytes
        if kernel["kernel"] in STREAMING and not looks_up:
            assert kernel["wide_loads"] >= kernel["loads"] - NARROW.get(kernel["kernel"], SCALARS), kernel
        if kernel["kernel"] == "merge_attention._merge":  # besides both outputs, a log-sum-exp of each per head
            assert kernel["wide_loads"] == 2 * kernel["wide_stores"] >= 4, kernel


def test_tensor_cores_and_asynchronous_copies(compiled):
    """Attention in bfloat16 and products in 8 bits multiply on tensor cores; they and the rows of logits load the next
    tiles meanwhile."""
    for kernel in compiled:
        if kernel["kernel"] == "decode_attention._stretches":
            assert (kernel["mma"] >= 16) == (kernel["dtypes"][0] == "*bf16") and kernel["async"] >= 16, kernel
        if kernel["kernel"] == "quantised_linear._tile":
            assert kernel["mma"] >= 16 and kernel["async"] >= 16, kernel
        if kernel["kernel"] == "log_softmax_rows._rows":
            assert kernel["async"] >= 12, kernel
