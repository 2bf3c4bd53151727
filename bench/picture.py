"""python -m bench.picture

Draw README's picture from the stored rows: what GRPO did to SmolLM2-135M. Nothing is measured.

left    what it states about a country before it answers: facts per answer that the knowledge base supports,
        refutes or does not know; the mean of three seeds (`bench.reasoning`)
middle  capitals, element symbols and cities: right and wrong answers, if the model answers half of the questions (the
        half that it declines least readily), before and after GRPO; the mean of three seeds (`bench.real_model`)
right   sums of five numbers: the share of greedy answers that are right, one seed
"""

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.record import RESULTS, SEEDS, plain_parser, read_rows

GREEN, RED, GREY = "#3a8f5c", "#c4513d", "#c9ccd1"
ANSWERED = 0.5
NARROW = 0.09  # of a bar: a part that is narrower has no text


class Part(NamedTuple):
    """A part of a bar."""

    size: float
    colour: str
    text: str


def thoughts(arm: str) -> list[Part]:
    """Return the facts per answer that the knowledge base supports, refutes, and does not know."""
    arms = [row["arms"][arm] for row in read_rows(RESULTS / "smollm2_knowrl", SEEDS)]
    parts = []
    for label, colour, name in (("supported", GREEN, "true"), ("refuted", RED, "false"), ("unknown", GREY, "?")):
        number = fmean(measured[label][0] for measured in arms)
        parts.append(Part(number, colour, f"{name}\n{number:.1f}"))
    return parts


def facts(arm: str) -> list[Part]:
    """Return the shares of all questions that are answered right and wrong, if half of them are answered."""
    rows = read_rows(RESULTS / "smollm2", SEEDS)
    wrong = ANSWERED * fmean(row["arms"][arm]["risk"]["50%"] for row in rows)
    right, declined = ANSWERED - wrong, 1 - ANSWERED
    return [
        Part(right, GREEN, f"right\n{right:.0%}"),
        Part(wrong, RED, f"wrong\n{wrong:.0%}"),
        Part(declined, GREY, f"declined\n{declined:.0%}"),
    ]


def sums(model: str) -> list[Part]:
    """Return the shares of right and of wrong greedy answers."""
    rows = read_rows(RESULTS / "sums", SEEDS)
    right = next(row["right"] for row in rows if row["model"] == model and row["way"] == "greedy")
    return [Part(right, GREEN, f"right\n{right:.0%}"), Part(1 - right, RED, f"wrong\n{1 - right:.0%}")]


def draw_bar(axes: Axes, place: float, parts: list[Part]) -> None:
    """Draw the parts of one bar beside each other, each with its text."""
    start, total = 0.0, sum(part.size for part in parts)
    for part in parts:
        axes.barh(place, part.size, left=start, color=part.colour)
        ink = "black" if part.colour == GREY else "white"
        if part.size >= NARROW * total:
            axes.text(start + part.size / 2, place, part.text, ha="center", va="center", fontsize=8, color=ink)
        start += part.size


def draw(path: Path) -> None:
    """Draw the three parts and write the picture."""
    figure = Figure(figsize=(11, 2.2), dpi=150, layout="constrained")
    questions = {
        "facts that it states per answer": thoughts,
        "304 held-out facts, half of them declined": facts,
        "200 held-out sums of five numbers": sums,
    }
    for axes, (title, parts_of) in zip(figure.subplots(1, len(questions)), questions.items(), strict=True):
        draw_bar(axes, 0, parts_of("GRPO"))
        draw_bar(axes, 1, parts_of("cold start"))
        axes.set_yticks([0, 1], ["after", "before"], fontsize=9)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.margins(x=0)
        axes.set_title(title, fontsize=9)
    figure.savefig(path)


def main() -> None:
    path = RESULTS / "real_model.png"
    draw(path)
    print(path)


if __name__ == "__main__":
    plain_parser("bench.picture", __doc__).parse_args()
    main()
