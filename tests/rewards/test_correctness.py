"""The correctness rewards: the truth table of this project's rules and of KnowRL's, and the original's bugs."""

import asyncio
import json
import time
from collections.abc import Sequence

import pytest
from api_server import ApiServer, replies_with, says
from asking import SetJudge, at_any_pace, judge_of
from cells import cells
from making import make_answers, real_data

from grpo.base.schema import Score
from rewards.format import parse
from rewards.outcome.correctness import grader, lists_alternatives
from rewards.outcome.judge import ModelJudge, OfflineJudge
from rewards.registry import Reward
from rewards.scorer import Scorer

ROW = {
    "question": "What is the capital of France?",
    "answer": "Paris",
    "title": "France",
    "prompt": "<system>rules</system><user>What is ...?",
}

knowrl = grader


def knowrl_v2(judge):
    return grader(judge, is_strict=False)


def block(answer: str) -> str:
    return f"<think>Let me see.</think>\n<answer>{answer}</answer>"


def grade(make, outcome, completion: str, row=ROW) -> tuple[Score, int]:
    judge = SetJudge(outcome)
    return asyncio.run(make(judge)(completion, row)), len(judge.asked)


CODES = {  # value, outcome, was the judge asked
    "C": (2.0, "correct", True),
    "W": (-1.0, "wrong", True),
    "w": (-1.0, "wrong", False),
    "R": (1.0, "refused", True),
    "r": (1.0, "refused", False),
    "?": (None, None, True),
}
TABLE = [  # answer, truth, what the judge says; the code of the score under v2 and the default
    ("The city of Paris", "Paris", "correct", "CC"),
    ("Paris, Texas", "Paris", "wrong", "WW"),
    ("Paris hm", "Paris", "refused", "RR"),
    ("Paris", "Paris", None, "??"),
    ("I don't know", "Paris", "refused", "Rr"),
    ("I can't help falling in love", "Love", "wrong", "WW"),
    ("London", "Paris", "correct", "CC"),
    (" \n", "Paris", "correct", "ww"),
    ("…", "Paris", "correct", "Cw"),
    (":", "4", "correct", "Cw"),
    ("Paris or London", "Paris", "correct", "Cw"),
    ("Trick or Treat", "Trick or Treat", "correct", "CC"),
    ("Unknown", "Unknown", "correct", "CC"),
]


@pytest.mark.parametrize(("answer", "truth", "outcome", "wanted"), TABLE)
def test_truth_table(answer, truth, outcome, wanted):
    for make, code in zip((knowrl_v2, knowrl), wanted, strict=True):
        score, asked = grade(make, outcome, block(answer), ROW | {"answer": truth})
        assert (score.value, score.outcome, bool(asked)) == CODES[code] and score.reason


NO_TEXT = [*cells("… ¦ : ¦ ?! ¦ 。 ¦ — ¦ *"), "\n\n", "\u200b", "\u3164\u2800", "\u0301"]


@pytest.mark.parametrize("answer", NO_TEXT)
def test_an_answer_without_a_letter_or_digit_earns_nothing_even_from_a_generous_judge(answer):
    score, asked = grade(knowrl, "correct", block(answer))
    assert (score.value, asked) == (-1.0, 0)


@pytest.mark.parametrize("make", [knowrl_v2, knowrl])
@pytest.mark.parametrize(
    "completion", ["Paris", "", "<answer></answer>", "<answer> \n </answer>", "<answer>Paris", "</answer>Paris<answer>"]
)
def test_without_an_answer_it_is_wrong_and_the_judge_is_not_asked(make, completion):
    score, asked = grade(make, "correct", completion)
    assert (score.value, score.outcome, asked) == (-1.0, "wrong", 0)


SHAPES = cells("""
    <answer>Paris</answer><answer>London</answer> ¦ <think>a</think><think>b</think><answer>Paris</answer>
    <answer>Paris</answer></answer> ¦ <answer>Paris</answer><think>a</think> ¦ <think>a<answer>Paris</think></answer>
    <think><think>a</think><answer>Paris</answer> ¦ <think>a</think></think><answer>Paris</answer>
    """)


@pytest.mark.parametrize("completion", SHAPES)
def test_tags_that_are_not_one_pair_of_each_get_no_credit_in_the_default_alone(completion):
    assert grade(knowrl, "correct", completion) == (
        Score(-1.0, "not exactly one think block and one answer block", "wrong"),
        0,
    )
    assert grade(knowrl_v2, "correct", completion)[0].value == 2


def test_the_first_answer_block_counts():
    judge = SetJudge("correct")
    asyncio.run(knowrl_v2(judge)("<answer> Paris </answer><answer>London</answer>", ROW))
    assert judge.asked[0][1] == "Paris"


