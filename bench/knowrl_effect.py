"""python -m bench.knowrl_effect [--seeds 1 2 3] [--folder runs/knowrl_effect]

Does KnowRL's reward teach a model where its knowledge ends, and what does its factuality term add? This tests the
paper's claim in miniature, on the fictional encyclopedia of configs/tiny.yaml. Each seed makes a cold start and then
four runs of GRPO from it: with format and correctness alone ("outcome"), and with factuality as well, by our formula
("knowrl"), by KnowRL's guide ("knowrl_v1": supported facts / 15, and a refusal is paid like a wrong answer) and by its
code since October 2025 ("knowrl_v2"). All are evaluated on held-out questions with greedy answers, about people whom
the cold start taught well and about people whom it never mentioned. All keys except reward_funcs are those of
configs/tiny.yaml.

Printed are mean and range over the seeds. `supported` is the share of the facts in the think blocks that the knowledge
base supports; `wrong, of the answered` leaves out those that were refused. The checks describe the
wrong answers of training: how many state a fact that the knowledge base supports, how many were paid for that, how much
at most, and in how many groups factuality ranked wrong answers differently. The last line of stdout is JSON.
knowrl_refusals.png (in the folder, or with --save in bench/results) shows the share of refusals in training.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import timing
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.run.plot import line_plot
from grpo.sft import sft
from grpo.train import train

ARMS = {
    "outcome": "[format, correctness]",
    "knowrl": "[knowrl]",
    "knowrl_v1": "[knowrl_v1]",
    "knowrl_v2": "[knowrl_v2]",
}
KNOWN, UNSEEN = "well known", "unseen"
COLUMNS = {
    "accuracy, known": (KNOWN, "accuracy"),
    "refused, known": (KNOWN, "not_attempted"),
    "wrong, unseen": (UNSEEN, "incorrect"),
    "refused, unseen": (UNSEEN, "not_attempted"),
    "wrong, of the answered": ("", "incorrect_given_attempted"),
    "supported": ("", "supported_frac"),
}
CONFIGS = timing.ROOT / "configs"


def run_seed(folder: Path, seed: int, smoke: bool) -> dict[str, dict]:
    """Run one seed, and return the evaluations of its cold start and of each arm."""
    shared = [f"seed={seed}", f"toy_dir={folder / 'world'}", "disable_tqdm=true"]
    if smoke:
        shared.append("max_steps=2")
    sft(*load_config(CONFIGS / "tiny_sft.yaml", [*shared, f"output_dir={folder / 'cold_start'}"], SftConfig))
    evaluations = {}
    small = ["per_device_train_batch_size=16", "max_completion_length=16"] if smoke else []
    for arm, rewards in ARMS.items():
        keys = [
            *shared,
            *small,
            "cold_start=null",
            f"model_name_or_path={folder / 'cold_start' / 'final'}",
            f"output_dir={folder / arm}",
            f"reward_funcs={rewards}",
        ]
        train(*load_config(CONFIGS / "tiny.yaml", keys))
        evaluation = json.loads((folder / arm / "evaluation.json").read_text(encoding="utf-8"))
        evaluations["cold start"] = evaluation["before"]
        evaluations[arm] = evaluation["after"]
    return evaluations


def table(results: Sequence[Mapping[str, dict]]) -> list[str]:
    """Make the lines of a Markdown table: mean (lowest to highest) over the seeds, in percent."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for arm in results[0]:
        cells = []
        for part, name in COLUMNS.values():
            known = [result[arm][part][name] for result in results if result[arm][part][name] is not None]
            values = [100 * value for value in known]
            cells.append(f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "–")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def refusals(folders: Sequence[Path]) -> dict[str, list[float]]:
    """Return each arm's share of refusals among the completions of each step, as a mean over the seeds."""
    curves = {}
    for arm in ARMS:
        runs = []
        for folder in folders:
            steps = read_jsonl(folder / arm / "metrics.jsonl")
            runs.append([step["refusal_rate"] for step in steps if "step_time" in step])  # not the evaluations
        curves[arm] = [statistics.fmean(rates) for rates in zip(*runs, strict=True)]
    return curves


def wrong_answers(folder: Path) -> Iterator[list[dict]]:
    """Return the details of the wrong answers of each group that has some."""
    for path in sorted((folder / "completions").glob("*.jsonl")):
        details_of_prompt: dict[int, list[dict]] = {}
        for completion in read_jsonl(path):
            checked = [details for details in completion["details"].values() if "factuality" in details]
            if checked and completion["outcome"] == "wrong":  # knowrl_v1 checks refusals, too
                details_of_prompt.setdefault(completion["row"], []).append(checked[0])
        yield from details_of_prompt.values()


def effect_of_factuality(folders: Sequence[Path], arm: str) -> dict[str, float]:
    """Return what factuality could change in an arm, as shares of the wrong answers and of the groups that have one."""
    wrong, groups_differ, groups_ranked = [], [], []
    for folder in folders:
        for group in wrong_answers(folder / arm):
            wrong += group
            groups_differ.append(len({details["supported"] for details in group}) > 1)
            groups_ranked.append(len({details["factuality"] for details in group}) > 1)
    states_fact = [details["supported"] > 0 for details in wrong]
    paid = [details["factuality"] for details in wrong]
    return {
        f"{arm}: wrong answers that state a supported fact": share(states_fact),
        f"{arm}: wrong answers paid for facts": share([pay > 0 for pay in paid]),
        f"{arm}: groups with different numbers of supported facts": share(groups_differ),
        f"{arm}: groups ranked by factuality": share(groups_ranked),
        f"{arm}: highest pay for facts": max(paid, default=0.0),
    }


def share(values: Sequence[bool]) -> float:
    return sum(values) / max(len(values), 1)


def main(argv: list[str] | None = None) -> dict:
    parser = timing.parser("bench.knowrl_effect", __doc__, dtypes=())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/knowrl_effect"), help="where the runs are written")
    options = timing.parse(parser, argv)
    seeds = options.seeds[:1] if options.smoke else options.seeds
    folders = [options.folder / f"seed-{seed}" for seed in seeds]
    results = {}
    for seed, folder in zip(seeds, folders, strict=True):
        results[str(seed)] = run_seed(folder, seed, options.smoke)
    print("\n".join(table(list(results.values()))))
    checks = {}
    for arm in ARMS:
        if arm != "outcome":  # it checks no facts
            checks |= effect_of_factuality(folders, arm)
    row = timing.finish("knowrl_effect", options, [], checks, results=results)
    plots = timing.RESULTS if options.save else options.folder
    plots.mkdir(parents=True, exist_ok=True)
    line_plot(plots / "knowrl_refusals.png", refusals(folders), "step", "share of completions that decline")
    return row


if __name__ == "__main__":
    main()
