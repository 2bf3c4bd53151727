"""python -m bench.logprob [--peer torch|none] [--vocabularies 32000 152064] [--tokens 1024] [--width 1024]

How fast do hidden states become log-probs of given tokens, and does the gradient come back to the hidden states? The
head is frozen, as with LoRA. The peer makes the logits, then log_softmax in float32, then gather, which is our
precision. Ours computes the entropy, too, and divides by a temperature, which is 1 here. Its chunk is the trainer's.

Checked in the same run: the errors of log-prob and gradient against float64, on 64 rows of the same tensors. The floor
is that of the products that are needed: logits once, gradient once. The last line of stdout is JSON.
"""

from functools import partial

import torch

from bench import ceilings, models
from bench.record import Record, parse
from bench.workload import plain_logprobs
from grpo.algorithm.logprobs import token_logprobs
from grpo.engine.model.build import Build
from grpo.engine.model.memory import CHUNK

CHECKED_ROWS = 64
TARGETS = {"float32": 1.3, "bfloat16": 2.0}  # times faster than the peer
SIZES = {
    "smoke": {"tokens": CHECKED_ROWS, "vocabularies": [1000], "width": 64},
    "cpu": {"vocabularies": [32000, 152064], "tokens": 1024, "width": 1024},
    "cuda": {"tokens": 8192},
}


class Problem:
    """Hidden states, head and targets. `run(side)` computes log-probs and the gradient of their mean."""

    def __init__(self, tokens: int, width: int, vocab: int, build: Build):
        torch.manual_seed(0)
        self.hidden_CD = ceilings.random_matrix(tokens, width, build)
        self.hidden_CD.requires_grad_()
        self.head_VD = ceilings.random_matrix(vocab, width, build)
        self.head_VD *= width**-0.5
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
        hidden_CD = self.hidden_CD.detach()[checked].double()
        hidden_CD.requires_grad_()
        logits_CV = hidden_CD @ self.head_VD.double().T
        wanted_C = plain_logprobs(logits_CV, self.targets_C[checked])
        share_of_mean = wanted_C.sum() / len(self.targets_C)
        share_of_mean.backward()
        wanted_grad_CD = hidden_CD.grad
        logp_C, grad_CD = self.run(side)
        logp_error_C = logp_C[checked] - wanted_C.detach()
        grad_error_CD = grad_CD[checked] - wanted_grad_CD
        largest = wanted_grad_CD.abs().max()
        relative = grad_error_CD.abs().max() / largest
        return {"gradient": float(relative), "logp": float(logp_error_C.abs().max())}


def measure(vocab: int, dtype: str, record: Record) -> None:
    """Record both sides at one vocabulary and dtype."""
    options = record.options
    name = f"vocabulary {vocab}, {dtype}"
    build = models.build_of(options, dtype=dtype)
    problem = Problem(options.tokens, options.width, vocab, build)
    sides = ["ours"] if options.peer == "none" else ["ours", options.peer]
    for side in sides:
        for kind, error in problem.errors(side).items():
            record.check({f"{name}, {side}: error of the {kind}": error})
    logits_flops = 2 * options.tokens * options.width * vocab
    flops = 2 * logits_flops  # the logits, and their gradient
    floor = ceilings.floor_seconds(flops, build.dtype, record.peak)
    runs = {side: partial(problem.run, side) for side in sides}
    record.compare(name, runs, options.tokens, floor, target=TARGETS[dtype])


def main(argv: list[str] | None = None) -> dict:
    peers = {"torch": (), "none": ()}
    options = parse("logprob", __doc__, argv, SIZES, peers, dtypes=("both", "float32", "bfloat16"))
    record = Record("logprob", options, ceilings.peaks)
    dtypes = [options.dtype]
    if options.dtype == "both":
        dtypes = ["float32", "bfloat16"]
    for vocab in options.vocabularies:
        for dtype in dtypes:
            measure(vocab, dtype, record)
    return record.finish()


if __name__ == "__main__":
    main()
