"""python -m bench.logprob [--peer torch|none] [--vocabularies 32000 152064] [--tokens 1024] [--width 1024]

How fast, and in how much memory, do hidden states become log-probs of given tokens, and does the gradient come back to
the hidden states? The head is frozen, as with LoRA. The peer makes the logits, then log_softmax in float32, then
gather, which is our precision. Ours computes the entropy, too, and divides by a temperature, which is 1 here. Its chunk
is the trainer's.

Memory is the growth of the peak at each number of tokens in --growth: of the process (VmHWM; one process per point) or
of the GPU's allocator. Checked in the same run: the errors of log-prob and gradient against float64, on 64 rows of the
same tensors. The ceiling is the matrix products that are needed: logits once, gradient once. The last line of stdout is
JSON.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from bench import ceilings, models, timing
from bench.record import Record, parse
from bench.workload import plain_logprobs
from grpo.logprobs import token_logprobs
from grpo.model.lora import Build
from grpo.run.memory import CHUNK

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

    def __init__(self, tokens: int, width: int, vocab: int, build: Build):
        torch.manual_seed(0)
        self.hidden_CD = ceilings.random_matrix(tokens, width, build).requires_grad_()
        self.head_VD = ceilings.random_matrix(vocab, width, build).mul_(width**-0.5)
        self.targets_C = torch.randint(vocab, (tokens,), device=build.device)
        self.chunk = CHUNK[build.device]

    def logprobs(self, side: str) -> torch.Tensor:
        if side == "torch":
            logits_CV = self.hidden_CD @ self.head_VD.T
            return plain_logprobs(logits_CV.float(), self.targets_C)
        logp_C, _ = token_logprobs(self.hidden_CD, self.head_VD, self.targets_C, 1.0, chunk=self.chunk)
        return logp_C

    def run(self, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probs and the gradient."""
        self.hidden_CD.grad = None
        logp_C = self.logprobs(side)
        logp_C.mean().backward()
        return logp_C.detach(), self.hidden_CD.grad

    def errors(self, side: str) -> dict[str, float]:
        """Return the largest errors against float64; the gradient's is relative to its largest entry."""
        checked = slice(CHECKED_ROWS)
        hidden_CD = self.hidden_CD.detach()[checked].double().requires_grad_()
        logits_CV = hidden_CD @ self.head_VD.double().T
        wanted_C = plain_logprobs(logits_CV, self.targets_C[checked])
        (wanted_C.sum() / len(self.targets_C)).backward()
        logp_C, grad_CD = self.run(side)
        logp_error_C = logp_C[checked] - wanted_C.detach()
        grad_error_CD = grad_CD[checked] - hidden_CD.grad
        relative = grad_error_CD.abs().max() / hidden_CD.grad.abs().max()
        return {"gradient": float(relative), "logp": float(logp_error_C.abs().max())}


def sides_of(options) -> list[str]:
    return ["ours"] if options.peer == "none" else ["ours", options.peer]


def speed(name: str, vocab: int, build: Build, options) -> dict:
    """Time both sides at one vocabulary and dtype."""
    problem = Problem(options.tokens, options.width, vocab, build)
    sides = {side: partial(problem.run, side) for side in sides_of(options)}
    target = 1.3 if build.dtype == torch.float32 else 2.0
    case = timing.compare(name, sides, options, target=target)
    logits = [(options.tokens, options.width, vocab)]
    products = logits + ceilings.backward_products(logits)
    ceiling = ceilings.products_seconds(products, build)
    case |= timing.rates(case, options.tokens, ceiling)
    case["error"] = {side: problem.errors(side) for side in sides}
    return case


def memory(name: str, vocab: int, build: Build, options) -> dict:
    """Measure the MB that each side needs at growing numbers of tokens."""
    row = {"name": name, "tokens": options.growth}
    for side in sides_of(options):
        measure = partial(growth_of_peak, side=side, width=options.width, vocab=vocab, build=build)
        if build.device == "cpu":
            measure = partial(in_new_process, measure)
        row[side] = [measure(tokens) for tokens in options.growth]
        peaks = zip(options.growth, row[side], strict=True)
        figures = "  ".join(f"{tokens} tokens {peak:.0f} MB" for tokens, peak in peaks)
        print(f"peak memory, {name:28} {side:6} {figures}", flush=True)
    return row


def in_new_process(measure: Callable[[int], float], tokens: int) -> float:
    """Measure in a process that has computed nothing yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(measure, tokens).result()


def growth_of_peak(
    tokens: int,
    side: str,
    width: int,
    vocab: int,
    build: Build,
) -> float:
    """Return the MB that a run needs beyond its inputs. A small run before it lets libraries make their buffers."""
    Problem(WARM_UP_ROWS, width, vocab, build).run(side)
    problem = Problem(tokens, width, vocab, build)
    if build.device == "cuda":
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
    peers = {"torch": (), "none": ()}
    options = parse("bench.logprob", __doc__, argv, SIZES, peers, dtypes=("both", "float32", "bfloat16"))
    record = Record("logprob", options)
    dtypes = ["float32", "bfloat16"] if options.dtype == "both" else [options.dtype]
    peak = ceilings.peaks(options)
    memories = []
    for vocab in options.vocabularies:
        for dtype in dtypes:
            name = f"vocabulary {vocab}, {dtype}"
            build = models.build_of(options, dtype=dtype)
            case = speed(name, vocab, build, options)
            record.add(case)
            memories.append(memory(name, vocab, build, options))
            for kind, error in case["error"]["ours"].items():
                record.checks[f"{name} {kind} error"] = error
    for row in memories:
        growth = row["ours"][-1] / max(row["ours"][0], 1)
        record.checks[f"{row['name']} peak at {options.growth[-1]} / {options.growth[0]} tokens"] = growth
    return record.finish(peak_megabytes=memories, ceilings=peak)


if __name__ == "__main__":
    main()
