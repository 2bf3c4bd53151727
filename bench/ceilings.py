"""Measure what the machine reaches at best, in the same run: matrix products of the shapes in use, and copying memory.

A share of the ceiling is the time that a workload's matrix products take alone, each at its own shape, divided by the
time that the workload took. The products are those of grpo/device/products.py with prepacked weights, the fastest at
hand. Packing them is not counted.
"""

import statistics
from collections import Counter
from collections.abc import Sequence

import torch

from bench.timing import once
from bench.workload import Work
from grpo.device.capture import CudaCapture
from grpo.device.products import linear, prepack
from grpo.model.decoder import ModelConfig
from grpo.run.memory import kv_bytes_per_token

Product = tuple[int, int, int]  # rows, inputs, outputs
SQUARE = {"smoke": 256, "cpu": 2048, "cuda": 8192}  # rows and columns of a large product
COPY_BYTES = {"smoke": 1 << 20, "cpu": 1 << 28, "cuda": 1 << 32}  # far more than any cache


def products(config: ModelConfig, rows: int, head_rows: int) -> list[Product]:
    """List the matrix products of one forward pass over `rows` tokens, of which `head_rows` reach the head.

    Adapters are not counted.
    """
    D, F, E = config.hidden_size, config.intermediate_size, config.head_dim
    layer = [
        (rows, D, (config.num_heads + 2 * config.num_kv_heads) * E),
        (rows, config.num_heads * E, D),
        (rows, D, 2 * F),
        (rows, F, D),
    ]
    head = [(head_rows, D, config.vocab_size)] if head_rows else []
    return layer * config.num_layers + head


def backward(forward: Sequence[Product]) -> list[Product]:
    """List the products for the gradient of each input; frozen weights have no gradient."""
    return [(rows, outputs, inputs) for rows, inputs, outputs in forward]


def flops(shapes: Sequence[Product]) -> int:
    """Count the additions and multiplications of some products."""
    return sum(2 * rows * inputs * outputs for rows, inputs, outputs in shapes)


def weights_of(shapes: Sequence[Product], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Make a packed weight for each product, as in a model: none is still in a cache when its turn comes again."""
    return [prepack(torch.empty(outputs, width, dtype=dtype, device=device).normal_()) for _, width, outputs in shapes]


def products_seconds(
    shapes: Sequence[Product],
    dtype: torch.dtype,
    device: str,
    repeats: int = 5,
    weights: Sequence[torch.Tensor] | None = None,
) -> float:
    """Return the median time of these products, one after the other, each with its own weight (or those given)."""
    weights = weights or weights_of(shapes, dtype, device)
    inputs = {
        (rows, width): torch.empty(rows, width, dtype=dtype, device=device).normal_() for rows, width, _ in shapes
    }

    def run() -> None:
        for (rows, width, _), weight in zip(shapes, weights, strict=True):
            linear(inputs[rows, width], weight)

    with torch.inference_mode():
        run()
        # Launched one by one, small products on a GPU would wait for Python.
        timed = CudaCapture()(run).replay if device == "cuda" else run
        return statistics.median(once(timed, device) for _ in range(repeats))


def generation_seconds(config: ModelConfig, work: Work, dtype: torch.dtype, device: str) -> float:
    """Return the time of the products of the prefill, and of all decode steps, each at the number of sequences that
    still decode."""
    weights = weights_of(products(config, 1, 1), dtype, device)
    decoding = Counter(sum(length > step for length in work.lengths) for step in range(max(work.lengths)))
    total = 0.0
    for rows, steps in decoding.items():
        total += steps * products_seconds(products(config, rows, rows), dtype, device, weights=weights)
    prefill = products(config, sum(len(prompt) - 1 for prompt in work.prompts), 0)
    return total + products_seconds(prefill, dtype, device, weights=weights[: len(prefill)])


def training_seconds(
    config: ModelConfig, packed: int, scored: int, dtype: torch.dtype, device: str, num_forward: int = 1
) -> float:
    """Return the time of the products of some forward passes and one backward pass over the packed tokens."""
    forward = products(config, packed, scored)
    return products_seconds([*forward * num_forward, *backward(forward)], dtype, device, 3)


def decode_roofline_seconds(
    config: ModelConfig, rows: int, kv_tokens: int, dtype: torch.dtype, peak: dict[str, float]
) -> float:
    """Return the least time of one decode step: what memory or arithmetic allows, whichever takes longer.

    kv_tokens: behind all rows together. peak: what `peaks` measured.
    """
    shapes = products(config, rows, rows)
    weight_bytes = sum(inputs * outputs for _, inputs, outputs in shapes) * dtype.itemsize
    kv_bytes = kv_tokens * kv_bytes_per_token(config, dtype)
    memory_seconds = (weight_bytes + kv_bytes) / peak["copy_gb_per_s"] / 1e9
    return max(memory_seconds, arithmetic_seconds(shapes, dtype, peak))


def step_roofline_seconds(
    config: ModelConfig, work: Work, packed: int, dtype: torch.dtype, peak: dict[str, float]
) -> float:
    """Return the least time of a whole step: every decode step with the rows that are not done, two forward passes
    (policy and reference) over the packed tokens, and one backward pass."""
    total = 0.0
    for step in range(max(work.lengths)):
        pairs = zip(work.repeated, work.lengths, strict=True)
        behind = [len(prompt) + step for prompt, length in pairs if length > step]
        total += decode_roofline_seconds(config, len(behind), sum(behind), dtype, peak)
    forward = products(config, packed, sum(work.lengths))
    return total + arithmetic_seconds([*forward, *forward, *backward(forward)], dtype, peak)


def arithmetic_seconds(shapes: Sequence[Product], dtype: torch.dtype, peak: dict[str, float]) -> float:
    """Return the time of some products at the rate of a large one. peak: what `peaks` measured."""
    tflops = peak["bfloat16_tflops" if dtype == torch.bfloat16 else "float32_tflops"]
    return flops(shapes) / tflops / 1e12


def peaks(options) -> dict[str, float]:
    """Measure TFLOP/s of a large square product in both dtypes, and GB/s of a copy (bytes read and written)."""
    device, kind = options.device, "smoke" if options.smoke else options.device
    square = [(SQUARE[kind],) * 3]
    found = {}
    for name in ("float32", "bfloat16"):
        found[f"{name}_tflops"] = flops(square) / products_seconds(square, getattr(torch, name), device) / 1e12
    source = torch.rand(COPY_BYTES[kind] // 4, device=device)  # zeros would be compressed
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = statistics.median(once(lambda: target.copy_(source), device) for _ in range(5))
    found["copy_gb_per_s"] = 2 * source.nbytes / seconds / 1e9
    print("ceilings: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    return found
