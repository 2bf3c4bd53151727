"""Every built-in reward gives any completion a score: texts of the rewards' own marks, in any order.

FUZZ_EXAMPLES=20000 tries more of each.
"""

import asyncio
import inspect
import os
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import build_base

from grpo.algorithm.schema import Call
from grpo.config.options import TrainConfig
from rewards.registry import BUILT_IN, build_rewards

MARKS = [  # of a format, of boxes, of formulas, of choices, of sentences, of nobody
    "<think> </think> <answer> </answer> <confidence> </confidence> <result> </result> 0.8 80%".split(),
    [*r"\boxed \boxed{ } \fbox{2} \boxed{3} are\boxed{2} \Rightarrow \\ $ x= ; 或 、".split(), ", ", " or ", " and "],
    r"\frac \sqrt \text{ \begin{cases} \end{cases} \( \) { } ( ) ^ _ x 1/3 - = 1e9 9^{9^9} \pm , 3 5 + | °".split(),
    [*"A B (C) A? not answer: option 选 答案 不是 ** I or , .".split(), "\n", " "],
    [
        "Ada Moor ",
        "was born in ",
        "Velda",
        "1962",
        "I don't know",
        "我不知道",
        "He ",
        ". ",
        "; ",
        "\n1. ",
        " / ",
        " or ",
    ],
    ["\n#### ", "\n", " ", "\0", "\ud800", "\u2028", "🙂", "?", "none"],
]
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 150))
pieces = [
    st.lists(st.sampled_from(marks), max_size=12) for marks in (*MARKS, [mark for marks in MARKS for mark in marks])
]
texts = st.lists(st.one_of(pieces).map("".join), max_size=4).map("".join)
answers = texts | st.lists(texts, max_size=3) | st.none() | st.floats() | st.integers()


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """No service is asked."""
    folder = tmp_path_factory.mktemp("any")
    base = build_base(folder, {"Ada Moor": "Ada Moor was born in Velda. She wrote it in 1962."})
    chosen = {"judge": "offline", "decomposer": "rules", "verifier": "lexical", "knowledge_base": str(base)}
    chosen["soft_punish_cache"] = 64
    return asdict(TrainConfig()) | chosen


@pytest.mark.parametrize("name", BUILT_IN)
def test_any_completion_gets_a_score(options, name):
    reward = build_rewards([name], options)[-1]
    loop = asyncio.new_event_loop()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
    @given(completion=texts, question=texts, answer=answers)
    def grade(completion, question, answer):
        calls = [Call("search", "x", "y", 0, 0, (0, len(completion) // 2))]
        row = {"question": question, "answer": answer, "title": "Ada Moor", "prompt": question, "tool_calls": calls}
        found = reward.grade(completion, row | {"completion_ids": range(len(completion))})
        score = loop.run_until_complete(found) if inspect.isawaitable(found) else found
        assert score.value is None or abs(score.value) <= 1e6

    grade()
    loop.close()
    for resource in reward.resources:
        resource.close()
