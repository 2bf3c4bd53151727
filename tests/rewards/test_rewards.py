"""Format, exact match, the length penalty, the registry and the scorer."""

import asyncio
import gc
import json
import threading
import time

import pytest
from asking import PATIENCE_S, until
from cells import cells, rows
from making import grade_groups, make_answers, of_each

from grpo.algorithm.schema import Score
from rewards import exact, format
from rewards.registry import BUILT_IN, Resource, Reward, build_rewards, expand
from rewards.scorer import NUM_THREADS, Scorer, together
from rewards.services import services_of

BLANKS = ("\u200b", "\u2060\ufeff", "\x00", "\u0301", "\u3164", "\u115f", "\u2800", "\u00ad \n", "\U000e0041")
GOOD = "<think>a</think><answer>b</answer>"
OPENED = {"prompt": "Where?<think>"}


@pytest.mark.parametrize(
    "text",
    cells(r"""
    GOOD ¦ a</think><answer>b</answer> ¦ <think>\na\n</think>\n\n<answer>\nb\n</answer>\n
    \n<think>a</think> <answer>b</answer> ¦ GOOD<confidence>0.8</confidence>
    GOOD\n\n<confidence> 80 % </confidence>\n
    """),
)
def test_format_is_right(text):
    assert format.grade(text.replace("GOOD", GOOD), OPENED).value == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        *cells(r"""
        a</think><answer>b</answer> ¦ b ¦ <answer>b</answer> ¦ <think>a</think> ¦ <think></think><answer>b</answer>
        <think> \n</think><answer>b</answer> ¦ <think>a</think><answer> </answer> ¦ GOODx ¦ GOOD\n\n ¦ xGOOD
        <think>a</think>x<answer>b</answer> ¦ GOODGOOD ¦ <think><think>a</think><answer>b</answer>
        <think>a</think></think><answer>b</answer> ¦ <think>a</think><answer>b</answer> junk </answer>
        <answer>b</answer><think>a</think> ¦ <think>a<answer>b</think></answer>
        <THINK>A</THINK><ANSWER>B</ANSWER> ¦ <think>a</think><answer>b ¦ <Think>a</Think><answer>b</answer>
        GOOD<confidence>80</confidence> ¦ GOOD<confidence></confidence> ¦ GOOD<confidence>0.8
        GOOD<confidence>0.8</confidence>x ¦ GOOD<confidence>0.8</confidence><confidence>0.8</confidence>
        GOOD<confidence>0.8</confidence>\n\n ¦ <think>a</think><answer>b<confidence>0.8</confidence></answer>
        <think>a <confidence>0.8</confidence></think><answer>b</answer>
        <think>a</think><confidence>0.8</confidence><answer>b</answer>
        """),
        *(f"<think>{blank}</think><answer>b</answer>" for blank in BLANKS),
        *(f"<think>a</think><answer>{blank}</answer>" for blank in BLANKS),
    ],
)
def test_format_is_wrong(text):
    score = format.grade(text.replace("GOOD", GOOD), {})
    assert score.value == -1.0 and score.reason


QUARTERS = rows("""
    It is 4. | | 0 | no <think>; no </think>; no <answer>; no </answer> ¦ a</think> | | 0.25 | no <think>
    a</think> | assistant <think> | 0.5 | no <answer> ¦ </answer><think> | | 0.5 | no </think>
    <answer><answer></answer> | | 0.25 | <answer> occurs 2 times
    """)


@pytest.mark.parametrize("completion, prompt, value, reason", QUARTERS)
def test_each_tag_earns_a_quarter(completion, prompt, value, reason):
    (reward,) = build_rewards(["tag_count"], {})
    score = reward.grade(completion, {"prompt": prompt})
    assert score.value == float(value) and reason in score.reason


def test_format_is_linear_in_white_space(linear_time):
    """The regular expression of the original takes minutes here."""
    format.grade("<think>a</think>" + " \n" * 500_000 + "<answer>" + " " * 500_000, {})
    format.grade(GOOD + "<confidence>0.5" * 50_000, {})


