"""python -m bench.lab [--arms "KEY=VALUE ..." ...] [--seeds 1 2 3] [--world neutral] [--folder runs/lab] [--save]
python -m bench.lab --thresholds

Does GRPO teach a model which questions to decline, or only how many? The lab trains the small model of
configs/neutral.yaml or configs/tiny.yaml from scratch, on a CPU, and compares arms. An arm is a list of keys that it
changes there, such as "reward_funcs=[knowrl] scale_rewards=group max_steps=80"; "" changes nothing.

How probable it is that the model declines, and what it answers if it must, the run itself finds out for every held-out
question (grpo/evaluation/boundary.py). A trained model is compared with two that are not, at the same share of answered
questions:

- constant: the cold start, with one constant added to the logit of declining. Whoever does no better has moved how
  readily the model declines, and nothing else.
- threshold: the cold start, answering where its own answer is most probable. So much the model knows of itself.

`within a word` is the AUROC among questions to which the model would give the same answer. Whoever only learns which
answers are usually guesses gets 0.5.

When a run is done, its row goes to FOLDER/rows.jsonl; after a kill, the same command goes on where it stopped. With no
seed after --seeds, table and plot are made of the rows that are there. --thresholds trains nothing: from which
probability of being right on does the expected gradient teach to answer?
"""

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path

import numpy as np

from bench.record import ROOT, experiment_parser, markdown_table
from bench.refusals import auroc_within, mean_risk, over_seeds, risk_at
from grpo.algorithm.advantages import group_advantages
from grpo.base.errors import UserError
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.evaluation.boundary import (
    answered,
    auroc,
    declining,
    gain_interval,
    halve,
    read_rows,
    share_wrong,
    with_constant,
)
from grpo.train import train

COLD_START = "cold start"
CONFIGS = {"neutral": "neutral", "encyclopedia": "tiny"}  # toy world -> configuration
COLUMNS = {"people": "title", "said": "said", "declines": "declines", "right": "right", "sequence": "sequence"}
Row = Mapping[str, object]


# --- Runs ----------------------------------------------------------------------------------------------------------


