"""What the machine reaches at best, measured in the same run: matrix products of the shapes in use, and copying memory.

A share of the ceiling is the time that a workload's matrix products take alone, each at the shape it has there, divided
by the time that was taken. The products are those of grpo/device/products.py with packed weights, the fastest at hand; packing
them is not counted.
"""

import statistics
from collections.abc import Sequence

import torch

from bench.timing import once
from grpo.device.products import linear, pack
from grpo.model.decoder import ModelConfig

Product = tuple[int, int, int]  # rows, inputs, outputs
COPY_BYTES = 1 << 28


def products(config: ModelConfig, rows: int, head_rows: int) -> list[Product]:
    """The matrix products of one forward pass over `rows` tokens, of which `head_rows` reach the head. Adapters are not
    counted."""
    D, F, E = config.hidden_size, config.intermediate_size, config.head_dim
    layer = [
        (rows, D, (config.num_heads + 2 * config.num_kv_heads) * E),
        (rows, config.num_heads * E, D),
        (rows, D, 2 * F),
        (rows, F, D),
    ]
    return layer * config.num_layers + [(head_rows, D, config.vocab_size)]


def backward(forward: Sequence[Product]) -> list[Product]:
    """Of the gradient to each input; frozen weights have none."""
    return [(rows, outputs, inputs) for rows, inputs, outputs in forward]


def flops(shapes: Sequence[Product]) -> int:
    return sum(2 * rows * inputs * outputs for rows, inputs, outputs in shapes)


def products_seconds(shapes: Sequence[Product], dtype: torch.dtype, device: str, repeats: int = 5) -> float:
    """Median time of these products, one after the other, each with a weight of its own as in a model."""
    inputs = {
        (rows, width): torch.empty(rows, width, dtype=dtype, device=device).normal_() for rows, width, _ in shapes
    }
    weights = [pack(torch.empty(outputs, width, dtype=dtype, device=device).normal_()) for _, width, outputs in shapes]

    def run() -> None:
        for (rows, width, _), weight in zip(shapes, weights, strict=True):
            linear(inputs[rows, width], weight)

    with torch.inference_mode():
        run()
        return statistics.median(once(run, device) for _ in range(repeats))


def peaks(device: str, smoke: bool) -> dict[str, float]:
    """TFLOP/s of a large square product in both dtypes, and GB/s of a copy (read and written bytes)."""
    size = 256 if smoke else 8192 if device == "cuda" else 2048
    found = {
        f"{name}_tflops": flops([(size,) * 3]) / products_seconds([(size,) * 3], getattr(torch, name), device) / 1e12
        for name in ("float32", "bfloat16")
    }
    source = torch.zeros((COPY_BYTES >> (8 if smoke else 0)) // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = statistics.median(once(lambda: target.copy_(source), device) for _ in range(5))
    found["copy_gb_per_s"] = 2 * source.nbytes / seconds / 1e9
    print("ceilings: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    return found
