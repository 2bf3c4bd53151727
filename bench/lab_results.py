"""The rows of bench/abstention_lab.py as tables and plots.

A row holds, for each held-out question, how often it was answered right, declined, and answered wrong: under `answers`,
in the order of the file, by how well known the person is. `facts` counts the supported and all facts of right, declined
and wrong answers; `curve` the outcomes of each training step. Means over seeds stand with lowest and highest.
"""

import json
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from grpo.report.charts import running_mean
from knowledge.atlas import KNOWN_IN_PART
from knowledge.world import UNSEEN, WELL_KNOWN
from rewards.format import stated_confidence

COLD_START = "cold start"
OUTCOMES = ("correct", "refused", "wrong")
LABELS = ("right", "declined", "wrong")
RIGHT, DECLINED, WRONG = range(len(OUTCOMES))
SURE_FROM = 0.5  # an answer with a lower stated confidence counts as declined
MIN_ATTEMPTS = 4  # of the cold start, to say how well it knows the answer
SMOOTH = 2  # steps on either side, for "steps to 50 %"
OVER_STEPS = ("knowrl, group, long", "knowrl, none, long", "truthrl, group", "t = 0.9, group", "t = 0.9, none")
Row = Mapping[str, object]
Measure = Callable[[Row, Row], float | None]  # of a row and of its cold start


def counts_of_questions(records: Iterable[Mapping], familiarity: Mapping[str, str]) -> dict:
    """Count the outcomes of each question and the facts of each outcome, from the records of an evaluation."""
    questions: dict[str, dict[int, list[int]]] = {}
    facts = [[0, 0] for _ in OUTCOMES]
    for record in records:
        outcome = OUTCOMES.index(record["outcome"])
        confidence = stated_confidence(record["completion"])
        if confidence is not None and confidence < SURE_FROM:
            outcome = DECLINED
        part = questions.setdefault(familiarity[record["question"]], {})
        part.setdefault(record["row"], [0] * len(OUTCOMES))[outcome] += 1
        checked = record["details"]["factuality"]
        facts[outcome][0] += int(checked["supported"])
        facts[outcome][1] += int(checked["facts"])
    answers = {name: [part[row] for row in sorted(part)] for name, part in questions.items()}
    return {"answers": answers, "facts": facts}


