"""Compiles every kernel for sm_80 and sm_90, or the targets that are given, without a GPU. It prints JSON.

The path of a GPU is walked (walking.py); a driver that only knows a target takes the place of the GPU's, and each
launch compiles and stops. So what is compiled is what will be launched: warps, stages, and the divisibility of strides
and pointers.

Each target has a process of its own. Triton keeps what it compiled, by the kernel's source, its own version and the
target; what cuobjdump says of a binary is kept beside that. So only a kernel that changed takes seconds.
"""

import hashlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction
from walking import CASES, PHASES, Walk, walked

warnings.simplefilter("ignore")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MODELS = "7b r=64", "1.5b r=16", "7b r=256 int8", "7b r=256 nf4"
INSTRUCTIONS = {
    "spills": r"\b(?:LDL|STL)\b",
    "mma": r"\b(?:HMMA|HGMMA|WGMMA)\b",
    "async": r"\b(?:LDGSTS|UBLKCP|UTMALDG)\b",
    "wide_loads": r"\bLDG(?:STS)?\.E\S*\.128\b",
    "loads": r"\b(?:LDG|LDGSTS)\.",
    "wide_stores": r"\bSTG\.E\S*\.128\b",
}


class Target:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def disassembled(cubin: bytes) -> tuple[str, str]:
    """What cuobjdump says of the resources of a binary, and its instructions."""
    tool = TOOLS / "cuobjdump"
    version = f"{triton.__version__} {tool.stat().st_size}"
    kept = get_cache_manager(hashlib.sha256(cubin + version.encode()).hexdigest())
    path = kept.get_file("cuobjdump.json")
    if path is None:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            dump = partial(subprocess.check_output, text=True)
            texts = [dump([tool, option, file.name]) for option in ("--dump-resource-usage", "--dump-sass")]
        path = kept.put(json.dumps(texts), "cuobjdump.json", binary=False)
    usage, sass = json.loads(Path(path).read_text())
    return usage, sass


def describe(kernel, capability: int) -> dict:
    """Registers, bytes spilled to the stack, shared memory, and counts of instructions."""
    usage, sass = disassembled(kernel.asm["cubin"])
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    counts = {name: len(re.findall(pattern, sass)) for name, pattern in INSTRUCTIONS.items()}
    module = kernel.src.fn.fn.__module__.rpartition(".")[2]
    return {
        "kernel": f"{module}.{kernel.src.fn.fn.__name__}",
        "capability": capability,
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "dtypes": list(kernel.src.signature.values())[:6],
        **found,
        **counts,
    }


def rows_for(capability: int) -> list[dict]:
    """The description of each kernel that is launched on this target."""
    compiled, original = [], JITFunction.run

    def compile_only(walk, kernel, *arguments, grid, warmup=False, **options):
        compiled.append(original(kernel, *arguments, grid=grid, warmup=True, **options))

    driver.set_active(Target(capability))
    with mock.patch.object(Walk, "run_kernel", compile_only):
        for model in MODELS:
            for phase in PHASES:
                walked(CASES[model], phase, 1)
    return [describe(kernel, capability) for kernel in {id(kernel): kernel for kernel in compiled}.values()]


def main() -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as targets:
        capabilities = [int(argument) for argument in sys.argv[1:]] or [80, 90]
        json.dump([row for rows in targets.map(rows_for, capabilities) for row in rows], sys.stdout)


if __name__ == "__main__":
    main()
