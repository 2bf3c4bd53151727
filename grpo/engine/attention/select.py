"""Choose the implementation of each attention on this machine, by a self-test at start; the log names what was chosen.

`choose` tries the implementations on a small problem of the run's own shape, drops those that are missing or wrong, and
takes the fastest of the rest. If bits must be the same in every run, it takes the first that is right. On a CPU,
packed.py chooses by dtype, and decode.py takes the kernel in C where there is one.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention.decode import DECODE_KERNELS, sdpa
from grpo.engine.attention.flash import FlashPackedAttention
from grpo.engine.attention.packed import MicroBatchAttention, PackedAttention
from grpo.engine.device.capture import CudaCapture, no_waiting
from grpo.engine.device.kernel_choice import HALF, ProcessSettings, triton_problem

if TYPE_CHECKING:
    from grpo.engine.model.decoder import Decoder

# Largest relative error that a self-test allows, against float64.
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-10}
# Errors of an implementation that cannot be used here; Triton's compiler raises others, too.
UNUSABLE = (ImportError, RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError)
REPEATS, CALLS_PER_GRAPH = 5, 20
TRIAL_ROWS, TRIAL_POSITIONS = 96, 2048  # at most, because the reference is computed in float64


@dataclass(frozen=True)
class KernelChoice:
    """The chosen implementation; and of all that were tried the seconds per call, or why it cannot be used."""

    name: str
    trials: Mapping[str, float | str]

    def __str__(self) -> str:
        return f"{self.name} ({_in_words(self.trials)})" if self.trials else self.name


def choose(
    candidates: Mapping[str, Callable[[], Tensor]],
    wanted: Tensor,
    tolerance: float,
    clock: Callable[[Callable], float],
    repeatable: bool = False,
) -> KernelChoice:
    """Run each candidate, compare its result with `wanted`, time those that are right, and take the fastest.

    With `repeatable`, take the first that is right. The last candidate is the fallback and must be right.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of implementations that are not chosen
        trials = {name: _try(run, wanted, tolerance, clock) for name, run in candidates.items()}
    usable = {name: result for name, result in trials.items() if isinstance(result, float)}
    if not usable:
        raise RuntimeError(f"no implementation passed its self-test: {_in_words(trials)}")
    first = next(iter(usable))
    fastest = min(usable, key=usable.__getitem__)
    best = first if repeatable else fastest
    return KernelChoice(best, {best: usable[best]} | trials)  # the log names the best one first


def _in_words(trials: Mapping[str, float | str]) -> str:
    words = []
    for name, result in trials.items():
        shown = f" {1e6 * result:.0f} µs" if isinstance(result, float) else f": {result}"
        words.append(name + shown)
    return ", ".join(words)


def _try(run: Callable, wanted: Tensor, tolerance: float, clock: Callable) -> float | str:
    """Return the seconds of a call, or why the implementation cannot be used."""
    try:
        difference = run().double() - wanted
        error = float(difference.norm() / wanted.norm())
        if not error <= tolerance:  # NaN is wrong, too
            return f"wrong by {error:.1e}"
        return clock(run)
    except ModuleNotFoundError:
        return "not installed"
    except Exception as problem:
        is_of_triton = type(problem).__module__.startswith("triton")
        if not (is_of_triton or isinstance(problem, UNUSABLE)):
            raise
        first_line = str(problem).partition("\n")[0]
        return f"{type(problem).__name__}: {first_line}"


# --- attention of one new token per slot ---------------------------------------------------------------------------


def decode_choice(
    model: "Decoder", num_rows: int, num_positions: int, kernels: Mapping[str, Callable] = DECODE_KERNELS
) -> KernelChoice:
    """Choose the decode attention of a model for `num_rows` sequences of up to `num_positions` tokens."""
    if torch.device(model.build.device).type != "cuda":
        kernels = {"sdpa": kernels["sdpa"]}
    elif not ProcessSettings.kernels or triton_problem():
        kernels = {name: make for name, make in kernels.items() if name != "triton"}
    num_rows = min(num_rows, TRIAL_ROWS)
    num_positions = min(num_positions, TRIAL_POSITIONS)
    lengths_B, q_BHE, kv_2BKSE, wanted_BHE = _decode_trial(model, num_rows, num_positions)

    def candidate(make: Callable) -> Callable[[], Tensor]:
        attend = cache(lambda: make(lengths_B, num_positions))  # made once per step, and called by every layer
        return lambda: attend()(q_BHE, *kv_2BKSE)

    return choose(
        {name: candidate(make) for name, make in kernels.items()},
        wanted_BHE,
        TOLERANCE[model.build.dtype],
        clock=replay_seconds,
        repeatable=ProcessSettings.repeatable,
    )