def read_rows(path: Path) -> list[dict]:
    """Read the rows that are there, without a last line that was cut."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- Measures of one row -------------------------------------------------------------------------------------------


def share(outcome: int, familiarity: str) -> Measure:
    """Return a measure: the share of an outcome among the answers about these people."""

    def measure(row: Row, cold: Row) -> float | None:
        counts = np.array(row["answers"].get(familiarity, np.zeros((0, 3))))
        return float(counts[:, outcome].sum() / counts.sum()) if counts.sum() else None

    return measure


def supported(*outcomes: int) -> Measure:
    """Return a measure: the share of the facts of such answers that the knowledge base supports."""

    def measure(row: Row, cold: Row) -> float | None:
        counts = np.array(row["facts"])[list(outcomes)].sum(0)
        return float(counts[0] / counts[1]) if counts[1] else None

    return measure


def steps_to_half(row: Row, cold: Row) -> float | None:
    """Return the first step from which half of the answers are right, by a running mean; None if there is none."""
    shares = [step_share(step, RIGHT) for step in row.get("curve", [])]
    reached = [number for number, value in enumerate(running_mean(shares, SMOOTH), 1) if value >= 0.5]
    return float(reached[0]) if reached else None


def step_share(step: Mapping[str, Mapping[str, int]], outcome: int, familiarity: str | None = None) -> float:
    """Return the share of an outcome in a training step; NaN if nobody was asked about."""
    counts = [part for name, part in step.items() if familiarity in (None, name)]
    total = sum(sum(part.values()) for part in counts)
    return sum(part.get(OUTCOMES[outcome], 0) for part in counts) / total if total else float("nan")


def known_and_answered(row: Row, cold: Row) -> tuple[np.ndarray, np.ndarray]:
    """Return for each question how probably the cold start is right if it answers, and the share of answers now."""
    known, answered = [], []
    for name, before in cold["answers"].items():
        for (right, _, wrong), now in zip(before, row["answers"][name], strict=True):
            if right + wrong >= MIN_ATTEMPTS:
                known.append(right / (right + wrong))
                answered.append(1 - now[DECLINED] / sum(now))
    return np.array(known), np.array(answered)


def break_even(row: Row, cold: Row) -> float | None:
    """Return the known share, 0 to 1, from which on half of the questions are answered.

    There a logistic fit of answering on the known share crosses 1/2. None if what is known better is not answered more
    often.
    """
    known, answered = known_and_answered(row, cold)
    if not len(known):
        return None
    offset, slope = logistic_fit(known, answered)
    return float(np.clip(-offset / slope, 0.0, 1.0)) if slope > 0.1 else None


def logistic_fit(x: np.ndarray, y: np.ndarray, ridge: float = 0.01, rounds: int = 50) -> tuple[float, float]:
    """Fit y = 1 / (1 + exp(-(a + b x))) by Newton's method; return a and b. ridge: keeps them finite."""
    inputs = np.stack([np.ones_like(x), x], axis=1)
    weights = np.zeros(2)
    for _ in range(rounds):
        fitted = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (y - fitted) - ridge * weights
        curvature = (inputs * (fitted * (1 - fitted))[:, None]).T @ inputs + ridge * np.eye(2)
        weights += np.clip(np.linalg.solve(curvature, gradient), -5, 5)
    return float(weights[0]), float(weights[1])


ABSTENTION: dict[str, Measure] = {
    "right, well known": share(RIGHT, WELL_KNOWN),
    "declined, well known": share(DECLINED, WELL_KNOWN),
    "right, in part": share(RIGHT, KNOWN_IN_PART),
    "wrong, in part": share(WRONG, KNOWN_IN_PART),
    "wrong, unseen": share(WRONG, UNSEEN),
    "declined, unseen": share(DECLINED, UNSEEN),
    "answers from": break_even,
}
TWO_HOPS: dict[str, Measure] = {
    "right": share(RIGHT, WELL_KNOWN),
    "declined": share(DECLINED, WELL_KNOWN),
    "facts supported, of right answers": supported(RIGHT),
    "facts supported, of all": supported(RIGHT, DECLINED, WRONG),
    "steps to 50 %": steps_to_half,
}


# --- Tables and plots ----------------------------------------------------------------------------------------------


class Rows:
    """All rows of one kind of questions: by arm and seed, each with the row of its cold start."""

    def __init__(self, rows: Sequence[Row], hops: str):
        self.cold = {row["seed"]: row[hops] for row in rows if row["arm"] == COLD_START and hops in row}
        self.of_arm: dict[str, dict[int, Row]] = {}
        if self.cold:
            self.of_arm[COLD_START] = self.cold
        for row in rows:
            if row["hops"] == hops:
                self.of_arm.setdefault(row["arm"], {})[row["seed"]] = row

    def values(self, arm: str, measure: Measure) -> list[float]:
        """Return one value per seed, without those that cannot be known."""
        found = [measure(row, self.cold[seed]) for seed, row in sorted(self.of_arm[arm].items())]
        return [value for value in found if value is not None]


def table(rows: Rows, measures: Mapping[str, Measure]) -> list[str]:
    """Make the lines of a Markdown table: mean (lowest to highest) over seeds, shares in percent."""
    lines = ["| | seeds | " + " | ".join(measures) + " |", "|---" * (len(measures) + 2) + "|"]
    for arm, of_seed in rows.of_arm.items():
        cells = []
        for name, measure in measures.items():
            scale = 1 if name.startswith("steps") else 100
            cells.append(cell([scale * value for value in rows.values(arm, measure)], len(of_seed)))
        lines.append(f"| {arm} | {len(of_seed)} | " + " | ".join(cells) + " |")
    return lines


