"""python -m bench.lab [--only NAME ...] [--seeds 1 2 3] [--world neutral] [--folder runs/lab] [--thresholds]

Does GRPO teach a model which questions to decline, or only how many? The lab trains the small model of
configs/tiny.yaml from scratch, on a CPU, and compares rewards. Each seed has one cold start, which its runs share.

Every held-out question is asked twice: how probable is it that the model declines, exactly, and what does it answer if
it must? Arms are compared with two that nothing has trained, at the same share of answered questions (coverage):

- constant: the cold start, with one constant added to the logit of declining. Whoever does no better has moved how
  readily the model declines, and nothing else.
- threshold: the same model, answering where its own answer is most probable. So much the model knows of itself.

When a run is done, its row goes to FOLDER/rows.jsonl; after a kill, the same command goes on where it stopped.
--thresholds trains nothing: from which probability of being right on does the expected gradient teach to answer?
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from math import factorial
from pathlib import Path

import numpy as np

from bench.exam import greedy, logit, logprobs
from bench.record import RESULTS, ROOT, markdown_table, plain_parser
from grpo.advantages import group_advantages
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.prompts import render
from grpo.device.distributed import choose_device
from grpo.evaluation.refusals import auroc, mean_risk, risk_at
from grpo.model.policy import load_for_inference
from grpo.sft import sft
from grpo.train import train
from rewards.format import parse

COLD_START = "cold start"
WORLDS = {"neutral": "neutral", "encyclopedia": "tiny", "atlas": "atlas"}  # toy world -> its configurations
STEPS = 80
MAX_TOKENS = 64
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # quantiles of Student's t, of 1, 2, … degrees
Row = Mapping[str, object]


# --- Arms ----------------------------------------------------------------------------------------------------------

REWARDS = {
    "knowrl": ("reward_funcs=[knowrl]",),
    "truthrl": ("reward_funcs=[format,truthrl]",),
    "t = 0.75": ("reward_funcs=[format,abstention]", "abstention_threshold=0.75"),
    "t = 0.9": ("reward_funcs=[format,abstention]", "abstention_threshold=0.9"),
    "karl": ("reward_funcs=[format,karl]",),
    "tiar": ("reward_funcs=[format,tiar]",),
    "binary_rar": ("reward_funcs=[format,binary_rar,correctness]", "reward_weights=[1,1,0]"),  # the last is logged
    "knowrl_v1": ("reward_funcs=[knowrl_v1]",),
}
CHANGES = {  # of "knowrl, none"
    "knowrl, none, 4 answers": ("num_generations=4",),
    "knowrl, none, 32 answers": ("num_generations=32",),
    "knowrl, none, 240 steps": ("max_steps=240",),
    "knowrl, none, 4e-4": ("learning_rate=4e-4",),
}


def make_arms() -> dict[str, tuple[str, ...]]:
    """Return the arms: a name, and the keys that it changes in the configuration of the world."""
    arms = {f"{name}, {scale}": (*keys, f"scale_rewards={scale}") for name, keys in REWARDS.items() for scale in SCALES}
    return arms | {name: (*arms["knowrl, none"], *keys) for name, keys in CHANGES.items()}


SCALES = ("group", "none")


class Seed:
    """The runs of one seed in one world, under `folder`."""

    def __init__(self, folder: Path, world: str, seed: int, quick: bool):
        self.folder, self.config = folder / f"{world}-{seed}", WORLDS[world]
        self.world = self.folder / "world"
        self.keys = [f"seed={seed}", f"toy_dir={self.world}", "disable_tqdm=true"]
        self.num_asked = 16 if quick else None
        if quick:
            self.keys += ["max_steps=2", "per_device_train_batch_size=32"]

    def run(self, arm: str, keys: Sequence[str]) -> dict:
        """Train an arm, or the cold start, and return what it says to the held-out questions."""
        output = self.folder / arm
        output.mkdir(parents=True, exist_ok=True)
        own = [*self.keys, f"output_dir={output}"]
        with open(output / "log.txt", "w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            with contextlib.redirect_stderr(log):
                if arm == COLD_START:
                    sft(*load_config(ROOT / "configs" / f"{self.config}_sft.yaml", own, SftConfig))
                else:
                    start = [f"max_steps={STEPS}", *own, "cold_start=null", "eval_max_samples=16"]
                    start += [f"model_name_or_path={self.folder / COLD_START / 'final'}"]
                    train(*load_config(self.grpo, [*start, *keys, *self.keys]))
        return self.examine(output / "final")

    @property
    def grpo(self) -> Path:
        return ROOT / "configs" / f"{self.config}.yaml"

    def examine(self, model: Path) -> dict[str, list]:
        """Return for each held-out question P(declines), whether the answer is right, and its log-prob."""
        keys = [f"model_name_or_path={model}", "cold_start=null", "toy_world=null"]
        keys += [f"dataset_id_or_path={self.world / 'held_out.jsonl'}"]
        config, _ = load_config(self.grpo, [*self.keys, *keys, f"knowledge_base={self.world / 'knowledge.db'}"])
        policy = load_for_inference(config, choose_device(config.device))
        rows = read_rows(self.world / "held_out.jsonl")[: self.num_asked]
        heads = [render(policy.tokenizer, [{"role": "user", "content": row["question"]}]) + "<think>" for row in rows]
        stems = [head + row["title"].partition(";")[0] for head, row in zip(heads, rows, strict=True)]
        answers = greedy(policy, stems, MAX_TOKENS)
        said = [policy.decode(answer.ids) for answer in answers]
        own = logprobs(policy, [(stem, text) for stem, text in zip(stems, said, strict=True)])
        declines = logprobs(policy, [(head, "Nothing") for head in heads])  # so each refusal begins
        right = [parse(text).answer == row["answer"] for text, row in zip(said, rows, strict=True)]
        kinds = [row["familiarity"] for row in rows]
        return {
            "declines": [round(logit(value), 4) for value in declines],
            "right": list(map(int, right)),
            "sequence": [round(value, 4) for value in own],
            "kinds": kinds,
        }


def read_rows(path: Path) -> list[dict]:
    """Read the rows that are there, without a last line that was cut."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- Measures ------------------------------------------------------------------------------------------------------


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def measures(row: Row, cold: Row) -> dict[str, float]:
    """Return the measures of one run, 0 to 1. cold: the row of its cold start."""
    declines, right = np.array(row["declines"]), np.array(row["right"], bool)
    known, sequence = np.array(cold["right"], bool), np.array(cold["sequence"])
    coverage = float(1 - sigmoid(declines).mean())
    return {
        "answers": coverage,
        "forced right": float(right.mean()),
        "AUROC": auroc(declines, ~right),
        "AURC": mean_risk(declines, right),
        "wrong": wrong_share(declines, right),
        "constant": wrong_share(shifted(np.array(cold["declines"]), coverage), known),
        "threshold": risk_at(-sequence, known, coverage),
    }


