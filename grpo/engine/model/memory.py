"""Memory: what a training step keeps, counted from shapes, and the largest micro-batch that fits.

If memory runs out all the same, `MemoryLimit` does the work again with smaller micro-batches.

All figures are bytes. The count of activations follows what autograd saves in grpo/engine/model/decoder.py, layer by
layer; tests compare it with what is really saved.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from typing import ParamSpec, Protocol, TypeVar

import psutil
import torch

from grpo.base.errors import MEMORY, UserError, is_out_of_memory, reason
from grpo.engine.attention.choice import will_be_fused
from grpo.engine.model.decoder import Decoder

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Share of the memory to leave free: for gaps between tensors, and other programs.
RESERVE = {"cuda": 0.1, "mps": 0.25, "cpu": 0.25}
# Tokens per pass that keep the device busy; more are not worth recomputation.
ENOUGH = {"cuda": 4096, "mps": 1024, "cpu": 1024}
LARGEST_MICRO_BATCH = {"cuda": 32768, "mps": 4096, "cpu": 4096}  # tokens; larger ones are not faster
CHUNK = {"cuda": 2048, "mps": 256, "cpu": 256}  # tokens whose logits exist at the same time, if memory allows
LARGER = (  # what to do if a model does not fit
    "use a device with more memory or a smaller model; lower lora_r; base_weights=int8 halves a model in bfloat16, and "
    "nf4 quarters it; torchrun with tensor_parallel_size shares it among devices"
)
RECOMPUTE_LEVELS = ("none", "mlp", "all")
T = TypeVar("T")
P = ParamSpec("P")


class Keys(Protocol):
    """What a configuration says about memory. num_generations: 0 if nothing is sampled."""

    @property
    def num_generations(self) -> int: ...
    @property
    def completions_per_replica(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_tokens_per_micro_batch(self) -> int: ...
    @property
    def gradient_checkpointing(self) -> bool | str: ...
    @property
    def kernels(self) -> str: ...


@dataclass(frozen=True)
class Budget:
    """How the trainer uses memory."""

    tokens: int  # packed tokens per micro-batch
    recompute: str  # activations to compute again in the backward pass, one of RECOMPUTE_LEVELS
    chunk: int  # tokens whose logits exist at the same time
    fused: bool = False  # whether kernels/ and FlashAttention run, which keep less for the backward pass


NO_TOKENS = Budget(0, "none", 0)


@dataclass(frozen=True)
class Account:
    """Bytes that a run needs on a device at its peak."""

    weights: int  # frozen weights, copies of trained ones in the model's dtype, and a reference that is another model
    training: int  # float32 master weights, their gradient, and AdamW's two moments
    cache: int  # keys and values of the sequences decoded together
    activations: int  # of the largest micro-batch
    logits: int  # of one chunk

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __str__(self) -> str:
        parts = [f"{part.name} {getattr(self, part.name) / 1e9:.2f}" for part in fields(self)]
        return f"{' + '.join(parts)} = {self.total / 1e9:.2f} GB"


@dataclass(frozen=True)
class Plan:
    """How a run shares out the memory of its device. The doctor and the trainer make it in the same way."""

    num_sequences: int  # decoded together
    budget: Budget
    needed: Account
    available_bytes: int  # for all of it, loaded weights included

    @property
    def fits(self) -> bool:
        return self.needed.total <= self.available_bytes

    def __str__(self) -> str:
        """Say what was planned, and what it needs."""
        budget = self.budget
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"{self.num_sequences} sequences at once, micro-batches of {budget.tokens} tokens, recomputing "
            f"{budget.recompute}: {self.needed}, {verdict} into {self.available_bytes / 1e9:.1f} GB"
        )


@dataclass(frozen=True)
class Loaded:
    """What a process loads for a run, with the optimizer of the model. Only shapes matter: devices may be meta.

    reference: the frozen policy of step 0, if there is one. num_replicas: they share AdamW's moments.
    """

    model: Decoder
    reference: Decoder | None = None
    num_replicas: int = 1

    def account(self, num_sequences: int = 0, num_positions: int = 0, budget: Budget = NO_TOKENS) -> Account:
        """Count what a run with this budget needs; by default, what it takes once all is loaded.

        num_sequences, num_positions: of the cache. The prepacked weights that a CPU keeps while it samples are not
        counted.
        """
        model, reference = self.model, self.reference
        weights = sum(tensor.nbytes for tensor in model.buffers())
        trained = sum(tensor.nbytes for tensor in model.parameters())
        if reference is not None and reference is not model:
            weights += sum(tensor.nbytes for tensor in reference.buffers())
        return Account(
            weights=weights,
            training=trained * 2 + -(-trained * 2 // self.num_replicas),
            cache=num_sequences * num_positions * kv_bytes_per_token(model),
            activations=int(budget.tokens * activation_bytes_per_token(model, budget.recompute, budget.fused)),
            logits=budget.chunk * logits_bytes_per_row(model),
        )


def make_plan(loaded: Loaded, config: Keys, longest: int, available_bytes: int, kind: str = "") -> Plan:
    """Share out memory: weights and optimizer first, then the cache, then micro-batches in what is left.

    longest: tokens of the longest prompt with its completion. available_bytes: for everything, loaded weights included.
    kind: "cuda", "mps" or "cpu"; by default that of the model.
    """
    model = loaded.model
    left = available_bytes - loaded.account().total
    num_sequences = 0
    if config.num_generations:
        num_sequences = config.max_num_seqs or choose_num_sequences(
            model, config.completions_per_replica, longest, left
        )
    left -= num_sequences * longest * kv_bytes_per_token(model)
    budget = choose_budget(model, config, longest, left, kind)
    return Plan(num_sequences, budget, loaded.account(num_sequences, longest, budget), available_bytes)


def kept_bytes_per_token(model: Decoder, fused: bool = False) -> tuple[float, float, float]:
    """Count what autograd keeps per packed token: of a layer's attention, of its MLP, and once after the last layer.

    A linear keeps its input if its weights are trained, and x Aᵀ if it has an adapter.
    """
    config, lora = model.shape, model.build.lora
    item = model.build.dtype.itemsize
    exact_item = max(item, 4)
    width, mlp_width = config.hidden_size, config.intermediate_size
    heads_width = (config.num_heads + config.num_kv_heads) * config.head_dim

    def linear(input_width: int, *projections: str) -> int:
        if lora is None:
            return item * input_width
        num_adapted = sum(name in lora.targets for name in projections)
        if num_adapted == 0:
            return 0
        return item * (input_width + num_adapted * lora.rank)

    # Of the norm: its input (the residual sum) and scale; without kernels the normalised input, before the weight.
    norm = item * width + 4 if fused else exact_item * width
    # Attention: joint output of qkv, q, k (without kernels q, k, v, padded k and v), its output, which is o's input.
    attention = norm + linear(width, "q_proj", "k_proj", "v_proj") + linear(0, "o_proj")
    attention += (3 if fused else 4) * item * heads_width
    # MLP: gate, up (without kernels also silu(gate)).
    mlp = norm + linear(width, "gate_proj", "up_proj") + linear(mlp_width, "down_proj")
    mlp += (2 if fused else 3) * item * mlp_width
    if fused:
        return attention + 4 * config.num_heads, mlp, item * width  # with the log-sum-exp of each head
    return attention, mlp, 3 * exact_item * width


def activation_bytes_per_token(model: Decoder, recompute: str, fused: bool = False) -> float:
    """Count a packed token's share of the peak: what is kept, what one layer recomputes, and gradients in an MLP.

    Below the first layer with an adapter nothing has a gradient, and nothing is kept.
    Where shards share the model, their terms of a sum may take more than these gradients.
    """
    if measured := model.activation_bytes(recompute):
        return measured
    config = model.shape
    item = model.build.dtype.itemsize
    num_shards = model.build.shard.world
    attention, mlp, once = kept_bytes_per_token(model, fused)
    layer_input = item * config.hidden_size
    per_layer = {"none": attention + mlp, "mlp": attention + layer_input, "all": layer_input}
    again = {"none": 0, "mlp": mlp, "all": attention + mlp}
    gradients = 5 * item * config.intermediate_size
    terms = (num_shards * item + 2 * max(item, 4)) * config.hidden_size if num_shards > 1 else 0
    first = min(model.build.lora.layers or (0,)) if model.build.lora else 0
    kept = (config.num_layers - first) * per_layer[recompute] + once
    return kept + again[recompute] + max(gradients, terms)


def logits_bytes_per_row(model: Decoder) -> int:
    """Count one row of logits in the model's dtype, and two in float32; four where shards share the vocabulary."""
    item = model.build.dtype.itemsize
    num_copies = 2 if model.build.shard.world == 1 else 4
    return model.shape.vocab_size * (item + num_copies * max(item, 4))


