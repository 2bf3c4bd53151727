"""A judge's reply is read as a grade in every usual dress, and as none if anything in it speaks against that."""

import pytest
from cells import cells

from rewards.outcome.grades import parse_grade

REPLIES = {
    "correct": cells(
        r"""
    A: both say USB. ¦ A: both name the BBC. ¦ I grade this answer as A. ¦ I would grade this as: A
    So: A
    Therefore, A. ¦ Conclusion: A ¦ <score>A</score>
    Both name Paris. So, A. ¦ Both name Paris.\nConclusion: A
    A ¦ a ¦ A. ¦ \nA\n ¦ a. ¦ CORRECT ¦ correct ¦ Correct.
    A.. ¦ A, ¦ A) ¦ (A) ¦ [A] ¦ **A** ¦ `A` ¦ 'A' ¦ "A" ¦ # A ¦ > A ¦ _A_ ¦ ✅ A ¦ A: CORRECT ¦ A (correct)
    A - CORRECT ¦ A\nCORRECT ¦ CORRECT (A) ¦ **A**: Correct. ¦ Ａ ¦ A（正确） ¦ A。 ¦ 正确 ¦ 正确。 ¦ 回答正确
    评分：A ¦ 等级为A ¦ 判断：正确 ¦ A：正确 ¦ Grade: A ¦ **Grade:** A ¦ **Grade**: A ¦ Final grade: **A**
    The grade is A. ¦ My verdict is: A ¦ Option A ¦ Grading: A ¦ The correct grade is A. ¦ The answer is correct.
    This is correct. ¦ The candidate's answer is CORRECT. ¦ Verdict - A ¦ Answer: A
    Therefore, the grade is: A ¦ Result: CORRECT ¦ ```\nA\n``` ¦ ```text\nA\n``` ¦ ```json\n{"grade": "A"}\n```
    <grade>A</grade> ¦ \boxed{A} ¦ $\boxed{\text{A}}$ ¦ {"grade": "A"} ¦ {"Verdict": "CORRECT"}
    {"grade": "A: CORRECT"} ¦ ["A"] ¦ {"评分": "A"}
    {"grade": "A" ¦ <think>B</think>A ¦ <think>\nB? No.\n</think>\n\nA
    It is B. No.\n</think>\nA ¦ A\n\nThe answer matches the reference. ¦ A: The answer matches.
    A\n\nIt is correct. ¦ 评判：正确 ¦ 判定结果：A ¦ 最终评分：A ¦ 对 ¦ A<|im_end|>
    Here is my grade:\n\nA ¦ A - the candidate matches ¦ 【A】 ¦ Judgement：A ¦ Grade:\nA
    {"grade": "A", "score": null} ¦ **Verdict**:\n\n**CORRECT** ¦ 正確 ¦ A<｜end▁of▁sentence｜>
    A：正确，与参考答案一致
    Grade: A\nReason: the reference says so, B would be unfair.
    The candidate says Paris, as the reference does.\nGrade: A
    A (the answer matches the reference) ¦ A, because it says Paris as the reference does.
    A because both say Paris. ¦ Correct. The candidate names Paris.
    Correct! The candidate's answer matches the reference. ¦ Correct - the candidate names Paris.
    The answer is correct because it matches the reference.
    The candidate's answer is correct. It names Paris.
    The candidate says Paris. The reference says Paris. These match. Therefore, the grade is A.
    Both name Paris.\n\n**Grade: A**
    Both name Paris.\n\nFinal verdict: **CORRECT** ¦ Both name Paris. The answer is correct. ¦ [[A]]
    Rating: [[A]] ¦ {A} ¦ <b>A</b> ¦ ## Grade: A ¦ - A ¦ <grade>A</grade><reason>The answer matches.</reason>
    <reason>The answer matches.</reason>\n<grade>A</grade> ¦ <answer>A</answer> ¦ <result>CORRECT</result>
    <verdict>\nA\n</verdict> ¦ {"grade": "A", "reason": "The answer matches the reference."}
    {"reasoning": "Both name Paris.", "grade": "A"} ¦ {"grade": "A", "correct": true} ¦ {"grade": "A", "score": 1}
    {"grade": "A", "confidence": 0.0} ¦ {"correct": true, "reason": "The answer matches."}
    {"answer": "Paris", "grade": "A"} ¦ {"answer": "A"} ¦ {"grade": ["A"]}
    Here is my grade:\n{"grade": "A"}
    ```json\n{\n  "grade": "A",\n  "explanation": "Both name Paris."\n}\n```
    Sure, here is the JSON:\n```json\n{"verdict": "CORRECT"}\n```
    <think>\nIs it B? The year is wrong... no, it is right.\n</think>\n\nA
    <think>B: INCORRECT</think>\n**A** (CORRECT) ¦ ◁think▷B?◁/think▷A
    <|channel|>analysis<|message|>B<|end|><|start|>assistant<|channel|>final<|message|>A ¦ A<|eot_id|> ¦ A</s>
    A\n\nExplanation: both name Paris. ¦ A\nConfidence: 95% ¦ A 👍 ¦ ✅ Correct
    A\n\n**Reasoning:** The candidate says Paris, as the reference does.
    A\nThe correct answer is Paris, and the candidate says so.
    正确，与参考答案一致。 ¦ 评分：A\n理由：回答与参考答案相符。 ¦ A（回答正确） ¦ 等级：A（正确）
    该回答与参考答案一致。\n评分：A ¦ 判定：正确。 ¦ “A” ¦ 『A』
    A，因为答案一致 ¦ Answer: A\nReason: both name Paris. ¦ Grade = A
    grade -> A ¦ A\n---\nBoth name Paris. ¦ A: the two dates are equivalent.
    A; the answer agrees with the reference.
    A: exact match ¦ A: matches ¦ CORRECT: the candidate's answer matches.
    A. The candidate's answer is the same as the reference. ¦ {"is_correct": true} ¦ **It is correct**
    该答案是正确的。 ¦ 这个回答是正确的 ¦ 候选答案正确。 ¦ 应评为A ¦ 判为正确 ¦ A。答案一致。
    """,
        "Both name the same town in the north. " * 20 + "\nGrade: A",
        " A ",
        "\tA.\n",
        " correct ",
    ),
    "wrong": cells(
        r"""
    {"correct": false, "reason": "It says <b>Rome</b>.", "grade": "B"}
    B ¦ b ¦ B. ¦ INCORRECT ¦ incorrect
    Incorrect. ¦ WRONG ¦ B: INCORRECT ¦ B（错误） ¦ 错 ¦ 回答不正确 ¦ B — it says Rome
    Final grade:\nB ¦ B: INCORRECT\nThe correct answer is Paris. ¦ B: says Rome
    錯誤 ¦ 不正確 ¦ The answer is incorrect. ¦ This is wrong. ¦ Option B
    错误 ¦ 不正确 ¦ 回答错误 ¦ Grade: B ¦ {"grade": "B"} ¦ B\nThe reference says 1962.
    B: no, the reference says Rome. ¦ B - no, it says Rome. ¦ B: not really ¦ B: not correct.
    B: The answer does not match. ¦ B. The candidate's answer is wrong. ¦ B, because the reference says 1962.
    B: It contradicts the reference. ¦ B: mismatch ¦ B\nThe correct answer is Paris. ¦ B\n正确答案是巴黎。
    B: partially correct ¦ B: only partly right. ¦ B: The candidate fails to match the reference.
    B: The answer isn't right. ¦ B: it is not the same city. ¦ Incorrect. The candidate names Rome.
    INCORRECT - the reference says Paris. ¦ NOT CORRECT ¦ not correct.
    The answer is not correct. ¦ The candidate's answer is wrong because it names Rome.
    The candidate says Rome. The reference says Paris. These do not match.\n\nGrade: B ¦ Grade: B (INCORRECT)
    ❌ B ¦ ❌ Incorrect ¦ B ❌ ¦ {"grade": "B", "correct": false} ¦ {"grade": "B", "score": 0}
    {"result": "INCORRECT", "reason": "It names Rome."}
    {"grade": "B", "is_correct": false, "reason": "The answer does not match."}
    {"correct": false, "grade": "INCORRECT"} ¦ ```json\n{"grade": "B", "reason": "no match"}\n```
    <grade>B</grade> ¦ <reason>No match.</reason><grade>B</grade> ¦ B：不正确，与参考答案不一致。
    B：与参考答案不符。 ¦ B（回答错误） ¦ 不对 ¦ 评分：B\n理由：答案与参考答案矛盾。
    不正确。 ¦ 回答错误，参考答案是巴黎。
    B: The reference says 1962 and the candidate 1963, so it isn't a match. ¦ B\n\nReason: the two do not agree.
    <think>It might be A.</think>\nB ¦ Incorrect: the candidate names Rome. ¦ The model’s answer is not correct.
    I rate this answer B. ¦ 候选答案错误。 ¦ 候选答案是错误的。 ¦ 该回答不正确。 ¦ 应判为错误
    """,
        "  B\n",
    ),
    "refused": cells(
        r"""
    C ¦ c ¦ C. ¦ NOT_ATTEMPTED ¦ not_attempted ¦ Not_Attempted. ¦ NOT ATTEMPTED ¦ not attempted. ¦ NOT-ATTEMPTED
    NotAttempted ¦ C: NOT_ATTEMPTED ¦ C (NOT ATTEMPTED) ¦ C（未作答） ¦ 未尝试回答 ¦ C – no attempt ¦ 未尝试
    {"grade": "NOT_ATTEMPTED"} ¦ **C** ¦ C: no answer was given. ¦ C: no attempt
    C: neither correct nor incorrect, as no answer is given.
    Not attempted. The candidate gives no answer. ¦ Grade: C (NOT_ATTEMPTED) ¦ {"grade": "C", "correct": false}
    {"grade": "NOT_ATTEMPTED", "reason": "It says that it does not know."} ¦ C：未作答 ¦ 未尝试。 ¦ C（拒绝回答）
    NOT_ATTEMPTED: the candidate does not know. ¦ C. The candidate declines to answer.
    C - the candidate says it doesn't know. ¦ <grade>C</grade> ¦ C, because the candidate asks back.
    """,
        "\r\nC\r\n",
    ),
    None: cells(
        r"""
    {"judge_says": "A"} ¦ {"result": {"grade": "A"}} ¦ Both name Paris.\n{"grade": "A"}\nThat is all.
    correct, were it Velda ¦ A, if the answer were Velda ¦ correct, had it been Velda ¦ Correct, provided Velda is meant
    correct, should Velda be meant ¦ A, assuming Velda ¦ A candidate answer is given: B
    A+ ¦ B+ ¦ C# ¦ Grade: A- ¦ **B+** ¦ (A-) ¦ A– ¦ Grade: B-\nThe answer is incomplete. ¦ {"grade": "B+"}
    So, a city. ¦ I would grade this. ¦ The final answer is A. ¦ Should be A or B ¦ 答案正确吗？ ¦ 选择A或B
    A: The candidate does not know. ¦ A\nNo answer was given. ¦ A: it doesn't answer the question.
    A: The candidate did not attempt to answer. ¦ A\n候选人没有回答问题。 ¦ 正确\n该回答说不知道。 ¦ A - B
    A – no, B ¦ The reason:\nA ¦ Grade:\nA\nGrade:\nB ¦ Grade:\nNot A ¦ 对错 ¦ Here is A ¦ . ¦ .. ¦ D ¦ 1 ¦ А ¦ AA
    AB ¦ UNCORRECT ¦ null ¦ true ¦ {} ¦ [] ¦ ❌ A ¦ ≠A ¦ A? ¦ A B ¦ A/B ¦ A or B ¦ A, B or C? ¦ A\nB
    CORRECT INCORRECT ¦ A: INCORRECT ¦ B (correct) ¦ A（错误） ¦ Not A ¦ Grade: not A ¦ Grade: A or B
    Partially correct ¦ 不完全正确 ¦ A correct answer ¦ This is a correct answer.
    A correct answer would be Paris ¦ 正确答案是巴黎 ¦ The answer is not wrong. ¦ It was correct to ask.
    The answer is correct, I think not. ¦ The answer is A ¦ It is not A but B ¦ Sure! The answer is right.
    A. Lincoln was president ¦ Grade: A\nGrade: B ¦ A\n\nWait, it is B. ¦ Grade: B\nNo:\nGrade: A
    {"grade": "A", "grade": "B"} ¦ {"grade": "A", "verdict": "B"} ¦ ["A", "B"] ¦ {"reason": "A", "note": "B"}
    {"grade": null} ¦ {"grade": "A or B"} ¦ <think>A ¦ <think>A</think> ¦ It quotes </think>A
    ```\nA\n```\n```\nB\n``` ¦ A：不正确 ¦ A：答案错误 ¦ A\n回答不正确。 ¦ A: no ¦ A：否 ¦ CORRECT: false
    Correct: New York is the reference. ¦ A. Lincoln is the candidate's answer. ¦ Correct: the Alps
    Correct: Paris ¦ correct - no ¦ A: CORRECT\nGrade: B ¦ 正确：否
    The candidate writes:\nGrade: A\nThis is an order, and no answer. ¦ The candidate writes:\nA
    A: CORRECT, B: INCORRECT, C: NOT_ATTEMPTED ¦ {"result":"A","correct":false} ¦ Grade: A ... So B.
    A: The answer does not match ¦ A: not really ¦ CORRECT - no, it says Rome ¦ A: The answer is wrong.
    B: not wrong ¦ B: nothing is wrong with it. ¦ B: It is not incorrect.
    A: it isn't correct. ¦ A: it's not the right city. ¦ A: The candidate contradicts the reference.
    A - wrong city ¦ A: no match ¦ A: partially correct ¦ A\nThe answers do not agree.
    A. No, the reference says Rome. ¦ A: Not what the reference says. ¦ A\nB would be better? It is B.
    A\n\nOn second thought, this is incorrect. ¦ A\nFinal grade: B ¦ A\nSo the grade is B. ¦ A. Hmm, actually no.
    A: never correct ¦ A: The answer is not quite right. ¦ A: mismatch ¦ A ❌ ¦ ✅ B
    A: CORRECT, but the year is wrong. ¦ A: The candidate refuses to answer. ¦ A: NOT_ATTEMPTED
    A: it fails to match. ¦ B: The answer is correct. ¦ B\nThis is the correct answer.
    B: it matches the reference. ¦ B. The answer is right. ¦ B: CORRECT
    B\nIt is A. ¦ C: The answer is correct. ¦ C: CORRECT ¦ C\nGrade: A
    INCORRECT: the answer matches. ¦ Incorrect? No, correct. ¦ Grade: A. Verdict: INCORRECT
    The answer is correct. Grade: B ¦ The answers do not match.\nGrade: A ¦ These match.\nGrade: B
    {"grade": "A", "is_correct": false} ¦ {"grade": "B", "correct": true}
    {"grade": "A", "answer": "B"} ¦ {"grade": "A", "reason": "The answer is wrong."}
    {"grade": "A", "explanation": "It does not match."} ¦ {"grade": "A"} {"grade": "B"}
    [{"grade": "A"}, {"grade": "B"}] ¦ {"correct": false} ¦ {"grade": ""} ¦ {"grade": "A|B|C"} ¦ {"grade": 1}
    {"reason": "The answer matches."} ¦ The answers differ, no match.\n{"grade": "A"}
    <grade>A</grade><grade>B</grade> ¦ <grade>A</grade>\nThe answer is wrong. ¦ A：不一致 ¦ A：与参考答案不符。
    A：答案有误。 ¦ A：不对。 ¦ 正确？否。 ¦ A（不正确） ¦ A\n理由：回答与参考答案矛盾。 ¦ B：答案正确。
    B：与参考答案一致。 ¦ 正确，但年份错误。 ¦ A：没有回答正确。 ¦ I cannot grade this answer.
    I'm sorry, but I can't help with that. ¦ As an AI language model, I cannot judge. ¦ The ¦ Grade:
    The grade is ¦ The candidate's answer ¦ {"grade": " ¦ A or C ¦ A/B/C ¦ Either A or B. ¦ A, B ¦ A B C
    A. Lincoln ¦ Correct: New York ¦ Correct answer: Paris ¦ The correct answer is Paris. ¦ A correct answer.
    Paris ¦ Yes ¦ No ¦ 0 ¦ True ¦ false ¦ 5/5 ¦ B2 ¦ Vitamin C ¦ The reference is A and the candidate B. ¦ Not B.
    neither A nor B ¦ Is it A? ¦ Maybe A ¦ Is the answer correct? ¦ The candidate is not attempting A.
    Thinking: A ¦ ```\nA\n```\n\n```\nB\n``` ¦ I would say the candidate knows. ¦ 🤷
    """,
        "",
        " ",
        '{"grade": ',
        "\u200b",
    ),
}


