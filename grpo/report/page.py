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
from grpo.base.storage import Json, read_mapping, write_atomically
from grpo.base.text import in_words, show_duration
from grpo.config.help import as_yaml
from grpo.config.options import SftConfig, TrainConfig, keys_that
from grpo.evaluation.compare import comparison_text
from grpo.evaluation.table import summary_table
from grpo.explain import explain
from grpo.report.answers import before_and_after, draw_bars, examples, headline, most_changed
from grpo.report.charts import draw_charts
from grpo.run.diagnosis.record import CONFIG_FILE, Record, read_record

FILE_NAME = "report.html"
SCRATCH = "a model made from scratch"


def write_report(path: str | Path, output: str | Path | None = None) -> Path:
    """Write report.html into a run's directory, or to `output`; return its path."""
    output = Path(output or Path(path) / FILE_NAME)
    write_atomically(output, render(read_record(path)))
    return output


def render(record: Record) -> str:
    """Return the page: one HTML text that needs nothing else. Texts of models and data are escaped by the template."""
    step = max(record.answer_steps(), default=0)
    answered = record.answered_twice()
    compared = before_and_after(answered)
    changed, outcomes = most_changed(answered)
    page = template().render(
        name=record.name,
        headline=headline(compared, answered, model_of(record)) if compared else "",
        overview=_overview(record),
        config={name: str(value) for name, value in record.config.items()},
        changed_keys=list(changed_keys(record.config)),
        bars=draw_bars(record.summaries),
        measures=summary_table(record.summaries, "all held-out questions") if record.summaries else "",
        changes_of_measures=comparison_text(compared, "before training", "after training") if compared else "",
        charts=draw_charts(record),
        examples_step=step,
        path=str(record.path),
        examples=examples(record, step),
        changes=changed,
        outcomes=outcomes,
        remarks=explain(record),  # after all files have been read, so that it knows which lines could not
    )
    return redact(page)


@cache
def template() -> Template:
    """Return the template of the page, which escapes whatever it inserts."""
    environment = Environment(
        loader=PackageLoader("grpo.report", "."),
        autoescape=True,
        # Control characters are made visible in every text that the template inserts, except in its own markup.
        finalize=lambda value: escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["number"] = show_number
    environment.filters["in_words"] = in_words
    return environment.get_template("page.html")


def model_of(record: Record) -> str:
    """Name the model that the run began with; after a cold start, also the one that this began with."""
    name = str(record.config.get("model_name_or_path") or SCRATCH)
    made = read_mapping(Path(name).parent / CONFIG_FILE) if record.config.get("cold_start") else {}
    return f"{made.get('model_name_or_path') or SCRATCH}, after a cold start ({name})" if made else name


def _overview(record: Record) -> list[tuple[str, str]]:
    """Return the main facts about a run, as labels and texts."""
    config = record.config
    state = record.state
    data = state["data"] if isinstance(state.get("data"), dict) else {}
    last = record.steps[-1] if record.steps else {}
    seconds = [step["step_time"] for step in record.steps]
    waited = sum(filter(math.isfinite, (step.get("time/reward", 0.0) for step in record.steps)))
    tokens, memory = (last.get(name, math.nan) for name in ("num_tokens", "peak_memory_gb"))
    texts = {
        "stage": "GRPO" if "num_generations" in config else "supervised fine-tuning",
        "status": ", ".join(str(text) for text in (state.get("status"), state.get("reason")) if text) or "unknown",
        "model": model_of(record),
        "data": config.get("dataset_id_or_path"),
        "rewards": as_yaml(config["reward_funcs"]) if "reward_funcs" in config else None,
        **{name: text for name, text in data.items() if isinstance(text, str)},
        "steps": last.get("step"),
        "tokens": f"{tokens:,.0f}" if math.isfinite(tokens) else None,
        "time of all steps": show_duration(sum(filter(math.isfinite, seconds))),
        "waiting for rewards": show_duration(waited) if waited else None,
        "peak memory": f"{memory:.2f} GB" if math.isfinite(memory) else None,
        "started": str(state.get("started") or "").replace("T", " "),
    }
    return [(label, str(text)) for label, text in texts.items() if text]


def changed_keys(config: Json) -> Iterator[tuple[str, str, str]]:
    """Yield each key of a run that differs from its default, its value, and that default."""
    have_defaults = config.keys() - keys_that("required")
    for declared in fields(TrainConfig if "num_generations" in config else SftConfig):
        name = declared.name
        default = declared.default
        default = list(default) if isinstance(default, tuple) else default
        if name in have_defaults and config[name] != default:
            yield name, as_yaml(config[name]), as_yaml(default)


def show_number(value: Any) -> str:
    """Format a reward or an advantage with at most three digits; other values stay unchanged."""
    return f"{value:.3g}" if isinstance(value, int | float) else str("–" if value is None else value)
