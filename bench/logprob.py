"""python -m bench.logprob [--peer torch|none] [--vocabularies 32000 152064] [--tokens 1024] [--width 1024]

How fast, and in how much memory, do hidden states become log-probs of given tokens, and does the gradient come back to
the hidden states? The head is frozen, as with LoRA. The peer makes the logits, then log_softmax in float32, then
gather, which is our precision. Ours computes the entropy, too, and divides by a temperature, which is 1 here. Its chunk
is the trainer's.

Memory is the growth of the peak: of the process (VmHWM; one process per point) or of the GPU's allocator. Checked in
the same run: the errors of log-prob and gradient against float64, on 64 rows of the same tensors. The ceiling is the
matrix products that are needed: logits once, gradient once. The last line of stdout is JSON.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from bench import ceilings, timing
from grpo.logprobs import token_logprobs
from grpo.run.memory import LOGITS_ROWS

CHECKED_ROWS = 64
WARM_UP_ROWS = 8
SIZES = {
    "smoke": {"tokens": CHECKED_ROWS, "vocabularies": [1000], "growth": [CHECKED_ROWS], "width": 64},
    "cpu": {
        "vocabularies": [32000, 152064],
        "tokens": 1024,
        "width": 1024,
        "growth": [512, 1024, 2048, 4096],  # tokens at which memory is measured
    },
    "cuda": {"tokens": 8192},
}


class Problem:
    """Hidden states, head and targets. `run(side)` computes log-probs and the gradient of their mean."""

    def __init__(self, tokens: int, width: int, vocab: int, dtype: torch.dtype, device: str):
        torch.manual_seed(0)
        self.hidden_CD = torch.empty(tokens, width, dtype=dtype, device=device).normal_().requires_grad_()
        self.head_VD = torch.empty(vocab, width, dtype=dtype, device=device).normal_(0, width**-0.5)
        self.targets_C = torch.randint(vocab, (tokens,), device=device)
        self.chunk = LOGITS_ROWS[device]

    def logprobs(self, side: str) -> torch.Tensor:
        if side == "ours":
            logp_C, _ = token_logprobs(self.hidden_CD, self.head_VD, self.targets_C, 1.0, chunk=self.chunk)
            return logp_C
        logits_CV = (self.hidden_CD @ self.head_VD.T).float()
        return logits_CV.log_softmax(-1).gather(1, self.targets_C[:, None])[:, 0]

    def run(self, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probs and the gradient."""
        self.hidden_CD.grad = None
        logp_C = self.logprobs(side)
        logp_C.mean().backward()
        return logp_C.detach(), self.hidden_CD.grad

    def errors(self, side: str) -> dict[str, float]:
        """Return the largest errors against float64; the gradient's is relative to its largest entry."""
        hidden_CD = self.hidden_CD.detach()[:CHECKED_ROWS].double().requires_grad_()
        logits_CV = hidden_CD @ self.head_VD.double().T
        wanted_C = logits_CV.log_softmax(-1).gather(1, self.targets_C[:CHECKED_ROWS, None])[:, 0]
        (wanted_C.sum() / len(self.targets_C)).backward()
        logp_C, grad_CD = self.run(side)
        error = (grad_CD[:CHECKED_ROWS] - hidden_CD.grad).abs().max()
        return {
            "gradient": float(error / hidden_CD.grad.abs().max()),
            "logp": float((logp_C[:CHECKED_ROWS] - wanted_C.detach()).abs().max()),
        }


def sides_of(options) -> list[str]:
    return ["ours"] if options.peer == "none" else ["ours", options.peer]


