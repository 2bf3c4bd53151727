"""Which implementation computes what on this machine: found out by a self-test at start, and named for the log.

`fused(x)` says whether the kernels of kernels/ take the place of torch's operations on x. The attentions have several
implementations each; `choose` tries them on a small problem of the run's own shape, drops what is missing or wrong, and
takes the fastest of the rest. On a CPU everything is torch's own. Where bits must be the same in every run, the first
that is right is taken.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from grpo.attention.flash import FlashPackedAttention
from grpo.attention.packed import PackedAttention
from grpo.model.linear import linear
from grpo.schema import Layout

HALF = (torch.bfloat16, torch.float16)
TOLERANCE = {
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
    torch.float32: 1e-5,
    torch.float64: 1e-10,
}  # relative, against float64
UNUSABLE = (
    ImportError,
    RuntimeError,
    NotImplementedError,
    AttributeError,
    TypeError,
    ValueError,
)  # and what Triton's compiler raises
REPEATS, CALLS_PER_GRAPH = 5, 20
TRIAL_ROWS, TRIAL_POSITIONS = 96, 2048  # at most: the trial's reference is in float64

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # q_BHE, k_BKSE, v_BKSE -> out_BHE


@dataclass(frozen=True)
class Trial:
    """How an implementation did: its relative error and seconds per call, or why it is out."""

    name: str
    error: float = math.nan
    seconds: float = math.nan
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}" if self.problem else f"{self.name} {1e6 * self.seconds:.0f} µs"


@dataclass(frozen=True)
class Choice:
    """The chosen implementation and all trials, the chosen one first."""

    name: str
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.trials))})" if self.trials else self.name


def choose(
    candidates: Mapping[str, Callable[[], torch.Tensor]],
    wanted: torch.Tensor,
    tolerance: float,
    clock: Callable[[Callable], float],
    repeatable: bool = False,
) -> Choice:
    """Runs each candidate, compares its result with `wanted`, times those that are right, and takes the fastest; with
    `repeatable` the first. The last candidate is the fallback and must be right."""
    trials = []
    for name, run in candidates.items():
        try:
            error = float((run().double() - wanted).norm() / wanted.norm())
            right = error <= tolerance  # False for NaN
            trials.append(
                Trial(name, error, clock(run)) if right else Trial(name, error, problem=f"wrong by {error:.1e}")
            )
        except Exception as problem:
            if not isinstance(problem, UNUSABLE) and not type(problem).__module__.startswith("triton"):
                raise
            trials.append(
                Trial(name, problem=f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:120]}")
            )
    usable = [trial for trial in trials if not trial.problem]
    if not usable:
        raise RuntimeError(f"no implementation passed its self-test: {', '.join(map(str, trials))}")
    best = usable[0] if repeatable else min(usable, key=lambda trial: trial.seconds)
    return Choice(best.name, (best, *(trial for trial in trials if trial is not best)))


# --- kernels/ in place of torch's operations --------------------------------------------------------------------------


class Settings:
    """What the configuration says, once per process: whether kernels/ may be used, and whether bits must repeat."""

    kernels, repeatable = True, False


def configure(kernels: bool, repeatable: bool) -> None:
    Settings.kernels, Settings.repeatable = kernels, repeatable
    choose_packed.cache_clear()


@cache
def triton_problem() -> str:
    """Why the kernels cannot be used in this process; empty if they can."""
    try:
        import triton
    except ImportError:
        return "Triton is not installed"
    if triton.knobs.runtime.interpret:
        return "Triton is set to interpret"
    try:
        from grpo.kernels.rms_norm import rms_norm

        x, weight = torch.randn(3, 100, device="cuda"), torch.ones(100, device="cuda")
        wrong = float((rms_norm(x, weight, 1e-6)[0] - F.rms_norm(x, (100,), weight, 1e-6)).abs().max())
    except Exception as problem:  # a compiler has many ways to fail, and torch's own operations do as well
        return f"Triton failed: {type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:120]}"
    return "" if wrong < 1e-5 else f"Triton's results are off by {wrong:.1e}"


def fused(x: torch.Tensor) -> bool:
    """Whether kernels/ takes the place of torch's operations on this tensor."""
    return x.is_cuda and x.dtype in (*HALF, torch.float32) and Settings.kernels and not triton_problem()