def test_parse_finds_blocks_even_in_a_bad_format():
    text = "hello <think> a </think> x <answer> b </answer><answer>c</answer>"
    assert format.parse(text).answer == "b" and format.parse(text).problem
    assert format.thoughts(text) == ("a", text.index("a </think>"))
    assert format.parse("nothing").answer is None
    assert format.thoughts("<think> It is D. It") == ("It is D. It", 8)  # cut off
    assert format.thoughts(" It is D.</think>") == ("It is D.", 1)


CONFIDENCES = {
    0.8: cells("<answer>x</answer><confidence>0.8</confidence> ¦ <confidence> 80 % </confidence>"),
    0.25: ["<confidence>.25</confidence>"],
    1.0: cells("<confidence>1</confidence> ¦ <confidence>100%</confidence>"),
    0.0: ["<confidence>0</confidence>"],
    0.9: ["<confidence>0.2</confidence> no: <confidence>0.9</confidence>"],
    None: cells("""
        <confidence>80</confidence> ¦ <confidence>101%</confidence> ¦ <confidence>-0.5</confidence> ¦ 0.8
        <confidence>high</confidence> ¦ <confidence>0.5 ¦ <confidence>nan</confidence>
        """),
}


@pytest.mark.parametrize("value", CONFIDENCES)
def test_what_states_a_confidence(value):
    assert {format.stated_confidence(text) for text in CONFIDENCES[value]} == {value}


EQUAL = rows(r"""
    The Eiffel Tower. | eiffel tower ¦ ４２ | 42 ¦ 北京。 | 北京 ¦ 3 | so it is\n#### 3 ¦ **Paris** | Paris
    Paris | ***Paris*** ¦ −5 | -5 ¦ a day at the Races | A Day at Races ¦ Beyonce 3-1 | Beyoncé 3–1 ¦ 1/2 | ½
    """)
UNEQUAL = rows("""
    eiffel | Eiffel Tower ¦ the | a ¦ ... | !!! ¦ 5 | -5 ¦ Vitamin | Vitamin A ¦ 21/2 | 2½
    Vitamin deficiency | Vitamin A deficiency
    """)
TYPED = rows("""
    1994 | 1994.0 | 1 ¦ Paris | [2024.0, "Paris"] | 1 ¦ 0 | 0 | 1 ¦ 1.50 | 1.5 | 0 ¦ | "x" | 0
    x | null | null ¦ x | "" | null ¦ x | [] | null ¦ nan | NaN | null
    """)  # the truth and the value in JSON; a column of whole numbers with gaps is one of floats


def test_exact():
    for said, truth in EQUAL + UNEQUAL:
        assert exact.grade(said, {"answer": truth}).value == ([said, truth] in EQUAL), said
    for said, truth, value in TYPED:
        score = exact.grade(said, {"answer": json.loads(truth)})
        assert score.value == json.loads(value) and (score.outcome is None) == (value == "null") and score.reason, said


def test_overlong_is_daposs_ramp_over_the_tokens_of_a_completion():
    (reward,) = build_rewards(["soft_overlong_punishment"], {"max_completion_length": 100, "soft_punish_cache": 20})
    scores = [reward.grade("x" * 1000, {"completion_ids": [1] * n}) for n in (1, 80, 81, 90, 100, 120)]
    assert [score.value for score in scores] == pytest.approx([0, 0, -0.05, -0.5, -1, -1])
    assert scores[3].reason == "90 of 100 tokens"


GRADED_BOXES = rows(r"""
    \boxed{4} | "4" | 1 ¦ \boxed{5} | "4" | -1 ¦ 4 | "4" | -0.5 ¦ \boxed{4} | null | null ¦ \boxed{0} | 0 | 1
    \boxed{b} | ["a", "b"] | 1 ¦ \boxed{c} | ["?", "b"] | -1 ¦ \boxed{c} | ["?", "!"] | null
    <think>\boxed{5}</think> It is 7. | "5" | -0.5 ¦ <think>\boxed{7}</think> It is \boxed{5}. | "5" | 1
    <think>It is \boxed{5} | "5" | -0.5 ¦ \boxed{7 \text{ eggs in all}} | "7" | 1
    \boxed{7 \text{ doubtful}} | "7" | -1
    """)


