"""Measure what the machine reaches at best, in the same run, and compute from it the least time of a workload.

A share of the ceiling is the least time of a workload divided by the time that it took. There are two kinds:

    products  the workload's matrix products alone, each timed at its own shape, with prepacked weights (packing them is
              not counted); for comparisons with others
    floor     the bytes that must move, at the rate of a large copy, or the arithmetic, at the rate of a large product,
              whichever takes longer; for decode steps and complete steps
"""

import os
import statistics
from collections import Counter
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


# --- Which products ------------------------------------------------------------------------------------------------


def forward_products(config: ModelConfig, rows: int, head_rows: int) -> list[Product]:
    """List the matrix products of one forward pass over `rows` tokens, of which `head_rows` reach the head.

    Adapters are not counted.
    """
    width, mlp, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    num_heads = config.num_heads + 2 * config.num_kv_heads
    layer = [
        (rows, width, num_heads * head_dim),
        (rows, config.num_heads * head_dim, width),
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


# --- Times that are measured ---------------------------------------------------------------------------------------


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


def random_matrix(rows: int, columns: int, build: Build) -> torch.Tensor:
    """Make a matrix of random numbers."""
    empty = torch.empty(rows, columns, dtype=build.dtype, device=build.device)
    return empty.normal_()


def weights_of(shapes: Products, build: Build) -> list[torch.Tensor]:
    """Make a packed weight for each product, as in a model: none is still in a cache when its turn comes again."""
    return [prepack(random_matrix(outputs, inputs, build)) for _, inputs, outputs in shapes]


@torch.inference_mode()
def products_seconds(
    shapes: Products,
    build: Build,
    repeats: int = REPEATS,
    weights: Sequence[torch.Tensor] | None = None,
    function: Callable = linear,
) -> float:
    """Return the median time of these products, one after the other, each with its own weight (or those given)."""
    weights = weights or weights_of(shapes, build)
    input_of = {}
    for rows, inputs, _ in shapes:
        input_of[rows, inputs] = random_matrix(rows, inputs, build)

    def run() -> None:
        for shape, weight in zip(shapes, weights, strict=True):
            rows, inputs, _ = shape
            function(input_of[rows, inputs], weight)

    return median_seconds(run, torch.device(build.device).type, repeats)


def generation_seconds(model: Decoder, work: Work) -> float:
    """Return the time of the products of the prefill and of all decode steps.

    Each decode step counts with the sequences that still decode.
    """
    config, build = model.config, model.build
    weights = weights_of(forward_products(config, 1, 1), build)
    prompt_tokens = sum(len(prompt) - 1 for prompt in work.prompts)
    prefill = forward_products(config, prompt_tokens, 0)
    total = products_seconds(prefill, build, weights=weights[: len(prefill)])
    steps_by_rows = Counter(len(work.behind(step)) for step in range(work.steps))
    for rows, steps in steps_by_rows.items():
        step = forward_products(config, rows, rows)
        total += steps * products_seconds(step, build, weights=weights)
    return total


def training_seconds(
    model: Decoder,
    packed: int,
    scored: int,
    num_forward: int = 1,
) -> float:
    """Return the time of the products of some forward passes and one backward pass over the packed tokens."""
    forward = forward_products(model.config, packed, scored)
    passes = forward * num_forward + backward_products(forward)
    return products_seconds(passes, model.build, repeats=3)


# --- Floors --------------------------------------------------------------------------------------------------------


def floor_seconds(shapes: Products, dtype: torch.dtype, peak: Peaks, num_bytes: int = 0) -> float:
    """Return the least time of some products that move so many bytes: what memory or arithmetic allows."""
    name = "bfloat16" if dtype == torch.bfloat16 else "float32"
    return max(num_bytes / peak["copy_gb_per_s"] / 1e9, flops(shapes) / peak[f"{name}_tflops"] / 1e12)


def decode_floor_seconds(model: Decoder, rows: int, kv_tokens: int, peak: Peaks) -> float:
    """Return the least time of one decode step. kv_tokens: behind all rows together."""
    dtype = model.build.dtype
    shapes = forward_products(model.config, rows, rows)
    num_weights = sum(inputs * outputs for _, inputs, outputs in shapes)
    kv_bytes = kv_tokens * kv_bytes_per_token(model.config, dtype)
    return floor_seconds(shapes, dtype, peak, num_weights * dtype.itemsize + kv_bytes)


def step_floors(model: Decoder, work: Work, packed: int, peak: Peaks) -> dict[str, float]:
    """Return the least time of each phase of a GRPO step with a reference pass.

    Generation has every decode step with the rows that are not done. The passes go over the packed tokens: reference
    and policy forward, and the policy's backward.
    """
    generate = 0.0
    for step in range(work.steps):
        behind = work.behind(step)
        generate += decode_floor_seconds(model, len(behind), sum(behind), peak)
    forward = forward_products(model.config, packed, sum(work.lengths))
    both = forward + backward_products(forward)
    dtype = model.build.dtype
    return {
        "generate": generate,
        "reference": floor_seconds(forward, dtype, peak),
        "train": floor_seconds(both, dtype, peak),
    }


def peaks(options) -> Peaks:
    """Measure TFLOP/s of a large square product in both dtypes, and GB/s of a copy (bytes read and written).

    If the variable BENCH_PEAKS names a file, the first of several benchmarks writes it, and the others read it.
    """
    known = Path(os.environ.get("BENCH_PEAKS", ""))
    if known.is_file():
        return read_json(known)
    kind = "smoke" if options.smoke else options.device
    size = SQUARE[kind]
    square = [(size, size, size)]
    found = {}
    for dtype in ("float32", "bfloat16"):
        seconds = products_seconds(square, models.build_of(options, dtype=dtype))
        found[f"{dtype}_tflops"] = flops(square) / seconds / 1e12
    source = torch.rand(COPY_BYTES[kind] // 4, device=options.device)  # zeros would be compressed
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), options.device)
    found["copy_gb_per_s"] = 2 * source.nbytes / seconds / 1e9
    print("ceilings:", ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    if known.name:
        write_json(known, found)
    return found
