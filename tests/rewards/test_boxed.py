"""The verifier's surface: the box, the truth, the verdict and its reason."""

import pytest

from rewards import math_reward
from rewards.boxed import MAX_ANSWER_CHARS, equivalent, gold_answer, last_boxed, verdict


@pytest.mark.parametrize(
    ("completion", "content"),
    [
        (r"The answer is \boxed{42}.", "42"),
        (r"\fbox{42}", "42"),
        (r"\boxed {42}", "42"),
        (r"\boxed 7", "7"),
        (r"\boxed 72, done", "72"),
        (r"\boxed-7", "-7"),
        (r"\boxed x", "x"),
        (r"\boxed\frac{1}{2}.", r"\frac{1}{2}"),
        (r"\boxed\frac12", r"\frac12"),
        (r"\boxed\frac12, done", r"\frac12"),
        (r"\boxed -\frac12.", r"-\frac12"),
        (r"\boxed\frac1{23}", r"\frac1{23}"),
        (r"\boxed\sqrt2", r"\sqrt2"),
        (r"\boxed\sqrt[3]{2}", r"\sqrt[3]{2}"),
        (r"\boxed\frac\pi2 and more", r"\frac\pi2"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed\text{even}", r"\text{even}"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"first \boxed{1}, then \fbox{2}", "2"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\boxed{\boxed{5}, 7}", r"\boxed{5}, 7"),
        (r"\boxed{\frac{\boxed{5}}{7}}", r"\frac{\boxed{5}}{7}"),
        (r"\boxed{ \boxed{5}", "5"),
        # joined boxes are one list
        (r"$\boxed{2}$ and $\boxed{3}$", "2, 3"),
        (r"\boxed{2}, \boxed{3} \text{ or } \boxed{5}", "2, 3, 5"),
        (r"so $x = \boxed{2}$ or $x=\boxed{3}$", "x = 2, x=3"),
        (r"$x_1=\boxed{2}, y=\boxed{3}$", "x_1=2, y=3"),
        (r"\boxed{x+1}$, or $\boxed{1+x}$", "1+x"),
        (r"\boxed{2}. Or rather \boxed{3}", "3"),
        (r"\boxed{2} \boxed{3}", "3"),
        (r"\boxed{\frac52} = \boxed{2\frac12}", r"2\frac12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a\\}", r"a\\"),
        ("\\boxed{\n  5\n}", "5"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{5} and prose with a } brace", "5"),
        # no answer
        ("", None),
        ("42", None),
        (r"\boxedfoo{1}", None),
        (r"boxed{1}", None),
        (r"\boxed{", None),
        (r"\boxed", None),
        (r"\boxed{12", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{1} but then \boxed{2", None),
        (r"\boxed{1} and now \boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{\,}", None),
        (r"\boxed{\text{ }}", None),
        (r"\boxed{~}", None),
        (r"\boxed{$$}", None),
    ],
)
def test_last_boxed(completion, content):
    assert last_boxed(completion) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("  42\n", "42"),
        (r"\boxed{42}", "42"),
        (r"Since 6 · 7 = 42, it is \boxed{42}.", "42"),
        ("6 * 7 = <<6*7=42>>42\n#### 42", "42"),
        ("#### 1,234", "1,234"),
        ("a\n#### 42\n", "42"),
        ("#### wrong place\nthe last line decides", "#### wrong place\nthe last line decides"),
        ("#### Step 1\nSo \\boxed{5}.", "5"),
        ("#### \\boxed{5}", "5"),
        ("", ""),
        ("  \n", ""),
        ("####", ""),
        (r"\boxed{}", ""),
        (r"\boxed{4", ""),
        (r"The sum is \boxed{4", ""),
        ("The sum is\n#### \\boxed{4", ""),
    ],
)
def test_gold_answer(text, answer):
    assert gold_answer(text) == answer


@pytest.mark.parametrize(
    ("completion", "truth", "kind", "reason"),
    [
        (r"\boxed{0.5}", r"\frac12", "correct", r"0.5 is \frac12"),
        (r"\boxed{0.5}", "2*4=8\n#### 8", "wrong", "0.5 is not 8"),
        ("it is 8", "8", "no_answer", r"no \boxed{} in the completion"),
        (r"\boxed{8", "8", "no_answer", r"the last \boxed{} is cut off"),
        (r"\boxed{\ }", "8", "no_answer", r"the last \boxed{} is blank"),
        (r"\boxed{8} \boxed{}", "8", "no_answer", r"the last \boxed{} is blank"),
        (r"\boxed{8}", "", "unscorable", "the ground truth holds no answer: "),
        (r"\boxed{8}", "?", "unscorable", "the ground truth holds no answer: ?"),
        ("no box", " ", "unscorable", "the ground truth holds no answer:  "),
        (r"\boxed{…}", "8", "wrong", "… is not 8"),
        (r"\boxed{?}", "8", "wrong", "? is not 8"),
        (r"\boxed{:}", "8", "wrong", ": is not 8"),
    ],
)
def test_verdict(completion, truth, kind, reason):
    assert verdict(completion, truth) == (kind, reason)


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        (1 / 3, (r"\frac13", "0.3333333333333333", "x = 1/3"), ("0.33", "0.3333333333333334", "1/4")),
        (0.10000000149011612, ("0.1", r"\frac{1}{10}"), ("0.11", "0.10000001")),  # 0.1 as a float32
        (-2.5, ("-2.5", "-5/2", r"-2\frac12"), ("2.5", "-2.4")),
        (27.0, ("27", "27.0"), ("28", "2.7")),
        ([0.5, 2 / 3], ("1/2", "2/3"), ("0.5, 2/3", "0.67")),
        ("0.3333333333333333", ("0.3333333333333333",), ("1/3",)),  # a text is exact
    ],
)
def test_a_float_stands_for_the_fraction_that_rounds_to_it(truth, right, wrong):
    grade = math_reward.build(
        {"math_reward_correct": 1.0, "math_reward_wrong": 0.0, "math_reward_no_answer": -1.0}
    ).grade
    for answers, value in ((right, 1.0), (wrong, 0.0)):
        assert [grade(rf"\boxed{{{answer}}}", {"answer": truth}).value for answer in answers] == [value] * len(answers)


def test_white_space_does_not_count_in_answers_too_long_to_read():
    answer = " + ".join(["x"] * MAX_ANSWER_CHARS)
    assert equivalent(answer, answer.replace(" ", "\n")) and not equivalent(answer, f"{answer} + y")
    assert not equivalent(" " * (MAX_ANSWER_CHARS + 1), " ")


def test_a_reason_can_always_be_printed():
    for content in ("\x1b[31m5", "\ud800", "5\x00", "5\u202e", "9" * 100_000):
        _, reason = verdict(rf"\boxed{{{content}}}", "8")
        assert reason.encode("utf-8")
        assert reason.isprintable() and len(reason) < 600
