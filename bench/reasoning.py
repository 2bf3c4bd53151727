"""python -m bench.reasoning RUN … [--save]

What does KnowRL's reward do to the reasoning of a real model? Each RUN is a finished run of
configs/smollm2_knowrl.yaml, an arm; all start from the same cold start. What a run has answered before and after
training to the held-out questions is read (RUN/evaluation), fact by fact with its verdict: supported, refuted or
unknown. Only the cold start is asked anything: each fact about each held-out country, begun for it (kept in the first
RUN's exam/).

- reasoning: facts per answer, the share of them that the knowledge base supports, and the final answers
- by kind: capitals, continents, …
- left out: of the facts that an answer does not state, how many would the cold start get wrong?
- at an equal number of facts: what the cold start reaches without GRPO, if each fact is begun for it, and it leaves out
  any of them, the kinds that it is worst at (told by the questions to train on), or those of the lowest log-prob

Saying less raises the share that is supported, so only the last two tell whether a model knows what to leave out.
Intervals: 95 %, bootstrap over countries; differences are paired.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.arm import OUTCOMES, Answer, Arm, Memory, Recalled, measures
from bench.asking import Thought, completion_logprobs, encode, given, go_on
from bench.measures import Row, percent
from bench.picture import GREEN, GREY, RED
from bench.record import experiment_parser, markdown_table, run_experiment
from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.data.almanac import MAX_TOKENS, end_ids, first_words, prompt_text
from grpo.data.files import read_records
from grpo.engine.device.distributed import choose_device
from grpo.policy import Policy, load_for_inference
from knowledge.almanac import Fact, by_title, is_right
from knowledge.facts.verdict import LABELS

COLD_START = "cold start"


# --- Tables ---------------------------------------------------------------------------------------------------------


def tables(found: Mapping[str, Mapping]) -> Iterator[str]:
    """Yield the tables of the exam."""
    yield table_of_answers(found)
    yield table_of_choices(found)
    yield table_of_kinds(found)


def table_of_answers(found: Mapping[str, Mapping]) -> str:
    """Make the table of what the answers state, and of what they answer in the end."""
    columns = ["arm", "facts", "supported", "refuted", "unknown", "share supported", "gain"]
    columns += ["right", "wrong", "declined", "repeats", "at most one sentence"]
    lines = []
    for name, values in found.items():
        line = [
            name,
            f"{values['facts']:.2f}",
            *(f"{values[label][0]:.2f}" for label in LABELS),
            percent(values["share"]),
            percent(values["gain"], "+"),
            *(percent(values[outcome]) for outcome in OUTCOMES),
            f"{values['repeats']:.0%}",
            f"{values['one_sentence']:.0%}",
        ]
        lines.append(line)
    return markdown_table(columns, lines)


def table_of_choices(found: Mapping[str, Mapping]) -> str:
    """Make the table of what the cold start reaches with as many facts, and of what is left out."""
    columns = ["arm", "facts", "share supported", "any facts", "worst kinds left out", "least likely left out"]
    columns += ["minus kinds", "minus likely", "stated, would be false", "left out, would be false", "difference"]
    lines = []
    for name, values in found.items():
        line = [name, f"{values['facts']:.2f}"]
        line += [percent(values[key]) for key in ("share", "any", "kinds", "threshold")]
        line += [percent(values[key], "+") for key in ("over_kinds", "over_threshold")]
        line += [percent(values[key]) for key in ("stated_false", "left_out_false")]
        line.append(percent(values["knows"], "+"))
        lines.append(line)
    return markdown_table(columns, lines)


def table_of_kinds(found: Mapping[str, Mapping]) -> str:
    """Make the table of the facts of each kind per answer."""
    lines = []
    for name, values in found.items():
        line = [name]
        for counts in values["by_kind"].values():
            stated = sum(counts.values())
            line.append(f"{counts['supported']:.2f} of {stated:.2f}")
        lines.append(line)
    kinds = next(iter(found.values()))["by_kind"]
    return markdown_table(["arm", *kinds], lines)


def draw(path: Path, found: Mapping[str, Mapping], arm: str) -> None:
    """Draw the facts per answer of each kind by verdict, those of the cold start and those of an arm."""
    figure = Figure(figsize=(8, 3), dpi=150, layout="constrained")
    axes = figure.subplots()
    before, after = found[COLD_START]["by_kind"], found[arm]["by_kind"]
    height = 0.38
    for row, kind in enumerate(reversed(before)):
        draw_bar(axes, row + height / 2, height, before[kind], " before")
        draw_bar(axes, row - height / 2, height, after[kind], " after")
    axes.margins(x=0.1)
    axes.set_yticks(range(len(before)), reversed(before))
    axes.set_xlabel("facts per answer: supported (green), refuted (red), unknown (grey)")
    figure.savefig(path)


def draw_bar(axes: Axes, place: float, height: float, counts: Mapping[str, float], name: str) -> None:
    """Draw one bar, a part for each verdict, and a name at its end."""
    colours = dict(zip(LABELS, (GREEN, RED, GREY), strict=True))
    start = 0.0
    for label, value in counts.items():
        axes.barh(place, value, height * 0.95, left=start, color=colours[label])
        start += value
    axes.text(start, place, name, va="center", fontsize=7)


# --- Asking ---------------------------------------------------------------------------------------------------------


def answers_of(run: Path, step: int | None) -> list[Answer]:
    """Read what a run answered at a step; None: the last one."""
    folder = run / "evaluation"
    paths = sorted(folder.glob("step-*.jsonl" if step is None else f"step-{step:06d}.jsonl"))
    if not paths:
        when = "after its last step" if step is None else f"at step {step}"
        what = f"the run {run} has not answered held-out questions {when}"
        raise UserError(what, f"{folder} has no such file", "finish the run, with eval_dataset_id_or_path set", CONFIG)
    return [Answer.of_record(record) for record in read_records(paths[-1])]


def recall(run: Path, facts: Sequence[Fact]) -> Memory:
    """Ask the cold start of a run for facts; what it says is kept in RUN/exam."""
    path = run / "exam" / "recalled.jsonl"
    if not path.exists():
        config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
        config = replace(config, model_name_or_path=str(run / "cold_start" / "final"))
        policy = load_for_inference(config, choose_device(config.device))
        write_lines(path, ask(policy, config.system_prompt, facts))
    memory: dict[str, dict[str, Recalled]] = {}
    for row in read_records(path):
        of_country = memory.setdefault(row["title"], {})
        of_country[row["kind"]] = Recalled(row["right"], row["logp"])
    return memory


def ask(policy: Policy, system_prompt: str | None, facts: Sequence[Fact]) -> list[Row]:
    """Begin each fact for a model; return what it says greedily, its log-prob (nats), and whether it is right."""
    starts = []
    for fact in facts:
        thought = Thought(prompt_text(policy, system_prompt, fact), fact)
        starts.append(encode(policy, thought.start))
    said = go_on(policy, starts, MAX_TOKENS, end_ids(policy))
    groups = []
    for start, completion in zip(starts, said, strict=True):
        groups.append(given(start, completion.ids))
    logps = completion_logprobs(policy, groups)
    rows = []
    for fact, completion, logp_S in zip(facts, said, logps, strict=True):
        value = fact.value(first_words(policy.decode(completion.ids)))
        row = {
            "title": fact.title,
            "kind": fact.familiarity,
            "said": value,
            "logp": float(logp_S.sum()),
            "right": is_right(value, fact.answers),
        }
        rows.append(row)
    return rows


def known_by_kind(world: Path) -> dict[str, float]:
    """Return how often what the cold start was made of is right, by kind, among the questions to train on."""
    facts = [Fact.of_row(row) for row in read_records(world / "questions.jsonl")]
    texts: dict[str, str] = {}  # all that is said about each country
    for fact, row in zip(facts, read_records(world / "cold_start.jsonl"), strict=True):
        said = row["messages"][1]["content"]
        texts[fact.title] = texts.get(fact.title, "") + said
    right: dict[str, list[bool]] = {}
    for fact in chain(*by_title(facts).values()):
        text = texts[fact.title]
        if fact.sentence("").rstrip(" .") in text:
            is_known = any(fact.sentence(answer) in text for answer in fact.answers)
            right.setdefault(fact.familiarity, []).append(is_known)
    return {kind: float(np.mean(found)) for kind, found in right.items()}


def main(argv: list[str] | None = None) -> dict:
    parser = experiment_parser("bench.reasoning", __doc__, "smollm2_knowrl")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="finished runs from the same cold start")
    options = parser.parse_args(argv)
    first = options.runs[0]
    config, _ = load_config(first / "config.resolved.yaml", ["cold_start=null"])
    world = Path(config.dataset_id_or_path).parent
    before = answers_of(first, 0)
    asked = {answer.country for answer in before}
    held_out = [Fact.of_row(row) for row in read_records(world / "held_out.jsonl")]
    memory = recall(first, [fact for fact in held_out if fact.title in asked])
    arms = {COLD_START: Arm(before, memory)}
    for run in options.runs:
        arms[run.name] = Arm(answers_of(run, None), memory)
    found = measures(arms, known_by_kind(world))
    row = {"seed": config.seed, "steps": config.max_steps, "questions": len(before), "arms": found}
    folder = options.save or first / "exam"
    write_lines(folder / f"seed-{config.seed}.jsonl", [row])
    draw(folder / "kinds.png", found, first.name)
    for table in tables(found):
        print(table, end="\n\n")
    print(json.dumps(row))
    return row


if __name__ == "__main__":
    run_experiment(main)
