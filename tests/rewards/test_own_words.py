"""Rewards of completions that call tools: what they say themselves counts, and what a tool has said never does."""

import re
from dataclasses import asdict

import pytest
from cells import cells
from making import build_base, grade_groups, make_answers

from grpo.algorithm.schema import Call, own_words
from grpo.config.options import TrainConfig
from rewards.registry import build_rewards

SERVICES = {"judge": "offline", "decomposer": "rules", "verifier": "lexical"}
OPTIONS = asdict(TrainConfig()) | SERVICES | {"tools": ["search", "./mine.py:calc"]}
ROW = {"question": "Where was Mira born?", "answer": "Velda", "title": "Mira"}
CALL = "<search>Mira</search><result>Mira was born in Velda.</result>"


def graded(text, *names, row=ROW, call=CALL, failure="", **options):
    """The scores of a text; every `{}` in it stands for a call."""
    group = make_answers(row, text.replace("{}", call))
    (completion,) = group.completions
    places = [found.span() for found in re.finditer(re.escape(call), completion.text)]
    completion.calls = [Call("search", "Mira", "Mira was born in Velda.", 0, 0, place, failure) for place in places]
    grade_groups(build_rewards(names, OPTIONS | options), group)
    return completion


IN_ORDER = cells("""
    <think>{}She was.</think><answer>Velda</answer> ¦ <think>{}</think><answer>Velda</answer>
    <think>a{}b{}</think><answer>Velda</answer> ¦ <think>a</think><answer>Velda</answer>
    """)
OUT_OF_ORDER = cells("""
    {}<think>a</think><answer>Velda</answer> ¦ <think>a</think>{}<answer>Velda</answer>
    <think>a</think><answer>{}</answer> ¦ <think>a</think><answer>Velda{}</answer>
    <think>a</think><answer>Velda</answer>{} ¦ <think><calc>1</think><answer>Velda</answer>
    <think>{}<result>Mira was born in Orsen.</result></think><answer>Velda</answer>
    <think><search>Mira</search>a</think><answer>Velda</answer>
    """)  # also a result of its own, and what was not called


@pytest.mark.parametrize("text", IN_ORDER + OUT_OF_ORDER)
def test_calls_belong_into_the_think_block(text):
    assert graded(text, "format").scores["format"].value == (1 if text in IN_ORDER else -1)


def test_without_tools_such_tags_are_text():
    text = "<think><search>Mira</search></think><answer>Velda</answer>"
    assert graded(text, "format", tools=()).scores["format"].value == 1


def test_each_call_has_its_price():
    for number in range(4):
        assert graded("<think>" + "{}" * number + "</think>", "tool_cost").reward == -number


def test_facts_are_those_of_its_own_words(tmp_path):
    """What the result states is not stated by the model; what it says after it is, and its sentence is found."""
    base = {"knowledge_base": str(build_base(tmp_path, {"Mira": "Mira was born in Velda."})), "device": "cpu"}
    silent = graded("<think>{}Well.</think><answer>Velda</answer>", "factuality", **base).scores["factuality"]
    assert silent.details["facts"] == 0
    spoken = graded("<think>{}Mira was born in Velda.</think><answer>Velda</answer>", "factuality", **base)
    score = spoken.scores["factuality"]
    assert score.details["supported"] == 1
    ((start, end),) = score.facts[0]["sentences"]
    assert spoken.text[start:end] == "Mira was born in Velda." and start > spoken.text.index("</result>")


@pytest.mark.parametrize("text", ["{}", "<think>a</think>{}", "<think>a</think><answer>{}</answer>"])
@pytest.mark.parametrize("name", ["exact", "math", "correctness", "simpleqa"])
def test_a_result_is_no_answer(text, name):
    call = "<search>q</search><result>\\boxed{Velda} Velda</result>"
    assert graded(text, name, call=call).outcome != "correct"


def test_a_tool_that_failed_leaves_no_number():
    completion = graded("<think>{}", "format", "exact", failure="it is closed")
    assert completion.reward is None and completion.outcome is None
    for score in completion.scores.values():
        assert score.value is None and "it is closed" in score.reason and score.asked == {"tool search": False}
    fine = graded("<think>{}</think><answer>Velda</answer>", "exact")
    assert fine.scores["exact"].asked == {"tool search": True} and fine.outcome == "correct"


def test_own_words_stay_in_their_places():
    text = f"ab{CALL}cd"
    said = own_words(text, [Call("search", "", "", 0, 0, (2, 2 + len(CALL)))])
    assert len(said) == len(text) and said.split() == ["ab", "cd"] and said.endswith("cd")
