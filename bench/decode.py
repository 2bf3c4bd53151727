"""python -m bench.decode [--models 1.5b 7b] [--batches 1 24 96 288] [--context 512] [--rank R] [--top-p P] [--profile]

How close does a decode step, from embedding to end flags, come to what memory and arithmetic allow? On a GPU a step is
a CUDA graph. Weights are random and made on the device; nothing is read or downloaded. Every row has --context tokens
before it. At 96 rows the step also runs with an adapter of rank --rank (default: the model's usual one, 16 at 1.5b and
256 at 7b), which shows what the adapter costs. The decode attention that
grpo/engine/attention/choice.py has chosen is printed.

The floor of a step is the longer of two times: all weights except the embedding, and the keys and values of the
context, at the copy bandwidth of the same run; and the matrix products at the rate of a large product in the same run.
The share of the ceiling is the floor divided by the time taken. Tokens per second: one per row and step. --profile
prints, after all cases, the operations that take longest at 96 rows, with the adapter and without. The last line of
stdout is JSON.
"""

from argparse import Namespace

import torch

from bench import ceilings, models
from bench.record import Results, parse
from grpo.engine.attention.choice import decode_kernel
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.kernel_choice import describe
from grpo.engine.sampling.decode_step import CudaCapture, DecodeSteps, KVCache, Slots

RANKS = dict.fromkeys(models.SHAPES, 16) | {"7b": 256}  # of the adapter that a model usually has
TARGETS = {1: 0.80, 24: 0.75, 96: 0.75, 288: 0.70}
STEPS = 32
ADAPTER_ROWS = 96
SIZES = {
    "smoke": {"models": ["tiny"], "batches": [1, 5], "context": 20},
    "cpu": {
        "models": ["4m"],
        "batches": [1, 24, 96, 288],  # sequences that decode together
        "context": 512,
        "top_p": 1.0,
        "rank": 0,  # of the adapter; 0: the model's usual one
        "profile": False,
    },
    "cuda": {"models": ["1.5b", "7b"]},
}


class Steps:
    """Decode steps of `rows` sequences of one model; `run` makes STEPS of them from the same state.

    rank: of the model's adapter; 0: none.
    """

    def __init__(self, name: str, rank: int, rows: int, options: Namespace):
        self.rows = rows
        self.context = options.context
        self.case = f"{name}, {rows} rows, context {options.context}"
        self.case += ", LoRA" if rank else ""
        self.case += f", top_p {options.top_p:g}" if options.top_p < 1 else ""
        self.model = models.random_decoder(name, models.build_of(options, rank))
        self.sampling = SamplingParams(STEPS, top_p=options.top_p)
        positions = options.context + STEPS + 1
        self.attention = decode_kernel(self.model)
        cache = KVCache.of(self.model, rows, positions)
        cache.kv_L2BKSE.normal_()
        self.slots = Slots.make(cache, STEPS)
        self.slots.seed_B.copy_(torch.arange(rows))
        capture = CudaCapture() if options.device == "cuda" else None
        self.graphs = DecodeSteps(self.model, self.slots, (), self.attention, capture)

    @torch.inference_mode()
    def run(self) -> None:
        self.slots.position_B.fill_(self.context)
        self.slots.count_B.fill_(0)
        self.slots.limit_B.fill_(STEPS + 1)
        self.slots.ended_B.fill_(False)
        with self.model.sampling() as head_VD:
            self.graphs.run(self.rows, STEPS, self.sampling, head_VD)


def measure(steps: Steps, results: Results) -> None:
    """Time and record the steps of one model at one number of rows."""
    rows = steps.rows
    attention = steps.attention
    print(f"attention: {attention}")
    floor = ceilings.decode_floor(steps.model, rows, rows * steps.context, results.peak)
    target = TARGETS.get(rows, 0.7)
    results.compare(steps.case, {"ours": steps.run}, rows, floor, times=STEPS, target=target, attention=attention)


def main(argv: list[str] | None = None) -> dict:
    options = parse("decode", __doc__, argv, SIZES, choices={"models": models.SHAPES})
    results = Results("decode", options, ceilings.peaks, kernels=describe(options.device))
    print(results.about["kernels"], flush=True)
    batches = options.batches
    compared = ADAPTER_ROWS if ADAPTER_ROWS in batches else batches[-1]  # the rows at which an adapter is measured, too
    for name in options.models:
        adapter = options.rank or RANKS[name]
        for rows in batches:
            for rank in (adapter, 0) if rows == compared else (0,):
                measure(Steps(name, rank, rows, options), results)
    for name in options.models if options.profile else ():
        for rank in (options.rank or RANKS[name], 0):
            steps = Steps(name, rank, compared, options)
            results.profile(steps.case, steps.run)
    return results.finish()


if __name__ == "__main__":
    main()
