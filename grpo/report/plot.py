"""Draw the loss of stage 1 as a PNG file."""

from collections.abc import Iterable, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, float]]  # steps and values

INCHES = (6, 4)
DPI = 200  # 1,200 x 800 pixels; the text can still be read at a third of that
FONT_POINTS = 13
MAX_MARKERS = 20  # a curve of up to so many points has a marker at each
LARGEST = 1e300  # larger numbers cannot be drawn


def draw_loss(path: Path, losses: Curve) -> None:
    """Plot the loss of each step. If none is finite, no file is written."""
    # matplotlib takes a while to import. Figure itself, unlike pyplot, keeps no global state and needs no display.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    points = finite_points(losses)
    if not points:
        return
    steps, values = zip(*points, strict=True)
    with rc_context({"font.size": FONT_POINTS, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel="loss of the answer tokens, nats")
        axes.plot(steps, values, linewidth=2, marker="o" if len(points) <= MAX_MARKERS else None)
        axes.grid(color="0.9")
        figure.savefig(path)


def finite_points(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points without those that are not finite, or far too large."""
    return [(float(x), float(y)) for x, y in points if abs(x) < LARGEST and abs(y) < LARGEST]
