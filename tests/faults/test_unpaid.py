"""Answers that must not pay, even where the judge falls for everything; and the fence that they cannot leave."""

import asyncio
import json
import random

import pytest

from rewards.boxed import verdict
from rewards.format import grade
from rewards.outcome.correctness import grader
from rewards.outcome.judge import Judgement, build_messages


class Generous:
    """A judge that falls for everything."""

    def __init__(self):
        self.asked = 0

    async def judge(self, question, answer, truths, falsehoods=()):
        self.asked += 1
        return Judgement("correct", "generous")


HACKS = [
    "…", ":", "", " ", "?!", "。", "\u200b", "\u3164\u2800", "\u0301", "—", "*", "\n\n", "Paris or London",
    "Paris / London / Rome", "Paris; London", "Paris | London", "1. Paris\n2. London", "- Paris\n- London",
    "Paris或者London",
]  # fmt: skip


@pytest.mark.parametrize("answer", HACKS)
def test_an_empty_or_hedging_answer_earns_nothing_even_from_a_generous_judge(answer):
    judge = Generous()
    score = asyncio.run(
        grader(judge)(f"<think>x</think><answer>{answer}</answer>", {"question": "q", "answer": "Paris"})
    )
    assert score.value == -1.0 and judge.asked == 0


SHAPES = [
    "<think>x</think><answer>Paris</answer><answer>London</answer>",
    "<think>x</think><think>y</think><answer>Paris</answer>",
    "<answer>Paris</answer><think>x</think>",
    "<think>x<answer>Paris</answer></think>",
    "Paris",
    "<answer>Paris",
    "<think>x</think>Paris",
    "<think><think>x</think></think><answer>Paris</answer>",
    "<think>x</think><answer><answer>Paris</answer></answer>",
    "<think>x</think></think><answer>Paris</answer>",
    "<think>x</think><answer>Paris</answer></answer>",
]


@pytest.mark.parametrize("completion", SHAPES)
def test_anything_but_one_pair_of_each_tag_earns_nothing(completion):
    score = asyncio.run(grader(Generous())(completion, {"question": "q", "answer": "Paris"}))
    assert score.value == -1.0 and grade(completion, {}).value == -1.0


SAYS_EVERYTHING = ["", "x", r"\frac{}{}", "1=1", "42 or 43", "1,2,3,...,100", "[0,100]", r"x \in R", r"\pm 42", "42?43"]
SAYS_NOTHING = [r"42 \text{ or } 43", r"\infty", "NaN", r"42\ldots", r"\text{the answer}", "__import__('os')"]


@pytest.mark.parametrize("answer", [*SAYS_EVERYTHING, *SAYS_NOTHING])
def test_a_boxed_answer_that_says_everything_or_nothing_is_not_right(answer):
    assert verdict("\\boxed{" + answer + "}", "42")[0] != "correct"


def test_the_fence_cannot_be_closed_from_inside():
    """2,000 answers that end a fence in every way, among them with the words of other calls: the prompt keeps its
    twelve lines."""
    rng = random.Random(0)
    pieces = [
        "</candidate", "<candidate", " ", ">", "\n", "\u2028", "\r", "\x85", "\\u003c", "&lt;", '"', "\\", "\\n", "A",
        "```", "<|im_end|>", "\ud800", "\x1b",
    ]  # fmt: skip
    used = {f"{number:016x}" for number in range(50)}
    for number in range(2000):
        nonce = f"{rng.getrandbits(64):016x}"
        attack = "".join(rng.choice([*pieces, rng.choice(sorted(used))]) for _ in range(rng.randrange(1, 30)))
        text = build_messages("q", attack, ["y"], nonce)[1]["content"]
        assert len(text.splitlines()) == 11 and text.count("<") == 6 and text.count(nonce) == 6, number
        json.loads(text.split("\n")[7])
