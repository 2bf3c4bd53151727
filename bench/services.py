"""python -m bench.services RUN [--steps N] [--delay SECONDS] [--seed N] [--save]

Do the rewards agree if a model behind an endpoint finds the facts and judges the answers, and not rules? And how long
does a step wait for such a model? RUN is a finished run of configs/smollm2_knowrl.yaml.

- Each answer of the run, sampled or held out, is graded twice: by the run's rules, and through the services' own path,
  with a stub for the model (chat_model.py): it knows the truth, and has a service's forms and troubles. The facts are
  checked in the same knowledge base by the same verifier. Where the two differ, the table says why.
- From the run's cold start, N steps are made whose facts and answers go to a stub that takes SECONDS for each reply:
  without troubles, and with them. They are written beside the run, as RUN-services.

The seconds are of waiting, which other work on the machine hardly changes. N = 0: no steps.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.chat_model import BUSY, SORRY, TROUBLES, ChatModel
from bench.measures import Row
from bench.record import experiment_parser, machine, markdown_table, run_experiment
from grpo import train
from grpo.config.load import load_config
from grpo.data.files import read_records
from rewards.api.reply import CUT
from rewards.registry import build_rewards
from rewards.score import score_rows
from rewards.scorer import Scorer

REWARDS = {"format": (), "correctness": ("correctness",), "factuality": ("factuality",)}  # what a reward is made of
REWARDS["knowrl"] = ("correctness", "factuality")
SERVICES = ("judge", "decomposer")
MODEL, KEY = "gpt-4o-mini", "BENCH_CHAT_MODEL_KEY"  # the variable of a key, which no other service has
REFUSED, CUT_OFF, SILENT = "refused, unscored", "cut off, unscored", "not answered"
LOST, MORE, OTHERWISE = "facts lost", "facts that rules do not read", "read otherwise"
CAUSES = (REFUSED, CUT_OFF, SILENT, LOST, MORE, OTHERWISE)
REASONS = {SORRY: REFUSED, CUT: CUT_OFF}  # of an answer that is unscored
FIRST = {"toy_world": None, "toy_dir": None, "cold_start": None, "eval_dataset_id_or_path": None}  # what is there


# --- Rules and models -----------------------------------------------------------------------------------------------


def answers_of(run: Path) -> list[Row]:
    """Read the distinct answers that a run has sampled, and those to its held-out questions."""
    answers = {}
    for path in sorted([*(run / "completions").glob("*.jsonl"), *(run / "evaluation").glob("*.jsonl")]):
        for record in read_records(path):
            row = {name: record[name] for name in ("question", "answer", "title", "completion")}
            answers[row["question"], row["completion"]] = row
    return list(answers.values())


def asking(model: ChatModel) -> list[str]:
    """Return the keys of a configuration whose services are a stub."""
    os.environ[KEY] = "none"
    keys = ["api_deadline_s=600"]  # on a busy machine, too
    for name in SERVICES:
        keys += [f"{name}=api", f"{name}_base_url={model.url}", f"{name}_model={MODEL}", f"{name}_api_key_env={KEY}"]
    return keys


def graded(run: Path, answers: list[Row], *keys: str) -> tuple[list[Row], Counter[str]]:
    """Grade answers with the configuration of a run; return them graded, and what the services' clients have counted.

    keys: of the configuration, that differ.
    """
    config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null", *keys])
    scorer = Scorer(build_rewards(REWARDS, asdict(config)))
    counts: Counter[str] = Counter()
    try:
        rows = score_rows(answers, scorer, encode=lambda text: ())
        for resource in scorer.resources:
            for client in resource.clients:
                counts += client.counts
    finally:
        scorer.close()
    return rows, counts


def facts_of(row: Row, reward: str) -> set[str]:
    """Return what facts a reward has found in an answer."""
    return {fact["fact"].rstrip(".") for fact in row["facts"].get(reward, [])}


def cause(reward: str, by_rules: Row, by_model: Row) -> str:
    """Say why an answer is not read by both, or is read otherwise; "" if it is read alike."""
    if by_model["rewards"][reward] is None:
        return next((why for said, why in REASONS.items() if said in by_model["reasons"][reward]), SILENT)
    ours, theirs = facts_of(by_rules, reward), facts_of(by_model, reward)
    if ours != theirs:
        return LOST if theirs < ours else MORE
    return OTHERWISE if by_rules["rewards"][reward] != by_model["rewards"][reward] else ""


def compare(by_rules: Sequence[Row], by_model: Sequence[Row]) -> dict[str, dict]:
    """Count for each reward the answers of equal value, all and those that both read alike; the others by their cause.

    readable: that both read, with equal facts.
    """
    found = {}
    for reward, parts in REWARDS.items():
        causes: Counter[str] = Counter()
        equal = readable = 0
        for ours, theirs in zip(by_rules, by_model, strict=True):
            causes_of_parts = [cause(part, ours, theirs) for part in parts]
            why = next(filter(None, causes_of_parts), "")
            is_equal = ours["rewards"][reward] == theirs["rewards"][reward]
            equal += is_equal
            readable += why in ("", OTHERWISE)
            causes[why] += not is_equal
        read_alike = readable - causes[OTHERWISE]
        found[reward] = {"answers": len(by_rules), "equal": equal, "readable": readable, "read_alike": read_alike}
        found[reward] |= {why: causes[why] for why in CAUSES}
    return found


def table(found: Mapping[str, Mapping]) -> str:
    """Make the table of the rewards."""
    columns = ["reward", "answers", "equal", "equal, of those that both read", *CAUSES]
    lines = []
    for reward, counts in found.items():
        shares = [counts["equal"] / counts["answers"], counts["read_alike"] / max(counts["readable"], 1)]
        lines.append([reward, str(counts["answers"]), *(f"{share:.1%}" for share in shares)])
        lines[-1] += [str(counts[why]) for why in CAUSES]
    return markdown_table(columns, lines)


# --- Waiting --------------------------------------------------------------------------------------------------------


def wait(run: Path, steps: int, model: ChatModel) -> dict:
    """Make some steps from a run's cold start with the services of a stub; return the seconds of each step.

    spent_s: of all replies together, those to the two checks before the first step included.
    """
    config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
    output = run.with_name(f"{run.name}-services")
    changes = FIRST | {
        "reward_funcs": config.eval_reward_funcs,
        "max_steps": steps,
        "output_dir": str(output),
        "overwrite_output_dir": True,
    }
    keys = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in changes.items()]
    train.main([str(run / "config.resolved.yaml"), *keys, *asking(model)])
    rows = [row for row in read_records(output / "metrics.jsonl") if "time/reward" in row]
    return {
        "delay_s": model.delay_s,
        "replies": model.counts.total() - model.counts[BUSY],
        "troubles": {name: model.counts[name] for name in TROUBLES},
        "spent_s": model.spent_s,
        "waited_s": [row["time/reward"] for row in rows],
        "generate_s": [row["time/generate"] for row in rows],
    }


def line_about(name: str, waited: Mapping) -> str:
    """Say how long steps waited."""
    steps = len(waited["waited_s"])
    of_step = sum(waited["waited_s"]) / steps
    return (
        f"{name}: {waited['replies']} replies of {waited['delay_s']:g} s; of {waited['spent_s'] / steps:.1f} s a step "
        f"waits {of_step:.2f} s ({min(waited['waited_s']):.2f} to {max(waited['waited_s']):.2f}; {steps} steps)"
    )


def main(argv: list[str] | None = None) -> dict:
    parser = experiment_parser("bench.services", __doc__, "smollm2_knowrl")
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run of configs/smollm2_knowrl.yaml")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--delay", type=float, default=1.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the stub's troubles; default: %(default)s")
    options = parser.parse_args(argv)
    run, answers = options.run, answers_of(options.run)
    by_rules, _ = graded(run, answers)
    with ChatModel(options.seed) as model:
        by_model, counts = graded(run, answers, *asking(model))
    row = {"run": run.name, "seed": options.seed, "machine": machine("cpu"), "rewards": compare(by_rules, by_model)}
    row |= {"services": dict(counts), "replies": {name or "good": number for name, number in model.counts.items()}}
    print(table(row["rewards"]), f"services: {row['services']}; replies: {row['replies']}", sep="\n\n")
    for name, troubles in (("without troubles", {}), ("with troubles", TROUBLES)) if options.steps else ():
        with ChatModel(options.seed, options.delay, troubles) as model:
            row[name] = wait(run, options.steps, model)
        print(line_about(name, row[name]))
    folder = options.save or run / "exam"
    folder.mkdir(exist_ok=True)
    with open(folder / f"services-{run.name}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))
    return row


if __name__ == "__main__":
    run_experiment(main)