def wrong_share(declines: np.ndarray, right: np.ndarray) -> float:
    """Return the expected share of wrong answers among the answers."""
    answers = 1 - sigmoid(declines)
    return float(answers[~right].sum() / answers.sum())


def shifted(logits: np.ndarray, coverage: float) -> np.ndarray:
    """Add the constant that makes a model answer this share of the questions."""
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        too_many = (1 - sigmoid(logits + middle)).mean() > coverage
        low, high = (middle, high) if too_many else (low, middle)
    return logits + low


def spread(values: Sequence[float]) -> str:
    """Write the mean over seeds with its 95 % interval, by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    reach = T95[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}]"


def table(rows: Sequence[Row]) -> str:
    """Make the Markdown table: a line for each world and arm, means over seeds; `gain` is AUROC - the cold start's."""
    cold = {(row["world"], row["seed"]): row for row in rows if row["arm"] == COLD_START}
    found: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        start = cold[row["world"], row["seed"]]
        values = measures(row, start)
        values["gain"] = values["AUROC"] - measures(start, start)["AUROC"]
        found.setdefault((row["world"], row["arm"]), []).append(values)
    lines = []
    for (world, arm), of_seeds in found.items():
        lines.append([world, arm, str(len(of_seeds)), *(spread([v[name] for v in of_seeds]) for name in of_seeds[0])])
    names = ["world", "arm", "seeds", *next(iter(found.values()))[0]]
    return markdown_table(names, lines)


def main(argv: list[str] | None = None) -> str:
    options = make_parser().parse_args(argv)
    path = options.folder / "rows.jsonl"
    write_lines(path, read_rows(path))  # without a line that was cut
    arms = {COLD_START: ()} | make_arms()
    for seed in options.seeds:
        runs = Seed(options.folder, options.world, seed, options.quick)
        for arm in [COLD_START, *(options.only or [])]:
            about = {"world": options.world, "seed": seed, "arm": arm}
            if any(about.items() <= row.items() for row in read_rows(path)):
                continue
            begun = time.monotonic()
            row = about | runs.run(arm, arms[arm]) | {"seconds": round(time.monotonic() - begun)}
            with open(path, "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
            print(table(read_rows(path)), flush=True)
    return table(read_rows(path))


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser("bench.lab", __doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(make_arms()))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--world", choices=WORLDS, default="neutral")
    parser.add_argument("--folder", type=Path, default=Path("runs/lab"), help="where the runs are written")
    parser.add_argument("--quick", action="store_true", help="two steps a run and few questions: does the lab work?")
    return parser


if __name__ == "__main__":
    main()
