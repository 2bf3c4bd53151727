"""python -m bench.logprob [--peer torch|none] [--vocabularies 32000 152064] [--tokens 1024] [--width 1024]

How fast, and in how much memory, do hidden states become log-probs of given tokens and the gradient comes back to the
hidden states? The head is frozen, as with LoRA.
  torch            logits, then log_softmax in float32, then gather: what has our precision
  torch, bfloat16  log_softmax in the logits' own dtype: faster, and as wrong as `error` says
  liger            Liger's fused linear cross-entropy, which is the mean of the log-probs: on a GPU, where it is installed
Ours computes the entropy too, and divides by a temperature, which is 1 here so that the peer need not. Its chunk is the
trainer's.

Memory is the growth of the peak over what was there before: of the process (VmHWM; one process per point) or of the
GPU's allocator. Checked in the same run: errors of log-prob and gradient against float64, on 64 rows of the same
tensors. Ceiling: the matrix products alone, as many as are needed: logits once, gradient once.
The last line of stdout is JSON.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec

import torch

from bench import ceilings, timing
from grpo.logprobs import token_logprobs
from grpo.run.memory import LOGITS_ROWS

CHECKED_ROWS = 64


class Problem:
    """Hidden states, head and targets; `run(side)` computes log-probs and the gradient of their mean."""

    def __init__(self, tokens: int, width: int, vocab: int, dtype: torch.dtype, device: str):
        torch.manual_seed(0)
        self.hidden_CD = torch.empty(tokens, width, dtype=dtype, device=device).normal_().requires_grad_()
        self.head_VD = torch.empty(vocab, width, dtype=dtype, device=device).normal_(0, width**-0.5)
        self.targets_C = torch.randint(vocab, (tokens,), device=device)

    def logprobs(self, side: str) -> torch.Tensor:
        if side == "ours":
            return token_logprobs(
                self.hidden_CD, self.head_VD, self.targets_C, 1.0, chunk=LOGITS_ROWS[self.head_VD.device.type]
            )[0]
        logits_CV = (self.hidden_CD @ self.head_VD.T).to(torch.float32 if side == "torch" else torch.bfloat16)
        return logits_CV.log_softmax(-1).gather(1, self.targets_C[:, None])[:, 0]

    def run(self, side: str) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Log-probs, which Liger keeps to itself, and the gradient."""
        self.hidden_CD.grad = None
        if side == "liger":
            from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

            LigerFusedLinearCrossEntropyLoss()(self.head_VD, self.hidden_CD, self.targets_C).neg().backward()
            return None, self.hidden_CD.grad
        logp_C = self.logprobs(side)
        logp_C.mean().backward()
        return logp_C.detach(), self.hidden_CD.grad

    def errors(self, side: str) -> dict[str, float]:
        """Against float64: largest of the gradient relative to its largest entry, and of the log-probs."""
        rows = slice(0, CHECKED_ROWS)
        hidden_CD = self.hidden_CD.detach()[rows].double().requires_grad_()
        logits_CV = hidden_CD @ self.head_VD.double().T
        wanted_C = logits_CV.log_softmax(-1).gather(1, self.targets_C[rows, None])[:, 0]
        (wanted_C.sum() / len(self.targets_C)).backward()
        logp_C, grad_CD = self.run(side)
        errors = {"gradient": float((grad_CD[rows] - hidden_CD.grad).abs().max() / hidden_CD.grad.abs().max())}
        return errors if logp_C is None else errors | {"logp": float((logp_C[rows] - wanted_C.detach()).abs().max())}


def peers(name: str, options) -> tuple[str, ...]:
    if options.peer == "none":
        return ()
    liger = ("liger",) if options.device == "cuda" and find_spec("liger_kernel") else ()
    return ("torch", *(() if name == "float32" else ("torch, bfloat16",)), *liger)