def run_arm(options: argparse.Namespace, seed: int, arm: str) -> dict[str, Row]:
    """Train an arm; return the rows of its cold start and of its result. What the run says goes to log.txt."""
    output = options.folder / f"{options.world}-{seed}" / (arm.replace("/", "_") or "GRPO")
    output.mkdir(parents=True, exist_ok=True)
    config = ROOT / "configs" / f"{CONFIGS[options.world]}.yaml"
    keys = [f"seed={seed}", f"output_dir={output}", "disable_tqdm=true"]
    keys += [f"cold_start={config.with_stem(config.stem + '_sft')}", *arm.split()]
    with (
        open(output / "log.txt", "w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        train(*load_config(config, keys))
    files = sorted((output / "evaluation").glob("boundary-*.jsonl"))
    found = {}
    for side, file in ((COLD_START, files[0]), (arm or "GRPO", files[-1])):
        questions = read_rows(file)
        lists = {name: [question[key] for question in questions] for name, key in COLUMNS.items()}
        found[side] = {"world": options.world, "seed": seed, "arm": side, **lists}
    return found


def run_all(options: argparse.Namespace, path: Path) -> list[Row]:
    """Make the runs that have no row yet, and return all rows. A run that fails stops no other."""
    rows = stored(path)
    write_lines(path, rows)  # without a line that was cut
    for seed, arm in itertools.product(options.seeds, options.arms):
        if (arm or "GRPO") in arms_of(rows, options.world, seed):
            continue
        try:
            found = run_arm(options, seed, arm)
        except UserError as error:
            print(f"seed {seed}, arm {arm!r}: {error}", file=sys.stderr)
            continue
        rows = stored(path)  # another process may have added some
        done = arms_of(rows, options.world, seed)
        rows += [row for side, row in found.items() if side not in done]
        write_lines(path, rows)
    return rows


def arms_of(rows: list[Row], world: str, seed: int) -> set[str]:
    """Return the arms that have a row for this world and seed."""
    return {row["arm"] for row in rows if (row["world"], row["seed"]) == (world, seed)}


def stored(path: Path) -> list[Row]:
    """Read the rows that are there, without a last line that was cut."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- Measures ------------------------------------------------------------------------------------------------------


def questions_of(row: Row) -> list[Row]:
    """Return a row as `examine` gives it: a row for each question."""
    return [dict(zip(COLUMNS.values(), cells, strict=True)) for cells in zip(*map(row.get, COLUMNS), strict=True)]


def measures(row: Row, cold: Row) -> dict[str, float]:
    """Return the measures of a run, 0 to 1. cold: the row of its cold start."""
    (logits, right), (cold_logits, cold_right) = declining(questions_of(row)), declining(questions_of(cold))
    coverage = float(answered(logits).mean())
    area = auroc(logits, ~right)
    return {
        "answers": coverage,
        "forced right": float(right.mean()),
        "AUROC": area,
        "gain": area - auroc(cold_logits, ~cold_right),
        "within a word": auroc_within(logits, ~right, np.array(row["said"])),
        "AURC": mean_risk(logits, right),
        "wrong": share_wrong(logits, right),
        "constant": share_wrong(with_constant(cold_logits, coverage), cold_right),
        "threshold": risk_at(-np.array(cold["sequence"]), cold_right, coverage),
    }


# --- Results -------------------------------------------------------------------------------------------------------


def cold_starts(rows: Sequence[Row]) -> dict[tuple, Row]:
    """Return the rows of the cold starts by world and seed."""
    return {(row["world"], row["seed"]): row for row in rows if row["arm"] == COLD_START}


def table(rows: Sequence[Row]) -> str:
    """Make the Markdown table: a line for each world and arm. The gain of one seed has an interval over people."""
    cold = cold_starts(rows)
    found: dict[tuple, list[dict]] = {}
    intervals = {}
    for row in rows:
        key, start = (row["world"], row["arm"]), cold[row["world"], row["seed"]]
        found.setdefault(key, []).append(measures(row, start))
        intervals[key] = gain_interval(questions_of(start), questions_of(row))
    lines = []
    for key, of_seeds in found.items():
        cells = {name: over_seeds([values[name] for values in of_seeds]) for name in of_seeds[0]}
        if len(of_seeds) == 1:
            low, high = intervals[key]
            cells["gain"] += f" ({low:.3f} to {high:.3f})"
        lines.append([*key, str(len(of_seeds)), *cells.values()])
    return markdown_table(["world", "arm", "seeds", *cells], lines)


def boundary_plot(path: Path, rows: Sequence[Row]) -> None:
    """Plot the log-odds of declining of each question after training against before: the last run of each world."""
    from matplotlib.figure import Figure

    cold = cold_starts(rows)
    last = {row["world"]: row for row in rows if row["arm"] != COLD_START}
    figure = Figure(figsize=(4.5 * len(last), 4.5), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(last), squeeze=False)[0]
    for panel, (world, row) in zip(panels, last.items(), strict=True):
        before = np.array(cold[world, row["seed"]]["declines"])
        after, right = np.array(row["declines"]), np.array(row["right"], bool)
        panel.set(title=world, xlabel="log-odds of declining, cold start", ylabel=f"after {row['arm']}")
        panel.axline((0, 0), slope=1, color="0.8")
        for chosen, label in ((~right, "wrong if forced"), (right, "right if forced")):
            panel.scatter(before[chosen], after[chosen], 9, label=label)
        panel.legend(frameon=False)
    figure.savefig(path)


# --- Thresholds, by the advantages alone ---------------------------------------------------------------------------

PRICES = {  # right, declined, wrong
    "truthrl": (1.0, 0.0, -1.0),
    "knowrl": (2.0, 1.0, -1.0),
    "t = 0.75": (1.0, 0.0, -3.0),
    "t = 0.9": (1.0, 0.0, -9.0),
}
DECLINED = (0.01, 0.3, 0.5, 0.7, 0.99)


def push_to_decline(p: float, declined: float, prices: Sequence[float], scale: str, size: int = 8) -> float:
    """Return the expected slope of the objective in the logit of declining, per completion, over all groups of `size`.

    p: probability that a given answer is right. declined: probability that a completion declines.
    With Â the advantages, the slope is E[Σ_i Â_i (1[i declines] - declined)] / G, and Σ_i Â_i is 0.
    """
    slope = 0.0
    for refusals in range(size + 1):
        answers = size - refusals
        of_refusals = binomial(refusals, size, declined)
        for right in range(answers + 1):
            counts = right, refusals, answers - right
            rewards = np.repeat(prices, counts).tolist()
            advantages = group_advantages(rewards, scale)
            weight = of_refusals * binomial(right, answers, p)
            slope += weight * sum(advantages[right : right + refusals])
    return slope / size


def binomial(count: int, total: int, p: float) -> float:
    return comb(total, count) * p**count * (1 - p) ** (total - count)


def pays_from(declined: float, prices: Sequence[float], scale: str, size: int = 8) -> float:
    """Return the probability of being right above which the gradient teaches to answer."""
    return halve(0.0, 1.0, lambda p: push_to_decline(p, declined, prices, scale, size) > 0)


def thresholds() -> str:
    """Make the Markdown table of where answering begins to pay, in percent."""
    lines = []
    for name, prices in PRICES.items():
        for scale in ("group", "none"):
            found = [pays_from(share, prices, scale) for share in DECLINED]
            lines.append([f"{name}, {scale}", *(f"{100 * value:.0f}" for value in found)])
    columns = [f"{share:.0%} declined" for share in DECLINED]
    return markdown_table(["answers pay from, %", *columns], lines)


# --- The command ---------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> str:
    parser = experiment_parser("bench.lab", __doc__, "lab")
    parser.add_argument("--arms", nargs="+", metavar="KEYS", default=[""], help="keys of each, in quotes")
    parser.add_argument("--world", choices=CONFIGS, default="neutral")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/lab"), help="where the runs are written")
    parser.add_argument("--thresholds", action="store_true", help="compute where answering begins to pay; no training")
    options = parser.parse_args(argv)
    text = thresholds() if options.thresholds else compare(options)
    print(text)
    return text


def compare(options: argparse.Namespace) -> str:
    """Make the runs, write rows, table and plot, and return the table."""
    rows = run_all(options, options.folder / "rows.jsonl")
    folder = options.save or options.folder
    write_lines(folder / "rows.jsonl", rows)
    text = table(rows)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    boundary_plot(folder / "boundary.png", rows)
    return text


if __name__ == "__main__":
    main()
