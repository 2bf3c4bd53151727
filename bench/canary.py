"""python -m bench.canary [--device cuda]

Does this machine run what the other benchmarks need? In some 20 seconds: memory in segments that grow, one kernel of
each file of kernels/ compared with torch's operations, a CUDA graph, and a GRPO step of a tiny model with 8 tokens per
completion. Every check runs, whatever became of those before it; a case is the time of a check that held. On a CPU it
compares torch with itself, which tests the benchmark. The exit code is 1 if a check failed. The last line of stdout is
JSON.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch

from bench import models, steps, timing
from bench.ceilings import as_graph
from bench.record import Record, parse
from bench.whole_steps import SHAPES, SMOKE_SHAPE
from grpo.attention.decode import DECODE_KERNELS
from grpo.device import ops
from grpo.device.draw import SamplingParams

SEGMENT_BYTES = 1 << 30
TOLERANCE = 1e-4
VOCABULARY = 5000
Make = Callable[..., torch.Tensor]  # sizes -> random numbers, the same on every device


def make_numbers(device: str) -> Make:
    """Return a function that makes random numbers, in the same order on every device."""
    generator = torch.Generator().manual_seed(0)
    return lambda *sizes: torch.randn(*sizes, generator=generator).to(device)


def rotated(make: Make) -> torch.Tensor:
    cos_T1E, sin_T1E = (make(4, 1, 32).repeat(1, 1, 2) for _ in range(2))
    return ops.rotate(make(4, 3, 64), (cos_T1E, sin_T1E))


def merged(make: Make) -> torch.Tensor:
    out_THE = make(4, 3, 64)
    token_X = torch.arange(4, device=out_THE.device)
    ops.merge_attention(out_THE, make(3, 4), make(4, 3, 64), make(3, 4), token_X)
    return out_THE


def decoded(make: Make) -> torch.Tensor:
    q_BHE, k_BKSE, v_BKSE = make(4, 6, 64), make(4, 2, 300, 64), make(4, 2, 300, 64)
    lengths_B = torch.tensor([1, 70, 299, 300], device=q_BHE.device)
    return DECODE_KERNELS["triton" if q_BHE.is_cuda else "sdpa"](lengths_B, 300)(q_BHE, k_BKSE, v_BKSE)


def logprobs(make: Make) -> torch.Tensor:
    logits_XV = make(4, VOCABULARY)
    targets_X = torch.arange(4, device=logits_XV.device)
    return torch.stack(ops.log_softmax_rows(logits_XV, targets_X, 0.7, None, None)[:2])


def drawn(make: Make, top_p: float) -> torch.Tensor:
    """Return the log-probs and cuts of the drawn tokens."""
    logits_BV = make(4, VOCABULARY)
    seed_B = torch.arange(4, device=logits_BV.device)
    record = seed_B[:, None].clone(), *torch.zeros(2, 4, 1, device=logits_BV.device)
    ops.draw_tokens(logits_BV, seed_B, torch.zeros_like(seed_B), SamplingParams(1, top_p=top_p), record)
    return torch.stack(record[1:]).clamp_min(-1e3)  # without a cut it is -inf


KERNELS: dict[str, Callable[[Make], torch.Tensor]] = {
    "rms_norm": lambda make: ops.rms_norm(make(4, 256), make(256), 1e-6)[0],
    "swiglu": lambda make: ops.swiglu(make(4, 256), make(4, 256)),
    "rotary": rotated,
    "merge_attention": merged,
    "decode_attention": decoded,
    "log_softmax_rows": logprobs,
    "inverse_cdf": lambda make: drawn(make, 1.0),
    "nucleus": lambda make: drawn(make, 0.9),
}


def compare(name: str, device: str) -> float:
    """Return the largest difference between a kernel and torch's operations on the CPU."""
    wanted = KERNELS[name](make_numbers("cpu"))
    return float((KERNELS[name](make_numbers(device)).cpu() - wanted).abs().max())


def memory(device: str) -> float:
    """Allocate twice as much as before, as expandable segments do where the machine has virtual-memory calls."""
    size = SEGMENT_BYTES if device == "cuda" else 1 << 20
    sums = [float(torch.ones(size * grown, dtype=torch.uint8, device=device)[-1]) for grown in (1, 2)]
    return abs(sum(sums) - 2)


def capture(device: str) -> float:
    """Capture a sum as a graph and replay it."""
    total = torch.zeros(1, device=device)
    replay = as_graph(lambda: total.add_(1), device)
    total.zero_()
    replay()
    return abs(float(total) - 1)


def step(device: str) -> float:
    """Make a step of GRPO; return the mean difference between the log-probs of sampler and trainer."""
    shape = SHAPES["small"] | SMOKE_SHAPE
    keys = steps.keys_of(shape, device, "float32")
    with models.made_on_device(shape["model"], None) as path, steps.trainer(path, **keys) as trainer:
        metrics, groups = steps.run_step(trainer)
    assert all(len(completion.ids) == shape["tokens"] for group in groups for completion in group.completions)
    return metrics["sampler/logp_diff_mean"]


CHECKS: dict[str, Callable[[str], float]] = {
    "memory": memory,
    **{name: partial(compare, name) for name in KERNELS},
    "capture": capture,
    "step": step,
}


def try_check(name: str, record: Record) -> None:
    """Make a check; record how long it took, or how it failed."""
    device, errors = record.options.device, []
    try:
        seconds = timing.once(lambda: errors.append(CHECKS[name](device)), device)
        assert errors[0] <= TOLERANCE, f"off by {errors[0]:.1e}"
    except Exception as problem:  # whatever it is, the other checks may hold
        first_line = str(problem).partition("\n")[0]
        record.checks[f"{name} failed"] = f"{type(problem).__name__}: {first_line[:200]}"
    else:
        record.add({"name": name, "seconds": {"ours": {"median": seconds}}, "error": errors[0]})


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.canary", __doc__, argv, {"cpu": {}})
    record = Record("canary", options, kernels=ops.describe(options.device))
    for name in CHECKS:
        try_check(name, record)
    return record.finish()


if __name__ == "__main__":
    sys.exit(bool(main()["checks"]))
