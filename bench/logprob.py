"""python -m bench.logprob [--peer torch|none] [--vocabularies 32000 152064] [--tokens 1024] [--width 1024]

How fast do hidden states become log-probs of given tokens, and does the gradient come back to the hidden states? The
head is frozen, as with LoRA. The peer makes the logits, then log_softmax in float32, then gather, which is our
precision. Ours computes the entropy, too, and divides by a temperature, which is 1 here. Its chunk is the trainer's.

Checked in the same run: the mean log-prob of both sides (tests/grpo/test_logprobs.py compares ours with float64). The
floor is that of the products that are needed: logits once, gradient once. The last line of stdout is JSON.
"""

from functools import partial

import torch

from bench import ceilings, models
from bench.record import Results, parse
from bench.workload import plain_logprobs
from grpo.algorithm.logprobs import token_logprobs
from grpo.engine.model.build import Build
from grpo.engine.model.memory import CHUNK

TARGETS = {"float32": 1.3, "bfloat16": 2.0}  # times faster than the peer
SIZES = {
    "smoke": {"tokens": 64, "vocabularies": [1000], "width": 64},
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

    def run(self, side: str) -> float:
        """Compute the log-probs and the gradient of their mean; return the mean."""
        self.hidden_CD.grad = None
        mean = self.logprobs(side).mean()
        mean.backward()
        return float(mean.detach())


def measure(vocab: int, dtype: str, results: Results) -> None:
    """Record both sides at one vocabulary and dtype."""
    options = results.options
    name = f"vocabulary {vocab}, {dtype}"
    build = models.build_of(options, dtype=dtype)
    problem = Problem(options.tokens, options.width, vocab, build)
    sides = ["ours"] if options.peer == "none" else ["ours", options.peer]
    runs = {side: partial(problem.run, side) for side in sides}
    results.check({f"{name}, {side}: mean log-prob": run() for side, run in runs.items()})
    flops = 4 * options.tokens * options.width * vocab  # half of them for the logits, half for their gradient
    floor = ceilings.floor_seconds(flops, build.dtype, results.peak)
    results.compare(name, runs, options.tokens, floor, target=TARGETS[dtype])


def main(argv: list[str] | None = None) -> dict:
    dtypes = ("both", "float32", "bfloat16")
    options = parse("logprob", __doc__, argv, SIZES, {"torch": (), "none": ()}, dtypes)
    results = Results("logprob", options, ceilings.peaks)
    dtypes = [options.dtype]
    if options.dtype == "both":
        dtypes = ["float32", "bfloat16"]
    for vocab in options.vocabularies:
        for dtype in dtypes:
            measure(vocab, dtype, results)
    return results.finish()


if __name__ == "__main__":
    main()
