"""python -m bench.lab [--arms NAME ...] [--seeds 1 2 3] [--world neutral] [--folder runs/lab] [--save]
python -m bench.lab --thresholds

Does GRPO teach a model which questions to decline, or only how many? The lab trains the small model of
configs/tiny.yaml from scratch, on a CPU, and compares rewards. The runs of a seed share its cold start.

Every held-out question is asked twice: how probable is it that the model declines, exactly, and what does it answer if
it must? A trained model is compared with two that are not, at the same share of answered questions:

- constant: the cold start, with one constant added to the logit of declining. Whoever does no better has moved how
  readily the model declines, and nothing else.
- threshold: the cold start, answering where its own answer is most probable. So much the model knows of itself.

`within a word` is the AUROC among questions to which the model would give the same answer. Whoever only learns which
answers are usually guesses gets 0.5.

When a run is done, its row goes to FOLDER/rows.jsonl; after a kill, the same command goes on where it stopped.
--thresholds trains nothing: from which probability of being right on does the expected gradient teach to answer?
"""

import argparse
import contextlib
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from math import comb, sqrt
from pathlib import Path

import numpy as np

from bench.exam import greedy, logit, logprobs
from bench.record import RESULTS, ROOT, markdown_table, plain_parser
from bench.refusals import auroc, auroc_within, interval, mean_risk, risk_at
from grpo.advantages import group_advantages
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.prompts import render
from grpo.device.distributed import choose_device
from grpo.model.policy import load_for_inference
from grpo.sft import sft
from grpo.train import train

COLD_START = "cold start"
CONFIGS = {"neutral": "neutral", "encyclopedia": "tiny"}  # toy world -> configuration
AT_ONCE, AFTER = "Nothing", "I don't know"  # so reasoning that declines begins, and an answer that declines
MAX_TOKENS = 64
HALVINGS = 60  # of an interval that holds a number
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)  # quantiles of Student's t, of 1, 2, … degrees of freedom
Row = Mapping[str, object]


# --- Arms ----------------------------------------------------------------------------------------------------------

PARTS = {  # an arm is named by its parts, as in "truthrl, none, 4e-4"; the keys of each
    "knowrl": ["reward_funcs=[knowrl]"],
    "truthrl": ["reward_funcs=[format,truthrl]"],
    "t = 0.75": ["reward_funcs=[format,abstention]", "abstention_threshold=0.75"],
    "t = 0.9": ["reward_funcs=[format,abstention]", "abstention_threshold=0.9"],
    "karl": ["reward_funcs=[format,karl]"],
    "tiar": ["reward_funcs=[format,tiar]"],
    "binary_rar": ["reward_funcs=[format,binary_rar]"],
    "knowrl_v1": ["reward_funcs=[knowrl_v1]"],
    "group": ["scale_rewards=group"],
    "none": ["scale_rewards=none"],
    "4 answers": ["num_generations=4"],
    "32 answers": ["num_generations=32"],
    "4e-4": ["learning_rate=4e-4"],
    "1e-3": ["learning_rate=1e-3"],
    "240 steps": ["max_steps=240"],
    "target 0.4": ["refusal_target=0.4"],
    "answer": ["credit=answer"],
    "late layers": ["lora_layers_to_transform=[2,3]"],
}
BASE = ["learning_rate=1.2e-4", "max_steps=80"]  # of every arm, before its own keys


def keys_of(arm: str) -> list[str]:
    """Return the keys that an arm changes in the configuration of its world.

    >>> keys_of("truthrl, 4e-4")
    ['reward_funcs=[format,truthrl]', 'learning_rate=4e-4']
    """
    return [key for part in parts_of(arm) for key in PARTS[part]]


def parts_of(arm: str) -> list[str]:
    """Return the parts of an arm's name. The cold start has none."""
    return [] if arm == COLD_START else arm.split(", ")


# --- Runs ----------------------------------------------------------------------------------------------------------


