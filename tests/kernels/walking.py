"""Walk the path of a GPU without a GPU: its own code runs on meta tensors, which have shapes and no numbers.

Every operation of torch and every launch of a kernel passes by a `Walk`. It counts launches and the bytes that live,
and refuses what a GPU would refuse or wait for. `python -m tests.kernels.walking >
tests/kernels/launches.json` writes the table of launches anew.
"""

import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from unittest import mock

import torch
import triton.runtime.interpreter
import triton.runtime.jit
from grpo.kernels import decode_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.models import SHAPES
from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.optimizer import Optimizer
from grpo.algorithm.packing import pack_batch
from grpo.algorithm.schema import POLICY, REFERENCE, Completion, Group, PackedBatch, Prompt, Subgroup
from grpo.config.options import TrainConfig
from grpo.engine.attention import choice
from grpo.engine.device import kernel_choice, peers
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model import lora
from grpo.engine.model.build import ALL_PROJECTIONS, Build, LoraSpec
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.flat import FlatParameters
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weights import make_decoder
from grpo.engine.parallel.shard import ALONE, Shard
from grpo.engine.sampling.decode_step import DecodeSteps, KVCache, Slots
from grpo.engine.sampling.sampler import Generation, Sampler, Unfinished

MULTIPROCESSORS = 108  # of an A100
GRID_LIMITS = 2**31 - 1, 65535, 65535
# Beside views: what allocates, and what changes nothing on the device.
NO_LAUNCH = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view", "detach_"}
COPIES = {"copy_", "_to_copy"}  # may read from the CPU


@dataclass
class Walk(TorchDispatchMode):
    """What has been launched, and the bytes of all storages that live.

    inside_graph: nothing may come from the CPU, since a graph could not repeat it.
    """

    launches: list[str] = field(default_factory=list)
    live: int = 0
    peak: int = 0
    inside_graph: bool = False

    def __post_init__(self):
        super().__init__()
        self.storages: dict[int, weakref.ref] = {}

    __hash__ = object.__hash__

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # takes it apart
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        name = func.name().partition("::")[2].partition(".")[0]
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        on_gpu = [x for x in tensors if x.device.type == "meta"]
        if on_gpu:
            strangers = [x for x in tensors if x.device.type != "meta" and (x.dim() or self.inside_graph)]
            assert not strangers or (name in COPIES and not self.inside_graph), f"{func} mixes devices"
            for tensor in on_gpu:
                self.watch(tensor)
            if not func.is_view and name not in NO_LAUNCH:
                self.launches.append(name)
        return result

    def run_kernel(self, kernel, *arguments, grid, warmup=False, **constants) -> None:
        """Take the place of a launch by Triton."""
        name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        assert all(x.device.type == "meta" for x in tensors), f"{name} reads from the CPU"
        assert all(0 < size <= limit for size, limit in zip(grid, GRID_LIMITS, strict=False)), (name, grid)
        self.launches.append(name)

    def watch(self, tensor: torch.Tensor) -> None:
        """Count the bytes of a tensor's storage as long as it lives."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.storages:
            return

        def is_gone(_):
            self.live -= size
            del self.storages[key]

        self.storages[key] = weakref.ref(storage, is_gone)
        self.live += size
        self.peak = max(self.peak, self.live)

    def begin(self) -> None:
        """Forget what was launched, and the peak."""
        self.launches, self.peak = [], self.live


@contextmanager
def walking() -> Iterator[Walk]:
    """Let meta tensors pass for those of a GPU with kernels and FlashAttention."""
    walk = Walk()

    def run(kernel, *arguments, **options):
        walk.run_kernel(kernel, *arguments, **options)

    def gather(stacked, tensor, group):
        walk.launches.append("all_gather")

    def tensor(*data, **options):
        assert not walk.inside_graph, "a tensor is made of numbers of the CPU"
        return make_tensor(*data, **options)

    few_zeros, make_tensor = lora.few_zeros, torch.tensor
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (torch, "tensor", tensor),
            (torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta")),
            (triton.runtime.jit.JITFunction, "run", run),
            (triton.runtime.interpreter.InterpretedFunction, "run", run),
            (import_module("torch.optim.optimizer"), "_get_fused_kernels_supported_devices", lambda: ["meta"]),
            (decode_attention, "_num_multiprocessors", lambda device: MULTIPROCESSORS),
            (kernel_choice, "triton_problem", lambda: ""),
            (choice, "flash_problem", lambda heads: ""),
            (lora, "few_zeros", lambda *of: few_zeros(*of[:-1], "cuda")),
            (peers, "all_gather_flat", gather),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in, create=True))
        stack.enter_context(walk)
        yield walk


# --- the path --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model to walk with."""

    shape: str
    rank: int
    targets: tuple[str, ...] = ALL_PROJECTIONS
    held: str | None = None
    shards: int = 1

    def build(self, num_layers: int = 0) -> Decoder:
        """Make the model with so many layers; 0 for all."""
        config = ModelConfig.from_hf(SHAPES[self.shape])
        config = replace(config, num_layers=num_layers or config.num_layers)
        shard = Shard(self.shards - 1, self.shards) if self.shards > 1 else ALONE
        spec = LoraSpec(self.rank, 2 * self.rank, targets=self.targets)
        return make_decoder(
            config, Build(spec, False, torch.bfloat16, "meta", quantised=FORMATS.get(self.held), shard=shard)
        )