def speed(vocab: int, dtype: str, options) -> dict:
    """Time both sides at one vocabulary and dtype."""
    problem = Problem(options.tokens, options.width, vocab, getattr(torch, dtype), options.device)
    sides = {side: lambda side=side: problem.run(side) for side in sides_of(options)}
    target = 1.3 if dtype == "float32" else 2.0
    case = timing.compare(f"vocabulary {vocab}, {dtype}", sides, options, target=target)
    logits = [(options.tokens, options.width, vocab)]
    products = [*logits, *ceilings.backward(logits)]
    ceiling = ceilings.products_seconds(products, getattr(torch, dtype), options.device)
    case |= timing.rates(case, options.tokens, ceiling)
    case["error"] = {side: problem.errors(side) for side in sides}
    timing.show(case)
    return case


def memory(vocab: int, dtype: str, options) -> dict:
    """Measure the MB that each side needs at growing numbers of tokens."""
    row = {"name": f"vocabulary {vocab}, {dtype}", "tokens": options.growth}
    points = [(side, tokens) for side in sides_of(options) for tokens in options.growth]
    megabytes = iter(peak_megabytes(points, options.width, vocab, dtype, options.device))
    for side in sides_of(options):
        row[side] = [next(megabytes) for _ in options.growth]
        found = zip(options.growth, row[side], strict=True)
        figures = "  ".join(f"{tokens} tokens {peak:.0f} MB" for tokens, peak in found)
        print(f"peak memory, {row['name']:28} {side:6} {figures}", flush=True)
    return row


def peak_megabytes(points: list[tuple[str, int]], width: int, vocab: int, dtype: str, device: str) -> list[float]:
    """Measure the growth of the peak at each point, on a CPU in processes that have computed nothing yet."""
    if device == "cuda":
        return [growth_of_peak(side, tokens, width, vocab, dtype, device) for side, tokens in points]
    request = json.dumps([points, width, vocab, dtype])
    command = [sys.executable, "-m", "bench.logprob", "--peaks", request]
    done = subprocess.run(command, cwd=timing.ROOT, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def print_peaks(points: list[tuple[str, int]], width: int, vocab: int, dtype: str) -> None:
    """Measure each point in a fork of this process."""
    for side, tokens in points:
        child = os.fork()
        if child == 0:
            print(growth_of_peak(side, tokens, width, vocab, dtype, "cpu"), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


def growth_of_peak(side: str, tokens: int, width: int, vocab: int, dtype: str, device: str) -> float:
    """Return the MB that a run needs beyond its inputs. A small run before it lets libraries make their buffers."""
    Problem(WARM_UP_ROWS, width, vocab, getattr(torch, dtype), device).run(side)
    problem = Problem(tokens, width, vocab, getattr(torch, dtype), device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        problem.run(side)
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    before = status_bytes("VmRSS")
    problem.run(side)
    return (status_bytes("VmHWM") - before) / 1e6


def status_bytes(key: str) -> int:
    """Read a figure about this process. VmHWM, unlike ru_maxrss, does not start at the parent's peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[key].split()[0]) * 1024


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.logprob", __doc__, ("torch", "none"), ("both", "float32", "bfloat16"), **SIZES)
    arguments.add_argument("--peaks", type=json.loads, help=argparse.SUPPRESS)
    options = timing.parse(arguments, argv, **SIZES)
    if options.peaks:
        print_peaks(*options.peaks)
        return {}
    dtypes = ["float32", "bfloat16"] if options.dtype == "both" else [options.dtype]
    peak, cases, memories, checks = ceilings.peaks(options), [], [], {}
    for vocab in options.vocabularies:
        for dtype in dtypes:
            cases.append(speed(vocab, dtype, options))
            memories.append(memory(vocab, dtype, options))
    for case in cases:
        for kind, error in case["error"]["ours"].items():
            checks[f"{case['name']} {kind} error"] = error
    for row in memories:
        growth = row["ours"][-1] / max(row["ours"][0], 1)
        checks[f"{row['name']} peak at {options.growth[-1]} / {options.growth[0]} tokens"] = growth
    return timing.finish("logprob", options, cases, checks, peak_megabytes=memories, ceilings=peak)


if __name__ == "__main__":
    main()