def test_math_reward_has_three_values_and_a_reason():
    (reward,) = build_rewards(
        ["math"], {"math_reward_correct": 1, "math_reward_wrong": -1, "math_reward_no_answer": -0.5}
    )
    for text, *numbers in GRADED_BOXES:
        truths, value = map(json.loads, numbers)  # a truth that holds nothing decides nothing beside others
        score = reward.grade(text, {"answer": truths, "question": "How many eggs?"})
        outcome = value and ("correct" if value > 0 else "wrong")
        assert (score.value, score.outcome) == (value, outcome) and score.reason
    assert reward.grade(r"\boxed{c}", {"answer": ["a", "b"]}).reason == "c is not a"
    assert reward.grade(r"\boxed{5}", {"answer": "5"} | OPENED).reason.endswith("completion, after its thoughts")


def test_a_group_is_unscorable_where_the_only_rewards_that_apply_weigh_nothing():
    def declines(prompts, completions, **columns):
        return [None] * len(completions)

    followed = Reward("followed", grade=lambda text, row: Score(1.0))
    for weights, value in (([0, 1], None), ([2, 1], 2.0)):
        group = _group("a", "b")
        grade_groups([followed, Reward("paid", function=declines)], group, weights=weights)
        assert rewards_of(group) == [[value, value]]


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_services_and_columns_that_each_reward_needs(name):
    """A judge where an answer is graded in words; the knowledge base, and what asks it, where facts are checked.

    check_columns of grpo/data/questions.py refuses data without the columns before the first step.
    """
    has_facts = name in ("factuality", "binary_rar") or name.startswith("knowrl")
    of_form = ("format", "tag_count", "tool_cost", "soft_overlong_punishment")
    has_answers = name not in (*of_form, "factuality", "binary_rar")
    has_judge = has_answers and name not in ("exact", "math", "choice")
    assert services_of([name]) == ["judge"] * has_judge + ["knowledge base", "decomposer", "verifier"] * has_facts
    assert BUILT_IN[name].needs == ("answer",) * has_answers + ("title",) * has_facts


def _group(*texts):
    return make_answers({"answer": "x"}, *texts)


def rewards_of(*groups):
    return [of_each(group, "reward") for group in groups]


def test_rewards_go_to_the_completion_of_their_index_in_whatever_order_they_arrive():
    """Submitted as 2, 0, 1, with a second group in between; every kind of reward sees and grades its own completion, as
    soon as it is there."""
    started = threading.Event()

    async def lengths(prompts, completions, **columns):
        return [float(len(completion)) for completion in completions]

    async def api(text, row):
        await asyncio.sleep(0.01 * (4 - len(text)))  # the longest is graded first
        return Score(10.0 * len(text))

    def plain(text, row):
        started.set()
        assert row["completion_ids"] == [len(text)] and row["prompt"] == f"p{row['k']}"
        return Score(100.0 * len(text), f"{text} of {row['k']}")

    texts = ("a", "bb", "ccc"), ("xxx", "y", "zz")
    groups = [make_answers({"k": number}, *several, prompt=f"p{number}") for number, several in enumerate(texts)]
    scorer = Scorer([Reward("all", function=lengths), Reward("api", grade=api), Reward("one", grade=plain)])
    made = [list(group.completions) for group in groups]
    for group in groups:
        group.completions[:] = [None] * 3
    for number, index in ((0, 2), (1, 1), (0, 0), (1, 2), (0, 1), (1, 0)):
        groups[number].completions[index] = made[number][index]
        scorer.submit(groups[number], index)
        assert started.wait(PATIENCE_S)
    scorer.collect(*groups[::-1])
    assert rewards_of(*groups) == [[111.0, 222.0, 333.0], [333.0, 111.0, 222.0]] and not scorer.under_way
    groups[0].completions[0].reward = 7.0
    scorer.collect(groups[0])  # a second time: nothing to wait for
    assert rewards_of(groups[0]) == [[7.0, 222.0, 333.0]]
    scorer.close()
    assert [scores["one"].reason for scores in of_each(groups[1], "scores")] == ["xxx of 1", "y of 1", "zz of 1"]
    assert all(list(scores) == ["all", "api", "one"] for scores in of_each(groups[0], "scores"))


