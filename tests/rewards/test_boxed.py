"""The verifier's surface: the box, the truth, the verdict and its reason."""

import json
import re

import pytest
from cells import cells, rows

from rewards.boxed import build, is_prose
from rewards.exact import after_solution
from rewards.mathematics.boxes import MAX_ANSWER_CHARS, equivalent, gold_answer, grade_box, last_boxed

BOXES = rows(
    r"""
    The answer is \boxed{42}. → 42 ¦ \fbox{42} → 42 ¦ \boxed {42} → 42 ¦ \boxed 7 → 7 ¦ \boxed 72, done → 72
    \boxed-7 → -7 ¦ \boxed x → x ¦ \boxed\frac{1}{2}. → \frac{1}{2} ¦ \boxed\frac12 → \frac12 ¦ \boxed\pi → \pi
    \boxed\frac12, done → \frac12 ¦ \boxed -\frac12. → -\frac12 ¦ \boxed\frac1{23} → \frac1{23}
    \boxed\sqrt2 → \sqrt2 ¦ \boxed\sqrt[3]{2} → \sqrt[3]{2} ¦ \boxed\frac\pi2 and more → \frac\pi2
    \boxed\text{even} → \text{even} ¦ first \boxed{1}, then \boxed{2} → 2 ¦ first \boxed{1}, then \fbox{2} → 2
    \boxed{\boxed{3}} → \boxed{3} ¦ \boxed{\boxed{5}, 7} → \boxed{5}, 7 ¦ \boxed{ \boxed{5} → 5
    \boxed{\frac{\boxed{5}}{7}} → \frac{\boxed{5}}{7} ¦ \boxed{\frac{1}{2}} → \frac{1}{2}
    \boxed{\{1, 2\}} → \{1, 2\} ¦ \boxed{\left\{ x \right.} → \left\{ x \right. ¦ \boxed{a\\} → a\\
    \boxed{\n  5\n} → 5 ¦ \\boxed{5} → 5 ¦ \boxed{5} and prose with a } brace → 5
    \boxed{5}. It stands in \boxed as asked. → 5 ¦ \boxed{5}, in `\boxed` → 5
    """,
    "→",
)
JOINED = rows(  # boxes that are one list
    r"""
    $\boxed{2}$ and $\boxed{3}$ → 2, 3 ¦ \boxed{2}, \boxed{3} \text{ or } \boxed{5} → 2, 3, 5
    so $x = \boxed{2}$ or $x=\boxed{3}$ → x = 2, x=3 ¦ $x_1=\boxed{2}, y=\boxed{3}$ → x_1=2, y=3
    \boxed{x+1}$, or $\boxed{1+x} → 1+x ¦ \boxed{2}. Or rather \boxed{3} → 3 ¦ \boxed{2} \boxed{3} → 3
    \Rightarrow\boxed{2}, \boxed{3} → 2, 3 ¦ \\\boxed{2}, \boxed{3} → 2, 3 ¦ are\boxed{2} or \boxed{3} → 2, 3
    \boxed{2}; \boxed{3} → 2, 3 ¦ \boxed{2} 或 \boxed{3} → 2, 3 ¦ \boxed{2}、\boxed{3}和\boxed{5} → 2, 3, 5
    \boxed{\frac52} = \boxed{2\frac12} → 2\frac12 ¦ \boxed{0.33} or \boxed{\frac13} → 0.33, \frac13
    """,
    "→",
)
NO_BOX = cells(
    r"""
    42 ¦ \boxedfoo{1} ¦ boxed{1} ¦ \boxed{ ¦ \boxed ¦ \boxed{12 ¦ \boxed{\frac{1}{2} ¦ \boxed{1} but then \boxed{2
    \boxed{1} and now \boxed{} ¦ \boxed{ } ¦ \boxed{\,} ¦ \boxed{\text{ }} ¦ \boxed{~} ¦ \boxed{$$}
    """,
    "",
)


@pytest.mark.parametrize("completion, content", BOXES + JOINED)
def test_last_boxed(completion, content):
    assert last_boxed(completion) == content


@pytest.mark.parametrize("completion", NO_BOX)
def test_no_box_holds_an_answer(completion):
    assert last_boxed(completion) is None


TRUTHS = {  # the answer that a truth holds
    "42": cells(
        r"""
    42 ¦ \boxed{42} ¦ Since 6 · 7 = 42, it is \boxed{42}. ¦ 6 * 7 = <<6*7=42>>42\n#### 42 ¦ a\n#### 42\n
    #### 42\n\nDone. ¦ a\n#### 42\nAs asked.\n
    """,
        "  42\n",
    ),
    "1,234": ["#### 1,234"],
    "5": cells(r"#### Step 1\nSo \boxed{5}. ¦ #### \boxed{5}"),
    "": cells(r"#### ¦ \boxed{} ¦ \boxed{4 ¦ The sum is \boxed{4 ¦ The sum is\n#### \boxed{4", "", "  \n"),
    "#### Add\nso\n#### Done\nas asked": ["#### Add\nso\n#### Done\nas asked"],  # headings
    "####\n5": ["####\n5"],
}


@pytest.mark.parametrize("answer", TRUTHS)
def test_gold_answer(answer):
    assert {gold_answer(after_solution(text)) for text in TRUTHS[answer]} == {answer}


