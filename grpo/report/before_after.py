"""The answers to held-out questions before and after training: a bar per moment, and a table of all measures."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from grpo.evaluation.compare import RATES, Comparison, Difference
from grpo.evaluation.measures import Summary
from grpo.evaluation.table import parts_of

Summaries = Mapping[str, Mapping[str, Summary]]  # "before" and "after" -> part of the questions -> measures
OUTCOMES = {"right": "accuracy", "wrong": "incorrect", "declined": "not_attempted"}


class Cell(NamedTuple):
    """A text, and one in small print below it."""

    text: str
    more: str = ""


class Row(NamedTuple):
    """A measure, in parts between which a line may break, with its values, and how it changed if that is known."""

    measure: list[str]
    cells: list[Cell]


class Section(NamedTuple):
    """The rows about some of the questions, or about all."""

    title: str
    rows: list[Row]


@dataclass(frozen=True)
class Table:
    """A table of measures. is_paired: its last columns tell how each changed, and whether chance explains that."""

    heads: list[str]
    sections: list[Section]
    is_paired: bool


def draw_bars(summaries: Summaries) -> dict[str, dict[str, float]]:
    """Return the shares right, wrong and declined of each moment; {} if no reward knows them."""
    bars = {}
    for moment, parts in summaries.items():
        known = {outcome: parts.get("", {}).get(measure) for outcome, measure in OUTCOMES.items()}
        if None not in known.values():
            bars[moment] = known
    return bars


def summaries_of(compared: Comparison | None) -> Summaries:
    """Return what a comparison of the answers knows of both moments, for a run whose evaluation.json is not there."""
    if not compared:
        return {}
    sides = {
        "before": [of.a for of in compared.measures.values()],
        "after": [of.b for of in compared.measures.values()],
    }
    number = {"num_questions": compared.num_questions}
    return {moment: {"": number | dict(zip(compared.measures, side, strict=True))} for moment, side in sides.items()}


def make_table(summaries: Summaries, compared: Comparison | None) -> Table | None:
    """Return the table of a run's evaluations; None if there is none. compared: the same answers, paired."""
    if not summaries:
        return None
    is_paired = compared is not None and len(summaries) > 1
    heads = [*summaries, "change", "p"] if is_paired else list(summaries)
    sections = []
    for part in parts_of(summaries):
        changes = compared.measures if is_paired and not part.name else {}  # those of all questions
        rows = []
        for name, texts in part.rows:
            cells = [*(Cell(text.strip()) for text in texts), *_change(name, changes.get(name))]
            missing = len(heads) - len(cells)
            rows.append(Row(re.split("(?<=[_/:])", name), cells + [Cell("")] * missing))
        sections.append(Section(f"{part.name or 'all held-out questions'}: {part.num_questions}", rows))
    return Table(heads, sections, is_paired)


def _change(name: str, of: Difference | None) -> Iterator[Cell]:
    """Yield the cells of a change, if it is known."""
    if of:
        scale, digits, unit = (100, 1, " %") if name in RATES else (1, 3, "")
        interval = f"{scale * of.low:+.{digits}f} to {scale * of.high:+.{digits}f}"
        yield Cell(f"{scale * of.difference:+.{digits}f}{unit}", interval)
        yield Cell("<0.001" if of.p < 0.001 else f"{of.p:.2g}")
