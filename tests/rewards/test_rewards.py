"""Format, exact match, the length penalty, the registry and the scorer."""

import asyncio
import threading
import time

import pytest

from grpo.errors import UserError
from grpo.schema import Completion, Group, Prompt, Score
from rewards import exact, format, overlong
from rewards.registry import Reward, build_rewards
from rewards.scorer import Scorer, combine

GOOD = "<think>a</think><answer>b</answer>"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "a</think><answer>b</answer>",
        "<think>\na\n</think>\n\n<answer>\nb\n</answer>\n",
        "\n<think>a</think> <answer>b</answer>",
    ],
)
def test_format_is_right(text):
    assert format.grade(text, {}).value == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b",
        "<answer>b</answer>",
        "<think>a</think>",
        "<think></think><answer>b</answer>",
        "<think> \n</think><answer>b</answer>",
        "<think>a</think><answer> </answer>",
        GOOD + "x",
        GOOD + "\n\n",
        "x" + GOOD,
        "<think>a</think>x<answer>b</answer>",
        GOOD * 2,
        "<think><think>a</think><answer>b</answer>",
        "<think>a</think></think><answer>b</answer>",
        "<think>a</think><answer>b</answer> junk </answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a<answer>b</think></answer>",
        GOOD.upper(),
        "<think>a</think><answer>b",
        "<Think>a</Think><answer>b</answer>",
    ],
)
def test_format_is_wrong(text):
    score = format.grade(text, {})
    assert score.value == -1.0 and score.reason


def test_format_is_linear_in_white_space():
    """The regular expression of the original takes minutes here."""
    started = time.perf_counter()
    format.grade("<think>a</think>" + " \n" * 500_000 + "<answer>" + " " * 500_000, {})
    format.grade("<think>" * 100_000, {})
    assert time.perf_counter() - started < 1


def test_parse_finds_blocks_even_in_a_bad_format():
    parsed = format.parse("hello <think> a </think> x <answer> b </answer><answer>c</answer>")
    assert (parsed.think, parsed.answer) == ("a", "b") and parsed.problem
    assert format.parse("nothing").answer is None


@pytest.mark.parametrize(
    ("said", "truth", "value"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1),
        ("eiffel", "Eiffel Tower", 0),
        ("<think>x</think><answer>Paris</answer>", ["London", "Paris"], 1),
        ("４２", "42", 1),
        ("", "x", 0),
        ("the", "a", 0),
        ("北京。", "北京", 1),
        ("3", "so it is\n#### 3", 1),
        ("x", None, None),
        ("x", "", None),
        ("x", [], None),
        ("0", 0, 1),
    ],
)
def test_exact(said, truth, value):
    score = exact.grade(said, {"answer": truth})
    assert score.value == value and (score.outcome is None) == (value is None) and score.reason


def test_overlong_is_daposs_ramp():
    assert [overlong.grade(n, 100, 20).value for n in (1, 80, 81, 90, 100, 120)] == pytest.approx(
        [0, 0, -0.05, -0.5, -1, -1]
    )


def test_math_reward_has_three_values_and_a_reason():
    (reward,) = build_rewards(
        ["math"], {"math_reward_correct": 1, "math_reward_wrong": -1, "math_reward_no_answer": -0.5}
    )
    for text, answer, value, outcome in (
        (r"\boxed{4}", "4", 1, "correct"),
        (r"\boxed{5}", "4", -1, "wrong"),
        ("4", "4", -0.5, "wrong"),
        (r"\boxed{4}", None, None, None),
        (r"\boxed{0}", 0, 1, "correct"),
        (r"\boxed{b}", ["a", "b"], 1, "correct"),
    ):
        score = reward.grade(text, {"answer": answer})
        assert (score.value, score.outcome) == (value, outcome) and score.reason


def test_every_reward_has_trls_signature():
    """reward(prompts, completions, **columns) -> list of numbers or None."""
    options = {
        "math_reward_correct": 1,
        "math_reward_wrong": -1,
        "math_reward_no_answer": -0.5,
        "max_completion_length": 10,
        "soft_punish_cache": 5,
    }
    for reward in build_rewards(["format", "exact", "math", "soft_overlong_punishment"], options):
        values = reward(["p", "p"], [r"\boxed{4}", GOOD], answer=["4", "b"], completion_ids=[[1] * 8, [1]])
        assert len(values) == 2 and all(isinstance(v, float | int) for v in values)


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="unknown reward nope"):
        build_rewards(["nope"], {})


def test_none_in_one_part_makes_the_sum_none():
    rewards = [Reward("a"), Reward("b")]
    assert combine({"a": Score(1.0), "b": Score(0.5)}, rewards, [2, 4]) == 4.0
    assert combine({"a": Score(1.0), "b": Score(None, "judge unreachable")}, rewards, [2, 0]) is None


def _group(*texts):
    return Group(Prompt(0, "p", (1,), {"answer": "x"}), [Completion([1], [0.0], [0.0], "stop", text) for text in texts])


def test_scorer_grades_one_by_one_groups_and_coroutines():
    async def slow(text, row):
        await asyncio.sleep(0.2)
        return Score(float(len(text)))

    def whole(prompts, completions, answer, **columns):
        assert prompts == ["p"] * 3 and answer == ["x"] * 3 and len(columns["completion_ids"]) == 3
        return [float(i) for i in range(len(completions))]

    scorer = Scorer(
        [
            Reward("one", grade=lambda text, row: Score(1.0, row["answer"])),
            Reward("all", function=whole),
            Reward("api", grade=slow, slow=True),
        ],
        [1, 10, 100],
    )
    groups, started = [_group("a", "bb", "ccc") for _ in range(20)], time.perf_counter()
    scorer.grade(groups)
    assert time.perf_counter() - started < 1.0  # 60 calls of 0.2 s, all at once
    assert all(group.rewards == [101.0, 211.0, 321.0] for group in groups) and scorer.slow
    assert groups[0].scores[0]["one"].reason == "x"
    scorer.close()


def test_scorer_starts_when_a_completion_is_submitted():
    started = threading.Event()

    def grade(text, row):
        started.set()
        return Score(1.0)

    scorer = Scorer([Reward("r", grade=grade)])
    group = _group("a", "b")
    scorer.begin()
    scorer.submit(0, 0, 2, "p", group.completions[0], {})
    assert started.wait(5)  # before the second completion exists
    scorer.submit(0, 1, 2, "p", group.completions[1], {})
    scorer.collect(0, group)
    assert group.rewards == [1.0, 1.0]
    scorer.close()
