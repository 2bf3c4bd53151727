"""python -m bench.real_model [RUN] [--facts N] [--quick] [--save]

Does GRPO teach a real model where its knowledge ends? RUN (default: runs/smollm2) is a run of configs/smollm2.yaml.
Each model is asked for the held-out facts of the almanac, on a fixed stem, and whether it would decline:

- right: whether its own greedy answer, after the stem, is right. The share of these is the forced accuracy.
- decline: the logit of declining after it has recalled this answer, exactly, from the log-probs.

A score that ranks the facts gives AUROC (does it tell wrong answers from right ones?) and a curve of risk over
coverage, so that models that decline more or less often can be compared. Arms:

- prompt: the model before any training, by its log-prob of "I don't know"
- cold start: refusals at random. Any constant added to its logit gives the same order, so this is also the baseline
  "cold start and a constant"
- GRPO: the run
- R-Tuning (2311.09677): the cold start goes on, with refusals exactly where the model's own answer is wrong, for as
  many questions as GRPO has seen
- sequence: the cold start, by the log-prob of its own answer, which no refusal has to be learned for

The answers of each model are kept in RUN/exam. Intervals: 95 %, bootstrap over facts.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.record import RESULTS, markdown_table, plain_parser
from grpo.base.schema import Completion, Group, Prompt
from grpo.base.storage import read_mapping, write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.almanac import MAX_SEQUENCES, MAX_TOKENS, end_ids, first_words, prompt_text
from grpo.device.distributed import choose_device
from grpo.device.draw import SamplingParams
from grpo.evaluation.choices import sum_logprobs
from grpo.model.policy import Policy, load_for_inference
from grpo.report.plot import line_plot
from grpo.sampling.sampler import Sampler
from grpo.sft import sft
from knowledge.almanac import REFUSAL, Fact, is_right, read_facts, split_facts
from knowledge.almanac import conversations as cold_start_rows

KNOWN, UNKNOWN = 0.6, 0.05  # probability of the right answer, under the cold start, from which and up to which
COVERAGES = (0.25, 0.5, 0.75)
DRAWS = 2000  # of the bootstrap
Row = Mapping[str, object]


# --- Asking a model -------------------------------------------------------------------------------------------------


def examine(policy: Policy, facts: Sequence[Fact], system_prompt: str | None, is_trained: bool) -> list[dict]:
    """Ask a model for each fact. is_trained: it answers in the form of the cold start."""

    def encode(text: str) -> tuple[int, ...]:
        return tuple(policy.tokenizer.encode(text, add_special_tokens=False))

    def logprobs(asked: Sequence[tuple[str, ...]]) -> list[float]:
        """Return the log-prob of each text after the prompt that begins its tuple."""
        groups = []
        for prompt, *texts in asked:
            answers = [Completion.given(list(encode(text)), "stop", text, loss_weight=1.0) for text in texts]
            groups.append(Group(Prompt(0, prompt, encode(prompt), {}), answers))
        return sum_logprobs(policy, groups)

    heads = [prompt_text(policy, system_prompt, fact) for fact in facts]
    if is_trained:
        stems = [head + "<think>" + fact.sentence("").rstrip(" .") for head, fact in zip(heads, facts, strict=True)]
    else:
        stems = [head + fact.stem for head, fact in zip(heads, facts, strict=True)]
    sampler = Sampler(policy.model, (*policy.eos_ids, *end_ids(policy)), MAX_SEQUENCES)
    prompts = [encode(stem) for stem in stems]
    answers = sampler.sample(prompts, 1, SamplingParams(MAX_TOKENS, 0.0), range(len(prompts)))
    said = [first_words(policy.decode(completion.ids)) or "?" for (completion,) in answers]

    triples = zip(stems, said, facts, strict=True)
    both = logprobs([(stem, f" {answer}.", f" {fact.answers[0]}.") for stem, answer, fact in triples])
    sequence, truth = both[::2], both[1::2]
    if is_trained:
        recalled = [
            f"{head}<think>{fact.sentence(answer)}</think><answer>"
            for head, fact, answer in zip(heads, facts, said, strict=True)
        ]
        refusal = logprobs([(text, REFUSAL + "</answer>") for text in recalled])
        decline = [logit(value) for value in refusal]
    else:
        decline = logprobs([(head, REFUSAL + ".") for head in heads])
    rows = []
    for index, fact in enumerate(facts):
        about = {"subject": fact.subject, "familiarity": fact.familiarity, "said": said[index]}
        numbers = {"decline": decline[index], "sequence": sequence[index], "p": math.exp(truth[index])}
        rows.append({**about, "right": is_right(said[index], fact), **numbers})
    return rows


def logit(logp: float) -> float:
    """Return log p / (1 - p)."""
    logp = min(logp, -1e-9)
    return logp - math.log(-math.expm1(logp))


# --- Measures -------------------------------------------------------------------------------------------------------


def auroc(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half."""
    above, below = scores[is_positive], scores[~is_positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def auroc_within(scores: np.ndarray, is_positive: np.ndarray, kinds: np.ndarray) -> float:
    """Return the AUROC within each kind of fact, weighted by its pairs: what does not come from telling kinds apart."""
    total = weights = 0.0
    for kind in np.unique(kinds):
        chosen = kinds == kind
        pairs = float(is_positive[chosen].sum() * (~is_positive[chosen]).sum())
        if pairs:
            total += pairs * auroc(scores[chosen], is_positive[chosen])
            weights += pairs
    return total / weights if weights else math.nan


def risk_at(scores: np.ndarray, is_right: np.ndarray, coverage: float) -> float:
    """Return the share of wrong answers if this share of the facts is answered, those of the lowest scores."""
    answered = np.argsort(scores, kind="stable")[: max(1, round(coverage * len(scores)))]
    return float(1 - is_right[answered].mean())


def mean_risk(scores: np.ndarray, is_right: np.ndarray) -> float:
    """Return the mean of the risk over all coverages (AURC)."""
    in_order = ~is_right[np.argsort(scores, kind="stable")]
    return float((np.cumsum(in_order) / np.arange(1, len(in_order) + 1)).mean())


def interval(measure: Callable[[np.ndarray], float], count: int) -> tuple[float, float]:
    """Return the 95 % interval of a measure of chosen facts, by bootstrap."""
    rng = np.random.default_rng(0)
    values = [measure(rng.integers(count, size=count)) for _ in range(DRAWS)]
    return tuple(float(value) for value in np.nanpercentile(values, [2.5, 97.5]))


def measures(rows: Sequence[Row], cold: Sequence[Row], score: str) -> dict[str, object]:
    """Return the measures of one arm. score: the column that ranks the facts, the highest declined first."""
    scores = np.array([row[score] for row in rows]) * (-1 if score == "sequence" else 1)
    right = np.array([row["right"] for row in rows])
    kinds = np.array([row["familiarity"] for row in rows])
    p = np.array([row["p"] for row in cold])
    decided = (p >= KNOWN) | (p <= UNKNOWN)
    unknown = p <= UNKNOWN
    count = len(rows)
    declined = 1 / (1 + np.exp(-np.array([row["decline"] for row in rows])))
    return {
        "declined": float(declined.mean()) if score == "decline" else None,
        "forced": float(right.mean()),
        "forced_interval": interval(lambda chosen: right[chosen].mean(), count),
        "auroc": auroc(scores, ~right),
        "auroc_interval": interval(lambda chosen: auroc(scores[chosen], ~right[chosen]), count),
        "auroc_within": auroc_within(scores, ~right, kinds),
        "auroc_within_interval": interval(
            lambda chosen: auroc_within(scores[chosen], ~right[chosen], kinds[chosen]), count
        ),
        "auroc_unknown": auroc(scores[decided], unknown[decided]),
        "risk": {f"{coverage:.0%}": risk_at(scores, right, coverage) for coverage in COVERAGES},
        "mean_risk": mean_risk(scores, right),
        "mean_risk_interval": interval(lambda chosen: mean_risk(scores[chosen], right[chosen]), count),
    }


def by_kind(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return for each kind of fact how many are answered right if forced, and how often the model declines."""
    found = []
    for kind in dict.fromkeys(row["familiarity"] for row in rows):
        members = [row for row in rows if row["familiarity"] == kind]
        declined = np.mean([1 / (1 + math.exp(-row["decline"])) for row in members])
        right = np.mean([row["right"] for row in members])
        found.append({"kind": kind, "n": len(members), "forced": f"{right:.0%}", "declined": f"{declined:.0%}"})
    return found


# --- Arms -----------------------------------------------------------------------------------------------------------


class Exam:
    """The models of one run, and their answers, which are asked for only once."""

    def __init__(self, run: Path, count: int, quick: bool):
        self.run, self.quick = run, quick
        self.config: TrainConfig = load_config(run / "config.resolved.yaml", ["cold_start=null"])[0]
        facts = read_facts()
        self.asked, self.kept = split_facts(facts, self.config.seed)
        self.kept = self.kept[: 16 if quick else count]  # in random order

    def rows(self, name: str, model: str, is_trained: bool = True) -> list[dict]:
        path = self.run / "exam" / f"{name}.jsonl"
        if not path.exists():
            config = replace(self.config, model_name_or_path=model)
            policy = load_for_inference(config, choose_device(config.device))
            write_lines(path, examine(policy, self.kept, config.system_prompt, is_trained))
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def base(self) -> str:
        """Return the model that the cold start began with."""
        return str(read_mapping(self.run / "cold_start" / "config.resolved.yaml")["model_name_or_path"])

    def r_tuning(self) -> str:
        """Go on with the cold start, with refusals where the model is wrong; return the folder of the result."""
        output = self.run / "r_tuning"
        if not (output / "final").exists():
            world = Path(self.config.toy_dir or self.run / "world")
            data = self.run / "r_tuning.jsonl"
            write_lines(data, supervised(world / "cold_start.jsonl", self.asked))
            keys = [f"dataset_id_or_path={data}", f"output_dir={output}", "overwrite_output_dir=true"]
            keys += ["toy_world=null", f"model_name_or_path={self.run / 'cold_start' / 'final'}"]
            config, notices = load_config(self.run / "cold_start" / "config.resolved.yaml", keys, SftConfig)
            grpo = self.config
            questions = grpo.max_steps * grpo.per_device_train_batch_size // grpo.num_generations
            steps = 1 if self.quick else math.ceil(questions / config.per_device_train_batch_size)
            sft(replace(config, max_steps=steps), notices)
        return str(output / "final")


def supervised(cold_start: Path, facts: Sequence[Fact]) -> list[dict]:
    """Return the rows of a cold start with its refusals moved to where what is recalled is wrong."""
    rows = map(json.loads, cold_start.read_text(encoding="utf-8").splitlines())
    said = []
    for fact, row in zip(facts, rows, strict=True):
        sentence = re.escape(fact.sentence("\0")).replace("\0", "(.*)")
        said.append(re.search(f"<think>{sentence}</think>", row["messages"][1]["content"])[1])
    pairs = cold_start_rows(facts, said, lambda fact, answer: not is_right(answer, fact))
    roles = ("user", "assistant")
    return [
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)]}
        for pair in pairs
    ]


def main(argv: list[str] | None = None) -> dict:
    options = make_parser().parse_args(argv)
    exam = Exam(options.run, options.facts, options.quick)
    cold = exam.rows("cold start", str(options.run / "cold_start" / "final"))
    arms = {
        "prompt": (exam.rows("prompt", exam.base(), is_trained=False), "decline"),
        "cold start": (cold, "decline"),
        "GRPO": (exam.rows("GRPO", str(options.run / "final")), "decline"),
        "R-Tuning": (exam.rows("R-Tuning", exam.r_tuning()), "decline"),
        "sequence": (cold, "sequence"),
    }
    found = {name: measures(rows, cold, score) for name, (rows, score) in arms.items()}
    found["prompt"]["declined"] = None  # its score is no probability of declining
    folder = RESULTS / "smollm2" if options.save else options.run / "exam"
    folder.mkdir(parents=True, exist_ok=True)
    row = {"seed": exam.config.seed, "steps": exam.config.max_steps, "facts": len(exam.kept), "arms": found}
    write_lines(folder / f"seed-{exam.config.seed}.jsonl", [row])
    curves = {}
    for name, (rows, score) in arms.items():
        scores = np.array([line[score] for line in rows]) * (-1 if score == "sequence" else 1)
        right = np.array([line["right"] for line in rows])
        curves[name] = [risk_at(scores, right, coverage / 100) for coverage in range(1, 101)]
    line_plot(folder / "risk.png", curves, "answered, % of the held-out facts", "wrong among the answered")
    for lines in ([table_row(name, values) for name, values in found.items()], by_kind(arms["GRPO"][0])):
        print(markdown_table(list(lines[0]), [[str(cell) for cell in line.values()] for line in lines]), end="\n\n")
    print(json.dumps(row))
    return row


def table_row(name: str, values: Mapping) -> dict[str, str]:
    """Return the line of an arm in the table."""

    def ranged(key: str) -> str:
        low, high = values[f"{key}_interval"]
        return f"{values[key]:.2f} [{low:.2f}, {high:.2f}]"

    declined = "" if values["declined"] is None else f"{values['declined']:.0%}"
    risks = {f"wrong at {coverage}": f"{risk:.0%}" for coverage, risk in values["risk"].items()}
    within, ends = ranged("auroc_within"), f"{values['auroc_unknown']:.2f}"
    quality = {"AUROC": ranged("auroc"), "within kinds": within, "known, unknown": ends}
    return {
        "arm": name,
        "declines": declined,
        "forced": ranged("forced"),
        **quality,
        **risks,
        "AURC": ranged("mean_risk"),
    }


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser("bench.real_model", __doc__)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/smollm2"), help="default: %(default)s")
    parser.add_argument("--facts", type=int, metavar="N", help="ask only for the first N held-out facts")
    parser.add_argument("--quick", action="store_true", help="few facts and one step of training: does it work?")
    parser.add_argument("--save", action="store_true", help="write rows and plot to bench/results/smollm2 instead")
    return parser


if __name__ == "__main__":
    main()