def kv_bytes_per_token(model: Decoder) -> int:
    """Count the keys and values of one token in all layers."""
    config = model.shape
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.build.dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Return how many bytes can still be allocated."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return psutil.virtual_memory().available


def choose_budget(model: Decoder, config: Keys, longest: int, free: int, kind: str = "") -> Budget:
    """Choose the micro-batch for `free` bytes.

    It recomputes as little as possible, provided that ENOUGH tokens fit, and then takes as many tokens as fit. Where
    the configuration says how many tokens, or what to recompute, that stands.

    longest: packed tokens of the longest prompt with one completion, which must fit. kind: "cuda", "mps" or "cpu"; by
    default that of the model.
    """
    kind = kind or torch.device(model.build.device).type
    bytes_per_row = logits_bytes_per_row(model)
    chunk = max(128, min(CHUNK[kind], int(0.1 * free / bytes_per_row)))
    room = (1 - RESERVE[kind]) * free - chunk * bytes_per_row
    fused = kind == "cuda" and config.kernels == "auto" and will_be_fused(model)
    allowed = {"auto": RECOMPUTE_LEVELS, "mlp": ("mlp",), True: ("all",), False: ("none",)}
    levels, max_tokens = allowed[config.gradient_checkpointing], config.max_tokens_per_micro_batch
    needed = max_tokens or max(longest, ENOUGH[kind])
    fitting = {level: int(room / activation_bytes_per_token(model, level, fused)) for level in levels}
    level = next((level for level in levels if fitting[level] >= needed), levels[-1])
    tokens = max_tokens or max(longest, min(fitting[level], LARGEST_MICRO_BATCH[kind]))
    return Budget(tokens, level, chunk, fused)


