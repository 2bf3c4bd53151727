"""Draw line plots as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

Line = Sequence[float] | Sequence[tuple[float, float]]

INCHES = (6, 4)
DPI = 200  # 1,200 x 800 pixels; the text can still be read at a third of that
FONT_POINTS = 13
LEGEND_COLUMNS = 2
MAX_MARKERS = 20  # a curve of up to so many points has a marker at each
LARGEST = 1e300  # larger numbers cannot be drawn


def line_plot(path: Path, curves: Mapping[str, Line], x_label: str, y_label: str) -> None:
    """Plot some curves, with a legend below the axes where it covers none of them.

    A curve is a list of values at x = 1, 2, 3, … or a list of (x, y) points. Points that are not finite are left out;
    if no point is left, no file is written.
    """
    # matplotlib takes a while to import. Figure itself, unlike pyplot, keeps no global state and needs no display.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    points = {}
    for name, curve in curves.items():
        if found := finite_points(curve):
            points[name] = found
    if not points:
        return
    with rc_context({"font.size": FONT_POINTS, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        for name, curve in points.items():
            xs, ys = zip(*curve, strict=True)
            marker = "o" if len(curve) <= MAX_MARKERS else None
            axes.plot(xs, ys, label=name, linewidth=2, marker=marker)
        axes.grid(color="0.9")
        if len(points) > 1:
            figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
        figure.savefig(path)


def finite_points(curve: Line) -> list[tuple[float, float]]:
    """Return the (x, y) points of a curve, without those that are not finite, or far too large."""
    points = []
    for number, value in enumerate(curve, 1):
        x, y = value if isinstance(value, (tuple, list)) else (number, value)
        if abs(x) < LARGEST and abs(y) < LARGEST:
            points.append((float(x), float(y)))
    return points
