"""The rewards that benchmarks bring: the chosen letter, SimpleQA's three grades, questions without an answer."""

import asyncio

import pytest
from asking import SetJudge
from cells import cells

from rewards import choice
from rewards.format import final_text
from rewards.outcome.correctness import grader, judge_by_guide, judge_by_rules
from rewards.outcome.judge import KNOWN_WRONG, build_messages
from rewards.registry import build_rewards

ROW = {"question": "Who wrote it?", "answer": "Ada Moor"}


LETTERS = {  # None: an article, another word, or an end within the thoughts
    "B": cells(
        r"""
        B ¦ B) Paris ¦ B. Paris ¦ **B** ¦ Answer: B ¦ A looks right. But no.\nAnswer: B ¦ The answer is (B).
        the correct answer is **B** ¦ Answer: $B$ ¦ so \boxed{B} ¦ so \boxed{\text{B}}
        Answer: A ... no, \boxed{(B) Paris} ¦ <think>Answer: A</think><answer>B</answer>
        <think>Answer: A</think>\nAnswer: B ¦ First answer: A. Final answer: B ¦ 答案：B ¦ 答案是 B ¦ Option B
        <think>\boxed{A}</think>Answer: B ¦ b ¦ (b) ¦ option b ¦ the answer is b ¦ Ｂ ¦ （Ｂ） ¦ B: Paris ¦ B Paris
        Not A. B ¦ not A, B ¦ A is wrong. B ¦ A isn't right. B ¦ B, not A ¦ It is B, not A ¦ A? No, B. ¦ maybe B ¦ So B.
        It is A. No, not A. B.
        B is correct ¦ B is the right option. ¦ I think it is B ¦ The answer is B because A is a river
        Answer: B. A would be Rome. ¦ Answer: B. Option A names Rome. ¦ \boxed{\mathbf{B}} ¦ Final answer: option B
        故选B ¦ 答：B ¦ 综上，故选：B。 ¦ Answer: B. Both A and C ¦ (B) A, C and D ¦ (B) All of A and C
        Answer: B\n\nA: It is hot. B: It is cold. C: It is wet. ¦ B\nA) would be x. B) is y. C) has z. D) has no z.
        选B ¦ 应该选B ¦ 不是A，是B ¦ 排除A，选B ¦ 我选择B ¦ B选项正确 ¦ 答案是B，不是A
        """,
        " (B)",
    ),
    "A": ["a", "option a"],
    "J": ["J", r"so \boxed{J}"],
    "F": ["Answer: F"],
    None: cells(
        r"""
        A dog ¦ The answer is a dog ¦ Answer: Beijing ¦ I do not know ¦ K ¦ <think>Answer: A ¦ Not A ¦ A is wrong ¦ ABCD
        A, B, C, D ¦ A/B ¦ A B C D ¦ A-D ¦ A to D ¦ (A)(B) ¦ A) B) C) ¦ - A\n- B ¦ A; B ¦ A|B ¦ A+B ¦ a, b, c
        \boxed{A, B} ¦ A or B ¦ either A or C ¦ Both A & D ¦ A (or B) ¦ Answer: A, B, C, D ¦ A, maybe B
        The answers are A and B ¦ A? I don't know ¦ A. I don't know ¦ A, but I'm not sure ¦ The answer is A. No wait, B
        A. Actually B is right
        A... or rather B ¦ A, but it could be B ¦ Answer: A. Alternatively, B ¦ It is A? B? ¦ the answer is a or b
        A+ ¦ A- ¦ \boxed{A+} ¦ The grade is A- ¦ Answer: A and B ¦ A) hot\nB) cold\nC) wet ¦ 不应选A
        A 或 B ¦ A和B ¦ A、B、C ¦ 选A或者B ¦ A还是B ¦ 可能是A，也可能是B ¦ 答案是A。不对，应该是B ¦ 我不知道，A
        """,
        "",
    ),
}


def test_the_letter_that_is_chosen():
    for letter, completions in LETTERS.items():
        assert not [completion for completion in completions if choice.chosen_letter(completion) != letter]


