"""python -m bench.study RUN … [--save [FILE]]

What has training changed? Each RUN is a finished run with held-out questions. Nothing is asked or trained: the numbers
come from the files that every run writes.

- before, after: the first and the last answers in RUN/evaluation. Of each question whether it is right, wrong or
  declined, the facts that the knowledge base supports and refutes, and the rewards
- change: of the same questions, so it is paired. Its 95 % interval is a bootstrap interval over titles, since questions
  about one subject are not independent; without titles, over questions
- reward: of the answers that were trained on, the mean of each ten steps (metrics.jsonl)
- several runs, such as seeds: the mean of their changes, and the smallest and the largest one
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from bench.record import add_save, append, machine, markdown_table, plain_parser
from grpo.base.errors import UserError, run_main
from grpo.evaluation.compare import RATES, compare, measure_answers
from grpo.run.diagnosis.record import Answer, Record, read_record

TOGETHER = 10  # steps in each mean of the curve
Change = Mapping[str, float]  # before, after, change, and the ends of its interval: low, high


def changes(pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, Change]:
    """Compare the first and the last answer to each question, by each measure that both have."""
    first, last = (measure_answers(map(vars, answers)) for answers in zip(*pairs, strict=True))
    titles = {(answer.row, answer.question): answer.title for answer, _ in pairs if answer.title}
    return {
        name: {
            "before": found.a,
            "after": found.b,
            "change": found.difference,
            "low": found.low,
            "high": found.high,
        }
        for name, found in compare(first, last, lambda question: titles.get(question, question)).measures.items()
    }


def curve(record: Record) -> list[float]:
    """Return the mean reward of each ten steps."""
    rewards = [step["reward"] for step in record.steps if "reward" in step]
    return [fmean(rewards[start : start + TOGETHER]) for start in range(0, len(rewards), TOGETHER)]


def study(run: Path) -> dict:
    """Return the row of a run."""
    record = read_record(run)
    pairs = record.answered_twice()
    if not pairs:
        raise UserError(
            f"the run {run} has not answered held-out questions before and after training",
            f"{run / 'evaluation'} does not hold both",
            "finish it with eval_size set",
        )
    return {
        "run": record.name,
        "seed": record.config.get("seed"),
        "steps": record.config.get("max_steps"),
        "questions": len(pairs),
        "measures": changes(pairs),
        "curve": curve(record),
    }


def shown(name: str, number: float, sign: str = "") -> str:
    """Write a number of a measure: a rate in percent.

    >>> shown("accuracy", 0.25), shown("reward", 0.25, "+")
    ('25.0 %', '+0.25')
    """
    return f"{100 * number:{sign}.1f} %" if name in RATES else f"{number:{sign}.2f}"


def mean_of(rows: Sequence[Mapping]) -> dict:
    """Return a row of the means over runs, of the measures that all of them have; low, high: of their changes."""
    measures = {}
    for name in rows[0]["measures"]:
        found = [row["measures"][name] for row in rows if name in row["measures"]]
        if len(found) == len(rows):
            means = {key: fmean(of_run[key] for of_run in found) for key in ("before", "after", "change")}
            gains = [of_run["change"] for of_run in found]
            measures[name] = means | {"low": min(gains), "high": max(gains)}
    return {"run": f"mean of {len(rows)} runs", "measures": measures}


def table(row: Mapping, ends: str) -> str:
    """Make the table of a row. ends: what its lowest and highest changes are."""
    lines = [
        [
            name,
            shown(name, found["before"]),
            shown(name, found["after"]),
            shown(name, found["change"], "+"),
            f"{shown(name, found['low'], '+')} to {shown(name, found['high'], '+')}",
        ]
        for name, found in row["measures"].items()
    ]
    return markdown_table([row["run"], "before", "after", "change", ends], lines)


def save(path: Path, rows: Iterable[Mapping]) -> None:
    """Append rows to a file, with the date and the machine."""
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine("cpu")}
    append(path, [row | about for row in rows])


def main(argv: list[str] | None = None) -> None:
    parser = plain_parser("bench.study", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run")
    add_save(parser, "studies/rows.jsonl")
    options = parser.parse_args(argv)
    rows = [study(run) for run in options.runs]
    for row in rows:
        steps = " ".join(f"{mean:+.2f}" for mean in row["curve"])
        print(table(row, "95 % interval"), f"mean reward of each {TOGETHER} steps: {steps}", sep="\n\n", end="\n\n")
    if len(rows) > 1:
        print(table(mean_of(rows), "smallest to largest"), end="\n\n")
    if options.save:
        save(options.save, rows)
    print(json.dumps(rows))


if __name__ == "__main__":
    run_main(main)
