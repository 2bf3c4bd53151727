"""python -m bench.products [--models 1.5b 7b] [--rows 1 8 32 96 288] [--repeats 5]

How fast is each matrix product of a decode step, by the number of rows? For every model: the four products of a layer,
without and with the columns of an adapter of its usual rank (see decode.py); the products A x, one of them with the
copy that joins x and A x; and the head. Each call has a weight of its own, as in a model. On a GPU the calls are one
CUDA graph.

The share is the least time that is possible divided by the time taken. Memory bounds it (weight, input and output once,
at the copy bandwidth of the same run), or arithmetic (at the rate of a large product in the same run). A share that
falls as rows are added names a shape to look at. The last line of stdout is JSON.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench import ceilings, models, timing
from bench.decode import RANKS
from grpo.device.capture import CudaCapture
from grpo.device.products import append_product, linear, prepack

CALLS = 8  # of one operation, each with its own weight
SIZES = {
    "smoke": {"models": ["tiny"], "rows": [1, 5]},
    "cpu": {"models": ["31m"], "rows": [1, 8, 32, 96]},
    "cuda": {"models": ["1.5b", "7b"], "rows": [1, 8, 32, 96, 288]},
}


@dataclass(frozen=True)
class Operation:
    """A product of inputs and outputs. function: what computes it. copied: numbers per row that it copies beside."""

    name: str
    inputs: int
    outputs: int
    function: Callable = linear
    copied: int = 0

    def least_seconds(self, rows: int, dtype: torch.dtype, peak: dict[str, float]) -> float:
        """Return the time that memory or arithmetic allows, whichever is longer."""
        numbers = self.inputs * self.outputs + rows * (self.inputs + self.outputs + self.copied)
        memory = numbers * dtype.itemsize / peak["copy_gb_per_s"] / 1e9
        return max(memory, ceilings.arithmetic_seconds([(rows, self.inputs, self.outputs)], dtype, peak))


def operations(name: str) -> list[Operation]:
    """List the products of a decode step of a model."""
    config, rank = models.config_of(name), RANKS.get(name, 16)
    hidden, mlp = config.hidden_size, config.intermediate_size
    layer = ceilings.products(config, 1, 0)[:4]
    found = []
    for part, (_, inputs, outputs) in zip(("q, k, v", "o", "gate and up", "down"), layer, strict=True):
        found += [Operation(part, inputs, outputs), Operation(f"{part} + {rank}", inputs + rank, outputs)]
    return [
        *found,
        Operation("A of q, k, v", hidden, 3 * rank),
        Operation("A of gate and up", hidden, 2 * rank),
        Operation("A of down", mlp, rank),
        Operation("A of o, and copy", hidden, rank, append_product, hidden),
        Operation("head", hidden, config.vocab_size),
    ]


def seconds(operation: Operation, rows: int, options) -> float:
    """Return the median time of one call."""
    dtype, device = getattr(torch, options.dtype), options.device
    x_TI = torch.empty(rows, operation.inputs, dtype=dtype, device=device).normal_()
    shape = operation.outputs, operation.inputs
    weights = [prepack(torch.empty(shape, dtype=dtype, device=device).normal_()) for _ in range(CALLS)]

    def run() -> None:
        for weight_OI in weights:
            operation.function(x_TI, weight_OI)

    run()
    timed = CudaCapture()(run).replay if device == "cuda" else run
    return statistics.median(timing.once(timed, device) for _ in range(options.repeats)) / CALLS


def measure(name: str, options, peak: dict[str, float]) -> list[dict]:
    """Time all operations of one model; print and return a line for each number of rows."""
    dtype, measured = getattr(torch, options.dtype), []
    for operation in operations(name):
        for rows in options.rows:
            spent = seconds(operation, rows, options)
            share = operation.least_seconds(rows, dtype, peak) / spent
            line = {"model": name, "operation": operation.name, "rows": rows, "microseconds": 1e6 * spent}
            measured.append(line | {"ceiling_share": share})
            print(f"{name:5} {operation.name:18} {rows:4} rows {1e6 * spent:9.1f} µs {100 * share:4.0f} %", flush=True)
    return measured


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.products", __doc__, choices={"models": models.SHAPES}, **SIZES)
    options = timing.parse(arguments, argv, **SIZES)
    peak, measured = ceilings.peaks(options), []
    with torch.inference_mode():
        for name in options.models:
            measured += measure(name, options, peak)
    return timing.finish("products", options, [], {}, ceilings=peak, products=measured)


if __name__ == "__main__":
    main()