CASES = {
    "7b r=256": Case("7b", 256),
    "7b r=64": Case("7b", 64),
    "1.5b r=64": Case("1.5b", 64),
    "1.5b r=16": Case("1.5b", 16),
    "7b r=256 int8": Case("7b", 256, held="int8"),
    "7b r=256 nf4": Case("7b", 256, held="nf4"),
    "7b r=64, 2 shards": Case("7b", 64, shards=2),
}
ROWS, PROMPT, ANSWER = 24, 225, 1024  # sequences decoded together, and their tokens
CHUNK = 2048
ALL_TOKENS = SamplingParams(ANSWER)


def decode(walk: Walk, model: Decoder, params: SamplingParams = ALL_TOKENS) -> None:
    """Make one step, as a graph records it."""
    with torch.inference_mode():
        slots = Slots.make(KVCache.of(model, ROWS, PROMPT + ANSWER), ANSWER)
        graphs = DecodeSteps(model, slots, (0, 1), "triton")
        with model.sampling() as head_VD:
            graphs.step(ROWS, params, head_VD)  # makes the tables of positions
            walk.begin()
            walk.inside_graph = True
            graphs.step(ROWS, params, head_VD)
            walk.inside_graph = False


def decode_top_p(walk: Walk, model: Decoder) -> None:
    decode(walk, model, SamplingParams(ANSWER, 0.7, 0.9, 20))


def prefill(walk: Walk, model: Decoder) -> None:
    """Prefill two prompts, and enter a group of each."""
    prompts = [(5,) * PROMPT, (6,) * PROMPT]
    sampler = Sampler(model, (0,), ROWS)
    with torch.inference_mode():
        slots = Slots.make(KVCache.of(model, ROWS, PROMPT + ANSWER), ANSWER)
        sampler.kept = DecodeSteps(model, slots, (0,), "triton")
        sampler.uses_graphs = True
        with model.sampling() as head_VD:
            sequences = [Unfinished(number, prompts[number // 12], ANSWER, number) for number in range(ROWS)]
            generation = Generation(sampler, sequences, ALL_TOKENS, head_VD)
            _ = model.tables
            walk.begin()
            generation.prefill(generation.schedule())
        assert len(generation.live) == ROWS


def optimizer_of(model: Decoder) -> Optimizer:
    return Optimizer(FlatParameters(model.parameters()), (0.9, 0.999), 1e-8, 0.0)


def micro_batch(num_completions: int = 12) -> PackedBatch:
    """Make a micro-batch of one prompt and its completions."""
    completion = Completion.given([5] * ANSWER, "length", loss_weight=1.0, advantage=1.0)
    group = Group(Prompt(0, "", (5,) * PROMPT, {}), [completion] * num_completions)
    batch = pack_batch([Subgroup(group, group.completions)], device="meta")
    return replace(batch, ref_logp_C=batch.sampler_logp_C)


def reference(walk: Walk, model: Decoder) -> None:
    batch = micro_batch()
    _ = model.tables
    walk.begin()
    with torch.no_grad():
        batch_logprobs(model, batch, REFERENCE, 1.0, CHUNK)


def train(walk: Walk, model: Decoder) -> None:
    """A micro-batch forward and backward, with KL penalty."""
    optimizer = optimizer_of(model)
    batch = micro_batch()
    _ = model.tables
    walk.begin()
    logp_C, _ = batch_logprobs(model, batch, POLICY, 1.0, CHUNK)
    loss, _ = policy_loss(batch, logp_C, TrainConfig(beta=0.001))
    optimizer.backward(loss)


def update(walk: Walk, model: Decoder) -> None:
    """Clip the gradient and apply it. Its norm is the one number that the host waits for."""
    optimizer = optimizer_of(model)
    walk.begin()
    norm = lambda: torch.linalg.vector_norm(optimizer.flat.grad).dim() + 2.0  # noqa: E731
    with mock.patch.object(optimizer.flat, "grad_norm", norm):
        optimizer.step(1e-6, 1.0)
    model.refresh()


PHASES: dict[str, Callable[[Walk, Decoder], None]] = {
    "decode": decode,
    "decode, top-k and top-p": decode_top_p,
    "prefill": prefill,
    "reference": reference,
    "train": train,
    "update": update,
}


# --- the table -------------------------------------------------------------------------------------------------------


def walked(case: Case, phase: str, num_layers: int) -> list[str]:
    """Return the launches of a phase with so many layers."""
    with walking() as walk:
        PHASES[phase](walk, case.build(num_layers))
        return walk.launches


def row(case: Case, phase: str) -> dict:
    """Return what a layer adds to a phase, and what is launched whatever their number: each name and how often."""
    counts = Counter(walked(case, phase, 2))
    layer = Counter(walked(case, phase, 3)) - counts
    rest = counts - Counter({name: 2 * number for name, number in layer.items()})
    return {
        "layer": dict(sorted(layer.items())),
        "rest": dict(sorted(rest.items())),
        "launches": [layer.total(), rest.total()],
    }


def table() -> str:
    """Return the table as JSON, a line per case and phase."""
    lines = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(phase)}: {json.dumps(row(case, phase))}" for phase in PHASES)
        + "\n}"
        for name, case in CASES.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    print(table())
