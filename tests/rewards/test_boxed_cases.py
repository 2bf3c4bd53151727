"""The corpus: pairs of an answer and a truth with the verdict of a careful reader, one per line, in
boxed_cases/*.txt."""

import re
from pathlib import Path

import pytest

from rewards.boxed import equivalent, verdict

CASES_FOLDER = Path(__file__).parent / "boxed_cases"
# one direction only: the answer may say more than the truth, never less. `x+y=5` says what was asked, 3+4=7 how it was
# found; a bare 5 does not say that it answers an equation. Digits answer a truth that has a base, and an answer with a
# base is no decimal number
ONE_WAY = {
    ("x+y = 5", "5"),
    ("5", "x+y=5"),
    ("4", "x^2+y^2=4"),
    ("664", "664_7"),
    ("664_7", "664"),
    ("664", r"664_{\text{seven}}"),
    ("101_2", "101"),
    ("2+3=5", "5"),
    ("14 + 6 = 20", "20"),
    ("3+4=7", "7"),
    (r"\sin 30^\circ = \frac12", "0.5"),
    (r"\frac{10}{4} = \frac52 = 2.5", "2.5"),
}


def read_cases() -> list[tuple[str, str, bool]]:
    cases = []
    for path in sorted(CASES_FOLDER.glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line and not line.startswith("#"):
                match = re.fullmatch(r"(.*?) ([≡≢]) (.*)", line)
                assert match, f"{path.name}:{number}: not `answer ≡ truth` or `answer ≢ truth`: {line}"
                cases.append((match[1], match[3], match[2] == "≡"))
    return cases


CASES = read_cases()


def test_the_corpus_is_large_and_has_both_kinds():
    assert len(CASES) > 700
    assert sum(same for _, _, same in CASES) > 300
    assert sum(not same for _, _, same in CASES) > 200


@pytest.mark.parametrize(
    ("answer", "truth", "same"), CASES, ids=[f"{a} {'≡' if same else '≢'} {t}" for a, t, same in CASES]
)
def test_case(answer, truth, same):
    assert equivalent(answer, truth) is same


@pytest.mark.parametrize(
    ("answer", "truth", "same"), CASES, ids=[f"{t} {'≡' if same else '≢'} {a}" for a, t, same in CASES]
)
def test_case_turned_around(answer, truth, same):
    if (answer, truth) not in ONE_WAY:
        assert equivalent(truth, answer) is same


def test_every_truth_equals_itself_in_a_box():
    for truth in {truth for _, truth, same in CASES if same}:
        assert verdict(rf"so it is \boxed{{{truth}}}.", truth)[0] == "correct", truth
