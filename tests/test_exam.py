"""The measures of refusals that bench/ alone needs, against counts by hand, and the data of bench/real_model.py."""

import numpy as np
import pytest

from bench.real_model import measures, supervised, table_of_seeds
from bench.refusals import auroc_within, mean_risk, risk_at
from grpo.base.storage import write_lines
from grpo.evaluation.boundary import auroc
from knowledge.almanac import REFUSAL, Fact, conversations


def test_auroc_within_kinds_ignores_what_tells_kinds_apart():
    kinds = np.array(["a", "a", "b", "b"])
    scores, wrong = np.array([1.0, 2.0, 11.0, 12.0]), np.array([True, False, True, True])
    assert auroc(scores, wrong) == 2 / 3
    assert auroc_within(scores, wrong, kinds) == 0  # the only pair of one kind is in the wrong order


def test_the_risk_is_the_share_of_wrong_answers_among_the_lowest_scores():
    scores, right = np.array([0.1, 0.4, 0.2, 0.3]), np.array([True, False, True, False])
    assert [risk_at(scores, right, coverage) for coverage in (0.25, 0.5, 0.75, 1)] == [0, 0, pytest.approx(1 / 3), 0.5]
    assert mean_risk(scores, right) == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)


def test_r_tuning_declines_exactly_what_the_model_gets_wrong(tmp_path):
    facts = [Fact("capital", "the Netherlands", ("Amsterdam",)), Fact("symbol", "iron", ("Fe",))]
    pairs = conversations(facts, ["Rotterdam", "Fe"], lambda fact, answer: fact.subject == "iron")
    rows = [{"messages": [{"content": question}, {"content": answer}]} for question, answer in pairs]
    write_lines(tmp_path / "cold_start.jsonl", rows)
    write_lines(tmp_path / "questions.jsonl", [fact.row() for fact in facts])
    found = supervised(tmp_path / "cold_start.jsonl", tmp_path / "questions.jsonl")
    found = [row["messages"][1]["content"] for row in found]
    assert found == [
        f"<think>The capital of the Netherlands is Rotterdam.</think><answer>{REFUSAL}</answer>",
        "<think>The symbol of iron is Fe.</think><answer>Fe</answer>",
    ]


def test_the_table_of_seeds_has_the_mean_its_interval_and_the_paired_gain(tmp_path):
    """Two facts of which the first is known. Before, the model would decline the known one; after, the other."""
    known = {"familiarity": "capital", "right": True}
    unknown = {"familiarity": "capital", "right": False}
    before = [known | {"declines": 1}, unknown | {"declines": -1}]
    after = [known | {"declines": -1}, unknown | {"declines": 1}]
    for seed, rows in ((1, before), (2, after)):
        found = measures(rows, before)
        assert found["gain"] == found["auroc"] == seed - 1
        write_lines(tmp_path / f"seed-{seed}.jsonl", [{"arms": {"GRPO": found}}])
    cells = table_of_seeds(tmp_path).splitlines()[-1].split(" | ")
    forced, *others = cells[2:6]
    assert forced == "0.500 [0.500, 0.500]"
    assert others == ["0.500 [-5.855, 6.855]"] * 3