def speed(vocab: int, name: str, tokens: int, options) -> dict:
    problem = Problem(tokens, options.width, vocab, getattr(torch, name), options.device)
    others = peers(name, options)
    sides = {side: lambda side=side: problem.run(side) for side in ("ours", *others)}
    seconds = timing.interleave(sides, options.repeats, options.device)
    shape = (tokens, options.width, vocab)
    alone = ceilings.products_seconds([shape, *ceilings.backward([shape])], getattr(torch, name), options.device)
    case = {
        "name": f"vocabulary {vocab}, {name}",
        **timing.compare(seconds),
        "target": 1.3 if name == "float32" else 2.0,
    }
    if others:  # the ratio is against the side of equal precision
        case |= {"peer": "torch", **timing.ratio(seconds["ours"], seconds["torch"])}
    median = case["seconds"]["ours"]["median"]
    case |= {
        "tokens": tokens,
        "tokens_per_s": tokens / median,
        "ceiling_share": alone / median,
        "error": {side: problem.errors(side) for side in sides},
    }
    timing.show(case)
    return case


def memory(vocab: int, name: str, counts: list[int], options) -> dict:
    """MB of each side at growing numbers of tokens."""
    sides = ["ours", *(side for side in peers(name, options) if side != "torch, bfloat16")]
    row = {"name": f"vocabulary {vocab}, {name}", "tokens": counts}
    for side in sides:
        row[side] = [peak_megabytes(side, count, options.width, vocab, name, options.device) for count in counts]
        figures = "  ".join(
            f"{count} tokens {megabytes:.0f} MB" for count, megabytes in zip(counts, row[side], strict=True)
        )
        print(f"peak memory, {row['name']:28} {side:6} {figures}", flush=True)
    return row


def peak_megabytes(side: str, tokens: int, width: int, vocab: int, name: str, device: str) -> float:
    if device == "cuda":
        return growth_of_peak(side, tokens, width, vocab, name, device)
    command = [sys.executable, "-m", "bench.logprob", "--one-peak", side, *map(str, (tokens, width, vocab)), name]
    return float(subprocess.run(command, cwd=timing.ROOT, capture_output=True, text=True, check=True).stdout)


def growth_of_peak(side: str, tokens: int, width: int, vocab: int, name: str, device: str) -> float:
    """MB that one run needs beyond its inputs. A run on a few rows comes before it, so that libraries have their
    buffers."""
    Problem(8, width, vocab, getattr(torch, name), device).run(side)
    problem = Problem(tokens, width, vocab, getattr(torch, name), device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        problem.run(side)
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    before = _status("VmRSS")
    problem.run(side)
    return (_status("VmHWM") - before) / 1e6


def _status(key: str) -> int:
    """Bytes, of this process. VmHWM, unlike ru_maxrss, does not begin with the parent's peak."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.logprob", __doc__, ("torch", "none"), ("both", "float32", "bfloat16"))
    arguments.add_argument("--vocabularies", type=int, nargs="+", default=[32000, 152064])
    arguments.add_argument("--tokens", type=int, help="default 1024, on a GPU 8192")
    arguments.add_argument("--width", type=int, default=1024, help="of the hidden states")
    arguments.add_argument(
        "--growth", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="tokens at which memory is measured"
    )
    arguments.add_argument("--one-peak", nargs=5, help=argparse.SUPPRESS)
    options = timing.parse(arguments, argv)
    if options.one_peak:
        side, *sizes, name = options.one_peak
        print(growth_of_peak(side, *map(int, sizes), name, "cpu"))
        return {}
    tokens, vocabularies, growth = (
        options.tokens or (8192 if options.device == "cuda" else 1024),
        options.vocabularies,
        options.growth,
    )
    if options.smoke:
        tokens, vocabularies, growth, options.width = CHECKED_ROWS, [1000], [CHECKED_ROWS], 64
    peak, cases, peaks = ceilings.peaks(options.device, options.smoke), [], []
    for vocab in vocabularies:
        for name in ("float32", "bfloat16") if options.dtype == "both" else (options.dtype,):
            cases.append(speed(vocab, name, tokens, options))
            peaks.append(memory(vocab, name, growth, options))
    checks = {f"{case['name']} {kind} error": error for case in cases for kind, error in case["error"]["ours"].items()}
    checks |= {
        f"{row['name']} peak at {growth[-1]} / {growth[0]} tokens": row["ours"][-1] / max(row["ours"][0], 1)
        for row in peaks
    }
    return timing.finish("logprob", options, cases, checks, peak_megabytes=peaks, ceilings=peak)


if __name__ == "__main__":
    main()
