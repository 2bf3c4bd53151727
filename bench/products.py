"""python -m bench.products [--models 1.5b 7b] [--rows 1 8 32 96 288] [--repeats 5]

How fast is each matrix product of a decode step, by the number of rows? Timed are, for every model, the four products
of a layer, without and with the columns of an adapter of its usual rank (see decode.py); the products A x, one of them
with the copy that joins x and A x; and the head. Each call has a weight of its own, as in a model. On a GPU the calls
are one CUDA graph.

The share is the least time that is possible divided by the time taken. Memory bounds it (weight, input and output once,
at the copy bandwidth of the same run), or arithmetic (at the rate of a large product in the same run). A share that
falls as rows are added names a shape to look at. The last line of stdout is JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench import ceilings, models
from bench.decode import usual_rank
from bench.record import Record, parse
from grpo.device.products import append_product, linear
from grpo.model.lora import Build

CALLS = 8  # of one operation, each with its own weight
PARTS = ("q, k, v", "o", "gate and up", "down")  # of a layer
SIZES = {
    "smoke": {"models": ["tiny"], "rows": [1, 5]},
    "cpu": {"models": ["31m"], "rows": [1, 8, 32, 96]},
    "cuda": {"models": ["1.5b", "7b"], "rows": [1, 8, 32, 96, 288]},
}


@dataclass(frozen=True)
class Operation:
    """A product of inputs and outputs. function: computes it. copied: numbers per row that it copies, too."""

    name: str
    inputs: int
    outputs: int
    function: Callable = linear
    copied: int = 0

    def seconds(self, rows: int, build: Build, repeats: int) -> float:
        """Return the median time of one call."""
        shapes = [(rows, self.inputs, self.outputs)] * CALLS
        return ceilings.products_seconds(shapes, build, repeats, function=self.function) / CALLS

    def least_seconds(self, rows: int, build: Build, peak: ceilings.Peaks) -> float:
        """Return the time that memory or arithmetic allows, whichever is longer."""
        weights = self.inputs * self.outputs
        activations = rows * (self.inputs + self.outputs + self.copied)
        num_bytes = (weights + activations) * build.dtype.itemsize
        shape = rows, self.inputs, self.outputs
        return ceilings.floor_seconds([shape], build.dtype, peak, num_bytes)


def operations(name: str) -> list[Operation]:
    """List the products of a decode step of a model."""
    config, rank = models.config_of(name), usual_rank(name)
    hidden, mlp = config.hidden_size, config.intermediate_size
    layer = ceilings.forward_products(config, 1, 0)[:4]
    found = []
    for part, (_, inputs, outputs) in zip(PARTS, layer, strict=True):
        found.append(Operation(part, inputs, outputs))
        found.append(Operation(f"{part} + {rank}", inputs + rank, outputs))
    return [
        *found,
        Operation("A of q, k, v", hidden, 3 * rank),
        Operation("A of gate and up", hidden, 2 * rank),
        Operation("A of down", mlp, rank),
        Operation("A of o, and copy", hidden, rank, append_product, hidden),
        Operation("head", hidden, config.vocab_size),
    ]


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.products", __doc__, argv, SIZES, choices={"models": models.SHAPES})
    peak = ceilings.peaks(options)
    record = Record("products", options, ceilings=peak)
    build = models.build_of(options)
    for name in options.models:
        for operation in operations(name):
            for rows in options.rows:
                seconds = operation.seconds(rows, build, options.repeats)
                share = operation.least_seconds(rows, build, peak) / seconds
                sides = {"ours": {"median": seconds}}
                title = f"{name}, {operation.name}, {rows} rows"
                record.add({"name": title, "rows": rows, "seconds": sides, "ceiling_share": share})
    return record.finish()


if __name__ == "__main__":
    main()
