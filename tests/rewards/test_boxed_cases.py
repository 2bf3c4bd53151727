r"""The corpus, boxed_cases/*.txt: answers with the verdict of a careful reader on each and the first of its line.

5 ≡ 5.0 ≡ x=5 ≢ 6    5.0 and x=5 answer 5, and 5 answers them; 6 and 5 do neither
7 ⇐ 3+4=7            3+4=7 answers 7 and not the other way round: an answer may say more than the truth, how it was
                     found (3+4=7), what was asked (x+y=5); digits answer a truth that has a base
1 ≟ \tan 45^\circ    the same, but missed both ways, by a class of rewards/mathematics/__init__.py; what is paid again
                     gets its ≡ back
"""

import re
from pathlib import Path

import pytest

from rewards.mathematics.boxes import equivalent, grade_box

CASES_FOLDER = Path(__file__).parent / "boxed_cases"
# the first for the other, and turned round
VERDICTS = {"≡": (True, True), "≢": (False, False), "⇒": (True, False), "⇐": (False, True), "≟": (False, False)}
BLOCK = 50  # cases of one test: a test for each would take pytest longer than the verifier


def read_cases():
    """Return file and line, first side, sign, other side."""
    cases = []
    for path in sorted(CASES_FOLDER.glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line and not line.startswith("#"):
                first, *others = re.split(" ([≡≢⇒⇐≟]) ", line)
                assert others, f"{path.name}:{number}: not `first ≡ other ≢ other`: {line}"
                pairs = zip(others[::2], others[1::2], strict=True)
                cases += [(f"{path.name}:{number}", first, sign, other) for sign, other in pairs]
    return cases


CASES = read_cases()


def test_the_corpus_is_large_and_has_both_kinds():
    signs = [sign for _, _, sign, _ in CASES]
    assert signs.count("≡") > 800 and signs.count("≢") > 1000


@pytest.mark.parametrize("block", range(0, len(CASES), BLOCK), ids=[case[0] for case in CASES[::BLOCK]])
def test_cases(block):
    wrong = []
    for place, first, sign, other in CASES[block : block + BLOCK]:
        found = equivalent(first, other), equivalent(other, first)
        if found != VERDICTS[sign]:
            wrong.append(f"{place}: {first} {sign} {other}, found {found}")
    assert not wrong, "\n".join(wrong)


def test_every_truth_equals_itself_in_a_box():
    truths = {truth for _, first, sign, other in CASES if sign != "≢" for truth in (first, other)}
    for truth in truths - {"8;\\"}:  # whose backslash escapes the brace of the box
        assert grade_box(rf"so it is \boxed{{{truth}}}.", truth)[0] == "correct", truth