def cell(values: Sequence[float], num_seeds: int) -> str:
    """Write mean (lowest to highest), and on how many seeds it rests where that is not all."""
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
    return text if len(values) == num_seeds else f"{text}, {len(values)} seeds"


def pareto_plot(path: Path, rows: Rows) -> None:
    """Plot right on the well known against wrong on the unseen, with the range over the seeds of each arm."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot(xlabel="wrong about the unseen, %", ylabel="right about the well known, %")
    rewards = list(dict.fromkeys(arm.partition(",")[0] for arm in rows.of_arm))
    for arm in rows.of_arm:
        x, reach_x = middle_and_reach(rows.values(arm, share(WRONG, UNSEEN)))
        y, reach_y = middle_and_reach(rows.values(arm, share(RIGHT, WELL_KNOWN)))
        colour = colormaps["tab20"](rewards.index(arm.partition(",")[0]))
        marker = "s" if arm.endswith("none") else "o"
        fill = "none" if arm.endswith("long") else colour
        axes.errorbar(x, y, reach_y, reach_x, marker, color=colour, markerfacecolor=fill, capsize=2, label=arm)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def middle_and_reach(values: Sequence[float]) -> tuple[float, list[list[float]]]:
    """Return the mean in percent, and how far below and above it the values reach, as errorbar takes it."""
    mean = statistics.fmean(values)
    return 100 * mean, [[max(100 * (mean - min(values)), 0)], [max(100 * (max(values) - mean), 0)]]


def steps_plot(path: Path, rows: Rows, outcome: int, familiarities: Sequence[str]) -> None:
    """Plot the share of an outcome in training over the steps, one panel for each kind of people.

    Shown are the arms of OVER_STEPS, or all if none of these is there.
    """
    from matplotlib.figure import Figure

    trained = [arm for arm in rows.of_arm if arm != COLD_START]
    arms = [arm for arm in OVER_STEPS if arm in trained] or trained
    figure = Figure(figsize=(4 * len(familiarities) + 3, 4), dpi=150, layout="constrained")
    for panel, familiarity in zip(figure.subplots(1, len(familiarities), squeeze=False)[0], familiarities, strict=True):
        panel.set(xlabel="step", ylabel=f"{LABELS[outcome]}, {familiarity}, %", ylim=(-2, 102))
        panel.grid(alpha=0.3)
        for arm in arms:
            panel.plot(step_curve(rows, arm, outcome, familiarity), label=arm)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path)


def step_curve(rows: Rows, arm: str, outcome: int, familiarity: str) -> list[float]:
    """Return the percentage of an outcome in each training step: a running mean of the mean over seeds."""
    runs = [[step_share(step, outcome, familiarity) for step in row["curve"]] for row in rows.of_arm[arm].values()]
    return running_mean(100 * np.nanmean(runs, axis=0), SMOOTH)


def report(path: Path, folder: Path) -> dict[str, list[str]]:
    """Print the tables of the rows in `path`, and write them and the plots to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(path)
    if folder != path.parent:
        shutil.copyfile(path, folder / "rows.jsonl")
    one_hop, two_hops = Rows(rows, "one hop"), Rows(rows, "two hops")
    tables = {"one hop": table(one_hop, ABSTENTION), "two hops": table(two_hops, TWO_HOPS)}
    text = "\n\n".join("\n".join(lines) for lines in tables.values())
    print(text)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    pareto_plot(folder / "pareto.png", one_hop)
    steps_plot(folder / "steps.png", one_hop, DECLINED, (WELL_KNOWN, UNSEEN))
    steps_plot(folder / "two_hops.png", two_hops, RIGHT, (WELL_KNOWN,))
    return tables