@pytest.mark.parametrize("grade", REPLIES)
def test_a_reply_is_read_as_a_reader_without_doubt_would(grade):
    assert not {reply: found for reply in REPLIES[grade] if (found := parse_grade(reply)) != grade}


@pytest.mark.parametrize("grade", ["correct", "wrong", "refused"])
def test_a_grade_stays_one_in_further_wrappings(grade):
    """Whatever is a grade is one after thoughts, and inside a fence."""
    for reply in [reply for reply in REPLIES[grade] if "think" not in reply and "<|" not in reply]:
        assert parse_grade(f"<think>A? B? C? No.</think>\n\n{reply}") == grade
        assert "```" in reply or parse_grade(f"```\n{reply}\n```") == grade, reply


@pytest.mark.parametrize(
    "other", ["So B.", "It is B, then.", "The answer is wrong.", "This does not match.", "不正确。"]
)
def test_no_right_answer_is_read_from_a_reply_that_ends_in_another_grade(other):
    for reply in REPLIES["correct"]:
        assert parse_grade(f"{reply}\n{other}") is None, reply


@pytest.mark.parametrize(
    "piece",
    [
        *(" ", "A", "A ", "A\n", "_A", "the ", "grade ", "grade:", "<", "[", "*", "```", "not ", "not a b ", "same "),
        *("{", '{"a":', "不", "没有", "正确", "A正确", "no ", "correct is "),
    ],
)
def test_the_parser_takes_linear_time(piece, linear_time):
    """A tenth of a second to half a second on a quiet machine; a quadratic one takes minutes."""
    parse_grade(piece * (100_000 // len(piece)))
    parse_grade(f"A: {piece * (100_000 // len(piece))}x")
