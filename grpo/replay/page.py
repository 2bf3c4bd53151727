"""A step made again, as JSON, and as a page beside the report of its run."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.base.errors import redact
from grpo.base.storage import Json, write_atomically
from grpo.replay.again import Replay
from grpo.replay.parts import Seen
from grpo.replay.terminal import COLUMNS, LESS_LIKELY, LIKELIER, PALE, STRONGER, looks, place_in_group, summary
from grpo.report.page import FILE_NAME, template, write_report
from grpo.run.diagnosis.record import REPLAYS

CLASSES = {LIKELIER: "likelier", LESS_LIKELY: "less", STRONGER: "strong", PALE: "pale"}  # of style.css


def as_json(found: Replay) -> Json:
    """Return everything that is known of a replay."""
    told = dict(vars(found))
    look = told.pop("look")
    pieces = told.pop("pieces")
    strongest_first = sorted(look.answers, key=lambda seen: -seen.norm)
    shown = []
    for place, seen in found.shown:
        tokens = _tokens(seen, pieces[place])
        shown.append(_answer(seen) | {"tokens": tokens})
    return {
        **told,
        "grad_norm": look.norm,
        "error": look.error,
        "row": look.row,
        "answers": list(map(_answer, strongest_first)),
        "shown": shown,
    }


def _answer(seen: Seen) -> Json:
    completion = seen.completion
    return {
        "row": seen.group.prompt.row,
        "answer": place_in_group(seen),
        "reward": completion.reward,
        "outcome": completion.outcome,
        "advantage": completion.advantage,
        "num_tokens": len(completion.ids),
        "norm": seen.norm,
        "share": seen.share,
        "completion": completion.text,
    }


def _tokens(seen: Seen, pieces: list[str]) -> list[Json]:
    return [{"text": pieces[token.place], **asdict(token)} for token in seen.tokens]


def write_page(found: Replay) -> Path:
    """Write the page of a replay into the directory of its run, and the report, which links it; return its path."""
    folder = Path(found.run)
    page = folder / REPLAYS / f"step-{found.step:06d}-row-{found.look.row}.html"
    page.parent.mkdir(exist_ok=True)
    write_atomically(page, render(found))
    if (folder / FILE_NAME).exists():
        write_report(folder)
    return page


def render(found: Replay) -> str:
    """Return the page as HTML that needs nothing else. The template escapes the texts of model and data."""
    _, first = found.shown[0]
    prompt = first.group.prompt
    page = template("replay.html").render(
        title=f"{Path(found.run).resolve().name}: step {found.step}, row {found.look.row}",
        summary=list(summary(found)),
        row=found.look.row,
        question=str(prompt.columns.get("question") or prompt.text),
        columns=list(COLUMNS),
        shown=[_shown(seen, found.pieces[place]) for place, seen in found.shown],
        answers=as_json(found)["answers"],
    )
    return redact(page)


def _shown(seen: Seen, texts: list[str]) -> dict[str, Any]:
    """Return what the page shows of a completion: its text in pieces, and the table of its tokens."""
    pieces = [{"text": text, "look": "pale"} for text in texts]
    rows = []
    for token, codes in zip(seen.tokens, looks(seen.tokens), strict=True):
        look = " ".join(CLASSES[code] for code in codes)
        pieces[token.place]["look"] = look
        cells = [(name, text(token)) for name, (_, text) in COLUMNS.items()]
        rows.append({"number": token.place + 1, "text": texts[token.place], "look": look, "cells": cells})
    return _answer(seen) | {"pieces": pieces, "tokens": rows}
