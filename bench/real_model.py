"""python -m bench.real_model [RUN] [--facts N] [--save]

Where does a real model's knowledge end, and does GRPO teach it to say so? RUN is a finished run of configs/smollm2.yaml
(default: runs/smollm2). Every model is asked for the held-out facts of knowledge/almanac.csv, twice:

- forced: its greedy answer after the beginning of a sentence ("The capital of Chad is"), which is right or wrong
- free: how probable it is that the model declines, after recalling what it would say. This is computed exactly.

Arms:

- prompt: the model before any training, by its log-prob of "I don't know"
- cold start: refusals at random. Any constant added to its logit gives the same order, so this is also the baseline
  "cold start and a constant"
- GRPO: the run
- R-Tuning (2311.09677): the cold start goes on, with refusals exactly where the model's own answer is wrong, for as
  many questions as GRPO has seen; only the answer block is trained, as GRPO credits it
- sequence: the cold start, by the log-prob of its own answer, which no refusal has to be learned for

The answers of each model are kept in RUN/exam. Intervals: 95 %, bootstrap over facts. `gain` is against the cold start,
paired; `within kinds` compares capitals with capitals, elements with elements, cities with cities. --save also prints
the mean of all seeds that are stored.
"""

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.exam import greedy, logit, logprobs
from bench.record import RESULTS, markdown_table, plain_parser
from grpo.base.storage import read_mapping, write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.almanac import MAX_TOKENS, end_ids, first_words, prompt_text
from grpo.device.distributed import choose_device
from grpo.evaluation.refusals import auroc, auroc_within, interval, mean_risk, risk_at
from grpo.model.policy import Policy, load_for_inference
from grpo.report.plot import line_plot
from grpo.sft import sft
from knowledge.almanac import REFUSAL, Fact, is_right, read_facts, split_facts
from knowledge.almanac import conversations as cold_start_rows

COVERAGES = (0.25, 0.5, 0.75)
# Trained on all tokens of its answers, it learns the recalled names by heart, and reaches 0.59 instead of 0.79.
R_TUNING = ("credit=answer", "learning_rate=3.0e-4", "lr_scheduler_type=constant_with_warmup")
Row = Mapping[str, object]


def examine(policy: Policy, facts: Sequence[Fact], system_prompt: str | None, is_trained: bool) -> list[dict]:
    """Ask a model for each fact. is_trained: it answers in the form of the cold start."""
    heads = [prompt_text(policy, system_prompt, fact) for fact in facts]
    stems = []
    for head, fact in zip(heads, facts, strict=True):
        stem = f"<think>{fact.sentence('')}".rstrip(" .") if is_trained else fact.stem
        stems.append(head + stem)
    answers = greedy(policy, stems, MAX_TOKENS, end_ids(policy))
    said = [first_words(policy.decode(answer.ids)) or "?" for answer in answers]
    sequence = logprobs(policy, [(stem, f" {answer}.") for stem, answer in zip(stems, said, strict=True)])
    asked = [(head, f"{REFUSAL}.") for head in heads]
    if is_trained:
        recalled = [fact.sentence(answer) for fact, answer in zip(facts, said, strict=True)]
        heads = [f"{head}<think>{text}</think><answer>" for head, text in zip(heads, recalled, strict=True)]
        asked = [(head, f"{REFUSAL}</answer>") for head in heads]
    declines = logprobs(policy, asked)
    rows = []
    for fact, answer, logp, refusal in zip(facts, said, sequence, declines, strict=True):
        row = {"subject": fact.subject, "familiarity": fact.familiarity, "said": answer}
        row["right"] = is_right(answer, fact)
        row["decline"] = logit(refusal) if is_trained else refusal
        rows.append(row | {"sequence": logp})
    return rows


# --- Measures -------------------------------------------------------------------------------------------------------


