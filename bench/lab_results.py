"""Turn the rows of bench/abstention_lab.py into tables and plots.

A row says for each held-out question how often it was answered right, declined, and answered wrong: under `answers`, in
the order of the file, by how well known the person is. `facts` counts the supported facts and all facts of right, of
declined and of wrong answers. `curve` counts the outcomes of each training step.
"""

import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.record import markdown_table
from grpo.report.charts import running_mean
from knowledge.atlas import KNOWN_IN_PART
from knowledge.world import UNSEEN, WELL_KNOWN
from rewards.format import stated_confidence

COLD_START = "cold start"
ONE_HOP = "one hop"
TWO_HOPS = "two hops"
OUTCOMES = ("correct", "refused", "wrong")
RIGHT, DECLINED, WRONG = range(len(OUTCOMES))
SURE_FROM = 0.5  # an answer with a lower stated confidence counts as declined
MIN_ATTEMPTS = 4  # of the cold start, to say how well it knows the answer
MIN_SLOPE = 0.1  # of a fit, to say that what is known better is answered more often
RIDGE = 0.01  # keeps a fit finite
ROUNDS = 50  # of Newton's method
SMOOTH = 2  # steps on either side, of the running mean in a plot
OVER_STEPS = ("knowrl, group, long", "knowrl, none, long", "truthrl, group", "t = 0.9, group", "t = 0.9, none")
Row = Mapping[str, object]  # `cold` is the row of its cold start
Measure = Callable[[Row], float | None]
Counts = list[int]  # of each outcome


def counts_of_questions(records: Iterable[Mapping], familiarity: Mapping[str, str]) -> dict:
    """Count the outcomes of each question and the facts of each outcome, from the records of an evaluation."""
    questions: dict[str, dict[int, Counts]] = defaultdict(dict)
    facts = [[0, 0] for _ in OUTCOMES]
    for record in records:
        outcome = OUTCOMES.index(record["outcome"])
        confidence = stated_confidence(record["completion"])
        if confidence is not None and confidence < SURE_FROM:
            outcome = DECLINED
        of_people = questions[familiarity[record["question"]]]
        of_question = of_people.setdefault(record["row"], [0] * len(OUTCOMES))
        of_question[outcome] += 1
        checked = record["details"]["factuality"]
        facts[outcome][0] += int(checked["supported"])
        facts[outcome][1] += int(checked["facts"])
    answers = {}
    for name, of_people in questions.items():
        answers[name] = [of_people[row] for row in sorted(of_people)]
    return {"answers": answers, "facts": facts}


def read_rows(path: Path) -> list[dict]:
    """Read the rows that are there, without a last line that was cut."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- Measures of one row -------------------------------------------------------------------------------------------


def share(outcome: int, familiarity: str) -> Measure:
    """Return a measure: the share of an outcome among the answers about these people."""

    def measure(row: Row) -> float | None:
        counts = row["answers"].get(familiarity, [])
        total = sum(map(sum, counts))
        return sum(count[outcome] for count in counts) / total if total else None

    return measure


def supported(*outcomes: int) -> Measure:
    """Return a measure: the share of the facts of such answers that the knowledge base supports."""

    def measure(row: Row) -> float | None:
        counts = [row["facts"][outcome] for outcome in outcomes]
        num_supported = sum(supported for supported, _ in counts)
        num_facts = sum(facts for _, facts in counts)
        return num_supported / num_facts if num_facts else None

    return measure


def known_and_answered(row: Row) -> tuple[np.ndarray, np.ndarray]:
    """Return for each question how probably the cold start is right if it answers, and the share of answers now."""
    known, answered = [], []
    for name, before in row["cold"]["answers"].items():
        for cold, now in zip(before, row["answers"][name], strict=True):
            attempts = cold[RIGHT] + cold[WRONG]
            if attempts >= MIN_ATTEMPTS:
                known.append(cold[RIGHT] / attempts)
                answered.append(1 - now[DECLINED] / sum(now))
    return np.array(known), np.array(answered)


def answers_from(row: Row) -> float | None:
    """Return the known share, 0 to 1, from which on half of the questions are answered.

    There a logistic fit of answering on the known share crosses 1/2. None if what is known better is not answered more
    often.
    """
    known, answered = known_and_answered(row)
    if not len(known):
        return None
    offset, slope = logistic_fit(known, answered)
    if slope <= MIN_SLOPE:
        return None
    return float(np.clip(-offset / slope, 0.0, 1.0))


def logistic_fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Fit y = 1 / (1 + exp(-(a + b x))) by Newton's method; return a and b."""
    inputs = np.stack([np.ones_like(x), x], axis=1)
    weights = np.zeros(2)
    for _ in range(ROUNDS):
        fitted = 1 / (1 + np.exp(-inputs @ weights))
        variance = fitted * (1 - fitted)
        gradient = inputs.T @ (y - fitted) - RIDGE * weights
        curvature = (inputs.T * variance) @ inputs + RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights += np.clip(step, -5, 5)
    return float(weights[0]), float(weights[1])


