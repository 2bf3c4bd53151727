"""python -m bench.canary [--device cuda]

Does this machine run what the other benchmarks need? In some 20 seconds: memory in segments that grow, a CUDA graph,
generation with and without top-p against the trainer's log-probs, and a GRPO step of a tiny model with 8 tokens per
completion. Every check runs, whatever became of those before it; a case is the time of a check that held. The exit code
is 1 if a check failed. The kernels one by one: pytest -m gpu. The last line of stdout is JSON.
"""

import sys
from functools import partial

import torch

from bench import models, steps, timing
from bench.ceilings import as_graph
from bench.record import Record, parse
from bench.whole_steps import SHAPES, SMOKE_SHAPE
from grpo.device import ops

SEGMENT_BYTES = 1 << 30
TOLERANCE = 1e-4


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


def step(device: str, top_p: float = 1.0) -> float:
    """Make a step of GRPO; return the mean difference between the log-probs of sampler and trainer."""
    shape = SHAPES["small"] | SMOKE_SHAPE
    keys = steps.keys_of(shape, device, "float32") | {"top_p": top_p}
    with models.made_on_device(shape["model"], None) as path, steps.trainer(path, **keys) as trainer:
        metrics, groups = steps.run_step(trainer)
    assert all(len(completion.ids) == shape["tokens"] for group in groups for completion in group.completions)
    return metrics["sampler/logp_diff_mean"]


CHECKS = {"memory": memory, "capture": capture, "step": step, "step, top_p 0.9": partial(step, top_p=0.9)}


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
