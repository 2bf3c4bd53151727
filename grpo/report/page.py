"""What the page shows of a run."""

import math
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from grpo.base.errors import escape, redact
from grpo.base.storage import write_atomically
from grpo.base.text import show_duration
from grpo.config.options import SftConfig, TrainConfig, as_yaml
from grpo.diagnosis.reader import is_number
from grpo.diagnosis.record import Record, read_record
from grpo.explain import explain
from grpo.report.answers import changes, examples
from grpo.report.before_after import before_and_after, headline
from grpo.report.charts import draw_charts, show_tick

FILE_NAME = "report.html"


def write_report(path: str | Path, output: str | Path | None = None) -> Path:
    """Write report.html into a run's directory, or to `output`; return its path."""
    output = Path(output or Path(path) / FILE_NAME)
    write_atomically(output, render(read_record(path)))
    return output


def render(record: Record) -> str:
    """Return the page: one HTML text that needs nothing else. Texts of models and data are escaped by the template."""
    step = max(record.answer_steps(), default=0)
    shown, (changed, outcomes) = examples(record, step), changes(record)
    page = _template().render(
        name=record.name,
        headline=headline(record),
        overview=_overview(record),
        keys=changed_keys(record),
        question_sets=before_and_after(record),
        moments=list(record.summaries),
        charts=draw_charts(record),
        examples_step=step,
        examples=shown,
        changes=changed,
        outcomes=outcomes,
        remarks=explain(record),  # after all files have been read, so that it knows which lines could not
    )
    return redact(page)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("grpo.report", "."),
        autoescape=True,
        # Control characters are made visible in every text that the template inserts, except in its own markup.
        finalize=lambda value: escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"number": show_number, "measure": show_measure, "tick": show_tick}
    return environment.get_template("page.html")


def _overview(record: Record) -> list[tuple[str, str]]:
    """Return the main facts about a run, as labels and texts."""
    config, state = record.config, record.state
    last, seconds = record.steps[-1] if record.steps else {}, [step["step_time"] for step in record.steps]
    tokens, memory = (last.get(name, math.nan) for name in ("num_tokens", "peak_memory_gb"))
    texts = {
        "stage": "GRPO" if "num_generations" in config else "supervised fine-tuning",
        "status": ", ".join(str(text) for text in (state.get("status"), state.get("reason")) if text) or "unknown",
        "model": config.get("model_name_or_path"),
        "data": config.get("dataset_id_or_path"),
        "rewards": as_yaml(config["reward_funcs"]) if "reward_funcs" in config else None,
        **dict(_rows(state.get("data"))),
        "steps": last.get("step"),
        "tokens": f"{tokens:,.0f}" if math.isfinite(tokens) else None,
        "time of all steps": show_duration(sum(filter(math.isfinite, seconds))),
        "peak memory": f"{memory:.2f} GB" if math.isfinite(memory) else None,
        "started": str(state.get("started") or "").replace("T", " "),
    }
    return [(label, str(text)) for label, text in texts.items() if text]


def _rows(data: Any) -> Iterator[tuple[str, str]]:
    """Yield each use of a data set, with how many of its rows are used and why the others are not."""
    for use, count in data.items() if isinstance(data, dict) else ():
        if isinstance(count, dict) and is_number(count.get("rows")):
            tables = [count[name] if isinstance(count.get(name), dict) else {} for name in ("left_out", "notes")]
            reasons, notes = ({text: n for text, n in table.items() if is_number(n)} for table in tables)
            used = f"{count['rows'] - sum(reasons.values()):g} of {count['rows']:g} rows of {count.get('data')}"
            yield use, "; ".join([used, *(f"{number:g} {reason}" for reason, number in (reasons | notes).items())])


def changed_keys(record: Record) -> dict[str, tuple[str, str]]:
    """Return the keys that differ from their default: the value, and the default."""
    defaults = {field.name: field for kind in (SftConfig, TrainConfig) for field in fields(kind)}
    keys = {}
    for name, value in record.config.items():
        if name in defaults and "once" not in defaults[name].metadata["facts"]:
            value, default = as_yaml(value), as_yaml(defaults[name].default)
            if value != default:
                keys[name] = value, default
    return keys


def show_number(value: Any) -> str:
    """Format a reward or an advantage with at most three digits; other values stay unchanged."""
    return f"{value:.3g}" if is_number(value) else str("–" if value is None else value)


def show_measure(value: float, is_rate: bool) -> str:
    return f"{value:.1%}" if is_rate else f"{value:.2f}"
