"""The curves of a run and their meanings, in the coordinates of the plots that page.html draws."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from statistics import fmean

from grpo.report.plot import finite_points
from grpo.run.diagnosis.glossary import meaning
from grpo.run.diagnosis.record import Record

Points = Sequence[tuple[float, float]]

CHARTS = {  # title -> metrics; * stands for any name
    "Reward": ("reward", "eval/reward"),
    "Loss": ("loss",),
    "KL, the distance from the start": ("kl",),
    "Each reward": ("rewards/*/mean",),
    "Answers": ("accuracy", "refusal_rate", "coverage", "refusal_rate_known"),
    "Calls of tools": ("tools/called_frac", "tools/failure_frequency", "eval/searched_frac"),
    "Held-out questions": ("eval/accuracy", "eval/incorrect", "eval/not_attempted", "eval/supported_frac"),
    "What teaches nothing": (
        "frac_reward_zero_std",
        "completions/clipped_ratio",
        "sampling/kept_frac",
        "rewards/*/unscored_frac",
    ),
    "Length": ("completions/mean_length", "completions/max_length", "eval/mean_length"),
    "Entropy": ("entropy", "sampler/entropy"),
    "Gradient": ("grad_norm",),
    "Learning rate": ("learning_rate",),
    "Clipping": ("clip_ratio/low_mean", "clip_ratio/high_mean"),
    "Facts": ("kb/supported_frac", "kb/refuted_frac", "kb/unknown_frac"),
    "Failing requests": ("judge/retries", "judge/failures", "decomposer/retries", "decomposer/failures"),
    "Seconds of a step": ("time/*",),
    "Speed": ("tokens_per_second",),
    "Sampler against trainer": ("sampler/logp_diff_mean", "sampler/logp_diff_max"),
    "Memory": ("peak_memory_gb",),
}
SHOWN_AT_0 = (*CHARTS["Reward"], *CHARTS["Each reward"])  # that a reward is 0 in all steps is what its user must see
OF_SHARES = ("Answers", "Calls of tools", "Held-out questions", "What teaches nothing", "Facts")  # from 0 to 100 %
NUM_COLOURS = 6
MAX_CURVES = 24  # of one title
LEFT, RIGHT, TOP, BOTTOM = 52, 394, 24, 196  # edges of the curves in a plot of 400 x 220
MARGIN = 0.04  # of an axis, at either end
NUM_TICKS = 6  # distances between ticks, at most
MAX_POINTS = 80  # of a curve; the mean of neighbours takes their place, which also shows the trend of a noisy metric


@dataclass(frozen=True)
class Axis:
    """An axis: the values at its ends, the coordinates of its ends, and round values for ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: list[float]

    def place(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Chart:
    """A plot: the x, y and value of each point of its curves, and the curves' names and meanings, in the same order."""

    title: str
    x: Axis
    y: Axis
    curves: list[list[tuple[float, float, str]]]
    is_percent: bool
    meanings: list[tuple[str, str]]


def draw_charts(record: Record) -> list[Chart]:
    """Draw all metrics that a run has, at most NUM_COLOURS of them in a plot."""
    curves = _curves(record)
    charts = []
    for title, patterns in CHARTS.items():
        names = _matching(curves, patterns)[:MAX_CURVES]
        for start in range(0, len(names), NUM_COLOURS):
            together = names[start : start + NUM_COLOURS]
            charts.append(_draw(title, {name: curves[name] for name in together}))
    return charts


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that fit one of the patterns, pattern by pattern."""
    names = list(names)
    found = []
    for pattern in patterns:
        found += [name for name in names if fnmatchcase(name, pattern)]
    return found


def _curves(record: Record) -> dict[str, Points]:
    """Return the (step, value) points of each metric with two values or more; of rewards alone if all are 0."""
    logged = defaultdict(list)
    for metrics in (*record.steps, *record.evaluations):
        for name, value in metrics.items():
            logged[name].append((metrics["step"], value))
    curves = {}
    for name, values in logged.items():
        points = sorted(finite_points(values))
        is_shown = any(value for _, value in points) or any(fnmatchcase(name, pattern) for pattern in SHOWN_AT_0)
        if len(points) > 1 and is_shown:
            curves[name] = thin(points)
    return curves


def _draw(title: str, curves: dict[str, Points]) -> Chart:
    xs, ys = zip(*chain(*curves.values()), strict=True)
    is_percent = title in OF_SHARES
    low, high = (0, 1) if is_percent else (min(ys), max(ys))
    form = ".1%" if is_percent else ".4g"
    x = make_axis(min(xs), max(xs), LEFT, RIGHT, distance=1)
    y = make_axis(low, high, BOTTOM, TOP)
    placed = []
    for points in curves.values():
        labelled = [(x.place(step), y.place(value), f"step {step:.0f}: {value:{form}}") for step, value in points]
        placed.append(labelled)
    meanings = [(name, meaning(name)) for name in curves]
    return Chart(title, x, y, placed, is_percent, meanings)


def make_axis(low: float, high: float, start: float, end: float, distance: float = 0.0) -> Axis:
    """Make an axis for values from low to high. distance: the least between two ticks."""
    margin = MARGIN * (high - low)
    if margin <= 1e-9 * abs(high) or margin < 1e-300:  # all values are equal
        margin = abs(high) / 2 or 0.5
    low, high = low - margin, high + margin
    wanted = max((high - low) / NUM_TICKS, distance)
    power = 10.0 ** math.floor(math.log10(wanted))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    step = next((step for step in steps if step >= wanted), steps[-1])
    first, last = math.ceil(low / step), math.floor(high / step)
    ticks = [number * step for number in range(first, last + 1)]
    return Axis(low, high, start, end, ticks)


def thin(points: Points) -> Points:
    """Average neighbours until at most MAX_POINTS are left."""
    size = math.ceil(len(points) / MAX_POINTS)
    found = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        found.append((fmean(xs), fmean(ys)))
    return found


def show_tick(value: float, is_percent: bool = False) -> str:
    return f"{value:.0%}" if is_percent else f"{value:g}"
