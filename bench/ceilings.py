"""Measure what the machine reaches at best, in the same run, and compute from it the least time of a workload.

The least time, or floor: the bytes that must move, at the rate of a large copy, or the arithmetic, at the rate of a
large matrix product, whichever takes longer. The share of the ceiling is the floor divided by the time taken.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from bench import models
from bench.timing import Side, once
from bench.workload import Work
from grpo.base.storage import read_json, write_json
from grpo.device.capture import CudaCapture
from grpo.device.products import linear, prepack
from grpo.model.decoder import Decoder, ModelConfig
from grpo.model.lora import Build
from grpo.model.memory import kv_bytes_per_token

Product = tuple[int, int, int]  # rows, inputs, outputs
Products = Sequence[Product]
Peaks = Mapping[str, float]  # what `peaks` measured
REPEATS = 5
SQUARE = {"smoke": 256, "cpu": 2048, "cuda": 8192}  # rows and columns of a large product
COPY_BYTES = {"smoke": 1 << 20, "cpu": 1 << 28, "cuda": 1 << 32}  # far more than any cache


# --- Products ------------------------------------------------------------------------------------------------------


def forward_products(config: ModelConfig, rows: int, head_rows: int) -> list[Product]:
    """List the matrix products of one forward pass over `rows` tokens, of which `head_rows` reach the head.

    Adapters are not counted.
    """
    width, mlp = config.hidden_size, config.intermediate_size
    num_heads = config.num_heads + 2 * config.num_kv_heads
    layer = [
        (rows, width, num_heads * config.head_dim),
        (rows, config.num_heads * config.head_dim, width),
        (rows, width, 2 * mlp),
        (rows, mlp, width),
    ]
    head = [(head_rows, width, config.vocab_size)] if head_rows else []
    return layer * config.num_layers + head


def backward_products(forward: Products) -> list[Product]:
    """List the products for the gradient of each input; frozen weights have no gradient."""
    return [(rows, outputs, inputs) for rows, inputs, outputs in forward]


def flops(shapes: Products) -> int:
    """Count the additions and multiplications of some products."""
    return sum(2 * rows * inputs * outputs for rows, inputs, outputs in shapes)


def random_matrix(rows: int, columns: int, build: Build) -> torch.Tensor:
    """Make a matrix of random numbers."""
    return torch.empty(rows, columns, dtype=build.dtype, device=build.device).normal_()


@torch.inference_mode()
def product_seconds(
    shape: Product,
    build: Build,
    repeats: int = REPEATS,
    calls: int = 1,
    function: Callable = linear,
) -> float:
    """Return the median time of one product of some. Each has a weight of its own, as in a model."""
    rows, inputs, outputs = shape
    weights = [prepack(random_matrix(outputs, inputs, build)) for _ in range(calls)]
    hidden = random_matrix(rows, inputs, build)

    def run() -> None:
        for weight in weights:
            function(hidden, weight)

    return median_seconds(run, torch.device(build.device).type, repeats) / calls


def median_seconds(run: Side, device: str, repeats: int = REPEATS) -> float:
    """Return the median time of a run, after one that does not count.

    On a GPU the run is replayed as a CUDA graph. Launched one by one, small products would wait for Python.
    """
    run()
    timed = as_graph(run, device)
    return statistics.median(once(timed, device) for _ in range(repeats))


def as_graph(run: Side, device: str) -> Side:
    """Capture a run as a CUDA graph, and return what replays it; on a CPU return the run."""
    return CudaCapture()(run).replay if device == "cuda" else run


# --- Floors --------------------------------------------------------------------------------------------------------


def floor_seconds(shapes: Products, dtype: torch.dtype, peak: Peaks, num_bytes: int = 0) -> float:
    """Return the least time of some products that move so many bytes: what memory or arithmetic allows."""
    name = "bfloat16" if dtype == torch.bfloat16 else "float32"
    moving = num_bytes / peak["copy_gb_per_s"] / 1e9
    computing = flops(shapes) / peak[f"{name}_tflops"] / 1e12
    return max(moving, computing)


def decode_floor(model: Decoder, rows: int, kv_tokens: int, peak: Peaks) -> float:
    """Return the least time of one decode step. kv_tokens: behind all rows together."""
    dtype = model.build.dtype
    shapes = forward_products(model.config, rows, rows)
    num_weights = sum(inputs * outputs for _, inputs, outputs in shapes)
    kv_bytes = kv_tokens * kv_bytes_per_token(model.config, dtype)
    return floor_seconds(shapes, dtype, peak, num_weights * dtype.itemsize + kv_bytes)


def generation_floor(model: Decoder, work: Work, peak: Peaks) -> float:
    """Return the least time of all decode steps, each with the rows that are not done."""
    total = 0.0
    for step in range(max(work.lengths)):
        behind = work.behind(step)
        total += decode_floor(model, len(behind), sum(behind), peak)
    return total


def training_floor(model: Decoder, packed: int, scored: int, peak: Peaks) -> float:
    """Return the least time of one forward and one backward pass over the packed tokens."""
    forward = forward_products(model.config, packed, scored)
    return floor_seconds(forward + backward_products(forward), model.build.dtype, peak)


def step_floors(model: Decoder, work: Work, packed: int, peak: Peaks) -> dict[str, float]:
    """Return the least time of each phase of a GRPO step with a reference pass."""
    scored = sum(work.lengths)
    forward = forward_products(model.config, packed, scored)
    return {
        "generate": generation_floor(model, work, peak),
        "reference": floor_seconds(forward, model.build.dtype, peak),
        "train": training_floor(model, packed, scored, peak),
    }


def peaks(options) -> Peaks:
    """Measure TFLOP/s of a large square product in both dtypes, and GB/s of a copy (bytes read and written).

    If the variable BENCH_PEAKS names a file, the first of several benchmarks writes it, and the others read it.
    """
    known = Path(os.environ.get("BENCH_PEAKS", ""))
    if known.is_file():
        return read_json(known)
    kind = "smoke" if options.smoke else options.device
    square = (SQUARE[kind],) * 3
    found = {}
    for dtype in ("float32", "bfloat16"):
        seconds = product_seconds(square, models.build_of(options, dtype=dtype))
        found[f"{dtype}_tflops"] = flops([square]) / seconds / 1e12
    source = torch.rand(COPY_BYTES[kind] // 4, device=options.device)  # zeros would be compressed
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), options.device)
    found["copy_gb_per_s"] = 2 * source.nbytes / seconds / 1e9
    print("ceilings:", ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    if known.name:
        write_json(known, found)
    return found
