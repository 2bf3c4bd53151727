"""The corpus: pairs of an answer and a truth with the verdict of a careful reader, one per line, in
boxed_cases/*.txt.

    5.0 ≡ 5      each answers the other
    5 ≢ 6        neither does
    3+4=7 ⇒ 7    the first answers the second and not the other way round: an answer may say more than the truth, how
                 it was found (3+4=7), what was asked (x+y=5); digits answer a truth that has a base
"""

import re
from pathlib import Path

import pytest

from rewards.boxed import equivalent, verdict

CASES_FOLDER = Path(__file__).parent / "boxed_cases"
VERDICTS = {"≡": (True, True), "≢": (False, False), "⇒": (True, False)}  # the first for the second, and turned round
BLOCK = 50  # cases of one test: a test for each would take pytest longer than the verifier


def read_cases() -> dict[str, tuple[str, str, str]]:
    """File and line -> case."""
    cases = {}
    for path in sorted(CASES_FOLDER.glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line and not line.startswith("#"):
                match = re.fullmatch(r"(.*?) ([≡≢⇒]) (.*)", line)
                assert match, (
                    f"{path.name}:{number}: not `answer ≡ truth`, `answer ≢ truth` or `answer ⇒ truth`: {line}"
                )
                cases[f"{path.name}:{number}"] = match.groups()
    return cases


CASES = read_cases()


def test_the_corpus_is_large_and_has_both_kinds():
    assert sum(sign == "≡" for _, sign, _ in CASES.values()) > 1000
    assert sum(sign == "≢" for _, sign, _ in CASES.values()) > 1000


@pytest.mark.parametrize("block", range(0, len(CASES), BLOCK), ids=list(CASES)[::BLOCK])
def test_cases(block):
    wrong = []
    for place, (first, sign, second) in list(CASES.items())[block : block + BLOCK]:
        found = equivalent(first, second), equivalent(second, first)
        if found != VERDICTS[sign]:
            wrong.append(f"{place}: {first} {sign} {second}, found {found}")
    assert not wrong, "\n".join(wrong)


def test_every_truth_equals_itself_in_a_box():
    for truth in {truth for _, sign, truth in CASES.values() if sign != "≢"}:
        assert verdict(rf"so it is \boxed{{{truth}}}.", truth)[0] == "correct", truth
