"""python -m bench.decode [--models 1.5b 7b] [--batches 1 24 96 288] [--context 512] [--rank R] [--top-p P] [--profile]

How close does a decode step, from embedding to end flags, come to what memory and arithmetic allow? On a GPU a step is
a CUDA graph. Weights are random and made on the device; nothing is read or downloaded. Every row has --context tokens
before it. At 96 rows the step also runs with an adapter of rank --rank (default: the model's usual one, 16 at 1.5b and
256 at 7b), which shows what the adapter costs. The decode attentions of grpo/attention/select.py compete at each shape;
their errors and times are printed.

The floor of a step is the longer of two times: all weights except the embedding, and the keys and values of the
context, at the copy bandwidth of the same run; and the matrix products at the rate of a large product in the same run.
The share of the ceiling is the floor divided by the time taken. --profile prints the operations that take longest at
96 rows, with the adapter and without. The last line of stdout is JSON.
"""

import torch

from bench import ceilings, models, timing
from bench.record import Record, parse
from grpo.attention.select import decode_choice
from grpo.device.capture import CudaCapture
from grpo.device.draw import SamplingParams
from grpo.device.ops import describe
from grpo.model.decoder import Decoder
from grpo.sampling.cache import KVCache
from grpo.sampling.cuda_graph import DecodeGraphs
from grpo.sampling.decode_step import Slots

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
        with self.model.prepacked() as head_VD:
            self.graphs.run(self.rows, STEPS, self.sampling, head_VD)


def measure(name: str, model: Decoder, rows: int, record: Record, profiled: bool) -> dict:
    """Time and record the steps of one model at one number of rows; return the case."""
    options = record.options
    choice = decode_choice(model, rows, options.context + STEPS + 1)
    print(f"attention: {choice}")
    steps = Steps(model, rows, options.context, choice.name, options.top_p)
    name = f"{name}, {rows} rows, context {options.context}"
    name += ", LoRA" if model.build.lora else ""
    name += f", top_p {options.top_p:g}" if options.top_p < 1 else ""
    target = TARGETS.get(rows, 0.7)
    case = timing.compare(name, {"ours": steps.run}, options, calls=STEPS, target=target, attention=str(choice))
    least = ceilings.decode_floor(model, rows, rows * options.context, record.peak)
    record.add(case | timing.rates(case, rows, least))
    if profiled:
        record.profiled(name, timing.profile(steps.run, options.device))
    return case


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.decode", __doc__, argv, SIZES, choices={"models": models.SHAPES})
    part = " ".join([*options.models, f"top_p {options.top_p:g}"])
    record = Record("decode", options, peak=ceilings.peaks(options), part=part, kernels=describe(options.device))
    print(record.row["kernels"], flush=True)
    adapter_rows = ADAPTER_ROWS if ADAPTER_ROWS in options.batches else options.batches[-1]
    for name in options.models:
        rank = options.rank or RANKS[name]
        adapted = models.random_decoder(name, models.build_of(options, rank))
        with_adapter = measure(name, adapted, adapter_rows, record, options.profile)
        del adapted  # before the next is made: two would not fit at 7B
        model = models.random_decoder(name, models.build_of(options))
        for rows in sorted(options.batches, key=lambda rows: rows != adapter_rows):
            case = measure(name, model, rows, record, options.profile and rows == adapter_rows)
            if rows == adapter_rows:
                cost = timing.our_seconds(with_adapter) / timing.our_seconds(case)
                record.checks[f"{name}: LoRA against without, {rows} rows"] = cost
        del model
    return record.finish()


if __name__ == "__main__":
    main()