def _decode_trial(model: "Decoder", num_rows: int, num_positions: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make lengths, queries, keys and values, and the attention [B, H, E] that these should give, in float64.

    The sequences have different lengths, and large values beyond their ends, so that reading these would show.
    """
    config = model.shard_config
    dtype, device = model.build.dtype, model.build.device
    generator = torch.Generator(device).manual_seed(0)
    q_shape = num_rows, config.num_heads, config.head_dim
    kv_shape = 2, num_rows, config.num_kv_heads, num_positions, config.head_dim
    q_BHE = torch.randn(q_shape, generator=generator, device=device).to(dtype)
    kv_2BKSE = torch.randn(kv_shape, generator=generator, device=device).to(dtype)
    lengths_B = torch.linspace(num_positions, 1, num_rows, device=device).long()
    position_S = torch.arange(num_positions, device=device)
    beyond_BS = position_S >= lengths_B[:, None]
    reference = sdpa(lengths_B, num_positions)
    wanted_BHE = reference(q_BHE.double(), *kv_2BKSE.double())
    kv_2BKSE.masked_fill_(beyond_BS[None, :, None, :, None], 10.0)
    return lengths_B, q_BHE, kv_2BKSE, wanted_BHE


# --- attention inside a micro-batch --------------------------------------------------------------------------------


PACKED: dict[str, Callable[[Layout, torch.dtype, torch.device | str], MicroBatchAttention]] = {
    "torch flash": lambda layout, dtype, device: FlashPackedAttention(layout, device),
    "sdpa": PackedAttention,
}
TRIAL_LAYOUT = Layout.of((70, (40, 1, 129)), (1, (65,)), (33, ()))


@cache
def choose_packed(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
) -> KernelChoice:
    """Choose the attention inside a micro-batch, judged by its output and all its gradients.

    It holds for the settings of the process. When these change, clear its cache.
    """
    if torch.device(device).type != "cuda" or dtype not in HALF:
        return KernelChoice("sdpa", {})

    def run(name: str, kind: torch.dtype) -> Tensor:
        q_THE, k_TKE, v_TKE, dout = (x.to(dtype).to(kind).requires_grad_() for x in inputs)
        attention = PACKED[name](TRIAL_LAYOUT, kind, device)
        out = attention.attend(q_THE, k_TKE, v_TKE)
        grads = torch.autograd.grad(out, (q_THE, k_TKE, v_TKE), dout)
        results = [x.detach().flatten() for x in (out, *grads)]
        return torch.cat(results)

    with torch.inference_mode(False), torch.enable_grad():
        generator = torch.Generator(device).manual_seed(0)
        inputs = []
        for heads in (num_heads, num_kv_heads, num_kv_heads, num_heads):  # of q, k, v and the gradient of the output
            shape = TRIAL_LAYOUT.num_tokens, heads, head_dim
            drawn = torch.randn(shape, generator=generator, device=device)
            inputs.append(drawn)
        return choose(
            {name: partial(run, name, dtype) for name in PACKED},
            run("sdpa", torch.float64),
            2 * TOLERANCE[dtype],
            clock=seconds,
            repeatable=ProcessSettings.repeatable,
        )


def packed_choice(model: "Decoder") -> KernelChoice:
    """Return the choice of attention inside the micro-batches of `model`."""
    config, build = model.shard_config, model.build
    return choose_packed(config.num_heads, config.num_kv_heads, config.head_dim, build.dtype, build.device)


def would_use_flash(model: "Decoder") -> bool:
    """Return whether micro-batches of `model` use FlashAttention; if it is on no GPU, whether a GPU would try that."""
    if torch.device(model.build.device).type != "cuda":
        return True
    return packed_choice(model).name == "torch flash"


def packed_attention(model: "Decoder", layout: Layout) -> MicroBatchAttention:
    """Make the attention of `model` for one micro-batch."""
    make = PACKED[packed_choice(model).name]
    return make(layout, model.build.dtype, model.build.device)


def seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of some calls after a first one."""
    taken = []
    for _ in range(REPEATS + 1):
        started = _now()
        run()
        taken.append(_now() - started)
    return statistics.median(taken[1:])


def replay_seconds(run: Callable[[], object]) -> float:
    """Return the seconds of one call inside a CUDA graph, as in decoding: without the host's share.

    RuntimeError if the call cannot be captured.
    """
    if not torch.cuda.is_available():
        return seconds(run)
    with no_waiting():
        run()
    capture = CudaCapture()
    graph = capture(lambda: [run() for _ in range(CALLS_PER_GRAPH)])
    return seconds(graph.replay) / CALLS_PER_GRAPH


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
