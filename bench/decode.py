"""python -m bench.decode [--models 1.5b 7b] [--batches 1 24 96 288] [--context 512] [--rank R] [--top-p P] [--profile]

How close does a decode step, from embedding to end flags, come to what memory and arithmetic allow? On a GPU a step is
a CUDA graph. Weights are random and made on the device; nothing is read or downloaded. Every row has --context tokens
before it. At 96 rows the step also runs with an adapter of rank --rank (default: the model's usual one, 16 at 1.5b and
256 at 7b), which shows what the adapter costs. The decode attentions of grpo/engine/attention/select.py compete at each
shape; their errors and times are printed.

The floor of a step is the longer of two times: all weights except the embedding, and the keys and values of the
context, at the copy bandwidth of the same run; and the matrix products at the rate of a large product in the same run.
The share of the ceiling is the floor divided by the time taken. --profile prints the operations that take longest at
96 rows, with the adapter and without. The last line of stdout is JSON.
"""

import torch

from bench import ceilings, models, timing
from bench.record import Record, parse
from grpo.engine.attention.select import decode_choice
from grpo.engine.device.capture import CudaCapture
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.ops import describe
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.sampling_forms import sampling_forms
from grpo.engine.sampling.cache import KVCache
from grpo.engine.sampling.cuda_graph import DecodeGraphs
from grpo.engine.sampling.decode_step import Slots

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
    """Decode steps of `rows` sequences with `context` tokens each; `run` makes STEPS of them from the same state."""

    def __init__(self, model: Decoder, rows: int, context: int, kernel: str, top_p: float):
        self.model, self.rows, self.context = model, rows, context
        self.sampling = SamplingParams(STEPS, top_p=top_p)
        cache = KVCache.of(model, rows, context + STEPS + 1)
        cache.kv_L2BKSE.normal_()
        self.slots = Slots.make(cache, STEPS)
        self.slots.seed_B.copy_(torch.arange(rows))
        capture = CudaCapture() if str(model.build.device) == "cuda" else None
        self.graphs = DecodeGraphs(model, self.slots, (), kernel, capture)

    @torch.inference_mode()
    def run(self) -> None:
        self.slots.position_B.fill_(self.context)
        self.slots.count_B.fill_(0)
        self.slots.limit_B.fill_(STEPS + 1)
        self.slots.ended_B.fill_(False)
        with sampling_forms(self.model) as head_VD:
            self.graphs.run(self.rows, STEPS, self.sampling, head_VD)


def measure(name: str, rank: int, rows: int, record: Record) -> None:
    """Time and record the steps of one model at one number of rows. rank: of its adapter; 0: none."""
    options = record.options
    model = models.random_decoder(name, models.build_of(options, rank))
    choice = decode_choice(model, rows, options.context + STEPS + 1)
    print(f"attention: {choice}")
    steps = Steps(model, rows, options.context, choice.name, options.top_p)
    case = f"{name}, {rows} rows, context {options.context}"
    case += ", LoRA" if rank else ""
    case += f", top_p {options.top_p:g}" if options.top_p < 1 else ""
    floor = ceilings.decode_floor(model, rows, rows * options.context, record.peak)
    target = TARGETS.get(rows, 0.7)
    record.compare(case, {"ours": steps.run}, floor, calls=STEPS, target=target, attention=str(choice))
    if options.profile and rows == adapter_rows(options.batches):
        record.profiles[case] = timing.profile(steps.run, options.device)


def adapter_rows(batches: list[int]) -> int:
    """Return the rows at which the adapter is measured as well."""
    return ADAPTER_ROWS if ADAPTER_ROWS in batches else batches[-1]


def main(argv: list[str] | None = None) -> dict:
    options = parse("decode", __doc__, argv, SIZES, choices={"models": models.SHAPES})
    record = Record("decode", options, ceilings.peaks, kernels=describe(options.device))
    print(record.about["kernels"], flush=True)
    for name in options.models:
        measure(name, options.rank or RANKS[name], adapter_rows(options.batches), record)
        for rows in options.batches:
            measure(name, 0, rows, record)
    return record.finish()


if __name__ == "__main__":
    main()
