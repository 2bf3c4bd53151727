"""Small line plots as PNG, drawn with Pillow (which comes with tensorboard): no plotting library is needed for a loss
curve."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 480, 84, 24, 40, 52


def line_plot(
    path: Path, curves: Mapping[str, Sequence[float] | Sequence[tuple[float, float]]], x_label: str, y_label: str
) -> None:
    """Writes a plot of some curves. A curve is a list of values at 1, 2, 3, … or of (x, y) points; values that are not
    finite are left out."""
    from PIL import Image, ImageDraw

    points = {name: _points(values) for name, values in curves.items()}
    every = [point for curve in points.values() for point in curve]
    if not every:
        return
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    x_ticks, y_ticks = _ticks([x for x, _ in every]), _ticks([y for _, y in every])

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM),
        )

    for x in x_ticks:
        draw.line([place(x, y_ticks[0]), place(x, y_ticks[-1])], fill="#e5e5e5")
        draw.text((place(x, y_ticks[0])[0], HEIGHT - BOTTOM + 8), f"{x:g}", fill="#444444", anchor="ma")
    for y in y_ticks:
        draw.line([place(x_ticks[0], y), place(x_ticks[-1], y)], fill="#e5e5e5")
        draw.text((LEFT - 8, place(x_ticks[0], y)[1]), f"{y:g}", fill="#444444", anchor="rm")
    for number, (name, curve) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        draw.line([place(*point) for point in curve], fill=colour, width=2, joint="curve")
        draw.text((WIDTH - RIGHT - 8, TOP + 8 + 16 * number), name, fill=colour, anchor="ra")
    draw.text((LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 12), x_label, fill="black", anchor="ms")
    draw.text((LEFT, TOP - 14), y_label, fill="black", anchor="ls")
    image.save(path)


def _points(values: Sequence) -> list[tuple[float, float]]:
    pairs = [value if isinstance(value, (tuple, list)) else (index, value) for index, value in enumerate(values, 1)]
    return [(float(x), float(y)) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def _ticks(values: Sequence[float]) -> list[float]:
    """Four to eight round numbers that span the values."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / 6
    step = next(
        m * 10 ** math.floor(math.log10(raw))
        for m in (1, 2, 2.5, 5, 10)
        if m * 10 ** math.floor(math.log10(raw)) >= raw
    )
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, last + 1)]
