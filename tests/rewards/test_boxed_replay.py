"""The replay of references: what it makes of them is right by its rules, and the verifier agrees on all of a sample."""

import json
import random

import pytest

from bench import references, rewriting, rules, verifier
from rewards.boxed import equivalent
from tests.making import SHARED

PUBLIC = [SHARED / name for name in ("gsm8k/test.jsonl", "knowrl/knowrl_RLdata.json", "xquad/xquad.zh.json")]
RULES = {rule.name: rule for rule in [*rules.SAME, *rules.OTHER]}


def replayed(capfd, *options: str) -> dict:
    verifier.main(["--pairs", "2000", "--made", "500", *options])
    return json.loads(capfd.readouterr().out.splitlines()[-1])


def test_the_corpus_is_replayed_without_a_wrong_payment(capfd):
    row = replayed(capfd)
    assert row["checks"]["pairs"] > 1800
    assert row["checks"]["paid by ours"] == 0
    assert row["checks"]["missed by ours"] < 0.005 * row["checks"]["pairs"]
    assert {case["name"] for case in row["cases"]} == set(RULES)


@pytest.mark.skipif(not all(path.exists() for path in PUBLIC), reason="no public references in ../shared/data")
def test_public_references_are_replayed_without_a_wrong_payment(capfd):
    row = replayed(capfd, "--references", *map(str, PUBLIC))
    assert row["checks"]["references"] > 3000
    assert row["checks"]["paid by ours"] == 0
    assert row["checks"]["missed by ours"] < 0.005 * row["checks"]["pairs"]


def test_references_are_read_from_lines_rows_and_solutions(tmp_path):
    lines, rows, squad = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.json"
    lines.write_text("12\n\n\\frac12\n", encoding="utf-8")
    solution = r"so it is \boxed{x+1}."
    rows.write_text("\n".join(json.dumps({"answer": answer}) for answer in ("12", solution)), encoding="utf-8")
    paragraph = {"context": "…", "qas": [{"answers": [{"text": "四次"}]}]}
    squad.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}), encoding="utf-8")
    assert verifier.read_references([lines, rows, squad]) == ["12", r"\frac12", "x+1", "四次"]


def test_references_are_made_from_a_seed():
    made = [references.make_references(200, random.Random(seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert {rewriting.shape_of(reference) for reference in made[0]} >= {"term", "quantity", "list", "row", "relation"}


@pytest.mark.parametrize(
    ("rule", "truth", "pair"),
    [
        ("sides swapped", "x < 3", ("3 > x", "x < 3")),
        ("ASCII relations", r"x \le 3", ("x <= 3", r"x \le 3")),
        ("fractions of digits", r"\frac{1}{2}", (r"\frac12", r"\frac{1}{2}")),
        ("terms in another order", "(1, 2)", None),
        ("parameter renamed", "x^2+1", ("h(u) = u^2+1", "h(v) = v^2+1")),
        ("tuple swapped", "(1, 2)", ("(2, 1)", "(1, 2)")),
        ("fraction upside down", r"\frac{1}{2}", (r"\frac{2}{1}", r"\frac{1}{2}")),
        ("another number", "7", ("8", "7")),
        ("negative", r"\text{no}", None),
        ("negative", "0", None),
        ("functions the other way round", "5", ("f(g(5))", "g(f(5))")),
        ("letters in another order", r"\frac12", None),
        ("another unit", "1,234", None),
    ],
)
def test_a_rule(rule, truth, pair):
    assert RULES[rule].apply(truth, rewriting.shape_of(truth), random.Random(0)) == pair


def test_failures_are_counted_by_rule():
    pairs = [(RULES["itself"], "1", "1"), (RULES["doubled"], "1", "2")]
    counts, _ = verifier.replay(pairs, {"ours": equivalent, "generous": lambda answer, truth: True})
    wrong = {name: {judge: len(found) for judge, found in count.wrong.items()} for name, count in counts.items()}
    assert wrong == {"itself": {}, "doubled": {"generous": 1}}
