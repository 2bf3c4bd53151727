r"""python -m bench.verifier [--pairs 60000] [--references FILE ...] [--peer math_verify] [--show 3]

Does the verifier of mathematics pay what is right and nothing else? Reference answers are compared with themselves,
with themselves written in another way that means the same, and with themselves changed so that they mean something
else (rules.py). A pair that should be equal and is not is `missed`; one that should differ and does not is `paid`.

References are read from files: one answer per line, rows of JSON or JSONL with `answer` or `answers` (a solution is cut
to its last \boxed{} or what follows ####), or SQuAD's layout. Without --references they are the truths of the tests. A
seeded generator (--seed) adds --made references. Pairs are spread evenly over the rules, as far as references allow.
With --peer math_verify, that library judges the same pairs; it takes about 60 ms for each.

--show prints that many failures of each rule. The last line of stdout is JSON.
"""

import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.record import ROOT, Record, parse
from bench.references import make_references
from bench.rewriting import Rule
from bench.rules import Pair, make_pairs
from rewards.boxed import equivalent, gold_answer

CORPUS = ROOT / "tests" / "rewards" / "boxed_cases"
MAX_CHARS = 300  # of a reference: longer ones are explanations
SIZES = {
    "cpu": {
        "pairs": 5000,
        "references": [CORPUS],
        "made": 2000,
        "seed": 0,
        "show": 3,
    },
    "smoke": {"pairs": 300},
}

Judge = Callable[[str, str], bool]


@dataclass
class Count:
    """The pairs of one rule, and for each judge those that it got wrong, as (answer, truth)."""

    rule: Rule
    pairs: int = 0
    wrong: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def num_wrong(self, judges: Iterable[str]) -> dict[str, int]:
        """Return for each judge how many pairs it got wrong."""
        return {judge: len(self.wrong[judge]) for judge in judges}


# --- References ----------------------------------------------------------------------------------------------------


def read_references(paths: Sequence[Path]) -> list[str]:
    """Return the answers of all files, each once. Of a folder of tests, return the truths."""
    found = set()
    for path in paths:
        for answer in truths_of(path) if path.is_dir() else answers_of(path):
            found.add(" ".join(gold_answer(answer).split()))
    short = [answer for answer in found if 0 < len(answer) <= MAX_CHARS]
    return sorted(answer for answer in short if equivalent(answer, answer))


def answers_of(path: Path) -> list[str]:
    """Read the answers of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines() if line]
    elif path.suffix == ".json":
        rows = json.loads(text)
    else:
        return text.splitlines()
    if isinstance(rows, dict):
        return answers_of_squad(rows)
    answers = []
    for row in rows:
        answer = row.get("answer", row.get("answers")) if isinstance(row, dict) else row
        answers.append(str(answer))
    return answers


def answers_of_squad(squad: Mapping) -> list[str]:
    """Return the first answer to each question of a file in SQuAD's layout."""
    answers = []
    for article in squad["data"]:
        for paragraph in article["paragraphs"]:
            answers += [question["answers"][0]["text"] for question in paragraph["qas"]]
    return answers


def truths_of(folder: Path) -> list[str]:
    """Return the right sides of the equivalences in tests/rewards/boxed_cases/."""
    truths = []
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if " ≡ " in line and not line.startswith("#"):
                truths.append(line.partition(" ≡ ")[2])
    return truths


# --- Judging -------------------------------------------------------------------------------------------------------


def math_verify_judge() -> Judge:
    """Make a judge that asks math-verify as its documentation says: both in a box, the truth first."""
    from math_verify import parse, verify

    def judge(answer: str, truth: str) -> bool:
        return bool(verify(parse(rf"\boxed{{{truth}}}"), parse(rf"\boxed{{{answer}}}")))

    return judge


def replay(pairs: Sequence[Pair], judges: Mapping[str, Judge]) -> tuple[dict[str, Count], dict[str, list[float]]]:
    """Let all judges judge all pairs. Return the count of each rule, and the seconds that each judge took."""
    counts: dict[str, Count] = {}
    seconds: dict[str, list[float]] = defaultdict(list)
    for rule, answer, truth in pairs:
        count = counts.setdefault(rule.name, Count(rule))
        count.pairs += 1
        for name, judge in judges.items():
            start = time.perf_counter()
            verdict = judge(answer, truth)
            seconds[name].append(time.perf_counter() - start)
            if verdict is not rule.is_same:
                count.wrong[name].append((answer, truth))
    return counts, seconds


def show(
    title: str,
    counts: Sequence[Count],
    judges: Iterable[str],
    examples: int,
) -> None:
    """Print how often each judge was wrong, for each rule and in all."""
    print(f"\n{title:34}{'pairs':>8}" + "".join(f"{judge:>14}" for judge in judges))
    totals: Counter[str] = Counter()
    for count in counts:
        wrong = count.num_wrong(judges)
        totals.update(wrong)
        print_line(count.rule.name, count.pairs, wrong)
        for answer, truth in count.wrong["ours"][:examples]:
            print(f"      {answer}  ‖  {truth}")
    print_line("all", sum(count.pairs for count in counts), totals)


def print_line(name: str, pairs: int, wrong: Mapping[str, int]) -> None:
    """Print one line of the table."""
    print(f"  {name:32}{pairs:8}" + "".join(f"{number:14}" for number in wrong.values()))


def main(argv: list[str] | None = None) -> dict:
    peers = {"none": (), "math_verify": ("math_verify",)}
    options = parse("bench.verifier", __doc__, argv, SIZES, peers, dtypes=())
    record = Record("verifier", options)
    rng = random.Random(options.seed)
    references = read_references(options.references)
    references += sorted(make_references(options.made, rng) - set(references))
    pairs = make_pairs(references, options.pairs, rng)
    judges: dict[str, Judge] = {"ours": equivalent}
    if options.peer == "math_verify":
        judges["math_verify"] = math_verify_judge()
    counts, seconds = replay(pairs, judges)
    same = [count for count in counts.values() if count.rule.is_same]
    other = [count for count in counts.values() if not count.rule.is_same]
    show("right answers that were missed", same, judges, options.show)
    show("wrong answers that were paid", other, judges, options.show)
    for count in counts.values():
        case = {
            "name": count.rule.name,
            "should_be_equal": count.rule.is_same,
            "pairs": count.pairs,
            "wrong": count.num_wrong(judges),
        }
        record.cases.append(case)
    record.checks = {
        "references": len(references),
        "pairs": len(pairs),
        "missed by ours": sum(len(count.wrong["ours"]) for count in same),
        "paid by ours": sum(len(count.wrong["ours"]) for count in other),
    }
    options.references = [path.name for path in options.references]
    seconds_per_pair = {}
    for judge, spent in seconds.items():
        seconds_per_pair[judge] = {"mean": statistics.fmean(spent), "max": max(spent)}
    return record.finish(seconds_per_pair=seconds_per_pair)


if __name__ == "__main__":
    main()
