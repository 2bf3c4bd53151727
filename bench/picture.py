"""python -m bench.picture

Draw README's picture from the stored rows: what GRPO did to SmolLM2-135M. Nothing is measured.

left    capitals, element symbols and cities: right and wrong answers, if the model answers half of the questions (the
        half that it declines least readily), before and after GRPO; the mean of three seeds (`bench.real_model`)
right   sums of five numbers: the share of greedy answers that are right, one seed
"""

from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from bench.record import RESULTS, SEEDS, plain_parser, read_rows

GREEN, RED, GREY = "#3a8f5c", "#c4513d", "#c9ccd1"
ANSWERED = 0.5


def facts(arm: str) -> tuple[float, float]:
    """Return the shares of all questions that are answered right and wrong, if half of them are answered."""
    rows = read_rows(RESULTS / "smollm2", SEEDS)
    wrong = ANSWERED * fmean(row["arms"][arm]["risk"]["50%"] for row in rows)
    return ANSWERED - wrong, wrong


def sums(model: str) -> float:
    """Return the share of right greedy answers."""
    rows = read_rows(RESULTS / "sums", SEEDS)
    return next(row["right"] for row in rows if row["model"] == model and row["way"] == "greedy")


def draw(path: Path) -> None:
    """Draw both parts and write the picture."""
    figure = Figure(figsize=(8, 2.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (arm, name) in enumerate((("GRPO", "after"), ("cold start", "before"))):
        is_right, is_wrong = facts(arm)
        start = 0.0
        for share, colour, label in ((is_right, GREEN, "right"), (is_wrong, RED, "wrong"), (0.5, GREY, "declined")):
            left.barh(place, share, left=start, color=colour)
            text = f"{label} {share:.0%}"
            ink = "black" if colour == GREY else "white"
            left.text(start + share / 2, place, text, ha="center", va="center", fontsize=8, color=ink)
            start += share
        share = sums(arm)
        right.barh(place, share, color=GREEN)
        right.barh(place, 1 - share, left=share, color=RED)
        right.text(
            share + 0.02 if share < 0.3 else share / 2,
            place,
            f"right {share:.0%}",
            va="center",
            fontsize=8,
            color="white",
        )
        for axes in (left, right):
            axes.text(-0.02, place, name, ha="right", va="center", fontsize=9)
    left.set_title("304 held-out facts, half of them declined", fontsize=9)
    right.set_title("200 held-out sums of five numbers", fontsize=9)
    for axes in (left, right):
        axes.set_axis_off()
        axes.set_xlim(0, 1)
    figure.savefig(path)


def main() -> None:
    path = RESULTS / "real_model.png"
    draw(path)
    print(path)


if __name__ == "__main__":
    plain_parser("bench.picture", __doc__).parse_args()
    main()