class Runs:
    """The runs of one seed in one world."""

    def __init__(self, folder: Path, world: str, seed: int, quick: bool):
        self.folder = folder / f"{world}-{seed}"
        self.world = self.folder / "world"
        self.sft = ROOT / "configs" / f"{CONFIGS[world]}_sft.yaml"
        self.grpo = ROOT / "configs" / f"{CONFIGS[world]}.yaml"
        self.keys = [f"seed={seed}", f"toy_dir={self.world}", "disable_tqdm=true"]
        self.num_asked = 16 if quick else None
        self.quick = ["max_steps=2", "per_device_train_batch_size=32"] if quick else []

    def train(self, arm: str) -> Path:
        """Train an arm, or the cold start, and return its model. What the commands say goes to log.txt."""
        output = self.folder / arm
        output.mkdir(parents=True, exist_ok=True)
        keys = [*self.keys, f"output_dir={output}"]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open(output / "log.txt", "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(log))
            stack.enter_context(contextlib.redirect_stderr(log))
            if arm == COLD_START:
                sft(*load_config(self.sft, [*keys, *self.quick], SftConfig))
            else:
                start = self.folder / COLD_START / "final"
                keys += [f"model_name_or_path={start}", "cold_start=null", "eval_max_samples=16"]
                train(*load_config(self.grpo, [*keys, *BASE, *keys_of(arm), *self.quick]))
        return output / "final"

    def ask(self, model: Path) -> dict[str, list]:
        """Ask all held-out questions; see `examine`."""
        config, _ = load_config(self.grpo, [*self.keys, f"model_name_or_path={model}", "cold_start=null"])
        policy = load_for_inference(config, choose_device(config.device))
        return examine(policy, read_rows(self.world / "held_out.jsonl")[: self.num_asked])


def examine(policy, rows: Sequence[Row]) -> dict[str, list]:
    """Return for each question the logit of declining, whether what is recalled is right, and its log-prob.

    A model declines at once, or after recalling the fact.
    """
    heads, stems, ends = [], [], []
    for row in rows:
        name, _, _ = row["title"].partition(";")
        prompt = render(policy.tokenizer, [{"role": "user", "content": row["question"]}])
        heads.append(f"{prompt}<think>")
        stems.append(f"{prompt}<think>{name}")
    said = [policy.decode(answer.ids).partition("</think>")[0] for answer in greedy(policy, stems, MAX_TOKENS)]
    for stem, recalled in zip(stems, said, strict=True):
        ends.append(f"{stem}{recalled}</think><answer>")
    at_once = logprobs(policy, [(head, AT_ONCE) for head in heads])
    after = logprobs(policy, [(end, AFTER) for end in ends])
    sequence = logprobs(policy, list(zip(stems, said, strict=True)))
    declines = []
    for first, then in zip(at_once, after, strict=True):
        later = np.log1p(-np.exp(first)) + then
        declines.append(logit(np.logaddexp(first, later)))
    right = [recalled.endswith(f" {row['answer']}.") for recalled, row in zip(said, rows, strict=True)]
    return {
        "people": [row["title"] for row in rows],
        "said": [recalled.rstrip(".").rpartition(" ")[2] for recalled in said],
        "declines": [round(float(value), 4) for value in declines],
        "right": list(map(int, right)),
        "sequence": [round(logp, 4) for logp in sequence],
    }


def read_rows(path: Path) -> list[dict]:
    """Read the rows that are there, without a last line that was cut."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- Measures ------------------------------------------------------------------------------------------------------


def measures(row: Row, cold: Row) -> dict[str, float]:
    """Return the measures of a run, 0 to 1. cold: the row of its cold start."""
    logits, right = np.array(row["declines"]), np.array(row["right"], bool)
    cold_logits, cold_right = np.array(cold["declines"]), np.array(cold["right"], bool)
    coverage = float(answered(logits).mean())
    area = auroc(logits, ~right)
    return {
        "answers": coverage,
        "forced right": float(right.mean()),
        "AUROC": area,
        "gain": area - auroc(cold_logits, ~cold_right),
        "within a word": auroc_within(logits, ~right, np.array(row["said"])),
        "AURC": mean_risk(logits, right),
        "wrong": share_wrong(logits, right),
        "constant": share_wrong(with_constant(cold_logits, coverage), cold_right),
        "threshold": risk_at(-np.array(cold["sequence"]), cold_right, coverage),
    }


def gain_interval(row: Row, cold: Row) -> tuple[float, float]:
    """Return the 95 % interval of the gain, by bootstrap over people, since questions about one are alike."""
    of_person: dict[str, list[int]] = {}
    for place, person in enumerate(row["people"]):
        of_person.setdefault(person, []).append(place)
    places = list(of_person.values())
    sides = []
    for side in (row, cold):
        sides.append((np.array(side["declines"]), np.array(side["right"], bool)))

    def gain(chosen: np.ndarray) -> float:
        at = np.concatenate([places[person] for person in chosen])
        after, before = (auroc(logits[at], ~right[at]) for logits, right in sides)
        return after - before

    return interval(gain, len(places))


def answered(logits: np.ndarray) -> np.ndarray:
    """Return the probability that each question is answered, from the logits of declining."""
    return 1 / (1 + np.exp(logits))


def share_wrong(logits: np.ndarray, right: np.ndarray) -> float:
    """Return the expected share of wrong answers among the answers."""
    weights = answered(logits)
    return float(weights[~right].sum() / weights.sum())


def with_constant(logits: np.ndarray, coverage: float) -> np.ndarray:
    """Add the constant that makes a model answer this share of the questions."""
    constant = halve(-100.0, 100.0, lambda constant: answered(logits + constant).mean() > coverage)
    return logits + constant


def halve(low: float, high: float, is_too_low) -> float:
    """Find where a condition ends that holds at `low` and not at `high`."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if is_too_low(middle):
            low = middle
        else:
            high = middle
    return low


# --- Results -------------------------------------------------------------------------------------------------------


def cold_starts(rows: Sequence[Row]) -> dict[tuple, Row]:
    """Return the rows of the cold starts by world and seed."""
    return {(row["world"], row["seed"]): row for row in rows if row["arm"] == COLD_START}


def table(rows: Sequence[Row]) -> str:
    """Make the Markdown table: a line for each world and arm. The gain of one seed has an interval over people."""
    cold = cold_starts(rows)
    found: dict[tuple, list[dict]] = {}
    intervals = {}
    for row in rows:
        key, start = (row["world"], row["arm"]), cold[row["world"], row["seed"]]
        found.setdefault(key, []).append(measures(row, start))
        intervals[key] = gain_interval(row, start)
    lines = []
    for key, of_seeds in found.items():
        cells = {name: spread([values[name] for values in of_seeds]) for name in of_seeds[0]}
        if len(of_seeds) == 1:
            low, high = intervals[key]
            cells["gain"] += f" ({low:.3f} to {high:.3f})"
        lines.append([*key, str(len(of_seeds)), *cells.values()])
    return markdown_table(["world", "arm", "seeds", *cells], lines)


def spread(values: Sequence[float]) -> str:
    """Write the mean over seeds with its 95 % interval, by Student's t.

    >>> spread([0.2, 0.4])
    '0.300 [-0.971, 1.571]'
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3f}"
    reach = T95[len(values) - 2] * statistics.stdev(values) / sqrt(len(values))
    return f"{mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}]"


def boundary_plot(path: Path, rows: Sequence[Row]) -> None:
    """Plot the log-odds of declining of each question after training against before: the last run of each world."""
    from matplotlib.figure import Figure

    cold = cold_starts(rows)
    last = {row["world"]: row for row in rows if row["arm"] != COLD_START}
    figure = Figure(figsize=(4.5 * len(last), 4.5), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(last), squeeze=False)[0]
    for panel, (world, row) in zip(panels, last.items(), strict=True):
        before = np.array(cold[world, row["seed"]]["declines"])
        after, right = np.array(row["declines"]), np.array(row["right"], bool)
        panel.set(title=world, xlabel="log-odds of declining, cold start", ylabel=f"after {row['arm']}")
        panel.axline((0, 0), slope=1, color="0.8")
        for chosen, label in ((~right, "wrong if forced"), (right, "right if forced")):
            panel.scatter(before[chosen], after[chosen], 9, label=label)
        panel.legend(frameon=False)
    figure.savefig(path)


# --- Thresholds, by the advantages alone ---------------------------------------------------------------------------

PRICES = {  # right, declined, wrong
    "truthrl": (1.0, 0.0, -1.0),
    "knowrl": (2.0, 1.0, -1.0),
    "t = 0.75": (1.0, 0.0, -3.0),
    "t = 0.9": (1.0, 0.0, -9.0),
}
DECLINED = (0.01, 0.3, 0.5, 0.7, 0.99)


def push_to_decline(p: float, declined: float, prices: Sequence[float], scale: str, size: int = 8) -> float:
    """Return the expected slope of the objective in the logit of declining, per completion, over all groups of `size`.

    p: probability that a given answer is right. declined: probability that a completion declines.
    With Â the advantages, the slope is E[Σ_i Â_i (1[i declines] - declined)] / G, and Σ_i Â_i is 0.
    """
    slope = 0.0
    for refusals in range(size + 1):
        answers = size - refusals
        of_refusals = binomial(refusals, size, declined)
        for right in range(answers + 1):
            counts = right, refusals, answers - right
            rewards = np.repeat(prices, counts).tolist()
            advantages = group_advantages(rewards, scale)
            weight = of_refusals * binomial(right, answers, p)
            slope += weight * sum(advantages[right : right + refusals])
    return slope / size


def binomial(count: int, total: int, p: float) -> float:
    return comb(total, count) * p**count * (1 - p) ** (total - count)


def pays_from(declined: float, prices: Sequence[float], scale: str, size: int = 8) -> float:
    """Return the probability of being right above which the gradient teaches to answer."""
    return halve(0.0, 1.0, lambda p: push_to_decline(p, declined, prices, scale, size) > 0)


def thresholds() -> str:
    """Make the Markdown table of where answering begins to pay, in percent."""
    lines = []
    for name, prices in PRICES.items():
        for scale in ("group", "none"):
            found = [pays_from(share, prices, scale) for share in DECLINED]
            lines.append([f"{name}, {scale}", *(f"{100 * value:.0f}" for value in found)])
    columns = [f"{share:.0%} declined" for share in DECLINED]
    return markdown_table(["answers pay from, %", *columns], lines)


# --- The command ---------------------------------------------------------------------------------------------------


def run_all(options: argparse.Namespace, path: Path) -> None:
    """Make the runs that have no row yet."""
    write_lines(path, read_rows(path))  # without a line that was cut
    for seed in options.seeds:
        runs = Runs(options.folder, options.world, seed, options.quick)
        for arm in [COLD_START, *options.arms]:
            about = {"world": options.world, "seed": seed, "arm": arm}
            if any(about.items() <= row.items() for row in read_rows(path)):
                continue
            row = about | runs.ask(runs.train(arm))
            with open(path, "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)


def main(argv: list[str] | None = None) -> str:
    parser = make_parser()
    options = parser.parse_args(argv)
    for part in {part for arm in options.arms for part in parts_of(arm)} - PARTS.keys():
        parser.error(f"an arm has no part {part!r}; there are: {'; '.join(PARTS)}")
    text = thresholds() if options.thresholds else compare(options)
    print(text)
    return text


def compare(options: argparse.Namespace) -> str:
    """Make the runs, write table and plot, and return the table."""
    path = options.folder / "rows.jsonl"
    run_all(options, path)
    rows = read_rows(path)
    folder = RESULTS / "lab" if options.save else options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.save:
        shutil.copyfile(path, folder / "rows.jsonl")
    text = table(rows)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    boundary_plot(folder / "boundary.png", rows)
    return text


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser("bench.lab", __doc__)
    arms = ["knowrl, none", "truthrl, none"]
    parts = f"parts joined by commas, of: {'; '.join(PARTS)}"
    parser.add_argument("--arms", nargs="+", metavar="NAME", default=arms, help=parts)
    parser.add_argument("--world", choices=CONFIGS, default="neutral")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/lab"), help="where the runs are written")
    parser.add_argument("--quick", action="store_true", help="two steps a run and few questions: does the lab work?")
    parser.add_argument("--save", action="store_true", help="write table and plot to bench/results/lab instead")
    parser.add_argument("--thresholds", action="store_true", help="compute where answering begins to pay; no training")
    return parser


if __name__ == "__main__":
    main()