def will_fuse(dtype: torch.dtype) -> bool:
    """Whether a GPU's training pass uses kernels/ and FlashAttention; for a GPU that is not here (grpo.doctor) that is
    taken for granted."""
    return dtype in HALF and Settings.kernels and not (torch.cuda.is_available() and triton_problem())


def describe(device: torch.device | str) -> str:
    """For the log."""
    if torch.device(device).type != "cuda":
        return "torch's own operations"
    problem = triton_problem() if Settings.kernels else "kernels: none"
    return f"torch's own operations ({problem})" if problem else "fused kernels (Triton)"


def exact_logits(hidden_XD: torch.Tensor, head_VD: torch.Tensor) -> torch.Tensor:
    """hidden headᵀ [X, V], on a GPU in float32 as the product accumulates it; elsewhere in the dtype of its inputs."""
    if hidden_XD.is_cuda and hidden_XD.dtype in HALF:
        return torch.mm(hidden_XD, head_VD.T, out_dtype=torch.float32)
    return linear(hidden_XD, head_VD)


# --- attention of one new token per slot ------------------------------------------------------------------------------


def triton_decode(lengths_B: torch.Tensor, num_positions: int) -> Attend:
    from grpo.kernels.decode_attention import decode_attention

    return lambda q, k, v: decode_attention(q, k, v, lengths_B, num_positions)


