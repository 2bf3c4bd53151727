"""python -m bench.growth

How do tokens per second grow with the batch, the length, the group and the model, for generation and for a training
pass? One quantity varies at a time around a middle point: 31m (on a GPU 1.5b), 48 completions (96) in groups of 12,
128 tokens (512).
  batch    more rows per decode step: each weight is read once for more tokens
  length   attention reads a longer cache; the matrix products stay the same
  group    of a fixed number of completions, more share a prompt, which is as long as a completion: fewer prompt tokens
  model    more products per token
The ceiling is the workload's matrix products alone. bench/report.py draws stored rows: growth_batch.png and so on show
tokens/s and the ceiling's tokens/s. The last line of stdout is JSON.
"""

import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from bench import ceilings, models, timing, train_step
from bench.record import Record, parse
from bench.sampler import sample
from bench.workload import Work, random_prompts
from grpo.model.weights import named_tensors
from grpo.run.plot import line_plot
from grpo.sampling.sampler import Sampler

SIDES = ("generate", "train")
LABELS = {
    "batch": "completions decoded together",
    "length": "tokens per completion",
    "group": "completions per prompt",
    "model": "million parameters",
}


@dataclass(frozen=True)
class Point:
    """One workload: a model, completions, completions per prompt, tokens per completion and per prompt."""

    model: str
    batch: int
    group: int
    length: int

    def work(self) -> Work:
        vocab = models.SHAPES[self.model].vocab
        prompts = random_prompts(self.batch // self.group, self.length, self.length, vocab)
        return Work(prompts, self.group, [self.length] * self.batch)


MIDDLES = {
    "smoke": Point("tiny", 8, 4, 8),
    "cpu": Point("31m", 48, 12, 128),
    "cuda": Point("1.5b", 96, 12, 512),
}
VALUES = {
    "smoke": {"batch": [4, 8], "length": [8, 16], "group": [2, 4], "model": ["tiny"]},
    "cpu": {
        "batch": [12, 24, 48, 96, 192],
        "length": [32, 64, 128, 256, 512],
        "group": [1, 4, 12, 24],
        "model": ["4m", "27m", "31m", "54m"],
    },
    "cuda": {
        "batch": [12, 48, 96, 192, 288],
        "length": [128, 256, 512, 1024],
        "group": [1, 4, 12, 32],
        "model": ["0.5b", "1.5b", "7b"],
    },
}


def points(options) -> dict[str, list[Point]]:
    """List the points of each plot."""
    size = "smoke" if options.smoke else options.device
    found = {}
    for axis, values in VALUES[size].items():
        found[axis] = [replace(MIDDLES[size], **{axis: value}) for value in values]
    return found


def measure(point: Point, path: Path, options) -> dict:
    """Return the completion tokens per second of generation and of a training pass, and those of the ceiling."""
    work = point.work()
    model = models.ours(path, models.build_of(options, train_step.RANK))
    groups = train_step.make_groups(work, model.config.vocab_size)
    batches = train_step.make_batches(groups, model)
    sampler = Sampler(model, (), max_slots=len(work.lengths))
    sides = {
        "generate": lambda: sample(sampler, work),
        "train": lambda: train_step.our_pass(model, batches),
    }
    seconds = timing.interleave(sides, options.repeats, options.device)
    packed = sum(batch.layout.num_tokens for batch in batches)
    tokens = sum(work.lengths)
    ceiling = {
        "generate": ceilings.generation_seconds(model, work),
        "train": ceilings.training_seconds(model, packed, tokens),
    }
    tensors = named_tensors(model).values()
    result = {"parameters": sum(tensor.numel() for tensor in tensors)}
    for side in SIDES:
        spent = timing.spread(seconds[side])
        result[side] = {
            "seconds": spent,
            "tokens_per_s": tokens / spent["median"],
            "ceiling_tokens_per_s": tokens / ceiling[side],
            "ceiling_share": ceiling[side] / spent["median"],
        }
    return result


def show(case: dict) -> None:
    """Print one line about a point."""
    parts = [f"{case['name']:16}"]
    for side in SIDES:
        rate, share = case[side]["tokens_per_s"], case[side]["ceiling_share"]
        parts.append(f"{side} {rate:8.0f} tokens/s ({share:.0%} of the ceiling)")
    print("   ".join(parts), flush=True)


def plot(folder: Path, axis: str, cases: list[dict]) -> str:
    """Plot one axis, and return the file's name."""
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for case in cases:
        x = case["parameters"] / 1e6 if axis == "model" else case["point"][axis]
        for side in SIDES:
            curves[side].append((x, case[side]["tokens_per_s"]))
            curves[f"{side}, products alone"].append((x, case[side]["ceiling_tokens_per_s"]))
    name = f"growth_{axis}.png"
    line_plot(folder / name, curves, LABELS[axis], "completion tokens per second")
    return name


def plots(folder: Path, row: dict) -> list[str]:
    """Draw all plots of a stored row, and return the files' names."""
    names = []
    for axis in row["axes"]:
        cases = [case for case in row["cases"] if case["axis"] == axis]
        names.append(plot(folder, axis, cases))
    return names


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.growth", __doc__, argv, sizes={"cpu": {}})
    record = Record("growth", options)
    peak = ceilings.peaks(options)
    points_of = points(options)
    measured: dict[Point, dict] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for axis, chosen in points_of.items():
            for point in chosen:
                if not (folder / point.model).exists():
                    models.write_model(point.model, folder, models.build_of(options))
                if point not in measured:  # the middle point lies on every axis
                    measured[point] = measure(point, folder / point.model, options)
                name = f"{axis} {getattr(point, axis)}"
                case = {"name": name, "axis": axis, "point": vars(point), **measured[point]}
                record.cases.append(case)
                show(case)
    return record.finish(axes=list(points_of), ceilings=peak)


if __name__ == "__main__":
    main()
