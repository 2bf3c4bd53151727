"""Measure what the machine reaches at best, in the same run, and compute from it the least time of a workload.

The least time, or floor: the bytes that must move, at the rate of a large copy, or the arithmetic, at the rate of a
large matrix product, whichever takes longer. The share of the ceiling is the floor divided by the time taken.
"""

import statistics
from argparse import Namespace
from collections.abc import Mapping
from functools import partial

import torch

from bench import models
from bench.timing import Side, once
from bench.workload import Work
from grpo.engine.device.products import linear, prepack, slow_dtype
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.memory import kv_bytes_per_token
from grpo.engine.model.model_config import ModelConfig

Peaks = Mapping[str, float]  # what `peaks` measured
REPEATS = 5
SQUARE = {"smoke": 256, "cpu": 2048, "cuda": 8192}  # rows and columns of a large product
COPY_BYTES = {"smoke": 1 << 20, "cpu": 1 << 28, "cuda": 1 << 32}  # far more than any cache


@torch.inference_mode()
def peaks(options: Namespace) -> Peaks:
    """Measure TFLOP/s of a large square product in both dtypes, and GB/s of a copy (bytes read and written)."""
    device = options.device
    kind = "smoke" if options.smoke else device
    found = {}
    for dtype in ("float32", "bfloat16"):
        build = models.build_of(options, dtype=dtype)
        is_slow = slow_dtype(build.dtype, torch.device(device))
        if options.dtype == "float32" and is_slow:
            continue  # it would take minutes
        size = SQUARE[kind]
        hidden = random_matrix(size, size, build)
        weight = prepack(random_matrix(size, size, build))
        found[f"{dtype}_tflops"] = 2 * size**3 / median_seconds(partial(linear, hidden, weight), device) / 1e12
    source = torch.rand(COPY_BYTES[kind] // 4, device=device)  # zeros would be compressed
    target = torch.empty_like(source)
    found["copy_gb_per_s"] = 2 * source.nbytes / median_seconds(partial(target.copy_, source), device) / 1e9
    print("ceilings:", ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    return found


def random_matrix(rows: int, columns: int, build: Build) -> torch.Tensor:
    """Make a matrix of random numbers."""
    return torch.randn(rows, columns, dtype=build.dtype, device=build.device)


def median_seconds(run: Side, device: str) -> float:
    """Return the median time of a run, after one that does not count."""
    run()
    seconds = [once(run, device) for _ in range(REPEATS)]
    return statistics.median(seconds)


def num_weights(config: ModelConfig) -> tuple[int, int]:
    """Count the weights of the matrix products of all layers, and those of the head. Adapters are not counted."""
    width = config.hidden_size
    head_dim = config.head_dim
    q_and_o = 2 * width * head_dim * config.num_heads
    k_and_v = 2 * width * head_dim * config.num_kv_heads
    mlp = 3 * width * config.intermediate_size
    layers = config.num_layers * (q_and_o + k_and_v + mlp)
    head = width * config.vocab_size
    return layers, head


def forward_flops(config: ModelConfig, rows: int, head_rows: int) -> int:
    """Count the additions and multiplications of a forward pass over `rows` tokens, of which some reach the head.

    A backward pass needs as many for the gradients of its inputs; frozen weights have no gradient.
    """
    layers, head = num_weights(config)
    return 2 * (rows * layers + head_rows * head)


def floor_seconds(flops: int, dtype: torch.dtype, peak: Peaks, num_bytes: int = 0) -> float:
    """Return the least time of so many operations that move so many bytes."""
    name = "bfloat16" if dtype == torch.bfloat16 else "float32"
    memory_seconds = num_bytes / peak["copy_gb_per_s"] / 1e9
    flop_seconds = flops / peak[f"{name}_tflops"] / 1e12
    return max(memory_seconds, flop_seconds)


def decode_floor(model: Decoder, rows: int, kv_tokens: int, peak: Peaks) -> float:
    """Return the least time of one decode step. kv_tokens: behind all rows together."""
    dtype = model.build.dtype
    layers, head = num_weights(model.config)
    weight_bytes = (layers + head) * dtype.itemsize
    kv_bytes = kv_tokens * kv_bytes_per_token(model)
    flops = forward_flops(model.config, rows, rows)
    return floor_seconds(flops, dtype, peak, weight_bytes + kv_bytes)


def generation_floor(model: Decoder, work: Work, peak: Peaks) -> float:
    """Return the least time of each prompt's pass, and of all decode steps, each with the rows that are not done."""
    prompt_tokens = sum(len(prompt) - 1 for prompt in work.prompts)  # the last one is decoded
    prefill = floor_seconds(forward_flops(model.config, prompt_tokens, 0), model.build.dtype, peak)
    steps = map(work.behind, range(max(work.lengths)))
    return prefill + sum(decode_floor(model, len(behind), sum(behind), peak) for behind in steps)


def step_floors(model: Decoder, work: Work, packed: int, peak: Peaks) -> dict[str, float]:
    """Return the least time of each phase of a GRPO step with a reference pass. packed: tokens of the packed batch."""
    flops = forward_flops(model.config, packed, sum(work.lengths))
    forward = floor_seconds(flops, model.build.dtype, peak)
    generate = generation_floor(model, work, peak)
    return {"generate": generate, "reference": forward, "train": 2 * forward}
