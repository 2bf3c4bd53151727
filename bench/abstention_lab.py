"""python -m bench.abstention_lab [--quick] [--only NAME ...] [--seeds 1 2 3] [--workers 2] [--folder runs/lab]

Which rewards teach a model to know when to answer, and when does it help to supervise the facts of its reasoning? The
lab trains the small model of configs/atlas.yaml from scratch, on a CPU, and answers with a table and plots.

- One hop: rewards x scale_rewards, on questions about people who are well known, known in part, or unseen. From which
  known share on does the model answer? That is the probability that the cold start is right.
- Two hops, about well known people: the outcome alone, KnowRL's reward, and facts supervised in other ways.

Each seed has one cold start, which its runs share. All shares are of held-out questions, answered at temperature 1 as
in training. When a run is done, its row goes to FOLDER/rows.jsonl. After a kill, the same command goes on where it
stopped. bench/lab_results.py makes the tables and plots.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path

import torch
from tqdm import tqdm

from bench import lab_results
from bench.lab_results import COLD_START, ONE_HOP, TWO_HOPS
from bench.record import RESULTS, ROOT, plain_parser
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.questions import Questions
from grpo.data.toy import locate
from grpo.evaluate import evaluate
from grpo.evaluation.task import Task
from grpo.run.saved import find_saved
from grpo.sft import sft
from grpo.train import train
from knowledge.atlas import HOW_SURE

CONFIG = ROOT / "configs" / "atlas.yaml"
COLD_START_CONFIG = ROOT / "configs" / "atlas_sft.yaml"
FILES = {ONE_HOP: ("questions", "held_out"), TWO_HOPS: ("two_hops", "held_out_two_hops")}  # to train on, held out
# In two hops a right answer earns 1, all else 0: a model that is right one time in six would rather be paid to decline.
PLAIN = ("abstention_threshold=0", "learning_rate=1.5e-3")
OUTCOME, FACTS = "reward_funcs=[format,abstention]", "reward_funcs=[format,abstention,factuality]"
SURE = f"prompt_template={{question}}{HOW_SURE}"


@dataclass(frozen=True)
class Arm:
    """One way to train. keys: what it changes in configs/atlas.yaml."""

    name: str
    hops: str
    keys: tuple[str, ...]
    steps: int = 60


def make_arms() -> list[Arm]:
    """List the arms. One more line makes one more arm."""
    rewards = {
        "knowrl": ("reward_funcs=[knowrl]",),
        "truthrl": ("reward_funcs=[format,truthrl]",),
        "t = 0.9": (OUTCOME, "abstention_threshold=0.9"),
        "t = 0.75": (OUTCOME, "abstention_threshold=0.75"),
        "t = 0.67": (OUTCOME, "abstention_threshold=0.6667"),
        "karl": ("reward_funcs=[format,karl]",),
        "tiar": ("reward_funcs=[format,tiar]",),
        "binary_rar": ("reward_funcs=[format,binary_rar,correctness]", "reward_weights=[1,1,0]"),  # the last is logged
        "rlcr": ("reward_funcs=[format,rlcr]", SURE),
        "knowrl_v1": ("reward_funcs=[knowrl_v1]",),  # facts by the formula of KnowRL's guide
        "knowrl_v2": ("reward_funcs=[knowrl_v2]",),  # and by that of its code
    }
    arms = []
    for name, keys in rewards.items():
        for scale in ("group", "none"):
            arms.append(Arm(f"{name}, {scale}", ONE_HOP, (*keys, f"scale_rewards={scale}")))
    credits = {
        "outcome": (OUTCOME,),
        "knowrl": ("reward_funcs=[knowrl]",),
        "gdpo": (FACTS, "multi_objective_aggregation=normalize_then_sum"),
        "sentence": (FACTS, "reward_weights=[1,1,0]", "credit=sentence"),
        "sum": (FACTS,),
    }
    long = [replace(arm, name=f"{arm.name}, long", steps=180) for arm in arms[:2]]
    for name, keys in credits.items():
        arms.append(Arm(name, TWO_HOPS, (*keys, *PLAIN), steps=40))
    return arms + long


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed, or without an arm the cold start of that seed."""

    folder: Path
    seed: int
    arm: Arm | None
    quick: bool

    @property
    def name(self) -> str:
        return self.arm.name if self.arm else COLD_START

    @property
    def hops(self) -> str | None:
        return self.arm.hops if self.arm else None

    @property
    def run(self) -> Path:
        """Return the folder that it writes."""
        return self.folder / f"seed-{self.seed}" / (self.hops or "") / self.name

    @property
    def world(self) -> Path:
        return self.folder / f"seed-{self.seed}" / "world"

    @property
    def shared(self) -> list[str]:
        """Return the keys that all runs of this seed have."""
        keys = [f"seed={self.seed}", f"toy_dir={self.world}", f"output_dir={self.run}", "disable_tqdm=true"]
        return [*keys, "max_steps=2", "per_device_train_batch_size=32"] if self.quick else keys


