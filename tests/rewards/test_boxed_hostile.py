"""Answers written to hang or crash a verifier: each ends in well under a second, with a verdict."""

import time

import pytest

from rewards.mathematics import boxes
from rewards.mathematics.boxes import MAX_ANSWER_CHARS, equivalent, gold_answer, verdict
from rewards.mathematics.expression import MAX_DEPTH, read_expression
from rewards.mathematics.tokens import tokenize
from rewards.mathematics.value import Points, Unreadable

MAX_SECONDS = 5.0  # of computing: the slowest takes about 0.2 s on an idle core, the rest is for a busy machine
N = 100_000


def nested(opening: str, closing: str, times: int) -> str:
    return opening * times + "1" + closing * times


# as long as they like: beyond the limit on length only texts are compared
HUGE = {
    "digits": "1" * 10**6,
    "blanks inside": "1" + " " * 10**6 + "2",
    "braces": nested("{", "}", N),
    "brackets": nested("(", ")", N),
    "fractions": nested(r"\frac{1}{", "}", N),
    "roots": nested(r"\sqrt{", "}", N),
    "tower": nested("9^{", "}", N),
    "backslashes": "\\" * 10**6,
    "boxes": nested(r"\boxed{", "}", N),
}
# each contains the next of its kind
NESTING = (
    *(r"\ln", r"\sin ", r"\sin^2", r"\cos\sin", r"\log_", r"\sqrt", r"\frac", r"\frac1", "(", "(-", "2^", r"\ln\sqrt"),
    *(r"\exp", r"\ln\frac1"),
)
# short enough to be parsed
SHORT = {
    "tower": "9^{9^{9^9}}",
    "power of ten": "1e999999999",
    "powers of powers": "((x^{9^{600}})^{9^{600}})^{9^{600}}",
    "powers of sums": "(a+b+c+d)^{20}(e+f)^{20}",
    "sum of quotients": "+".join(rf"\frac{{1}}{{x+{i}}}" for i in range(100)),
    "product of surds": "".join(rf"(1+\sqrt{{{p}}})" for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)),
    "factorials": "((300!)!)!",
    "binomials": r"\binom{1000}{500}" * 100,
    "root of a large semiprime": rf"\sqrt{{{(2**107 - 1) * (2**89 - 1)}}}",
    "brackets": nested("(", ")", 900),
    "fractions": nested(r"\frac{1}{", "}", 200),
    "roots": r"\sqrt" * 600 + "2",
    **{
        f"nothing but {piece}": piece * (MAX_ANSWER_CHARS // len(piece) - 1) + "x"
        for piece in (
            *NESTING,
            *r"\sqrt[ \binom |- ^ 2^{ ! - \lfloor { \{ (1, \overline \begin{pmatrix}".split(),
            "ln ",
        )
    },
    "functions in functions": nested("f(", ")", 400),
    "factors in factors": nested("x(", ")", 400),
    "functions not closed": "f(" * 999,
    "many arguments": "f(" * 60 + ",".join("x" * 500) + ")" * 60,
    "sine of a long sum": r"\sin(" + "+".join("abcdefgh") + ")",
    "sines of multiples": r"\sin(12x)\cos(11x)\tan(10x)\sin(9y)\cos(12y)",
    "tangents of tangents": nested(r"\tan(", ")", 20),
    "arcs": r"\sin(12\arctan(x+y+z))",
    "logarithms undone": nested(r"e^{\ln ", "}", 100),
    "true chain": "=".join(["(x+1)^{9}"] * 60),
    "colons": "1:" * 900 + "1",
    "counted things": ", ".join(f"{n} cats{n}" for n in range(60)),
    "rows of an alignment": r"\begin{aligned}" + r"1\\" * 600 + r"\end{aligned}",
    "bases": "1_2" * 500,
    "a long unit": "5 " + "m/" * 900 + "s^3 x",
    "bars": "|" * 1500,
    "equations": "x=" * 900 + "1",
    "sets in sets": nested(r"\{1,", r"\}", 200),
    "long list": ",".join("1" * 900),
    "matrix": r"\begin{pmatrix}" + r"\\".join("&".join(["x+1"] * 20) for _ in range(20)) + r"\end{pmatrix}",
    "signs both ways": r"\pm x" * 400,
    "repeating decimal": rf"0.\overline{{{'37' * 900}}}",
    "choices": "A) " * 600,
    "text": nested(r"\text{", "}", 200),
    "surrogates and zeros": "\ud800\x00" * 500,
}


@pytest.mark.parametrize("answer", HUGE.values(), ids=HUGE)
def test_huge_answers(answer):
    start = time.process_time()
    assert verdict(rf"\boxed{{{answer}}}", "5")[0] in ("wrong", "no_answer")
    assert verdict(r"\boxed{5}", answer)[0] in ("wrong", "unscorable")
    assert time.process_time() - start < MAX_SECONDS


@pytest.mark.parametrize("answer", SHORT.values(), ids=SHORT)
def test_short_answers(answer):
    for other in ("5", "x", answer + "+1"):
        start = time.process_time()
        assert not equivalent(answer, other), other
        assert time.process_time() - start < MAX_SECONDS, other
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


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * N,
        r"\boxed" + " " * 10**6,
        r"\boxed " * N,
        r"\boxed{" + " " * 10**6 + "}",
        r"\boxed\frac" + "{1}" * N,
        r"\boxed 1" + "1," * N,
        "#### " * N + "\nend",
        "####\n" * N,
        "####" + " " * 10**6,
        r"\boxed{" + r"\}" * N,
    ],
    ids=range(10),
)
def test_finding_the_box_and_the_truth_is_linear(text):
    start = time.process_time()
    verdict(text, "5")
    gold_answer(text)
    assert time.process_time() - start < MAX_SECONDS


SAYS_EVERYTHING = ["", "x", r"\frac{}{}", "1=1", "42 or 43", "1,2,3,...,100", "[0,100]", r"x \in R", r"\pm 42", "42?43"]
SAYS_NOTHING = [r"42 \text{ or } 43", r"\infty", "NaN", r"42\ldots", r"\text{the answer}", "__import__('os')"]


@pytest.mark.parametrize("answer", [*SAYS_EVERYTHING, *SAYS_NOTHING])
def test_a_boxed_answer_that_says_everything_or_nothing_is_not_right(answer):
    assert verdict("\\boxed{" + answer + "}", "42")[0] != "correct"


def test_nothing_is_evaluated(tmp_path):
    target = tmp_path / "touched"
    for text in (
        f"__import__('os').system('touch {target}')",
        f"open('{target}','w')",
        "lambda: 5",
        "(5).__class__",
        "exit()",
    ):
        assert verdict(rf"\boxed{{{text}}}", "5")[0] == "wrong"
        assert verdict(r"\boxed{5}", text)[0] == "wrong"
    assert not target.exists()
