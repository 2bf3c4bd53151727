"""python -m bench.growth [--plots bench/results]

How do tokens per second grow with the batch, the length, the group and the model, for generation and for a training
pass? One quantity varies at a time around a middle point. The middle: 31m (a GPU: 1.5b), 48 completions in groups of
12, 128 tokens (512).
  batch    more rows per decode step: each weight is read once for more tokens
  length   attention reads a longer cache; the products stay the same
  group    of a fixed number of completions, more share a prompt (of as many tokens as a completion): fewer prompt tokens in all
  model    more products per token
Ceiling: the workload's matrix products alone. Plots: growth_batch.png and so on, tokens/s and the ceiling's tokens/s.
The last line of stdout is JSON.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench import ceilings, models, sampler, timing, train_step
from grpo.run.memory import LOGITS_ROWS
from grpo.run.plot import line_plot
from grpo.sampling.sampler import Sampler


@dataclass(frozen=True)
class Point:
    """One workload: a model, completions, completions per prompt, tokens per completion and prompt."""

    model: str
    batch: int
    group: int
    length: int

    def work(self) -> sampler.Work:
        prompts = models.random_prompts(
            self.batch // self.group, self.length, self.length, models.SHAPES[self.model].vocab
        )
        return sampler.Work(prompts, self.group, [self.length] * self.batch)


def axes(options) -> dict[str, list[Point]]:
    """The points of each plot."""
    if options.smoke:
        middle = Point("tiny", 8, 4, 8)
        values = {"batch": [4, 8], "length": [8, 16], "group": [2, 4], "model": ["tiny"]}
    elif options.device == "cuda":
        middle = Point("1.5b", 96, 12, 512)
        values = {
            "batch": [12, 48, 96, 192, 288],
            "length": [128, 256, 512, 1024],
            "group": [1, 4, 12, 32],
            "model": ["0.5b", "1.5b", "7b"],
        }
    else:
        middle = Point("31m", 48, 12, 128)
        values = {
            "batch": [12, 24, 48, 96, 192],
            "length": [32, 64, 128, 256, 512],
            "group": [1, 4, 12, 24],
            "model": ["4m", "27m", "31m", "54m"],
        }
    return {axis: [replace(middle, **{axis: value}) for value in chosen] for axis, chosen in values.items()}


def measure(point: Point, path: Path, options) -> dict:
    """Completion tokens per second of generation and of a training pass, and of their matrix products alone."""
    dtype, device, work = getattr(torch, options.dtype), options.device, point.work()
    model = models.ours(path, dtype, device, train_step.RANK)
    groups = train_step.make_groups(work, model.config.vocab_size)
    batches, tokens = train_step.make_batches(groups, model, device), sum(work.lengths)
    chunk, made = LOGITS_ROWS[device], Sampler(model, (), max_slots=len(work.lengths))
    sides = {
        "generate": lambda: sampler.sample(made, work),
        "train": lambda: train_step.clear_and_run(model, lambda: train_step.our_pass(model, batches, chunk)),
    }
    seconds = timing.interleave(sides, options.repeats, device)
    forward = ceilings.products(model.config, sum(batch.layout.num_tokens for batch in batches), tokens)
    alone = {
        "generate": sampler.ceiling_seconds(model.config, work, dtype, device),
        "train": ceilings.products_seconds([*forward, *ceilings.backward(forward)], dtype, device, 3),
    }
    result = {"parameters": models.SHAPES[point.model].parameters}
    for side, values in seconds.items():
        spent = timing.spread(values)
        result[side] = {
            "seconds": spent,
            "tokens_per_s": tokens / spent["median"],
            "ceiling_tokens_per_s": tokens / alone[side],
            "ceiling_share": alone[side] / spent["median"],
        }
    return result


def plot(folder: Path, axis: str, rows: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    curves, label = (
        {},
        {
            "batch": "completions decoded together",
            "length": "tokens per completion",
            "group": "completions per prompt",
            "model": "million parameters",
        }[axis],
    )
    for side in ("generate", "train"):
        for figure, name in (("tokens_per_s", side), ("ceiling_tokens_per_s", f"{side}, products alone")):
            curves[name] = [
                (row["parameters"] / 1e6 if axis == "model" else row["point"][axis], row[side][figure]) for row in rows
            ]
    line_plot(folder / f"growth_{axis}.png", curves, label, "completion tokens per second")


def plots(folder: Path, row: dict) -> list[str]:
    """All plots of a stored row; their file names."""
    for axis in row["axes"]:
        plot(folder, axis, [case for case in row["cases"] if case["axis"] == axis])
    return [f"growth_{axis}.png" for axis in row["axes"]]


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.growth", __doc__)
    arguments.add_argument("--plots", type=Path, help="folder for the plots; none are drawn without it")
    options = timing.parse(arguments, argv)
    peak, cases, points = ceilings.peaks(options.device, options.smoke), [], axes(options)
    done: dict[Point, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            name: models.write_model(name, Path(folder), getattr(torch, options.dtype), options.device)
            for name in {point.model for chosen in points.values() for point in chosen}
        }
        for axis, chosen in points.items():
            for point in chosen:
                done[point] = done.get(point) or measure(point, paths[point.model], options)
                case = {"name": f"{axis} {getattr(point, axis)}", "axis": axis, "point": vars(point), **done[point]}
                cases.append(case)
                print(
                    f"{case['name']:16} "
                    + "   ".join(
                        f"{side} {case[side]['tokens_per_s']:8.0f} tokens/s ({100 * case[side]['ceiling_share']:.0f} % of the ceiling)"
                        for side in ("generate", "train")
                    ),
                    flush=True,
                )
    row = timing.finish("growth", options, cases, {}, axes=list(points), ceilings=peak)
    if options.plots:
        plots(options.plots, row)
    return row


if __name__ == "__main__":
    main()
