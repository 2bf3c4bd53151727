"""Answers written to hang or crash a verifier: each ends in well under a second, with a verdict."""

import pytest
from cells import cells

from rewards.mathematics import boxes
from rewards.mathematics.boxes import MAX_ANSWER_CHARS, equivalent, gold_answer, grade_box
from rewards.mathematics.expression import MAX_DEPTH, read_expression
from rewards.mathematics.tokens import tokenize
from rewards.mathematics.value import Points, Unreadable


def written(case):
    """Return a text; or, of `before~opening~times~middle~closing`, one that repeats opening and closing."""
    if "~" not in case:
        return case
    before, opening, times, middle, closing = case.split("~")
    return before + opening * int(times) + middle + closing * int(times)


HUGE = cells(r"""
    ~1~1000000~~ ¦ 1~ ~1000000~2~ ¦ ~{~100000~1~} ¦ ~(~100000~1~) ¦ ~\frac{1}{~100000~1~} ¦ ~\sqrt{~100000~1~}
    ~9^{~100000~1~} ¦ ~\~1000000~~ ¦ ~\boxed{~100000~1~}
    """)  # as long as they like: beyond the limit on length only texts are compared
# each contains the next of its kind
NESTING = (
    *(r"\ln", r"\sin ", r"\sin^2", r"\cos\sin", r"\log_", r"\sqrt", r"\frac", r"\frac1", "(", "(-", "2^", r"\ln\sqrt"),
    *(r"\exp", r"\ln\frac1"),
)
OTHERS = [*r"\sqrt[ \binom |- ^ 2^{ ! - \lfloor { \{ (1, \overline \begin{pmatrix}".split(), "ln "]
SHORT = [  # enough to be parsed
    *cells(r"""
    9^{9^{9^9}} ¦ ~9^~600~9~ ¦ 1e999999999 ¦ ((x^{9^{600}})^{9^{600}})^{9^{600}} ¦ (a+b+c+d)^{20}(e+f)^{20}
    (((x+1)^{19})^{19})^{19} ¦ (\sqrt{x+1}+\sqrt{x+2})^{50} ¦ ~(6x)^{a+b+c+d+e+f}~100~~ ¦ ((300!)!)! ¦ ~300!~400~~
    ~\binom{1000}{500}~100~~ ¦ ~(~900~1~) ¦ ~\frac{1}{~200~1~} ¦ ~\sqrt~600~2~ ¦ ~f(~400~1~) ¦ ~x(~400~1~)
    ~f(~300~x>1~) ¦ ~f(~999~~ ¦ ~x(~999~~ ¦ \sin(a+b+c+d+e+f+g+h) ¦ ~\sin(a+b+c+d)~20~~
    \sin(12x)\cos(11x)\tan(10x)\sin(9y)\cos(12y) ¦ \sin(x/2)\sin(x/3)\sin(x/5)\sin(x/7)\sin(x/11)
    ~\tan(~20~1~) ¦ ~\sin(\binom{x+~14~1~}{6}) ¦ ~f((x+~20~1~)^{19}) ¦ \sin(12\arctan(x+y+z)) ¦ ~e^{\ln ~100~1~}
    ~(x+1)^{9}=~60~1~ ¦ ~1:~900~1~ ¦ \begin{aligned}~1\\~600~\end{aligned}~ ¦ ~\begin{aligned}~100~w~ ¦ ~1_2~500~~
    ~2元²i~300~~ ¦ 5 ~m/~900~s^3 x~ ¦ ~-~1999~1~ ¦ ~x=~900~1~ ¦ ~(~12~a~=1) ¦ ~\{1,~200~1~\}
    ~\{x|~200~1~\} ¦ ~(1,~300~1~) ¦ ~1,~900~1~ ¦ ~\pm x~400~~ ¦ 0.\overline{~37~900~}~ ¦ ~A) ~600~~
    ~\frac{1}{~200~~ ¦ ~}~1999~~ ¦ ~\text{~200~1~} ¦ ~\frac{1}{x+7}+~90~1~ ¦ ~(1+\sqrt{31})~12~~
    \begin{pmatrix}~x+1&x+2&x+3&x+4&x+5&x+6&x+7&x+8\\~40~\end{pmatrix}~
    """),
    *(piece * (MAX_ANSWER_CHARS // len(piece) - 1) + "x" for piece in (*NESTING, *OTHERS)),
    *["|" * 1500, "\ud800\x00" * 500, ", ".join(f"{n} cats{n}" for n in range(60))],
    "+".join(rf"\frac{{1}}{{x+{i}}}" for i in range(100)),
    "".join(rf"(1+\sqrt{{{p}}})" for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)),
    rf"\sqrt{{{(2**107 - 1) * (2**89 - 1)}}}",
]


@pytest.mark.parametrize("case", HUGE)
def test_huge_answers(case, linear_time):
    answer = written(case)
    assert grade_box(rf"\boxed{{{answer}}}", "5")[0] in ("wrong", "no_answer")
    assert grade_box(r"\boxed{5}", answer)[0] in ("wrong", "unscorable")


@pytest.mark.parametrize("case", SHORT, ids=range(len(SHORT)))
def test_short_answers(case, linear_time):
    answer = written(case)
    for other in ("5", "x", answer + "+1"):
        assert not equivalent(answer, other), other
    if any(character not in "\ud800\x00|-}" for character in answer):  # beyond the limits it is still itself
        assert equivalent(answer, answer)


@pytest.mark.parametrize("piece", NESTING)
def test_every_way_to_nest_counts_its_depth(piece):
    """One level more than the limit: Python's own limit, which the caller's frames count towards, is far away."""
    with pytest.raises(Unreadable, match="nested"):
        read_expression(tokenize(piece * (MAX_DEPTH + 1) + "x"), Points())


def test_pythons_own_limit_is_a_verdict_too(monkeypatch):
    def too_deep(*_):
        raise RecursionError

    monkeypatch.setattr(boxes, "read_answer", too_deep)
    assert not equivalent("1", "x")


MANY_BOXES = cells(r"""
    ~\boxed{~100000~~ ¦ \boxed~ ~1000000~~ ¦ ~\boxed ~100000~~ ¦ \boxed{~ ~1000000~}~ ¦ \boxed\frac~{1}~100000~~
    \boxed 1~1,~100000~~ ¦ ~#### ~100000~\nend~ ¦ ~####\n~100000~~ ¦ ####~ ~1000000~~ ¦ \boxed{~\}~100000~~
    """)


@pytest.mark.parametrize("case", MANY_BOXES)
def test_finding_the_box_and_the_truth_is_linear(case, linear_time):
    grade_box(written(case), "5")
    gold_answer(written(case))


SAYS_EVERYTHING = ["", "x", r"\frac{}{}", "1=1", "42 or 43", "1,2,3,...,100", "[0,100]", r"x \in R", r"\pm 42", "42?43"]
SAYS_NOTHING = [r"42 \text{ or } 43", r"\infty", "NaN", r"42\ldots", r"\text{the answer}", "exit()", "lambda: 42"]


@pytest.mark.parametrize("answer", [*SAYS_EVERYTHING, *SAYS_NOTHING])
def test_a_boxed_answer_that_says_everything_or_nothing_is_not_right(answer):
    assert grade_box("\\boxed{" + answer + "}", "42")[0] != "correct"
