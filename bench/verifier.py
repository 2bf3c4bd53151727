r"""python -m bench.verifier [--pairs 60000] [--references FILE ...] [--peer math_verify] [--show 3]

Does the verifier of mathematics pay what is right and nothing else? Reference answers are compared with themselves,
with themselves written in another way that means the same, and with themselves changed so that they mean something
else (rules.py). A pair that should be equal and is not is `missed`; one that should differ and does not is `paid`.

References are those of the files, one answer per line, or rows of JSON or JSONL with `answer` or `answers` (a solution
is cut to its last \boxed{} or what follows ####), or SQuAD's layout; and the truths of tests/rewards/boxed_cases/ and
--made references from a seeded generator. Pairs are spread evenly over the rules, as far as references allow. With
--peer, math-verify judges the same pairs (pip install math-verify); it takes about 60 ms for each.

--show prints that many failures of each rule. The last line of stdout is JSON.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import timing
from bench.references import make_references
from bench.rewriting import Rule
from bench.rules import make_pairs
from rewards.boxed import equivalent, gold_answer

CORPUS = timing.ROOT / "tests" / "rewards" / "boxed_cases"
MAX_CHARS = 300  # of a reference: longer ones are explanations

Judge = Callable[[str, str], bool]


@dataclass
class Count:
    """How one rule fared."""

    rule: Rule
    pairs: int = 0
    wrong: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))  # judge -> its failures


# --- references ----------------------------------------------------------------------------------------------------
def read_references(paths: Sequence[Path]) -> list[str]:
    """The answers of all files, each once; without files, the truths of the tests."""
    found = [answer for path in paths for answer in _answers(path)] if paths else _corpus_truths()
    cleaned = (" ".join(gold_answer(answer).split()) for answer in found)
    return sorted({answer for answer in cleaned if answer and len(answer) <= MAX_CHARS and equivalent(answer, answer)})


def _answers(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".json", ".jsonl"):
        yield from text.splitlines()
        return
    rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
    if isinstance(rows, dict):  # SQuAD
        paragraphs = [paragraph for article in rows["data"] for paragraph in article["paragraphs"]]
        rows = [question["answers"][0]["text"] for paragraph in paragraphs for question in paragraph["qas"]]
    for row in rows:
        yield str(row.get("answer", row.get("answers")) if isinstance(row, dict) else row)


def _corpus_truths() -> list[str]:
    lines = [line for path in sorted(CORPUS.glob("*.txt")) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line.partition(" ≡ ")[2] for line in lines if " ≡ " in line and not line.startswith("#")]


# --- judging -------------------------------------------------------------------------------------------------------
def math_verify_judge() -> Judge:
    """math-verify as its documentation says: both in a box, the truth first."""
    from math_verify import parse, verify

    def judge(answer: str, truth: str) -> bool:
        gold, given = (parse(rf"\boxed{{{text}}}") for text in (truth, answer))
        return bool(verify(gold, given))

    return judge


def replay(
    pairs: Sequence[tuple[Rule, str, str]], judges: dict[str, Judge]
) -> tuple[dict[str, Count], dict[str, dict[str, float]]]:
    """(how each rule fared, how each judge spent its time)."""
    counts: dict[str, Count] = {}
    seconds: dict[str, list[float]] = {name: [] for name in judges}
    for rule, answer, truth in pairs:
        count = counts.setdefault(rule.name, Count(rule))
        count.pairs += 1
        for name, judge in judges.items():
            start = time.perf_counter()
            verdict = judge(answer, truth)
            seconds[name].append(time.perf_counter() - start)
            if verdict is not rule.is_same:
                count.wrong[name].append((answer, truth))
    spent = {name: {"mean": sum(values) / len(values), "max": max(values)} for name, values in seconds.items()}
    return counts, spent


def show(counts: dict[str, Count], judges: Sequence[str], examples: int) -> None:
    for kind, is_same in (("right answers that were missed", True), ("wrong answers that were paid", False)):
        print(f"\n{kind:34}{'pairs':>8}" + "".join(f"{judge:>14}" for judge in judges))
        chosen = [count for count in counts.values() if count.rule.is_same is is_same]
        for count in chosen:
            print(
                f"  {count.rule.name:32}{count.pairs:8}" + "".join(f"{len(count.wrong[judge]):14}" for judge in judges)
            )
            for answer, truth in count.wrong["ours"][:examples]:
                print(f"      {answer}  ‖  {truth}")
        totals = (sum(len(count.wrong[judge]) for count in chosen) for judge in judges)
        print(f"  {'all':32}{sum(count.pairs for count in chosen):8}" + "".join(f"{total:14}" for total in totals))


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.verifier", __doc__, peers=("none", "math_verify"), dtypes=())
    arguments.add_argument("--pairs", type=int, default=5000)
    arguments.add_argument("--references", type=Path, nargs="+", default=[], metavar="FILE")
    arguments.add_argument("--made", type=int, default=2000, help="references to make up")
    arguments.add_argument("--seed", type=int, default=0, help="of the references and of the changes")
    arguments.add_argument("--show", type=int, default=3, help="failures of each rule to print")
    options = timing.parse(arguments, argv, smoke={"pairs": 300})
    rng = random.Random(options.seed)
    references = read_references(options.references)
    references += sorted(make_references(options.made, rng) - set(references))
    pairs = make_pairs(references, options.pairs, rng)
    judges: dict[str, Judge] = {"ours": equivalent}
    if options.peer == "math_verify":
        judges["math_verify"] = math_verify_judge()
    counts, seconds = replay(pairs, judges)
    show(counts, list(judges), options.show)
    options.references = [path.name for path in options.references]
    cases = [
        {
            "name": count.rule.name,
            "should_be_equal": count.rule.is_same,
            "pairs": count.pairs,
            "wrong": {judge: len(count.wrong[judge]) for judge in judges},
        }
        for count in counts.values()
    ]
    failures = {True: 0, False: 0}
    for count in counts.values():
        failures[count.rule.is_same] += len(count.wrong["ours"])
    checks = {
        "references": len(references),
        "pairs": len(pairs),
        "missed by ours": failures[True],
        "paid by ours": failures[False],
    }
    return timing.finish("verifier", options, cases, checks, seconds_per_pair=seconds)


if __name__ == "__main__":
    main()