def torch_flash_decode(lengths_B: torch.Tensor, num_positions: int) -> Attend:
    """FlashAttention-2 in torch with `seqused_k`. Every (slot, key-value head) is a sequence of its own with one head
    of keys, which makes the cache one run of tokens; the queries of its group are the heads. So torch splits keys and
    packs the group."""
    starts: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def attend(q_BHE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor) -> torch.Tensor:
        (B, H, E), K, capacity = q_BHE.shape, k_BKSE.shape[1], k_BKSE.stride(1) // q_BHE.shape[2]
        if (K, capacity) not in starts:
            number = torch.arange(B * K + 1, dtype=torch.int32, device=q_BHE.device)
            starts[K, capacity] = number, number * capacity, lengths_B.to(torch.int32).repeat_interleave(K)
        query_starts, key_starts, lengths = starts[K, capacity]
        k, v = (x.as_strided((B * K * capacity, 1, E), (E, E, 1)) for x in (k_BKSE, v_BKSE))
        out, *_ = torch.ops.aten._flash_attention_forward(
            q_BHE.reshape(B * K, H // K, E),
            k,
            v,
            query_starts,
            key_starts,
            1,
            num_positions,
            0.0,
            False,
            False,
            seqused_k=lengths,
        )
        return out.view(B, H, E)

    return attend


def flash_attn_decode(lengths_B: torch.Tensor, num_positions: int) -> Attend:
    """The flash-attn package, where it is installed."""
    from flash_attn import flash_attn_with_kvcache

    lengths = lengths_B.to(torch.int32)
    return lambda q, k, v: flash_attn_with_kvcache(
        q[:, None], k.transpose(1, 2), v.transpose(1, 2), cache_seqlens=lengths
    )[:, 0]


def sdpa_decode(lengths_B: torch.Tensor, num_positions: int) -> Attend:
    """torch's scaled_dot_product_attention with a mask, the group on the query axis."""
    allowed_B11S = (torch.arange(num_positions, device=lengths_B.device) < lengths_B[:, None])[:, None, None]
    return lambda q, k, v: F.scaled_dot_product_attention(
        q.unflatten(1, (k.shape[1], -1)), k, v, attn_mask=allowed_B11S
    ).flatten(1, 2)


DECODERS = {
    "triton": triton_decode,
    "torch flash": torch_flash_decode,
    "flash-attn": flash_attn_decode,
    "sdpa": sdpa_decode,
}


def choose_decoder(
    heads: int,
    kv_heads: int,
    head_dim: int,
    rows: int,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device | str,
    decoders: Mapping[str, Callable] = DECODERS,
) -> Choice:
    """The decode attention for `rows` sequences of up to `num_positions` tokens. The lengths of the trial are ragged,
    and what lies beyond them is large, so that attending to it shows."""
    rows, num_positions = min(rows, TRIAL_ROWS), min(num_positions, TRIAL_POSITIONS)
    if torch.device(device).type != "cuda":
        decoders = {"sdpa": decoders["sdpa"]}
    elif not Settings.kernels or triton_problem():
        decoders = {name: make for name, make in decoders.items() if name != "triton"}
    generator = torch.Generator(device).manual_seed(0)
    q_BHE = torch.randn(rows, heads, head_dim, generator=generator, device=device).to(dtype)
    kv = torch.randn(2, rows, kv_heads, num_positions, head_dim, generator=generator, device=device).to(dtype)
    lengths_B = torch.linspace(1, num_positions, rows, device=device).long()
    beyond_BS = torch.arange(num_positions, device=device) >= lengths_B[:, None]
    wanted = sdpa_decode(lengths_B, num_positions)(q_BHE.double(), *kv.double())
    kv.masked_fill_(beyond_BS[None, :, None, :, None], 10.0)
    candidates = {
        name: (lambda make=make: make(lengths_B, num_positions)(q_BHE, *kv)) for name, make in decoders.items()
    }
    return choose(candidates, wanted, TOLERANCE[dtype], replay_seconds, Settings.repeatable)


# --- attention over a packed row --------------------------------------------------------------------------------------


def flash_packed(layout: Layout, dtype: torch.dtype, device: torch.device | str) -> FlashPackedAttention:
    return FlashPackedAttention(layout, device)


PACKED = {"torch flash": flash_packed, "sdpa": PackedAttention}
TRIAL_LAYOUT = Layout.of((70, (40, 1, 129)), (1, (65,)), (33, ()))


@cache
def choose_packed(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str) -> Choice:
    """The packed attention, judged by its output and all its gradients."""
    if torch.device(device).type != "cuda" or dtype not in HALF:
        return Choice("sdpa", ())

    def run(name: str, kind: torch.dtype) -> torch.Tensor:
        *leaves, dout = (x.to(dtype).to(kind).requires_grad_() for x in inputs)
        out = PACKED[name](TRIAL_LAYOUT, kind, device)(0, *leaves)
        grads = torch.autograd.grad(out, leaves, dout)
        return torch.cat([x.detach().flatten() for x in (out, *grads)])

    with torch.inference_mode(False), torch.enable_grad():
        generator = torch.Generator(device).manual_seed(0)
        inputs = [
            torch.randn(TRIAL_LAYOUT.num_tokens, h, head_dim, generator=generator, device=device)
            for h in (heads, kv_heads, kv_heads, heads)
        ]
        return choose(
            {name: lambda name=name: run(name, dtype) for name in PACKED},
            run("sdpa", torch.float64),
            2 * TOLERANCE[dtype],
            seconds,
            Settings.repeatable,
        )


def packed_choice(model) -> Choice:
    """What a packed row of the decoder `model` is attended to with."""
    c, build = model.config, model.build
    return choose_packed(c.num_heads, c.num_kv_heads, c.head_dim, build.dtype, build.device)


def packed_attention(model, layout: Layout) -> PackedAttention | FlashPackedAttention:
    return PACKED[packed_choice(model).name](layout, model.build.dtype, model.build.device)


def seconds(run: Callable[[], object]) -> float:
    """Of one call, the median of some after a first one."""
    taken = []
    for _ in range(REPEATS + 1):
        started = _now()
        run()
        taken.append(_now() - started)
    return statistics.median(taken[1:])


def replay_seconds(run: Callable[[], object]) -> float:
    """Of one call inside a CUDA graph, as decoding makes it: without the host's share. What cannot be captured is
    out."""
    if not torch.cuda.is_available():
        return seconds(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_GRAPH):
            run()
    return seconds(graph.replay) / CALLS_PER_GRAPH


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
