"""python -m bench.products [--models 1.5b 7b] [--rows 1 8 32 96 288] [--repeats 5]

How fast is each matrix product of a decode step, by the number of rows? Timed are, for every model, the four products
of a layer, without and with the columns of an adapter of its usual rank (see decode.py); the products A x, one of them
with the copy that joins x and A x; and the head. On a GPU the calls are one CUDA graph.

The least time counts weight, input and output once each. A share that falls as rows are added names a shape to look at.
The last line of stdout is JSON.
"""

from bench import ceilings, models
from bench.decode import RANKS
from bench.record import Record, parse
from grpo.device.products import append_product, linear

CALLS = 8  # of one operation, each with its own weight
PARTS = ("q, k, v", "o", "gate and up", "down")  # of a layer
WITH_COPY = "A of o, and copy"
SIZES = {
    "smoke": {"models": ["tiny"], "rows": [1, 5]},
    "cpu": {"models": ["31m"], "rows": [1, 8, 32, 96]},
    "cuda": {"models": ["1.5b", "7b"], "rows": [1, 8, 32, 96, 288]},
}


def operations(name: str) -> dict[str, tuple[int, int]]:
    """Return the inputs and outputs of each product of a decode step of a model."""
    config, rank = models.config_of(name), RANKS[name]
    hidden = config.hidden_size
    found = {}
    layer = ceilings.forward_products(config, 1, 0)[: len(PARTS)]
    for part, (_, inputs, outputs) in zip(PARTS, layer, strict=True):
        found[part] = inputs, outputs
        found[f"{part} + {rank}"] = inputs + rank, outputs
    found["A of q, k, v"] = hidden, 3 * rank
    found["A of gate and up"] = hidden, 2 * rank
    found["A of down"] = config.intermediate_size, rank
    found[WITH_COPY] = hidden, rank
    found["head"] = hidden, config.vocab_size
    return found


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.products", __doc__, argv, SIZES, choices={"models": models.SHAPES})
    record = Record("products", options, peak=ceilings.peaks(options))
    build = models.build_of(options)
    for name in options.models:
        for operation, (inputs, outputs) in operations(name).items():
            for rows in options.rows:
                shape = rows, inputs, outputs
                copied = inputs if operation == WITH_COPY else 0
                function = append_product if copied else linear
                seconds = ceilings.product_seconds(shape, build, options.repeats, CALLS, function)
                numbers = inputs * outputs + rows * (inputs + outputs + copied)
                least = ceilings.floor_seconds([shape], build.dtype, record.peak, numbers * build.dtype.itemsize)
                case = {"name": f"{name}, {operation}, {rows} rows", "rows": rows}
                case |= {"seconds": {"ours": {"median": seconds}}, "ceiling_share": least / seconds}
                record.add(case)
    return record.finish()


if __name__ == "__main__":
    main()
