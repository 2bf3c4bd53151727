"""Laws of the verifier on random text and random numbers."""

import time
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.mathematics.boxes import equivalent, gold_answer, grade_box, last_boxed
from rewards.mathematics.tokens import has_content, tokenize

PIECES = (
    *r"""
    \frac \sqrt \max \text{ \mathrm{ \left \right \pi \sin \log_ \binom \infty \cup \in \pm \le \{ \} \begin{pmatrix}
    \end{pmatrix} \\ \ \boxed{ \$ \overline{3} ^\circ 1 2 12 0.5 1,234 1e9 9^{9 x y n e i A (B) is million five sqrt
    √ é 元
    """.split(),
    *"{}{}()[]^_!|&%$°=<>,;:.+-*/'½²－…\x00\ud800",
    *(" ", " cm", " or ", " and "),
)
latex_like = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
any_text = st.text(st.characters(codec=None), max_size=60) | latex_like
fractions = st.fractions(max_denominator=10**6).filter(lambda f: abs(f) < 10**12)
MAX_SECONDS = 5.0  # of computing: 25 times what the slowest known input takes, for a busy machine


def boxed(text):
    return rf"so \boxed{{{text}}}."


@settings(max_examples=400)
@given(any_text, any_text)
def test_any_text_gets_a_verdict_in_time(answer, truth):
    start = time.process_time()
    kind, reason = grade_box(boxed(answer), truth)
    equivalent(answer, truth)
    last_boxed(answer)
    gold_answer(answer)
    assert time.process_time() - start < MAX_SECONDS
    assert kind in ("correct", "wrong", "no_answer", "unscorable")
    reason.encode("utf-8")


@settings(max_examples=400)
@given(any_text)
def test_a_text_equals_itself_if_it_says_anything(text):
    assert equivalent(text, text) is has_content(tokenize(text))


@settings(max_examples=300)
@given(any_text)
def test_nothing_equals_a_number_and_the_next(text):
    """Whatever is written, it is at most one number."""
    assert not (equivalent(text, "7") and equivalent(text, "8"))


@settings(max_examples=300)
@given(
    any_text.filter(lambda text: "=" not in text and "is" not in text and ":" not in text and "∈" not in text),
    fractions,
)
def test_what_answers_a_number_is_answered_by_it(text, number):
    """Not the other way round: 7 answers 3 + 4."""
    assert not equivalent(text, str(number)) or equivalent(str(number), text)


def decimal_of(value):
    """The finite decimal expansion, None if there is none."""
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
        if digits > 40:
            return None
    sign, whole = "-" if value < 0 else "", f"{abs(int(value * 10**digits)):0{digits + 1}d}"
    return sign + (whole[:-digits] + "." + whole[-digits:] if digits else whole)


def notations(value):
    """Many ways to write one rational number."""
    sign, size = "-" if value < 0 else "", abs(value)
    n, d = size.numerator, size.denominator
    written = [
        rf"{sign}\frac{{{n}}}{{{d}}}",
        rf"\dfrac{{{sign}{n}}}{{{d}}}",
        rf"\frac{{{n}}}{{{sign}{d}}}",
        f"{sign}{n}/{d}",
        rf"{sign}\tfrac{{{3 * n}}}{{{3 * d}}}",
        f"({value})",
        f"x = {value}",
        rf"\text{{{value}}}",
        rf"{value}\%",
        f"{value}".replace("-", "−"),
        rf"{value}\text{{ cm}}",
        f"{value} apples",
        "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in str(value)),
        rf"\frac{{{sign}\sqrt{{{n * n}}}}}{{{d}}}" if n < 10**9 else f"{value}",
    ]
    if d > 1 and n > d:
        whole, rest = divmod(n, d)
        written += [rf"{sign}{whole}\frac{{{rest}}}{{{d}}}", f"{sign}{whole} {rest}/{d}"]
    if d == 1:
        written += [
            f"{sign}{n:,}",
            f"{sign}{n:,}".replace(",", "{,}"),
            f"{sign}{n:,}".replace(",", r"\,"),
            f"{sign}0{n}",
            f"{sign}{n}.00",
            rf"{sign}\${n}",
            f"{sign}{n}e0",
            rf"{sign}{n}^\circ",
        ]
    decimal = decimal_of(value)
    if decimal:
        written += [
            decimal,
            decimal + "0" if "." in decimal else decimal,
            decimal.replace("0.", ".", 1) if size < 1 else decimal,
            rf"{decimal_of(value * 100)}\times 10^{{-2}}",
        ]
    return written


@settings(max_examples=150)
@given(fractions)
def test_a_rational_number_equals_itself_in_every_notation(value):
    for written in notations(value):
        assert equivalent(written, str(value)), written
        assert equivalent(str(value), written), written


@settings(max_examples=150)
@given(fractions, fractions.filter(bool))
def test_a_number_that_is_left_to_be_worked_out_is_no_answer_and_may_be_a_truth(value, other):
    for written in (
        f"({value - other}) + ({other})",
        rf"\frac{{{value.numerator}}}{{7}} \cdot \frac{{7}}{{{value.denominator}}}",
        rf"{value.numerator} \div {value.denominator}",
        rf"\sqrt{{({value.numerator} \cdot 3)^2}} / {3 * value.denominator}" if value > 0 else f"{value} + 0",
        f"{value / other} ({other})",
    ):
        assert equivalent(str(value), written), written
        assert not equivalent(written, str(value)), written
        assert equivalent(f"{written} = {value}", str(value)), written


@settings(max_examples=150)
@given(fractions, fractions.filter(bool))
def test_a_rational_number_never_equals_another(value, difference):
    for written in notations(value):
        for other in (value + difference, -value or Fraction(1), value / 10 or Fraction(1), value * 100 or Fraction(1)):
            assert equivalent(written, str(other)) is (other == value), (written, other)


@settings(max_examples=100)
@given(fractions.filter(lambda f: decimal_of(f) is None), st.integers(1, 30))
def test_a_rounded_decimal_is_not_the_fraction(value, digits):
    rounded = decimal_of(Fraction(round(value * 10**digits), 10**digits))
    assert not equivalent(rounded, str(value))