@pytest.mark.parametrize("piece", ["A ", "A, ", "answer ", "not ", "I ", "B) ", "选", "a", "A or ", " ", "A?", "A/"])
def test_the_letter_is_found_in_linear_time(piece, linear_time):
    choice.chosen_letter(piece * (100_000 // len(piece)))


def test_the_value_of_a_letter():
    right, wrong = (choice.grade(f"Answer: {letter}", {"answer": "B"}) for letter in "BC")
    assert (right.value, right.outcome, wrong.value, wrong.outcome) == (1.0, "correct", 0.0, "wrong")
    assert right.reason.endswith("is right") and wrong.reason.endswith("is wrong")
    assert [choice.grade(text, {"answer": "B"}).outcome for text in ("I don't know.", "Paris")] == ["refused", "wrong"]
    assert choice.grade("B", {}).value is None
    assert [choice.grade(text, {"answer": [" B\n", "D"]}).value for text in "ABCD"] == [0.0, 1.0, 0.0, 1.0]


def test_what_a_completion_says_in_the_end():
    for completion in ("<think>a</think><answer> b </answer>", "<think>a</think> b ", "a</think>b", "b"):
        assert final_text(completion) == "b"
    assert final_text("<think>a") == "" and final_text("<answer>b") == "<answer>b"


def graded(monkeypatch, outcome, completion, row=ROW):
    judge = SetJudge(outcome)
    monkeypatch.setattr("rewards.outcome.correctness.build_judge", lambda options: judge)
    (reward,) = build_rewards(["simpleqa"], {"judge": "api"})
    return asyncio.run(reward.grade(completion, row)), judge


@pytest.mark.parametrize(
    ("outcome", "value"), [("correct", 1.0), ("wrong", 0.0), ("refused", 0.0), (None, None)], ids=str
)
def test_simple_qas_three_grades(monkeypatch, outcome, value):
    score, judge = graded(monkeypatch, outcome, "<think>hm</think>It was Ada Moor.")
    assert (score.value, score.outcome, score.asked) == (value, outcome, {"judge": outcome is not None})
    assert judge.asked == [("Who wrote it?", "It was Ada Moor.", ["Ada Moor"], [])]


def test_simple_qa_asks_for_no_format(monkeypatch):
    for completion in ("Ada Moor", "<answer>Ada Moor</answer>", "<think>x</think><answer>Ada Moor</answer> y"):
        assert graded(monkeypatch, "correct", completion)[1].asked[0][1] == "Ada Moor"
    score, judge = graded(monkeypatch, "correct", "<think>It may be")
    assert (score.value, score.outcome, judge.asked) == (0.0, "refused", [])
    assert graded(monkeypatch, "correct", "Ada", {"question": "q?"})[0].value is None


def test_known_wrong_answers_reach_the_judge(monkeypatch):
    row = ROW | {"answer": ["Ada Moor", "A. Moor"], "incorrect_answers": ["Ben Hale"]}
    _, judge = graded(monkeypatch, "wrong", "Ben Hale", row)
    assert judge.asked == [("Who wrote it?", "Ben Hale", ["Ada Moor", "A. Moor"], ["Ben Hale"])]
    text = build_messages("q", "x", ["one", "two"], "n", ["w", "</known_wrong n>"])[1]["content"]
    assert [line for line in text.split("\n") if line.startswith('"')][:4] == ['"q"', '"one"', '"two"', '"w"']
    assert text.count("</known_wrong n>") == 2 and KNOWN_WRONG in text
    assert KNOWN_WRONG not in build_messages("q", "x", ["r"], "n")[1]["content"]


@pytest.mark.parametrize("flag", [True, 1.0, "True", "1", "yes"])
@pytest.mark.parametrize("answer", [None, "It is unknown."])
def test_to_decline_is_right_where_there_is_no_answer(monkeypatch, flag, answer):
    row = {"question": "What will she say tomorrow?", "answer": answer, "unanswerable": flag}
    for outcome, expected in (("refused", "correct"), ("correct", "correct"), ("wrong", "wrong")):
        score, judge = graded(monkeypatch, outcome, "Nobody can know that.", row)
        assert (score.outcome, score.value) == (expected, float(expected == "correct")) and len(judge.asked) == 1
    for rules in (judge_by_rules, judge_by_guide, None):
        score = asyncio.run(grader(SetJudge("refused"), rules=rules)("<think>hm</think><answer>No idea</answer>", row))
        assert (score.value, score.outcome) == (2.0, "correct")


@pytest.mark.parametrize("flag", [False, "0", None])
def test_to_decline_is_declined_where_there_is_one(monkeypatch, flag):
    score, _ = graded(monkeypatch, "refused", "I don't know", ROW | {"unanswerable": flag})
    assert (score.value, score.outcome) == (0.0, "refused")
