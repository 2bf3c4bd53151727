"""How many tokens fit: what a training step keeps in memory, counted from the shapes.

All figures are bytes. The activations follow from what autograd saves in model.py, layer by layer; tests compare the count
with what is really saved.
"""

import os
from dataclasses import dataclass

import torch

from grpo.lora import LoraSpec
from grpo.model import Decoder, ModelConfig

RESERVE = 0.1                        # of the device's memory, left alone: fragmentation, other libraries
LARGEST_MICRO_BATCH = {"cuda": 32768, "cpu": 4096}     # more tokens per pass than this gain nothing
RECOMPUTE_LEVELS = ("none", "mlp", "all")


@dataclass(frozen=True)
class Budget:
    """What the trainer will use: packed tokens per micro-batch, which activations are recomputed, rows per logits chunk."""

    tokens: int
    recompute: str
    logits_rows: int


def activation_bytes_per_token(c: ModelConfig, lora: LoraSpec | None, dtype: torch.dtype, recompute: str) -> float:
    """What the backward pass keeps for each packed token."""
    item, exact = dtype.itemsize, max(dtype.itemsize, 4)
    rank = lora.rank if lora else 0
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    norm = exact * c.hidden_size                                                     # the normalised input, before the weight
    attention = norm + item * (c.hidden_size + 3 * rank + 3 * queries + 4 * keys + queries + rank)   # qkv's and o's inputs, q, k, v, padded k and v, out
    mlp = norm + item * (c.hidden_size + 2 * rank + 4 * c.intermediate_size + rank)  # gate-up's input, gate, up, silu(gate), down's input
    per_layer = {"none": attention + mlp, "mlp": attention + item * c.hidden_size, "all": item * c.hidden_size}[recompute]
    one_layer_again = {"none": 0, "mlp": mlp, "all": attention + mlp}[recompute]     # while that layer's backward runs
    return c.num_layers * per_layer + one_layer_again + 3 * exact * c.hidden_size


def logits_bytes_per_row(c: ModelConfig, dtype: torch.dtype) -> int:
    """One row of logits in the model's dtype and two in float32."""
    return c.vocab_size * (dtype.itemsize + 2 * max(dtype.itemsize, 4))


def kv_bytes_per_token(c: ModelConfig, dtype: torch.dtype) -> int:
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """What a new allocation could take."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def choose_budget(model: Decoder, longest: int, free: int, max_tokens: int = 0, checkpointing: bool | str = "auto") -> Budget:
    """The largest micro-batch that fits into `free` bytes, with as little recomputation as that allows.

    longest: packed tokens of the longest single prompt and completion, which must fit. max_tokens and checkpointing: the
    user's choice, if there is one.
    """
    c, build = model.config, model.build
    kind = torch.device(build.device).type
    rows = max(128, min(2048 if kind == "cuda" else 256, int(0.1 * free / logits_bytes_per_row(c, build.dtype))))
    room = (1 - RESERVE) * free - rows * logits_bytes_per_row(c, build.dtype)
    levels = {"auto": RECOMPUTE_LEVELS, "mlp": ("mlp",), True: ("all",), False: ("none",)}[checkpointing]
    target = max_tokens or max(longest, LARGEST_MICRO_BATCH[kind])
    for level in levels:
        fits = int(room / activation_bytes_per_token(c, build.lora, build.dtype, level))
        if fits >= target:
            return Budget(target, level, rows)
    return Budget(max_tokens or max(fits, longest), level, rows)


def choose_num_sequences(model: Decoder, wanted: int, positions: int, free: int) -> int:
    """Sequences decoded together: as many as wanted, or as the cache has room for in half of `free`."""
    per_sequence = positions * kv_bytes_per_token(model.config, model.build.dtype)
    return max(1, min(wanted, int(0.5 * free / per_sequence)))


def peak_bytes(device: torch.device) -> int:
    """Largest memory in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