@pytest.mark.parametrize("kind", ["grade", "function"])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_what_is_under_way_when_a_run_fails_is_cancelled(kind, caplog):
    """Else Python tells of tasks that were destroyed, and of coroutines that nobody awaited."""

    async def waits(*given, **columns):
        await asyncio.sleep(3600)

    async def busy():
        time.sleep(0.1)  # until all others are asked for, and none has begun

    scorer = Scorer([Reward("r", **{kind: waits})])
    groups = [_group("a", "b") for _ in range(20)]
    owners = [owner for owner in (scorer, scorer.own) if owner]
    for owner in owners:
        owner.loop.run(busy())
    for group in groups:
        for index in range(2):
            scorer.submit(group, index)
    scorer.close()
    loops = [owner.loop.loop for owner in owners]
    assert loops and until(lambda: all(loop.is_closed() for loop in loops))
    del groups, group, scorer
    gc.collect()
    assert not caplog.text


def test_grades_that_wait_for_a_thread_when_a_run_fails_are_given_up():
    go, seen = threading.Event(), []

    def grade(text, row):
        seen.append(text)
        assert go.wait(PATIENCE_S)
        return Score(1.0)

    scorer, group = Scorer([Reward("r", grade=grade)]), _group(*"abcdefgh")
    for index in range(8):
        scorer.submit(group, index)
    assert until(lambda: len(seen) == NUM_THREADS)
    scorer.close()
    go.set()
    scorer.pool.shutdown(wait=True)
    assert sorted(seen) == list("abcd")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_built_in_reward_that_fails_on_a_completion_cannot_score_it(kind, caplog):
    """The run goes on, and one line says so. A UserError, as of a service that is down, still ends it."""

    def plain(text, row):
        return Score(1 / len(text))

    async def later(text, row):
        return plain(text, row)

    group = _group("", "a", "")
    grade_groups([Reward("r", grade=plain if kind == "plain" else later)], group)
    assert rewards_of(group) == [[None, 1.0, None]] and len(caplog.messages) == 1
    assert "ZeroDivisionError" in group.completions[0].scores["r"].reason and "r/unscored_frac" in caplog.text


WEIGHTED = rows("""
    0.5 | [2, -4] | 0.0 ¦ 0.5 | [0, 1] | 0.5 ¦ 0.5 | null | 1.5 ¦ null | [2, 1] | null ¦ null | [2, 0] | 2
    """)  # the second score beside a first of 1, the weights, the reward


def test_weights_belong_to_rewards_by_their_order_and_are_1_unless_given():
    """None in one part makes the sum None, unless its weight is 0. Scores are not weighted."""
    for case in WEIGHTED:
        score, weights, value = map(json.loads, case)
        rewards = [Reward("a", lambda text, row: Score(1.0)), Reward("b", lambda text, row, score=score: Score(score))]
        group = _group("a")
        grade_groups(rewards, group, weights=weights)
        assert rewards_of(group) == [[value]] and group.completions[0].scores["b"].value == score


def test_the_scorer_looks_after_what_rewards_use():
    calls = []

    class Service(Resource):
        def prepare(self, rows, say):
            calls.append((rows, say))

        def counts(self):
            return {"service/calls": (2, 0), "service/useful_frac": (1, 4)}

        def close(self):
            calls.append("closed")

    other = {"service/calls": (1, 0), "service/useful_frac": (1, 1)}
    rewards = [Reward("plain", format.grade), Reward("full", format.grade, resources=(Resource(), Service()))]
    scorer = Scorer(rewards)
    scorer.prepare([{"a": 1}], print)
    assert calls == [([{"a": 1}], print)]
    assert scorer.take_metrics() == {"service/calls": 2, "service/useful_frac": 1 / 4}
    two = together([Service().counts(), other, {"service/idle_frac": (0, 0)}])
    assert two == {"service/calls": 3, "service/useful_frac": 2 / 5, "service/idle_frac": 0}
    scorer.close()
    assert calls[1:] == ["closed"]


def test_the_order_of_names_is_the_order_of_rewards_and_knowrl_brings_format_along():
    assert [reward.name for reward in build_rewards(["exact", "format"], {})] == ["exact", "format"]
    assert expand(["exact", "knowrl_v2"]) == ["exact", "format", "knowrl_v2"]
    assert expand(["knowrl", "format"]) == ["knowrl", "format"] and expand(["format", "knowrl"]) == ["format", "knowrl"]
    assert expand(["knowrl", "knowrl_v2"]) == ["format", "knowrl", "knowrl_v2"]
