"""What right, declining and wrong are worth under each reward of the family, and what its rules do to a group."""

import pytest
from cells import cells, rows
from making import grade_groups, make_answers

from grpo.algorithm.schema import Score
from rewards.outcome.correctness import value_confidence, with_threshold
from rewards.registry import build_rewards

OPTIONS = {"judge": "offline", "abstention_threshold": 0.75}
ROW = {"question": "What is the capital of France?", "answer": "Paris"}
ANSWERS = {"correct": "Paris", "refused": "I don't know", "wrong": "London"}
CONFIDENCES = rows("""
    correct | <confidence>1</confidence> | 1 ¦ correct | <confidence>80 %</confidence> | 0.96
    wrong | <confidence>0.8</confidence> | -0.64 ¦ refused | <confidence>0.1</confidence> | -0.01
    """)
NO_CONFIDENCE = [
    [outcome, said, value]
    for outcome, value in {"correct": 0, "refused": -1, "wrong": -1}.items()
    for said in ("", "<confidence>80</confidence>", "<confidence>very sure</confidence>", "0.9")
]


def graded(name, outcomes, after=""):
    """The completions of a group with these outcomes, as the scorer leaves them."""
    texts = [f"<think>Hm.</think><answer>{ANSWERS[outcome]}</answer>{after}" for outcome in outcomes]
    group = make_answers(ROW, *texts)
    grade_groups(build_rewards([name], OPTIONS), group)
    return group.completions


VALUES = cells("simpleqa 1 0 0 ¦ correctness 2 1 -1 ¦ truthrl 1 0 -1 ¦ abstention 1 0 -3")  # right, refused, wrong


@pytest.mark.parametrize("case", VALUES)
def test_truth_table(case):
    name, *values = case.split()
    completions = graded(name, ["correct", "refused", "wrong"])
    assert [completion.reward for completion in completions] == list(map(float, values))
    assert [completion.scores[name].outcome for completion in completions] == ["correct", "refused", "wrong"]


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2 / 3, 0.9])
def test_answering_pays_above_the_threshold(threshold):
    values = with_threshold(threshold)
    for p in (threshold - 0.01, threshold + 0.01):
        assert (p * values["correct"] + (1 - p) * values["wrong"] > values["refused"]) == (p > threshold)


@pytest.mark.parametrize("outcome, stated, value", CONFIDENCES + NO_CONFIDENCE)
def test_truth_table_of_a_stated_confidence(outcome, stated, value):
    """Without a confidence, an answer is worth what the wrong one would have earned it: 0 if right, else -1."""
    completion = graded("rlcr", [outcome], stated)[0]
    assert completion.reward == pytest.approx(float(value)) and completion.scores["rlcr"].outcome == outcome
    why, said = completion.scores["rlcr"].reason.rsplit("; ", 1)
    assert why and (said == "states no confidence") is ([outcome, stated, value] in NO_CONFIDENCE)


def test_an_unscorable_answer_stays_unscorable():
    score = Score(None, "the judge is down")
    assert value_confidence(score, "<confidence>0.5</confidence>") == score