MEASURES: dict[str, dict[str, Measure]] = {
    ONE_HOP: {
        "right, well known": share(RIGHT, WELL_KNOWN),
        "declined, well known": share(DECLINED, WELL_KNOWN),
        "right, in part": share(RIGHT, KNOWN_IN_PART),
        "wrong, in part": share(WRONG, KNOWN_IN_PART),
        "wrong, unseen": share(WRONG, UNSEEN),
        "declined, unseen": share(DECLINED, UNSEEN),
        "answers from": answers_from,
    },
    TWO_HOPS: {
        "right": share(RIGHT, WELL_KNOWN),
        "declined": share(DECLINED, WELL_KNOWN),
        "facts supported, of right answers": supported(RIGHT),
        "facts supported, of all": supported(RIGHT, DECLINED, WRONG),
    },
}


# --- Tables and plots ----------------------------------------------------------------------------------------------


class Rows:
    """All rows of one kind of questions, by arm and seed."""

    def __init__(self, rows: Sequence[Row], hops: str):
        cold_starts = {row["seed"]: row[hops] for row in rows if row["arm"] == COLD_START}
        self.of_arm: dict[str, dict[int, Row]] = defaultdict(dict)
        for seed, cold in cold_starts.items():
            self.of_arm[COLD_START][seed] = {**cold, "cold": cold}
        for row in rows:
            if row["hops"] == hops:
                seed = row["seed"]
                self.of_arm[row["arm"]][seed] = {**row, "cold": cold_starts[seed]}

    def values(self, arm: str, measure: Measure) -> list[float]:
        """Return the percentage for each seed, without those that cannot be known."""
        of_seed = self.of_arm[arm]
        found = [measure(of_seed[seed]) for seed in sorted(of_seed)]
        return [100 * value for value in found if value is not None]


def table(rows: Rows, measures: Mapping[str, Measure]) -> str:
    """Make a Markdown table of percentages: mean (lowest to highest) over seeds."""
    lines = []
    for arm, of_seed in rows.of_arm.items():
        line = [arm, str(len(of_seed))]
        for measure in measures.values():
            line.append(cell(rows.values(arm, measure), len(of_seed)))
        lines.append(line)
    return markdown_table(["", "seeds", *measures], lines)


def cell(values: Sequence[float], num_seeds: int) -> str:
    """Write mean (lowest to highest), and the number of seeds if some have no value."""
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
    rewards: list[str] = []
    for arm in rows.of_arm:
        reward, _, _ = arm.partition(",")
        if reward not in rewards:
            rewards.append(reward)
        colour = colormaps["tab20"](rewards.index(reward))
        x, reach_x = middle_and_reach(rows.values(arm, share(WRONG, UNSEEN)))
        y, reach_y = middle_and_reach(rows.values(arm, share(RIGHT, WELL_KNOWN)))
        axes.errorbar(
            x,
            y,
            reach_y,
            reach_x,
            fmt="s" if arm.endswith("none") else "o",
            color=colour,
            markerfacecolor="none" if arm.endswith("long") else colour,
            capsize=2,
            label=arm,
        )
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def middle_and_reach(values: Sequence[float]) -> tuple[float, list[list[float]]]:
    """Return the mean, and how far below and above it the values reach, as errorbar takes it."""
    mean = statistics.fmean(values)
    below = max(mean - min(values), 0)  # not negative by rounding
    above = max(max(values) - mean, 0)
    return mean, [[below], [above]]


def steps_plot(path: Path, rows: Rows) -> None:
    """Plot the share of declined answers over the training steps, for the well known and for the unseen.

    Shown are the arms of OVER_STEPS, or all if none of these is there.
    """
    from matplotlib.figure import Figure

    trained = [arm for arm in rows.of_arm if arm != COLD_START]
    arms = [arm for arm in OVER_STEPS if arm in trained] or trained
    figure = Figure(figsize=(11, 4), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, familiarity in zip(panels, (WELL_KNOWN, UNSEEN), strict=True):
        panel.set(xlabel="step", ylabel=f"declined, {familiarity}, %", ylim=(-2, 102))
        panel.grid(alpha=0.3)
        for arm in arms:
            panel.plot(declined_by_step(rows, arm, familiarity), label=arm)
    lines, labels = panel.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path)


def declined_by_step(rows: Rows, arm: str, familiarity: str) -> list[float]:
    """Return the percentage of declined answers in each training step: a running mean of the mean over seeds."""
    runs = []
    for row in rows.of_arm[arm].values():
        runs.append([declined(step.get(familiarity, {})) for step in row["curve"]])
    return running_mean(100 * np.nanmean(runs, axis=0), SMOOTH)


def declined(counts: Mapping[str, int]) -> float:
    """Return the share of declined answers; NaN if there are no answers."""
    total = sum(counts.values())
    return counts.get(OUTCOMES[DECLINED], 0) / total if total else float("nan")


def report(path: Path, folder: Path) -> dict[str, str]:
    """Print the tables of the rows in `path`, and write them and the plots to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(path)
    if folder != path.parent:
        shutil.copyfile(path, folder / "rows.jsonl")
    tables = {}
    for hops, measures in MEASURES.items():
        tables[hops] = table(Rows(rows, hops), measures)
    text = "\n\n".join(tables.values())
    print(text)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    pareto_plot(folder / "pareto.png", Rows(rows, ONE_HOP))
    steps_plot(folder / "steps.png", Rows(rows, ONE_HOP))
    return tables
