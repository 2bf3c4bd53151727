"""Compiles every kernel for sm_80 and sm_90, or the targets that are given, without a GPU. It prints JSON.

The shapes are those of a 1.5B and a 7B model.

The program's own launch code runs, on CPU tensors; a driver that only knows a target takes the place of the GPU's, and
each launch compiles and stops. So what is compiled is what will be launched: warps, stages, and the divisibility of
strides and pointers.

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
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

warnings.simplefilter("ignore")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BF16 = torch.bfloat16


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


def launches() -> None:
    """One call of everything that trains or decodes."""
    from grpo.kernels.append_product import append_product
    from grpo.kernels.decode_attention import decode_attention
    from grpo.kernels.inverse_cdf import draw_rows
    from grpo.kernels.log_softmax_rows import log_softmax_rows
    from grpo.kernels.merge_attention import merge_attention
    from grpo.kernels.nucleus import thresholds
    from grpo.kernels.quantised_linear import quantised_linear
    from grpo.kernels.rms_norm import rms_norm
    from grpo.kernels.rotary import rotate, rotate_into_cache
    from grpo.kernels.swiglu import swiglu

    B, V = 2, 152_064
    targets = torch.zeros(B, dtype=torch.int64)
    record = torch.zeros(B, 1025, dtype=torch.int64), *torch.zeros(2, B, 1025)
    for dtype, slope in ((BF16, BF16), (torch.float32, BF16), (torch.float32, torch.float32), (torch.float32, None)):
        log_softmax_rows(torch.zeros(B, V, dtype=dtype), targets, 1.0, slope)
        log_softmax_rows(torch.zeros(B, V, dtype=dtype), targets, 1.0, slope, torch.zeros(B))
    for temperature in (1.0, 0.0):
        draw_rows(torch.zeros(B, V), targets, targets, temperature, None, record)
    for top_k in (1, 20):  # 1 is a constant to the compiler
        draw_rows(torch.zeros(B, V), targets, targets, 0.7, thresholds(torch.zeros(B, V), 0.7, top_k, 0.9), record)
    for heads, kv_heads, width in ((28, 4, 3584), (12, 2, 1536)):
        cache = torch.zeros(2, B, kv_heads, 1280, 128, dtype=BF16)
        joint = torch.zeros(B, (heads + 2 * kv_heads) * 128, dtype=BF16)
        q, k, v = (x.unflatten(-1, (-1, 128)) for x in joint.split([heads * 128, kv_heads * 128, kv_heads * 128], -1))
        cos = torch.zeros(B, 1, 128, dtype=BF16)
        q = rotate_into_cache(q, k, v, cos, cos, *cache, targets)
        for splits in (1, 5):
            decode_attention(q, *cache, targets, 1280, splits)
        decode_attention(q.float(), *cache.float(), targets, 1280, 5)
        x, w = torch.zeros(B, width, dtype=BF16, requires_grad=True), torch.ones(width, dtype=BF16)
        rms_norm(x, w, 1e-6)[0].sum().backward()
        sum(y.sum() for y in rms_norm(x, w.requires_grad_(), 1e-6, x)).backward()
        q8 = torch.zeros(width, width, dtype=torch.int8)
        for rows in (2, 32, 96):
            joint = torch.zeros(rows, width + 256, dtype=BF16)
            tail = torch.zeros(width, 256, dtype=BF16)
            quantised_linear(joint, q8, torch.ones(width, 1), tail, w.detach())
            q4, scale = torch.zeros(width, width // 2, dtype=torch.uint8), torch.ones(width, width // 64)
            quantised_linear(joint, q4, scale, tail, w.detach(), torch.zeros(16))
    merge_attention(q, torch.zeros(12, 999), q, torch.zeros(12, B), targets)
    rotate(q.requires_grad_(), cos, cos).sum().backward()
    with torch.inference_mode():
        for copies in (1, 2):
            rms_norm(x, w, 1e-6, x, (copies, 256))
        swiglu(*torch.zeros(2, B, 18944, dtype=BF16), (1, 256))
        for width, rank in ((1536, 48), (8960, 16)):
            append_product(x.new_zeros(B, width), x.new_zeros(rank, width))
            append_product(x.new_zeros(1, B, width + rank), x.new_zeros(rank, width))
    swiglu(*(torch.zeros(B, 18944, dtype=BF16, requires_grad=True) for _ in range(2))).sum().backward()


def disassembled(cubin: bytes) -> tuple[str, str]:
    """What cuobjdump says of the resources of a binary, and its instructions."""
    tool = (TOOLS / "cuobjdump").stat()
    kept = get_cache_manager(hashlib.sha256(cubin + f"{triton.__version__} {tool.st_size}".encode()).hexdigest())
    path = kept.get_file("cuobjdump.json")
    if path is None:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            texts = [
                subprocess.run(
                    [TOOLS / "cuobjdump", option, file.name], capture_output=True, text=True, check=True
                ).stdout
                for option in ("--dump-resource-usage", "--dump-sass")
            ]
        path = kept.put(json.dumps(texts), "cuobjdump.json", binary=False)
    usage, sass = json.loads(Path(path).read_text())
    return usage, sass


def describe(kernel, capability: int) -> dict:
    """Registers, bytes spilled to the stack, shared memory, and counts of instructions."""
    usage, sass = disassembled(kernel.asm["cubin"])
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    counts = {
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "mma": len(re.findall(r"\b(?:HMMA|HGMMA|WGMMA)\b", sass)),
        "async": len(re.findall(r"\b(?:LDGSTS|UBLKCP|UTMALDG)\b", sass)),
        "wide_loads": len(re.findall(r"\bLDG\.E\S*\.128\b", sass)) + len(re.findall(r"\bLDGSTS\.E\S*\.128\b", sass)),
        "loads": len(re.findall(r"\b(?:LDG|LDGSTS)\.", sass)),
        "wide_stores": len(re.findall(r"\bSTG\.E\S*\.128\b", sass)),
        "doubles": len(re.findall(r"\b(?:DADD|DMUL|DFMA)\b", sass)),
    }
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

    def compile_only(self, *arguments, grid, warmup, **options):
        compiled.append(original(self, *arguments, grid=grid, warmup=True, **options))

    JITFunction.run = compile_only
    driver.set_active(Target(capability))
    launches()
    return [describe(kernel, capability) for kernel in {id(kernel): kernel for kernel in compiled}.values()]


def main() -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as targets:
        capabilities = [int(argument) for argument in sys.argv[1:]] or [80, 90]
        json.dump([row for rows in targets.map(rows_for, capabilities) for row in rows], sys.stdout)


if __name__ == "__main__":
    main()
