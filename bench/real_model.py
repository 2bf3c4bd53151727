"""python -m bench.real_model [RUN] [--save]

Where does a real model's knowledge end, and does GRPO teach it to say so? RUN is a finished run of configs/smollm2.yaml
(default: runs/smollm2). Every model is asked for the held-out facts of knowledge/almanac.csv, twice:

- forced: its greedy answer after the beginning of a sentence ("The capital of Chad is"), which is right or wrong
- free: how probable it is that the model declines, computed exactly (bench/declining.py)

Arms:

- prompt: the model before any training, by its log-prob of "I don't know"
- cold start: refusals at random. Any constant added to its logit gives the same order, so this is also the baseline
  "cold start and a constant"
- GRPO: the run
- R-Tuning (2311.09677): the cold start goes on, with refusals exactly where the model's own answer is wrong, for as
  many questions as GRPO has seen; only the answer block is trained, as GRPO credits it
- sequence: the cold start, by the log-prob of its own answer, which no refusal has to be learned for

What a model answers is kept in RUN/exam, and not asked again. Intervals: 95 %, bootstrap over facts. `gain` is
against the cold start, paired; `within kinds` compares capitals with capitals, elements with elements, cities with
cities. --save also prints the mean of all seeds that are stored, with its interval by Student's t.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.asking import MAX_SEQUENCES, completion_logprobs, encode, given
from bench.declining import answered, declining, examine
from bench.measures import (
    Measure,
    Row,
    area,
    area_within,
    column,
    less,
    mean_of,
    mean_risk,
    over_seeds,
    risk_at,
    with_intervals,
)
from bench.record import ROOT, SEEDS, experiment_parser, markdown_table, read_rows, run_experiment
from grpo.algorithm.schema import Prompt
from grpo.base.storage import read_mapping, write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.almanac import own_answers
from grpo.data.files import read_records
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import generate_groups
from grpo.policy import Policy, load_for_inference
from grpo.report.plot import line_plot
from grpo.sft import sft
from knowledge.almanac import REFUSAL, Fact, is_right
from knowledge.almanac import conversations as cold_start_rows

COVERAGES = (0.25, 0.5, 0.75)
# Trained on all tokens of its answers, it learns the recalled names by heart, and reaches 0.59 instead of 0.79.
R_TUNING = ("credit=answer", "learning_rate=3.0e-4", "lr_scheduler_type=constant_with_warmup")
SFT_CONFIG = ROOT / "configs" / "smollm2_sft.yaml"
Ask = Callable[[Policy, Sequence[Prompt], TrainConfig], list[dict]]


# --- Measures -------------------------------------------------------------------------------------------------------


def measures(rows: Sequence[Row], cold: Sequence[Row]) -> dict[str, object]:
    """Return the measures of one arm. cold: the rows of the cold start."""
    scores, right = declining(rows)
    cold_scores, cold_right = declining(cold)
    order = area(scores, ~right)
    found: dict[str, Measure] = {
        "forced": mean_of(right),
        "auroc": order,
        "gain": less(order, area(cold_scores, ~cold_right)),
        "within_kinds": area_within(scores, ~right, column(rows, "familiarity")),
        "mean_risk": lambda chosen: mean_risk(scores[chosen], right[chosen]),
    }
    result: dict[str, object] = {"declined": float(1 - answered(scores).mean())}
    for name, (value, *ends) in with_intervals(found, len(rows)).items():
        result[name] = value
        result[f"{name}_interval"] = ends
    result["risk"] = {f"{coverage:.0%}": risk_at(scores, right, coverage) for coverage in COVERAGES}
    return result


def table_row(name: str, values: Mapping) -> list[str]:
    """Return the line of an arm in the table."""
    declined = values["declined"]
    cells = [name, "" if declined is None else f"{declined:.0%}"]
    for key in WITH_INTERVAL:
        low, high = values[f"{key}_interval"]
        cells.append(f"{values[key]:.2f} [{low:.2f}, {high:.2f}]")
    risks = [f"{risk:.0%}" for risk in values["risk"].values()]
    return cells + risks


def table_of_seeds(folder: Path) -> str:
    """Make the table of all stored seeds: the mean of each measure, with its interval over the seeds."""
    rows = read_rows(folder, SEEDS)
    lines = []
    for arm in rows[0]["arms"]:
        seeds = [row["arms"][arm] for row in rows]
        columns = []
        for name in ("declined", *WITH_INTERVAL):
            columns.append([values[name] for values in seeds])
        for coverage in seeds[0]["risk"]:
            columns.append([values["risk"][coverage] for values in seeds])
        cells = ["" if None in column else over_seeds(column) for column in columns]
        lines.append([arm, *cells])
    return f"{len(rows)} seeds\n" + markdown_table(COLUMNS, lines)


WITH_INTERVAL = ("forced", "auroc", "gain", "within_kinds", "mean_risk")
RISKS = [f"wrong at {coverage:.0%}" for coverage in COVERAGES]
COLUMNS = ["arm", "declines", "forced", "AUROC", "gain", "within kinds", "AURC", *RISKS]


# --- Arms -----------------------------------------------------------------------------------------------------------


class Exam:
    """The models of one run, and what they answer, which is asked for only once."""

    def __init__(self, run: Path):
        self.run = run
        self.config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
        start = read_mapping(run / "cold_start" / "final" / "adapter_config.json")
        self.base: str = start["base_model_name_or_path"]

    def rows(self, name: str, model: Path | str, asked: Ask) -> list[Row]:
        """Return what a model answers if asked so. name: of the file in RUN/exam that has it, or will have it."""
        path = self.run / "exam" / f"{name}.jsonl"
        if not path.exists():
            config = replace(self.config, model_name_or_path=str(model))
            policy = load_for_inference(config, choose_device(config.device))
            prompts = load_prompts(QuestionData(config), policy, Questions.held_out(config)).prompts
            write_lines(path, asked(policy, prompts, config))
        return read_records(path)

    def r_tuning(self) -> Path:
        """Go on with the cold start, with refusals where the model is wrong; return the folder of the result."""
        output, data = self.run / "r_tuning", self.run / "r_tuning.jsonl"
        if (output / "final").exists():
            return output / "final"
        grpo, cold = self.config, self.run / "cold_start" / "final"
        world = Path(grpo.toy_dir)
        write_lines(data, supervised(world / "cold_start.jsonl", world / "questions.jsonl"))
        keys = [f"dataset_id_or_path={data}", f"output_dir={output}", "overwrite_output_dir=true", "toy_world=null"]
        keys += [f"model_name_or_path={cold}", f"seed={grpo.seed}", *R_TUNING]
        keys.append(f"lora_layers_to_transform={json.dumps(grpo.lora_layers_to_transform)}")
        config, notices = load_config(SFT_CONFIG, keys, SftConfig)
        questions = grpo.max_steps * grpo.per_device_train_batch_size // grpo.num_generations
        steps = math.ceil(questions / config.per_device_train_batch_size)
        sft(replace(config, max_steps=steps), notices)
        return output / "final"


def ask(policy: Policy, prompts: Sequence[Prompt], config: TrainConfig) -> list[dict]:
    """Ask a model that answers in the form of the cold start."""
    sampler = Sampler(policy.model, policy.eos_ids, MAX_SEQUENCES)
    limit = config.max_completion_length
    greedy = SamplingParams(limit, temperature=0.0)
    answers = generate_groups(policy, sampler, prompts, 1, greedy, config.seed)
    return examine(policy, sampler, answers, limit)


def ask_untrained(policy: Policy, prompts: Sequence[Prompt], config: TrainConfig) -> list[dict]:
    """Ask the model before any training. `declines` is the log-prob of declining right after the prompt."""
    facts = [Fact.of_row(prompt.columns) for prompt in prompts]
    refusal = encode(policy, f"{REFUSAL}.")
    declines = completion_logprobs(policy, [given(prompt.ids, refusal) for prompt in prompts])
    rows = []
    for fact, said, logps in zip(facts, own_answers(config, facts), declines, strict=True):
        row = {
            "title": fact.title,
            "familiarity": fact.familiarity,
            "said": said,
            "right": is_right(said, fact.answers),
            "declines": float(logps.sum()),
        }
        rows.append(row)
    return rows


def supervised(cold_start: Path, questions: Path) -> list[dict]:
    """Return the rows of a cold start with its refusals moved to where what is recalled is wrong."""
    facts = [Fact.of_row(row) for row in read_records(questions)]
    said = []
    for fact, row in zip(facts, read_records(cold_start), strict=True):
        sentence = re.escape(fact.sentence("\0")).replace("\0", "(.*)")
        text = row["messages"][1]["content"]
        said.append(re.search(f"<think>{sentence}</think>", text)[1])
    rows = []
    for question, answer in cold_start_rows(facts, said, is_wrong):
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append({"messages": messages})
    return rows


def is_wrong(fact: Fact, answer: str) -> bool:
    return not is_right(answer, fact.answers)


# --- The command ----------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> dict:
    parser = experiment_parser("bench.real_model", __doc__, "smollm2")
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/smollm2"), help="default: %(default)s")
    options = parser.parse_args(argv)
    run = options.run
    exam = Exam(run)
    seed, steps = exam.config.seed, exam.config.max_steps
    cold = exam.rows("cold_start", run / "cold_start" / "final", ask)
    arms = {
        "prompt": exam.rows("prompt", exam.base, ask_untrained),
        "cold start": cold,
        "GRPO": exam.rows("GRPO", run / "final", ask),
        "R-Tuning": exam.rows("R-Tuning", exam.r_tuning(), ask),
        "sequence": [row | {"declines": -row["sequence"]} for row in cold],
    }
    found = {name: measures(rows, cold) for name, rows in arms.items()}
    for name in ("prompt", "sequence"):
        found[name]["declined"] = None  # what ranks their facts is no log-odds of declining
    folder = options.save or run / "exam"
    row = {"seed": seed, "steps": steps, "facts": len(cold), "arms": found}
    write_lines(folder / f"seed-{seed}.jsonl", [row])
    draw(folder / "risk.png", arms)
    lines = [table_row(name, values) for name, values in found.items()]
    print(markdown_table(COLUMNS, lines), end="\n\n")
    if options.save:
        print(table_of_seeds(folder), end="\n\n")
    print(json.dumps(row))
    return row


def draw(path: Path, arms: Mapping[str, Sequence[Row]]) -> None:
    """Draw the share of wrong answers of each arm at every coverage."""
    curves = {}
    for name, rows in arms.items():
        scores, right = declining(rows)
        curves[name] = [risk_at(scores, right, percent / 100) for percent in range(1, 101)]
    line_plot(path, curves, "answered, % of the held-out facts", "wrong among the answered")


if __name__ == "__main__":
    run_experiment(main)