def scores_of(rows: Sequence[Row], score: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores that rank the facts, the highest declined first, and whether each forced answer is right."""
    sign = -1 if score == "sequence" else 1
    return sign * np.array([row[score] for row in rows]), np.array([row["right"] for row in rows])


def measures(rows: Sequence[Row], score: str, cold: Sequence[Row]) -> dict[str, object]:
    """Return the measures of one arm. score: the column that ranks the facts. cold: the rows of the cold start."""
    scores, right = scores_of(rows, score)
    cold_scores, cold_right = scores_of(cold, "decline")
    kinds = np.array([row["familiarity"] for row in rows])
    found = {
        "forced": lambda chosen: right[chosen].mean(),
        "auroc": lambda chosen: auroc(scores[chosen], ~right[chosen]),
        "gain": lambda chosen: auroc(scores[chosen], ~right[chosen]) - auroc(cold_scores[chosen], ~cold_right[chosen]),
        "within_kinds": lambda chosen: auroc_within(scores[chosen], ~right[chosen], kinds[chosen]),
        "mean_risk": lambda chosen: mean_risk(scores[chosen], right[chosen]),
    }
    result: dict[str, object] = {"declined": None}
    if score == "decline":
        result["declined"] = float((1 / (1 + np.exp(-scores))).mean())
    for name, measure in found.items():
        result[name] = float(measure(np.arange(len(rows))))
        result[f"{name}_interval"] = interval(measure, len(rows))
    result["risk"] = {f"{coverage:.0%}": risk_at(scores, right, coverage) for coverage in COVERAGES}
    return result


def table_row(name: str, values: Mapping) -> list[str]:
    """Return the line of an arm in the table."""
    cells = [name, "" if values["declined"] is None else f"{values['declined']:.0%}"]
    for key in WITH_INTERVAL:
        low, high = values[f"{key}_interval"]
        cells.append(f"{values[key]:.2f} [{low:.2f}, {high:.2f}]")
    return cells + [f"{risk:.0%}" for risk in values["risk"].values()]


def over_seeds(folder: Path) -> str:
    """Make the table of all stored seeds: the mean of each measure, and its range over the seeds."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("seed-*.jsonl"))]
    lines = []
    for arm in rows[0]["arms"]:
        of_seeds = [flat(row["arms"][arm]) for row in rows]
        lines.append([arm, *(spread([values[name] for values in of_seeds]) for name in of_seeds[0])])
    return f"{len(rows)} seeds: mean (lowest to highest)\n" + markdown_table(COLUMNS, lines)


def flat(values: Mapping) -> dict[str, float | None]:
    """Return the measures of one arm, in the order of the columns."""
    return {name: values[name] for name in ("declined", *WITH_INTERVAL)} | values["risk"]


def spread(values: Sequence[float | None]) -> str:
    """Write the mean of the seeds, and their range.

    >>> spread([0.5, 0.75])
    '0.62 (0.50 to 0.75)'
    """
    if None in values:
        return ""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


WITH_INTERVAL = ("forced", "auroc", "gain", "within_kinds", "mean_risk")
RISKS = [f"wrong at {coverage:.0%}" for coverage in COVERAGES]
COLUMNS = ["arm", "declines", "forced", "AUROC", "gain", "within kinds", "AURC", *RISKS]


# --- Arms -----------------------------------------------------------------------------------------------------------


class Exam:
    """The models of one run, and their answers, which are asked for only once."""

    def __init__(self, run: Path, count: int | None, quick: bool):
        self.run, self.quick = run, quick
        self.config: TrainConfig = load_config(run / "config.resolved.yaml", ["cold_start=null"])[0]
        facts = read_facts()
        self.asked, kept = split_facts(facts, self.config.seed)
        self.kept = kept[: 16 if quick else count]  # in random order

    def rows(self, name: str, model: object, is_trained: bool = True) -> list[dict]:
        path = self.run / "exam" / f"{name}.jsonl"
        if not path.exists():
            config = replace(self.config, model_name_or_path=str(model))
            policy = load_for_inference(config, choose_device(config.device))
            write_lines(path, examine(policy, self.kept, config.system_prompt, is_trained))
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def base(self) -> object:
        """Return the model that the cold start began with."""
        return read_mapping(self.run / "cold_start" / "config.resolved.yaml")["model_name_or_path"]

    def r_tuning(self) -> Path:
        """Go on with the cold start, with refusals where the model is wrong; return the folder of the result."""
        output, data = self.run / "r_tuning", self.run / "r_tuning.jsonl"
        if (output / "final").exists():
            return output / "final"
        world = Path(self.config.toy_dir or self.run / "world")
        write_lines(data, supervised(world / "cold_start.jsonl", self.asked))
        keys = [f"dataset_id_or_path={data}", f"output_dir={output}", "overwrite_output_dir=true", "toy_world=null"]
        keys += [f"model_name_or_path={self.run / 'cold_start' / 'final'}", *R_TUNING]
        grpo = self.config
        keys.append(f"lora_layers_to_transform={json.dumps(grpo.lora_layers_to_transform)}")
        config, notices = load_config(self.run / "cold_start" / "config.resolved.yaml", keys, SftConfig)
        questions = grpo.max_steps * grpo.per_device_train_batch_size // grpo.num_generations
        steps = 1 if self.quick else math.ceil(questions / config.per_device_train_batch_size)
        sft(replace(config, max_steps=steps), notices)
        return output / "final"


def supervised(cold_start: Path, facts: Sequence[Fact]) -> list[dict]:
    """Return the rows of a cold start with its refusals moved to where what is recalled is wrong."""
    lines = cold_start.read_text(encoding="utf-8").splitlines()
    said = []
    for fact, line in zip(facts, lines, strict=True):
        sentence = re.escape(fact.sentence("\0")).replace("\0", "(.*)")
        answer = json.loads(line)["messages"][1]["content"]
        said.append(re.search(f"<think>{sentence}</think>", answer)[1])
    rows = []
    for question, answer in cold_start_rows(facts, said, lambda fact, answer: not is_right(answer, fact)):
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append({"messages": messages})
    return rows


def main(argv: list[str] | None = None) -> dict:
    options = make_parser().parse_args(argv)
    run = options.run
    exam = Exam(run, options.facts, options.quick)
    cold = exam.rows("cold start", run / "cold_start" / "final")
    arms = {
        "prompt": (exam.rows("prompt", exam.base(), is_trained=False), "decline"),
        "cold start": (cold, "decline"),
        "GRPO": (exam.rows("GRPO", run / "final"), "decline"),
        "R-Tuning": (exam.rows("R-Tuning", exam.r_tuning()), "decline"),
        "sequence": (cold, "sequence"),
    }
    found = {name: measures(rows, score, cold) for name, (rows, score) in arms.items()}
    found["prompt"]["declined"] = None  # its score is no probability of declining
    folder = RESULTS / "smollm2" if options.save else run / "exam"
    folder.mkdir(parents=True, exist_ok=True)
    row = {"seed": exam.config.seed, "steps": exam.config.max_steps, "facts": len(exam.kept), "arms": found}
    write_lines(folder / f"seed-{exam.config.seed}.jsonl", [row])
    curves = {}
    for name, (rows, score) in arms.items():
        curves[name] = [risk_at(*scores_of(rows, score), coverage / 100) for coverage in range(1, 101)]
    line_plot(folder / "risk.png", curves, "answered, % of the held-out facts", "wrong among the answered")
    print(markdown_table(COLUMNS, [table_row(name, values) for name, values in found.items()]), end="\n\n")
    if options.save:
        print(over_seeds(folder), end="\n\n")
    print(json.dumps(row))
    return row


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser("bench.real_model", __doc__)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/smollm2"), help="default: %(default)s")
    parser.add_argument("--facts", type=int, metavar="N", help="ask only for the first N held-out facts")
    parser.add_argument("--quick", action="store_true", help="few facts and one step of training: does it work?")
    parser.add_argument("--save", action="store_true", help="write rows and plot to bench/results/smollm2 instead")
    return parser


if __name__ == "__main__":
    main()
