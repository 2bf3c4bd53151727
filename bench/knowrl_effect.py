"""python -m bench.knowrl_effect [--seeds 1 2 3] [--folder runs/knowrl_effect]

Does KnowRL's reward teach a model where its knowledge ends, and what does its factuality term add? The paper's claim in
miniature, on the fictional encyclopedia of configs/tiny.yaml. For each seed: the cold start; GRPO from it with format
and correctness alone ("outcome"); GRPO from it with factuality beside them, by our formula ("knowrl") and by KnowRL's
("knowrl_v2"). Held-out questions, greedy answers, of people whom the cold start taught well and of people whom it never
mentioned. All keys but reward_funcs are those of configs/tiny.yaml.

Printed: mean and range over seeds. supported: share of the facts in the think blocks that the knowledge base supports;
hallucination: wrong among answered. In training, of the wrong answers: how many state a fact that the knowledge base
supports, how many were paid for that, how much at most; and in how many groups factuality ranked wrong answers
differently. The last line of stdout is JSON; knowrl_refusals.png (in the folder, or with --save in bench/results) shows
the share of refusals in training.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import timing
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.run.plot import line_plot
from grpo.sft import sft
from grpo.train import train

ARMS = {"outcome": "[format, correctness]", "knowrl": "[knowrl]", "knowrl_v2": "[knowrl_v2]"}
KNOWN, UNSEEN = "well known", "unseen"
COLUMNS = {
    "accuracy, known": (KNOWN, "accuracy"),
    "refused, known": (KNOWN, "refusal_rate"),
    "wrong, unseen": (UNSEEN, "wrong_rate"),
    "refused, unseen": (UNSEEN, "refusal_rate"),
    "hallucination": ("", "hallucination_rate"),
    "supported": ("", "supported_frac"),
}
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
SMOKE = ["max_steps=2"]


def run_seed(folder: Path, seed: int, smoke: Sequence[str]) -> dict[str, dict]:
    """The evaluations of one seed: the cold start's, and each arm's."""
    shared = [f"seed={seed}", f"toy_dir={folder / 'world'}", "disable_tqdm=true", *smoke]
    sft(*load_config(CONFIGS / "tiny_sft.yaml", [*shared, f"output_dir={folder / 'cold_start'}"], SftConfig))
    found = {}
    for arm, rewards in ARMS.items():
        start = ["cold_start=null", f"model_name_or_path={folder / 'cold_start' / 'final'}"]
        train(
            *load_config(
                CONFIGS / "tiny.yaml", [*shared, *start, f"output_dir={folder / arm}", f"reward_funcs={rewards}"]
            )
        )
        evaluation = json.loads((folder / arm / "evaluation.json").read_text())
        found |= {"cold start": evaluation["before"], arm: evaluation["after"]}
    return found


def table(results: Sequence[Mapping[str, dict]]) -> list[str]:
    """Rows of a Markdown table: mean (lowest to highest) over seeds, in percent."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for arm in results[0]:
        cells = []
        for part, name in COLUMNS.values():
            values = [100 * result[arm][part][name] for result in results]
            cells.append(f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def refusals(folder: Path, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Share of refusals among a step's completions, mean over seeds, per arm."""
    curves = {}
    for arm in ARMS:
        runs = [
            [
                json.loads(line)["refusal_rate"]
                for line in (folder / f"seed-{seed}" / arm / "metrics.jsonl").read_text().splitlines()
            ]
            for seed in seeds
        ]
        curves[arm] = [statistics.fmean(step) for step in zip(*runs, strict=True)]
    return curves


def told_apart(folder: Path, seeds: Sequence[int], arm: str) -> dict[str, float]:
    """What factuality could change in an arm: shares of the wrong answers and of the groups that have one."""
    groups: list[list[dict]] = []  # of each group with wrong answers, their details
    for path in (
        path for seed in seeds for path in sorted((folder / f"seed-{seed}" / arm / "completions").glob("*.jsonl"))
    ):
        rows: dict[int, list[dict]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found = next((details for details in row["details"].values() if "factuality" in details), None)
            if found:
                rows.setdefault(row["row"], []).append(found)
        groups += rows.values()
    wrong = [details for group in groups for details in group]
    shares = {
        "wrong answers that state a supported fact": [details["supported"] > 0 for details in wrong],
        "wrong answers paid for facts": [details["factuality"] > 0 for details in wrong],
        "groups with different numbers of supported facts": [
            len({details["supported"] for details in group}) > 1 for group in groups
        ],
        "groups ranked by factuality": [len({details["factuality"] for details in group}) > 1 for group in groups],
    }
    return {f"{arm}: {name}": sum(values) / max(len(values), 1) for name, values in shares.items()} | {
        f"{arm}: highest pay for facts": max((details["factuality"] for details in wrong), default=0.0)
    }


def main(argv: list[str] | None = None) -> dict:
    parser = timing.parser("bench.knowrl_effect", __doc__, dtypes=())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/knowrl_effect"))
    options = timing.parse(parser, argv)
    seeds = options.seeds[:1] if options.smoke else options.seeds
    results = [run_seed(options.folder / f"seed-{seed}", seed, SMOKE if options.smoke else []) for seed in seeds]
    print("\n".join(table(results)))
    checks = {name: value for arm in list(ARMS)[1:] for name, value in told_apart(options.folder, seeds, arm).items()}
    row = timing.finish(
        "knowrl_effect",
        options,
        [],
        checks,
        results={str(seed): result for seed, result in zip(seeds, results, strict=True)},
    )
    plots = timing.RESULTS if options.save else options.folder
    plots.mkdir(parents=True, exist_ok=True)
    line_plot(
        plots / "knowrl_refusals.png", refusals(options.folder, seeds), "step", "share of completions that decline"
    )
    return row


if __name__ == "__main__":
    main()
