"""The curves of a run and their meanings, as the lines that page.html draws."""

import math
from collections import defaultdict
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import chain
from statistics import fmean

from grpo.base.storage import Json
from grpo.base.text import in_words
from grpo.report.plot import Curve, finite_points
from grpo.run.diagnosis.glossary import meaning
from grpo.run.diagnosis.record import Record

CHARTS = {  # title -> metrics; * stands for any name
    "Reward": "reward",
    "Reward of held-out answers": "eval/reward",
    "Loss": "loss",
    "KL, the distance from the start": "kl",
    "Each reward": "rewards/*/mean",
    "Answers": "accuracy refusal_rate coverage refusal_rate_known",
    "Calls of tools": "tools/called_frac tools/failure_frequency eval/searched_frac",
    "Held-out questions": "eval/accuracy eval/incorrect eval/not_attempted eval/supported_frac",
    "What teaches nothing": "frac_reward_zero_std completions/clipped_ratio sampling/kept_frac rewards/*/unscored_frac",
    "Length": "completions/mean_length completions/max_length eval/mean_length",
    "Entropy": "entropy sampler/entropy",
    "Gradient": "grad_norm",
    "Learning rate": "learning_rate",
    "Clipping": "clip_ratio/low_mean clip_ratio/high_mean",
    "Facts": "kb/supported_frac kb/refuted_frac kb/unknown_frac",
    "Failing requests": "judge/retries judge/failures decomposer/retries decomposer/failures",
    "Seconds of a step": "time/*",
    "Speed": "tokens_per_second",
    "Sampler against trainer": "sampler/logp_diff_mean sampler/logp_diff_max",
    "Memory": "peak_memory_gb",
}
SHOWN_AT_0 = ("reward", "eval/reward", "rewards/*/mean")  # that one is 0 in all steps is what its user must see
OF_SHARES = ("Answers", "Calls of tools", "Held-out questions", "What teaches nothing", "Facts")  # from 0 to 100 %
NUM_COLOURS = 6
MAX_CURVES = 24  # of one title
WIDTH, HEIGHT = 400, 180  # of a plot, in its own coordinates
MAX_POINTS = 80  # of a curve; the mean of neighbours takes their place, which also shows the trend of a noisy metric


def draw_charts(record: Record) -> list[Json]:
    """Draw all metrics that a run has, at most NUM_COLOURS of them in a plot.

    A plot has a title, its curves, and the values and steps at the ends of its axes. A curve is a metric: its name, the
    points of its line as SVG takes them, its first and last value (change), and its meaning.
    """
    curves = _curves(record)
    charts = []
    for title, patterns in CHARTS.items():
        names = [name for pattern in patterns.split() for name in curves if fnmatchcase(name, pattern)][:MAX_CURVES]
        for start in range(0, len(names), NUM_COLOURS):
            together = names[start : start + NUM_COLOURS]
            charts.append(_draw(title, {name: curves[name] for name in together}))
    return charts


def _curves(record: Record) -> dict[str, Curve]:
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


def _draw(title: str, curves: dict[str, Curve]) -> Json:
    steps, values = zip(*chain(*curves.values()), strict=True)
    form = ".0%" if title in OF_SHARES else ".4g"
    lowest, highest = (0, 1) if title in OF_SHARES else (min(values), max(values))
    across = _scale(min(steps), max(steps))
    up = _scale(lowest, highest)
    drawn = []
    for name, points in curves.items():
        places = [(WIDTH * across(step), HEIGHT * (1 - up(value))) for step, value in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        change = f"{points[0][1]:{form}} → {points[-1][1]:{form}}"
        drawn.append({"name": in_words(name), "line": line, "change": change, "meaning": meaning(name)})
    return {
        "title": title,
        "curves": drawn,
        "lowest": f"{lowest:{form}}",
        "highest": f"{highest:{form}}",
        "first_step": f"{min(steps):.0f}",
        "last_step": f"{max(steps):.0f}",
    }


def _scale(low: float, high: float) -> Callable[[float], float]:
    """Return what places values between 0 (low) and 1 (high); in the middle if these are equal."""
    return lambda value: (value - low) / (high - low) if high > low else 0.5


def thin(points: Curve) -> Curve:
    """Average neighbours until at most MAX_POINTS are left."""
    size = math.ceil(len(points) / MAX_POINTS)
    found = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        found.append((fmean(xs), fmean(ys)))
    return found