def end_with_the_lab() -> None:
    """End this worker when the lab is gone, however it was killed. Else its next start would find the runs locked."""

    def watch() -> None:
        connection.wait([multiprocessing.parent_process().sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_job(job: Job) -> dict:
    """Train and evaluate, and return the row. What the commands say goes to log.txt."""
    started = time.monotonic()
    torch.set_num_threads(1)
    job.run.mkdir(parents=True, exist_ok=True)
    with (
        open(job.run / "log.txt", "w", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        measured = run_arm(job, job.arm) if job.arm else run_cold_start(job)
    row = {"seed": job.seed, "arm": job.name, "hops": job.hops, "quick": job.quick}
    return row | measured | {"seconds": round(time.monotonic() - started)}


def run_cold_start(job: Job) -> dict:
    """Train the model of this seed from scratch, and measure it on both kinds of questions."""
    sft(*load_config(COLD_START_CONFIG, job.shared, SftConfig))
    return {ONE_HOP: measure(job, ONE_HOP, n=16), TWO_HOPS: measure(job, TWO_HOPS, n=4)}


def run_arm(job: Job, arm: Arm) -> dict:
    """Run GRPO from the cold start of the seed."""
    questions, held_out = FILES[arm.hops]
    cold_start = Job(job.folder, job.seed, None, job.quick)
    keys = [
        f"max_steps={arm.steps}",
        *job.shared,
        "cold_start=null",
        f"model_name_or_path={cold_start.run / 'final'}",
        f"dataset_id_or_path={job.world / questions}.jsonl",
        f"eval_dataset_id_or_path={job.world / held_out}.jsonl",
        "eval_max_samples=16",  # the lab measures more of them itself
        *arm.keys,
    ]
    train(*load_config(CONFIG, keys))
    return {
        "steps": arm.steps,
        **measure(job, arm.hops, n=4),
        "curve": curve(job.run, job.world / f"{questions}.jsonl"),
    }


def measure(job: Job, hops: str, n: int) -> dict:
    """Answer the held-out questions n times each; count right, wrong and declined answers, and supported facts."""
    template = [key for key in job.arm.keys if key.startswith("prompt_template")] if job.arm else []
    path = job.world / f"{FILES[hops][1]}.jsonl"
    keys = [*job.shared, f"eval_dataset_id_or_path={path}", "reward_funcs=[correctness,factuality]", *template]
    config = locate(load_config(CONFIG, [*keys, "cold_start=null"])[0])
    questions = Questions.held_out(config)
    if job.quick:
        questions, n = Questions(questions.name, 24), 2
    task = Task(find_saved(str(job.run)), config, questions, None)
    _, records = evaluate(task, n, 1.0, job.run / "ungraded.jsonl")
    return lab_results.counts_of_questions(records, familiarities(path))


def familiarities(path: Path) -> dict[str, str]:
    """Return how well known the person of each question is."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["question"]: row["familiarity"] for row in rows}


def curve(run: Path, questions: Path) -> list[dict[str, dict[str, int]]]:
    """Return for each step how many answers of each outcome there were, by how well known the person is."""
    familiarity = familiarities(questions)
    steps = []
    for path in sorted((run / "completions").glob("step-*.jsonl")):
        counts: dict[str, Counter] = defaultdict(Counter)
        for line in path.open(encoding="utf-8"):  # splitlines would also split at what a model writes
            record = json.loads(line)
            counts[familiarity[record["question"]]][record["outcome"]] += 1
        steps.append(counts)
    return steps


def run_all(jobs: Sequence[Job], workers: int, rows: Path) -> None:
    """Run the jobs that have no row yet, the cold starts first, and append each row when its run is done."""
    finished = lab_results.read_rows(rows)
    write_lines(rows, finished)  # without a line that was cut
    done = {(row["seed"], row["arm"], row["hops"]) for row in finished}
    due = [job for job in jobs if (job.seed, job.name, job.hops) not in done]
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_the_lab)
    with pool, tqdm(total=len(due), unit="run", smoothing=0) as bar:
        for is_cold_start in (True, False):
            futures = {pool.submit(run_job, job): job for job in due if (job.arm is None) is is_cold_start}
            for future in as_completed(futures):
                bar.update()
                if future.exception():
                    job = futures[future]
                    tqdm.write(f"{job.name}, seed {job.seed} failed: {future.exception()!r}", file=sys.stderr)
                else:
                    with open(rows, "a", encoding="utf-8") as file:
                        print(json.dumps(future.result()), file=file)


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser("bench.abstention_lab", __doc__)
    parser.add_argument("--quick", action="store_true", help="two steps a run and few questions: does the lab work?")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="arms of these names, or whose names begin so")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("runs/lab"), help="where the runs are written")
    saving = "write rows and plots to bench/results/abstention_lab instead"
    parser.add_argument("--save", action="store_true", help=saving)
    return parser


def choose(arms: Sequence[Arm], names: Sequence[str]) -> tuple[list[Arm], list[str]]:
    """Return the arms of these names, or whose names begin so, in the order of the names; and names that fit none."""
    chosen, unknown = [], []
    for name in names:
        named = [arm for arm in arms if arm.name == name]
        found = named or [arm for arm in arms if arm.name.startswith(name)]
        chosen += found
        if not found:
            unknown.append(name)
    return list(dict.fromkeys(chosen)), unknown


def main(argv: list[str] | None = None) -> dict:
    parser = make_parser()
    options = parser.parse_args(argv)
    arms = make_arms()
    if options.only:
        known = "; ".join(arm.name for arm in arms)
        arms, unknown = choose(arms, options.only)
        if unknown:
            parser.error(f"no arm's name begins with {unknown[0]!r}; there are: {known}")
    jobs = []
    for arm in (None, *arms):
        jobs += [Job(options.folder, seed, arm, options.quick) for seed in options.seeds]
    rows = options.folder / "rows.jsonl"
    run_all(jobs, options.workers, rows)
    return lab_results.report(rows, RESULTS / "abstention_lab" if options.save else options.folder)


if __name__ == "__main__":
    main()
