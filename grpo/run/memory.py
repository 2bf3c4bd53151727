"""How many tokens fit: what a training step keeps in memory, counted from the shapes.

All figures are bytes. The activations follow from what autograd saves in model.py, layer by layer; tests compare the
count with what is really saved.
"""

import os
from dataclasses import dataclass, replace

import torch

from grpo.device.ops import will_use_kernels
from grpo.model.decoder import Decoder, ModelConfig
from grpo.model.lora import LoraSpec

RESERVE = {"cuda": 0.1, "cpu": 0.25}  # of the device's memory, left alone: gaps between tensors, other programs
ENOUGH = {"cuda": 4096, "cpu": 1024}  # tokens per pass that keep products busy: fewer are not worth more recomputation
LARGEST_MICRO_BATCH = {"cuda": 32768, "cpu": 4096}  # more than this gain nothing
LOGITS_ROWS = {"cuda": 2048, "cpu": 256}  # of logits at a time, where memory is plenty
RECOMPUTE_LEVELS = ("none", "mlp", "all")


@dataclass(frozen=True)
class Budget:
    """What the trainer will use: packed tokens per micro-batch, which activations are recomputed, rows per logits
    chunk; and whether kernels/ and FlashAttention are at work, which keep less for the backward pass."""

    tokens: int
    recompute: str
    logits_rows: int
    fused: bool = False


@dataclass(frozen=True)
class Account:
    """Bytes that a run needs on a device at the height of a step, by what holds them."""

    weights: (
        int  # frozen, or the copies in the model's dtype that products use; the reference, if it is a model of its own
    )
    training: int  # float32 masters, their gradient, AdamW's two moments
    cache: int  # keys and values of the sequences decoded together
    activations: int  # of the largest micro-batch
    logits: int  # of one chunk

    @property
    def total(self) -> int:
        return self.weights + self.training + self.cache + self.activations + self.logits

    def __str__(self) -> str:
        parts = [
            f"{name} {getattr(self, name) / 1e9:.2f}"
            for name in ("weights", "training", "cache", "activations", "logits")
        ]
        return f"{' + '.join(parts)} = {self.total / 1e9:.2f} GB"


def account(
    model: Decoder, num_sequences: int, num_positions: int, budget: Budget, reference: Decoder | None = None
) -> Account:
    """What a run with this budget needs. The model may be one without memory (Build(device="meta")): only shapes
    count."""
    c, build = model.config, model.build
    extra = (
        sum(tensor.nbytes for tensor in reference.buffers()) if reference is not None and reference is not model else 0
    )
    return Account(
        sum(tensor.nbytes for tensor in model.buffers()) + extra,
        4 * sum(master.nbytes for master in model.parameters()),
        num_sequences * num_positions * kv_bytes_per_token(c, build.dtype),
        int(budget.tokens * activation_bytes_per_token(c, build.lora, build.dtype, budget.recompute, budget.fused)),
        budget.logits_rows * logits_bytes_per_row(c, build.dtype),
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of this machine: torch has an error of its own for the first only."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def kept_bytes_per_token(
    c: ModelConfig, lora: LoraSpec | None, dtype: torch.dtype, fused: bool = False
) -> tuple[float, float, float]:
    """What autograd keeps of a layer's attention and MLP for each packed token, and what it keeps once."""
    item, exact = dtype.itemsize, max(dtype.itemsize, 4)
    D, F, R, Q, K = (
        c.hidden_size,
        c.intermediate_size,
        lora.rank if lora else 0,
        c.num_heads * c.head_dim,
        c.num_kv_heads * c.head_dim,
    )
    if fused:
        norm = item * D + 4  # the sum that is normalised, and its scale
        attention = (
            norm + item * (D + 3 * R + 3 * Q + 3 * K + R) + 4 * c.num_heads
        )  # qkv's input and (joint) output, q, k, out; log-sum-exp
        return attention, norm + item * (D + 2 * R + 3 * F + R), item * D  # gate-up's input, gate, up, down's input
    norm = exact * D  # the normalised input, before the weight
    attention = norm + item * (D + 3 * R + 4 * Q + 4 * K + R)  # qkv's and o's inputs, q, k, v, padded k and v, out
    return (
        attention,
        norm + item * (D + 2 * R + 4 * F + R),
        3 * exact * D,
    )  # gate-up's input, gate, up, silu(gate), down's input


def activation_bytes_per_token(
    c: ModelConfig, lora: LoraSpec | None, dtype: torch.dtype, recompute: str, fused: bool = False
) -> float:
    """Each packed token's share of the peak: what is kept, what one layer computes again, and the gradients inside an
    MLP."""
    attention, mlp, once = kept_bytes_per_token(c, lora, dtype, fused)
    item = dtype.itemsize
    per_layer = {"none": attention + mlp, "mlp": attention + item * c.hidden_size, "all": item * c.hidden_size}[
        recompute
    ]
    again = {"none": 0, "mlp": mlp, "all": attention + mlp}[recompute]
    return c.num_layers * per_layer + once + again + 5 * item * c.intermediate_size


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


def choose_budget(
    model: Decoder, longest: int, free: int, max_tokens: int = 0, checkpointing: bool | str = "auto", kind: str = ""
) -> Budget:
    """The micro-batch for `free` bytes: as little recomputation as leaves room for ENOUGH tokens, and then as many as
    fit.

    longest: packed tokens of the longest single prompt and completion, which must fit. max_tokens and checkpointing:
    the user's choice, if there is one. kind: "cuda" or "cpu", if not that of the model.
    """
    c, build = model.config, model.build
    kind = kind or torch.device(build.device).type
    rows = max(128, min(LOGITS_ROWS[kind], int(0.1 * free / logits_bytes_per_row(c, build.dtype))))
    room = (1 - RESERVE[kind]) * free - rows * logits_bytes_per_row(c, build.dtype)
    fused = kind == "cuda" and will_use_kernels(build.dtype)
    levels = {"auto": RECOMPUTE_LEVELS, "mlp": ("mlp",), True: ("all",), False: ("none",)}[checkpointing]
    needed = max_tokens or max(longest, ENOUGH[kind])
    for level in levels:
        fits = int(room / activation_bytes_per_token(c, build.lora, build.dtype, level, fused))
        if fits >= needed:
            return Budget(max_tokens or min(fits, max(longest, LARGEST_MICRO_BATCH[kind])), level, rows, fused)
    return Budget(max_tokens or max(fits, longest), level, rows, fused)


def choose_num_sequences(model: Decoder, wanted: int, positions: int, free: int) -> int:
    """Sequences decoded together: as many as wanted, or as the cache has room for in half of `free`."""
    per_sequence = positions * kv_bytes_per_token(model.config, model.build.dtype)
    return max(1, min(wanted, int(0.5 * free / per_sequence)))


def halve(budget: Budget, longest: int) -> Budget | None:
    """A budget with half the tokens, or None where a single completion would not fit into it. Micro-batches are a
    matter of memory alone: the gradient stays the same."""
    return replace(budget, tokens=budget.tokens // 2) if budget.tokens // 2 >= longest else None


def release() -> None:
    """Gives cached memory of the GPU back to whatever is allocated next."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_bytes(device: torch.device) -> int:
    """Largest memory in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
