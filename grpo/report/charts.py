"""The curves of a run, each with what it means."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.run.glossary import meaning
from grpo.run.plot import NUM_COLOURS, Line, finite_points, svg_plot
from grpo.run.record import Record

CHARTS = {  # title -> metrics, of which * stands for any name
    "Reward": ("reward", "eval/reward"),
    "Each reward": ("rewards/*/mean",),
    "Answers": ("accuracy", "refusal_rate", "coverage", "refusal_rate_known"),
    "Held-out questions": ("eval/accuracy", "eval/incorrect", "eval/not_attempted", "eval/supported_frac"),
    "Loss": ("loss",),
    "What teaches nothing": (
        "frac_reward_zero_std",
        "completions/clipped_ratio",
        "sampling/kept_groups",
        "rewards/*/unscored_frac",
    ),
    "Length": ("completions/mean_length", "completions/max_length", "eval/mean_length"),
    "Entropy": ("entropy",),
    "Distance from the start": ("kl",),
    "Gradient": ("grad_norm",),
    "Learning rate": ("learning_rate",),
    "Clipping": ("clip_ratio/low_mean", "clip_ratio/high_mean"),
    "Facts": ("kb/supported_frac", "kb/refuted_frac", "kb/unknown_frac"),
    "Failing requests": ("judge/retries", "judge/failures", "decomposer/retries", "decomposer/failures"),
    "Seconds of a step": ("time/generate", "time/reference", "time/reward", "time/train"),
    "Speed": ("tokens_per_second",),
    "Sampler against trainer": ("sampler/logp_diff_mean", "sampler/logp_diff_max"),
    "Memory": ("peak_memory_gb", "peak_memory_gb/*"),
}
OF_SHARES = ("Answers", "Held-out questions", "What teaches nothing", "Facts")  # from 0 to 100 %
EXACT = ("Learning rate", "Memory")  # drawn without a running mean


@dataclass(frozen=True)
class Chart:
    """A plot, and the name and meaning of each of its curves, in the order of their colours."""

    title: str
    svg: str
    meanings: list[tuple[str, str]]


def draw_charts(records: Sequence[Record]) -> list[Chart]:
    """Draw all metrics that any of the runs has, at most NUM_COLOURS of them in a plot."""
    curves = [_curves(record) for record in records]
    names = list(dict.fromkeys(itertools.chain(*curves)))
    charts = []
    for title, patterns in CHARTS.items():
        shown = [name for pattern in patterns for name in names if _fits(name, pattern)]
        for start in range(0, len(shown), NUM_COLOURS):
            charts.append(_draw(title, shown[start : start + NUM_COLOURS], curves))
    return charts


def _fits(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".+"), name) is not None


def _curves(record: Record) -> dict[str, list[tuple[float, float]]]:
    """Return the (step, value) points of each metric with two values or more, and some that are not 0."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for metrics in (*record.steps, *record.evaluations):
        for name, value in metrics.items():
            curves.setdefault(name, []).append((metrics["step"], value))
    points = {name: sorted(finite_points(curve)) for name, curve in curves.items()}
    return {name: curve for name, curve in points.items() if len(curve) > 1 and any(y for _, y in curve)}


def _draw(title: str, names: Sequence[str], curves: Sequence[dict[str, list[tuple[float, float]]]]) -> Chart:
    lines = []
    for number, of_run in enumerate(curves):
        for colour, name in enumerate(names):
            if name in of_run:
                lines.append(Line(of_run[name], colour, is_dashed=number > 0))
    return Chart(
        title, svg_plot(lines, title in OF_SHARES, title not in EXACT), [(name, meaning(name)) for name in names]
    )