def choose_num_sequences(model: Decoder, wanted: int, positions: int, free: int) -> int:
    """Choose how many sequences to decode together: as many as wanted, if the cache fits into half of `free`."""
    bytes_per_sequence = positions * kv_bytes_per_token(model)
    fitting = int(0.5 * free / bytes_per_sequence)
    return max(1, min(wanted, fitting))


@dataclass
class MemoryLimit:
    """How large micro-batches may be: `budget`, which becomes smaller once memory has run out.

    longest: tokens of the longest sequence; a micro-batch holds at least one. can_retry: whether this process may do
    its work again by itself (shards of one model cannot: the others are in the middle of the same micro-batch).
    """

    budget: Budget
    longest: int
    can_retry: bool = True
    say: Callable[[str], None] = print

    def use(self, tokens: int) -> None:
        """Let micro-batches have at most so many packed tokens, as in an earlier part of the run."""
        self.budget = replace(self.budget, tokens=tokens)

    def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `work`; if memory runs out, run it again with smaller micro-batches, which give the same gradient.

        It makes its micro-batches from `budget` each time, and it may not communicate with other processes: those do
        not run theirs again. Raises the error of torch if it cannot be made smaller.
        """
        while True:
            try:
                return work(*arguments, **named)
            except Exception as error:
                tokens = self.budget.tokens // 2
                if not is_out_of_memory(error) or not self.can_retry or tokens < self.longest:
                    raise
                first_line = str(error).partition("\n")[0]  # the error itself holds on to its traceback's tensors
            self.use(tokens)
            release()
            limit = f"from now on micro-batches have at most {tokens} packed tokens"
            self.say(f"note: out of memory ({first_line}); {limit}")


@contextmanager
def loading() -> Iterator[None]:
    """Say of memory that runs out in loading what helps there (exit 8): no setting of a step does."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not is_out_of_memory(error):
            raise
        count = "`python -m grpo.doctor CONFIG` counts what it needs"
        why = reason(error)
        raise UserError("out of memory while the model was loaded", why, f"{LARGER}; {count}", MEMORY) from error


def release() -> None:
    """Return memory to the device: what only cycles of objects hold, and what is cached."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_bytes(device: torch.device) -> int:
    """Return the largest memory in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if resource is None:
        return psutil.Process().memory_info().peak_wset
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
