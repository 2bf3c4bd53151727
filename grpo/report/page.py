"""What the page shows of a run: its numbers, answers worth reading, and how training has changed the held-out ones."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from grpo.base.errors import UserError, escape, redact
from grpo.base.storage import Json, read_mapping, write_atomically
from grpo.base.text import in_words, show_duration
from grpo.config.help import as_yaml
from grpo.config.options import SftConfig, TrainConfig, keys_that
from grpo.evaluation.compare import RATES, Comparison, compare, comparison_text, measure_answers
from grpo.evaluation.measures import Summary
from grpo.evaluation.table import summary_table
from grpo.explain import explain
from grpo.report.charts import draw_charts
from grpo.run.diagnosis.record import CONFIG_FILE, Answer, Record, read_record
from grpo.run.diagnosis.rules import History, says_nothing

FILE_NAME = "report.html"
SCRATCH = "a model made from scratch"
Pairs = Sequence[tuple[Answer, Answer]]  # the first and the last answer to each held-out question
NUM_CHANGES = 6  # in each direction
HEADLINE = {
    "accuracy": "right",
    "incorrect": "wrong",
    "not_attempted": "declined",
    "supported_facts": "supported facts per answer",
    "refuted_facts": "refuted ones",
    "reward": "mean reward",
}


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
        config=record.config,
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
    last = record.steps[-1] if record.steps else {}
    seconds, waited = (
        sum(filter(math.isfinite, (step.get(name, 0.0) for step in record.steps)))
        for name in ("step_time", "time/reward")
    )
    tokens, memory = (last.get(name, math.nan) for name in ("num_tokens", "peak_memory_gb"))
    texts = {
        "stage": "GRPO" if "num_generations" in config else "supervised fine-tuning",
        "status": ", ".join(filter(None, map(state.get, ("status", "reason")))) or "unknown",
        "model": model_of(record),
        "data": config.get("dataset_id_or_path"),
        "rewards": as_yaml(config["reward_funcs"]) if "reward_funcs" in config else None,
        **state.get("data", {}),
        "steps": last.get("step"),
        "tokens": f"{tokens:,.0f}" if math.isfinite(tokens) else None,
        "time of all steps": show_duration(seconds),
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


def examples(record: Record, step: int) -> list[tuple[str, Answer]]:
    """Return the best, the median and the worst completion of a step, by reward, and one that could not be scored."""
    answers = record.answers(step)
    scored = [answer for answer in answers if answer.reward is not None]
    unscored = [answer for answer in answers if answer.reward is None]
    scored.sort(key=lambda answer: answer.reward, reverse=True)
    shown = {
        "The best": scored[:1],
        "The median": scored[len(scored) // 2 :][:1],
        "The worst": scored[-1:],
        "One that could not be scored": unscored[:1],
    }
    return [(label, answer) for label, found in shown.items() for answer in found]


def before_and_after(pairs: Pairs) -> Comparison | None:
    """Compare the answers before and after training; None if none of them is graded."""
    first = measure_answers(vars(answer) for answer, _ in pairs)
    last = measure_answers(vars(answer) for _, answer in pairs)
    with suppress(UserError):  # there is nothing to compare
        return compare(first, last)
    return None


def headline(compared: Comparison, pairs: Pairs, model: str) -> str:
    """Return what training has changed, in one sentence. Of a model that says nothing, this is what matters."""
    if silent := says_nothing(History(answers=[(first.completion, last.completion) for first, last in pairs])):
        paid = [name for name, of in compared.measures.items() if name.startswith("rewards/") and of.difference > 0]
        return f"{model}: {silent}{'; only these have paid more: ' * bool(paid)}{', '.join(paid)}."
    texts = []
    for name, words in HEADLINE.items():
        of = compared.measures.get(name)
        if of and (of.a or of.b) and not (name == "reward" and texts):
            form = ".1%" if name in RATES else ".2f"
            chance = "p < 0.001" if of.p < 0.001 else f"p = {of.p:.2g}"
            texts.append(f"{words} {of.a:{form}} → {of.b:{form}} ({chance})")
    return f"{model}, on {compared.num_questions} held-out questions, before and after training: {', '.join(texts)}."


def draw_bars(summaries: Mapping[str, Mapping[str, Summary]]) -> dict[str, dict[str, float]]:
    """Return the shares right, wrong and declined of each moment; {} if no reward knows them."""
    bars = {}
    for moment, parts in summaries.items():
        known = {HEADLINE[measure]: parts.get("", {}).get(measure) for measure in RATES}
        if None not in known.values():
            bars[moment] = known
    return bars


def most_changed(pairs: Pairs) -> tuple[list[tuple[float, Answer, Answer]], list[tuple[str, int]]]:
    """Return the gains that are largest, with both answers, and how often an outcome changed: "wrong → declined"."""
    graded = [(first, last) for first, last in pairs if None not in (first.reward, last.reward)]
    changes = sorted(((last.reward - first.reward, first, last) for first, last in graded), key=itemgetter(0))
    lost = [change for change in changes[:NUM_CHANGES] if change[0] < 0]
    won = [change for change in reversed(changes[-NUM_CHANGES:]) if change[0] > 0]
    flipped = Counter(
        f"{in_words(first.outcome)} → {in_words(last.outcome)}"
        for first, last in graded
        if first.outcome and last.outcome and first.outcome != last.outcome
    )
    return lost + won, flipped.most_common()