@pytest.mark.parametrize("make", [knowrl_v2, knowrl])
def test_the_judge_sees_the_rows_question_and_not_the_rendered_prompt(make):
    """The original misspells a parameter, and shows the judge the whole templated prompt."""
    judge = SetJudge("correct")
    asyncio.run(make(judge)(block("Paris"), ROW | {"answer": ["Paris", "City of Light"]}))
    assert judge.asked == [("What is the capital of France?", "Paris", ["Paris", "City of Light"], [])]


@pytest.mark.parametrize("make", [knowrl_v2, knowrl])
def test_a_row_without_question_or_answer_is_unscorable(make):
    for row in (ROW | {"question": " "}, ROW | {"answer": None}, ROW | {"answer": []}, {}):
        score, asked = grade(make, "correct", block("Paris"), row)
        assert score.value is None and score.outcome is None and not asked


ALTERNATIVES = cells(
    r"""
    Paris or London ¦ Either Paris or London ¦ Paris / London ¦ Paris/London ¦ Paris; London ¦ Paris | London
    1. Paris\n2. London ¦ 1. Paris 2. London ¦ 1) Paris 2) London ¦ - Paris\n- London ¦ 北京或者上海
    Paris / London / Rome ¦ I believe that the capital is Paris, or else it may well be London ¦ Paris或者London
    """,
    " or ".join(["Paris", "London", "Rome"] * 20),
)
NONE_LISTED = cells("Paris ¦ AC/DC ¦ 120 km/h ¦ 1/2/2003 ¦ Oregon ¦ March 13, 2018 ¦ Simon & Garfunkel ¦ - Paris ¦ n/a")


def test_an_answer_that_lists_alternatives():
    for answer in ALTERNATIVES:
        assert lists_alternatives(answer, ["Paris"]) and not lists_alternatives(answer, ["Paris", answer])
    assert not any(lists_alternatives(answer, ["something"]) for answer in NONE_LISTED)


def test_an_alternative_has_twelve_words_at_most():
    twelve = "the town in the north where the old court sat last year"
    assert lists_alternatives(f"{twelve} or Paris", ["Paris"]) == "or"
    assert lists_alternatives(f"{twelve} again or Paris", ["Paris"]) == ""


def test_hardly_any_real_answer_lists_alternatives():
    """KnowRL's own 1,798 cold-start answers, 115 of which hold an "or", a semicolon, a slash or a list, nearly all in
    passing."""
    rows = json.loads(real_data("knowrl/knowrl_coldstart.json").read_text(encoding="utf-8"))
    answers = [answer for row in rows if (answer := parse(row["conversations"][-1]["value"]).answer)]
    assert len(answers) > 1700 and sum(bool(lists_alternatives(answer, [])) for answer in answers) < len(answers) / 200


# --- offline -------------------------------------------------------------------------------------------------------


def test_offline_the_presets_pay_the_same_values():
    for answer, wanted in (("Paris", 2.0), ("London", -1.0), ("I don't know", 1.0)):
        assert asyncio.run(knowrl(OfflineJudge())(block(answer), ROW)).value == wanted
        assert asyncio.run(knowrl_v2(OfflineJudge())(block(answer), ROW)).value == wanted


@pytest.mark.parametrize("piece", ["a ", "1,", ", ", "Paris ", "or ", "-\n", "'", "1,234"])
def test_the_rules_take_linear_time(piece):
    start = time.process_time()
    for answer in (piece * 100_000, piece * (1000 // len(piece))):
        asyncio.run(knowrl(OfflineJudge())(block(answer), ROW))
    assert time.process_time() - start < 10


# --- with a real client --------------------------------------------------------------------------------------------


def run_in_scorer(judge: ModelJudge, make, completions: Sequence[str]) -> list[Score]:
    """As in training: each completion is handed to the scorer, whose event loop lives in a daemon thread."""
    scorer = Scorer([Reward("correctness", make(judge), slow=True)])
    group = make_answers(ROW, *completions, prompt="the rendered prompt")
    try:
        scorer.grade([group])
    finally:
        judge.close()
        scorer.close()
    return [completion.scores["correctness"] for completion in group.completions]


def test_grades_belong_to_their_completions_where_the_original_took_them_as_they_came():
    def verdict(request) -> str:
        return "ABC"[int(json.loads(request.text.split("\n")[-4]).split()[-1]) % 3]

    slow_first = [replies_with(verdict, after_s=0.02 * (12 - i)) for i in range(12)]
    with ApiServer(*slow_first) as server:
        scores = run_in_scorer(judge_of(server), knowrl_v2, [block(f"Paris {i}") for i in range(12)])
        assert [score.value for score in scores] == [2.0, -1.0, 1.0] * 4


@at_any_pace
def test_judge_calls_run_together_where_the_original_made_one_after_the_other(pace):
    with ApiServer(default=says("A", after_s=0.3 * pace)) as server:
        start = time.perf_counter()
        run_in_scorer(judge_of(server), knowrl_v2, [block(f"Paris {i}") for i in range(24)])
        assert time.perf_counter() - start < 24 * 0.3 * pace / 4
