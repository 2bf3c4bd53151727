"""The correctness rewards: the truth table of this project's rules and of KnowRL's, and the original's bugs."""

import asyncio
import json

import pytest
from asking import SetJudge
from cells import cells, rows
from making import real_data

from grpo.algorithm.schema import Score
from rewards.format import parse
from rewards.outcome.correctness import grader
from rewards.outcome.judge import OfflineJudge
from rewards.outcome.refusal import lists_alternatives, num_candidates

ROW = {
    "question": "What is the capital of France?",
    "answer": "Paris",
    "title": "France",
    "prompt": "<system>rules</system><user>What is ...?",
}

knowrl = grader


def knowrl_v2(judge):
    return grader(judge, rules=None)


def block(answer):
    return f"<think>Let me see.</think>\n<answer>{answer}</answer>"


def grade(make, outcome, completion, row=ROW):
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
TABLE = rows(r"""
    The city of Paris | Paris | correct | CC ¦ Paris, Texas | Paris | wrong | WW ¦ Paris hm | Paris | refused | RR
    Paris | Paris | | ?? ¦ I don't know | Paris | refused | Rr ¦ I can't help falling in love | Love | wrong | WW
    London | Paris | correct | CC ¦ \n | Paris | correct | ww ¦ … | Paris | correct | Cw ¦ : | 4 | correct | Cw
    Paris or London | Paris | correct | Cw ¦ Trick or Treat | Trick or Treat | correct | CC ¦ ∞ | ∞ | correct | CC
    Unknown | Unknown | correct | CC ¦ € | ¥ | correct | Cw
    """)  # answer, truth, what the judge says; the code of the score under v2 and the default


@pytest.mark.parametrize("answer, truth, outcome, wanted", TABLE)
def test_truth_table(answer, truth, outcome, wanted):
    for make, code in zip((knowrl_v2, knowrl), wanted, strict=True):
        score, asked = grade(make, outcome or None, block(answer), ROW | {"answer": truth})
        assert (score.value, score.outcome, bool(asked)) == CODES[code] and score.reason


NO_TEXT = [*cells("… ¦ : ¦ ?! ¦ 。 ¦ — ¦ *"), "\n\n", "\u200b", "\u3164\u2800", "\u0301"]


def test_an_answer_without_a_letter_or_digit_earns_nothing_even_from_a_generous_judge():
    for answer in NO_TEXT:
        score, asked = grade(knowrl, "correct", block(answer))
        assert (score.value, asked) == (-1.0, 0), answer


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


@pytest.mark.parametrize(
    ("make", "completion"),
    [(knowrl_v2, block("Paris")), (knowrl, block("Paris")), (knowrl_v2, "<answer> Paris </answer><answer>x</answer>")],
)
def test_the_judge_sees_the_first_answer_block_and_the_rows_question_but_not_the_rendered_prompt(make, completion):
    """The original misspells a parameter, and shows the judge the whole templated prompt."""
    judge = SetJudge("correct")
    asyncio.run(make(judge)(completion, ROW | {"answer": ["Paris", "City of Light"]}))
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
NONE_LISTED = cells(
    "Paris ¦ AC/DC ¦ 120 km/h ¦ 1/2/2003 ¦ Oregon ¦ March 13, 2018 ¦ Simon & Garfunkel ¦ - Paris ¦ n/a ¦ 他还是总统"
)


def test_an_answer_that_lists_alternatives():
    for answer in ALTERNATIVES:
        assert lists_alternatives(answer, ["Paris"]) and not lists_alternatives(answer, ["Paris", answer])
    assert not any(lists_alternatives(answer, ["something"]) for answer in NONE_LISTED)


CANDIDATES = rows("""
    Which of Paris, Rome and Berlin is the largest? | Paris, Rome and Berlin | Berlin | 3
    Which of Paris, Rome and Berlin is the largest? | Berlin; and Paris | Berlin | 2
    Which of Paris, Rome and Berlin is the largest? | Berlin Paris | Berlin | 2
    Who came first, Bob or Alice? | Bob, Alice | Alice | 2 ¦ Who came first, Bob or Alice? | Both Alice & Bob. | Bob | 2
    Who came first, Tom Hanks or Brad Pitt? | Tom Hanks Brad Pitt | Tom Hanks | 2
    Is it the red, the green, or the blue one? | the green the red | green | 2
    甲还是乙先到？ | 甲乙 | 甲 | 2 ¦ 甲、乙和丙中谁先到？ | 甲，丙 | 甲 | 2 ¦ 甲还是乙先到？ | 乙先 | 乙 | 1
    Which of Paris, Rome and Berlin is the largest? | Berlin | Berlin | 1
    Who came first, Tom Hanks or Brad Pitt? | Tom Hanks | Tom Hanks | 1
    Who came first, Bob or Alice? | Bob, before Alice | Bob | 0
    Which is larger, the Pacific Ocean or the Atlantic Ocean? | The Pacific Ocean is larger | Pacific Ocean | 0
    Is Paris or Rome the capital of France? | Paris, the capital of France | Paris | 0
    What is the capital of France? | Paris, France | Paris | 0
    """)


@pytest.mark.parametrize("question, answer, truth, number", CANDIDATES)
def test_an_answer_that_lists_candidates_of_the_question_earns_nothing(question, answer, truth, number):
    """Even from a generous judge."""
    assert num_candidates(question, answer) == int(number)
    score, asked = grade(knowrl, "correct", block(answer), {"question": question, "answer": truth})
    assert (score.value, asked) == ((-1.0, 0) if int(number) > 1 else (2.0, 1))


def test_as_many_candidates_as_a_truth_has_are_left_to_the_judge():
    row = {"question": "Which two of Paris, Rome and Berlin lie on a river?", "answer": "Rome and Paris"}
    assert grade(knowrl, "correct", block("Paris, Rome"), row)[0].value == 2
    assert grade(knowrl, "correct", block("Paris, Berlin, Rome"), row)[0].value == -1


def test_an_alternative_has_twelve_words_at_most():
    twelve = "the town in the north where the old court sat last year"
    assert lists_alternatives(f"{twelve} or Paris", ["Paris"]) == "or"
    assert lists_alternatives(f"{twelve} again or Paris", ["Paris"]) == ""


@pytest.mark.parametrize("piece", ["a ", "1,", ", ", "Paris ", "or ", "-\n", "'", "1,234"])
def test_the_rules_take_linear_time(piece, linear_time):
    for answer in (piece * 100_000, piece * (1000 // len(piece))):
        asyncio.run(knowrl(OfflineJudge())(block(answer), ROW))


def test_hardly_any_real_answer_lists_alternatives():
    """KnowRL's own 1,798 cold-start answers, 115 of which hold an "or", a semicolon, a slash or a list, nearly all in
    passing."""
    rows = json.loads(real_data("knowrl/knowrl_coldstart.json").read_text(encoding="utf-8"))
    answers = [answer for row in rows if (answer := parse(row["conversations"][-1]["value"]).answer)]
    assert len(answers) > 1700 and sum(bool(lists_alternatives(answer, [])) for answer in answers) < len(answers) / 200
