"""Draw line plots: as PNG files, and as SVG for a page that is light or dark."""

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Curve = Sequence[float] | Sequence[tuple[float, float]]

INCHES = (6, 4)
DPI = 200  # 1,200 x 800 pixels; the text can still be read at a third of that
FONT_POINTS = 13
LEGEND_COLUMNS = 2
MAX_MARKERS = 20  # points up to which each one is marked

SVG_INCHES = (4, 2.2)
SVG_FONT_POINTS = 9
NUM_COLOURS = 6
MAX_POINTS = 400  # of a curve in an SVG; more are averaged
SMOOTH_FROM = 20  # points from which a running mean is drawn over the values
# An SVG has these placeholders for colours, so that a style sheet decides what they are.
TEXT, GRID = "#fe0000", "#fe0001"
LINES = [f"#fe000{number + 2}" for number in range(NUM_COLOURS)]
STYLE = {TEXT: "currentColor", GRID: "var(--grid)"} | {line: f"var(--line-{i})" for i, line in enumerate(LINES)}


def line_plot(path: Path, curves: Mapping[str, Curve], x_label: str, y_label: str) -> None:
    """Plot some curves, with a legend below the axes where it covers none of them.

    A curve is a list of values at x = 1, 2, 3, … or a list of (x, y) points. Points that are not finite are left out;
    if no point is left, no file is written.
    """
    # matplotlib takes a while to import. Figure itself, unlike pyplot, keeps no global state and needs no display.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    points = {name: finite_points(curve) for name, curve in curves.items()}
    points = {name: curve for name, curve in points.items() if curve}
    if not points:
        return
    with rc_context({"font.size": FONT_POINTS, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        for name, curve in points.items():
            xs = [x for x, _ in curve]
            ys = [y for _, y in curve]
            axes.plot(xs, ys, label=name, linewidth=2, marker="o" if len(curve) <= MAX_MARKERS else None)
        axes.grid(color="0.9")
        if len(points) > 1:
            figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
        figure.savefig(path)


@dataclass(frozen=True)
class Line:
    """A curve of an SVG. colour: an index; 0 stands for the style sheet's --line-0. dashed: of a second run."""

    points: Sequence[tuple[float, float]]
    colour: int
    is_dashed: bool = False


def svg_plot(lines: Sequence[Line], as_percent: bool = False, smooth: bool = True) -> str:
    """Plot some curves as an <svg> element without a legend, which the page adds. Its texts are numbers only.

    smooth: draw the running mean of long curves, and the values pale behind it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    colours = dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.edgecolor"), TEXT)
    spines = {"axes.spines.top": False, "axes.spines.right": False}
    with rc_context({"svg.fonttype": "none", "font.size": SVG_FONT_POINTS, **colours, **spines}):
        figure = Figure(figsize=SVG_INCHES, layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        for line in lines:
            _draw(axes, line, smooth)
        axes.grid(color=GRID, linewidth=0.7)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if as_percent:
            axes.set(ylim=(-0.03, 1.03), yticks=(0, 0.25, 0.5, 0.75, 1))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for placeholder, colour in STYLE.items():
        svg = svg.replace(placeholder, colour)
    return svg


def _draw(axes, line: Line, smooth: bool) -> None:
    """Draw a curve; a long one pale, with its running mean over it."""
    xs, ys = [x for x, _ in thin(line.points)], [y for _, y in thin(line.points)]
    style = {"color": LINES[line.colour % NUM_COLOURS], "linestyle": "--" if line.is_dashed else "-"}
    marker = "o" if len(xs) <= MAX_MARKERS and not line.is_dashed else None
    if len(xs) < SMOOTH_FROM or not smooth:
        axes.plot(xs, ys, marker=marker, markersize=3, linewidth=1.6, **style)
        return
    axes.plot(xs, ys, linewidth=0.8, alpha=0.3, **style)
    axes.plot(xs, running_mean(ys, max(2, len(ys) // 20)), linewidth=1.6, **style)


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Average neighbours until at most MAX_POINTS are left."""
    size = math.ceil(len(points) / MAX_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), max(size, 1))]
    return [(statistics.fmean(x for x, _ in part), statistics.fmean(y for _, y in part)) for part in parts]


def running_mean(values: Sequence[float], reach: int) -> list[float]:
    """Return the mean of each value and its neighbours, up to `reach` on either side."""
    return [statistics.fmean(values[max(place - reach, 0) : place + reach + 1]) for place in range(len(values))]


def finite_points(curve: Curve) -> list[tuple[float, float]]:
    """Return the (x, y) points of a curve, without those that are not finite."""
    points = []
    for number, value in enumerate(curve, 1):
        x, y = value if isinstance(value, (tuple, list)) else (number, value)
        if math.isfinite(x) and math.isfinite(y):
            points.append((float(x), float(y)))
    return points