LEFT_OPEN = rows(  # the question, copied: nothing is worked out
    r"""
    3 + 4 + 8 + 1 + 2 → 18 ¦ x = 20 - 2 → 18 ¦ 6 \times 3 → 18 ¦ 36 \div 2 → 18 ¦ 3(6) → 18 ¦ (3)(6) → 18
    9 + 9 \text{ cm} → 18 ¦ \frac{30 + 6}{2} → 18 ¦ \sqrt{300 + 24} → 18 ¦ 2^{1+3} → 16 ¦ 100 - 46\% → 54
    \frac12 + \frac13 → \frac56 ¦ 72/2/2 → 18 ¦ 1 + 1, 3 → 2, 3 ¦ (1 + 1, 3) → (2, 3) ¦ [0, 3 + 4) → [0, 7)
    \text{the sum is } 9 + 9 → 18 ¦ (1+1):3 → 2:3 ¦ 3!4! → 144
    """,
    "→",
)
WORKED_OUT = rows(
    r"""
    \frac{36}{2} → 18 ¦ 36/2 → 18 ¦ 3\frac12 → 3.5 ¦ -\frac{-7}{2} → 3.5 ¦ \sqrt{324} → 18 ¦ 2^{10} → 1024
    3\cdot10^8 → 300000000 ¦ 1.5 \times 10^{-2} → 0.015 ¦ 50\% → 50 ¦ 3 + 4 + 8 + 1 + 2 = 18 → 18 ¦ 18 = 9 + 9 → 18
    9 + 9 → 9 + 9 ¦ 2x + x → 3x ¦ 3! → 6 ¦ 1 + \sqrt2 → \sqrt2 + 1 ¦ 2 \cdot 3^4 → 3^4 \cdot 2 ¦ 18 → 9 + 9
    3 \times {10}^8 → 300000000 ¦ x = 18 = 9 + 9 → 18 ¦ x = 9 + 9 = 18 → 18 ¦ 18 → x = 18 = 9 + 9
    -5 → -5 ¦ 2 + 3i → 3i + 2 ¦ \log_2 8 → 3 ¦ 5\text{ cm}^2 → 5
    """,
    "→",
)


@pytest.mark.parametrize("answer, truth", LEFT_OPEN + WORKED_OUT)
def test_a_number_that_is_left_to_be_worked_out_is_no_answer(answer, truth):
    assert equivalent(answer, truth) is ([answer, truth] in WORKED_OUT)


SENTENCES = cells(
    r"""
    First we note … ¦ We add the two numbers. ¦ 3 + 4 = 7, as asked, since these are the two numbers we have
    因为三加四等于七，所以答案是七。
    """
)
ANSWERS = cells(
    r"""
    7 ¦ The answer is 7. ¦ The sum of the two numbers is 7. ¦ \text{does not exist} ¦ Bob and Ann ¦ no real solution
    We add the two numbers, and get \boxed{7}. ¦ 3 + 4 = 7 is what she has in the end\n#### 7
    \frac{\sqrt{x}}{\sin\theta}
    """
)


def test_a_sentence_is_told_from_an_answer():
    assert [truth for truth in SENTENCES + ANSWERS if is_prose(truth)] == SENTENCES


VERDICTS = rows(
    r"""
    \boxed{0.5} | \frac12 | correct | 0.5 is \frac12 ¦ it is 8 | 8 | no_answer | no \boxed{} in the completion
    \boxed{8 | 8 | no_answer | the last \boxed{} is cut off ¦ \boxed{\ } | 8 | no_answer | the last \boxed{} is blank
    \boxed{8} | ? | unscorable | the ground truth holds no answer: ? ¦ \boxed{…} | 8 | wrong | … is not 8
    """
)


@pytest.mark.parametrize("completion, truth, kind, reason", VERDICTS)
def test_verdict(completion, truth, kind, reason):
    assert grade_box(completion, truth) == (kind, reason)


FLOATS = cells(  # a truth in JSON ≡ answers that are right ≢ answers that are wrong. A text is exact
    r"""
    0.3333333333333333 ≡ \frac13 ≡ 0.3333333333333333 ≡ x = 1/3 ≢ 0.33 ≢ 0.3333333333333334 ≢ 1/4
    0.10000000149011612 ≡ 0.1 ≡ \frac{1}{10} ≢ 0.11 ≢ 0.10000001 ¦ -2.5 ≡ -2.5 ≡ -5/2 ≡ -2\frac12 ≢ 2.5 ≢ -2.4
    27.0 ≡ 27 ≡ 27.0 ≢ 28 ≢ 2.7 ¦ [0.5, 0.6666666666666666] ≡ 1/2 ≡ 2/3 ≢ 0.5, 2/3 ≢ 0.67
    "0.3333333333333333" ≡ 0.3333333333333333 ≢ 1/3
    """  # the second is 0.1 as a float32
)


@pytest.mark.parametrize("case", FLOATS)
def test_a_float_stands_for_the_fraction_that_rounds_to_it(case):
    grade = build("math", {"math_reward_correct": 1.0, "math_reward_wrong": 0.0, "math_reward_no_answer": -1.0}).grade
    truth, *answers = re.split(" (?=[≡≢])", case)
    for answer in answers:
        value = grade(rf"\boxed{{{answer[2:]}}}", {"answer": json.loads(truth)}).value
        assert value == (answer[0] == "≡"), answer


def test_white_space_does_not_count_in_answers_too_long_to_read():
    answer = " + ".join(["x"] * MAX_ANSWER_CHARS)
    assert equivalent(answer, answer.replace(" ", "\n")) and not equivalent(answer, f"{answer} + y")
    assert not equivalent(" " * (MAX_ANSWER_CHARS + 1), " ")


def test_a_reason_can_always_be_printed():
    for content in ("\x1b[31m5", "\ud800", "5\x00", "5\u202e", "9" * 100_000):
        _, reason = grade_box(rf"\boxed{{{content}}}", "8")
        assert reason.encode("utf-8")
        assert reason.isprintable() and len(reason) < 600
