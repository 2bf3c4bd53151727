"""The verifier without a model, on free text that was judged by hand: what it decides is right; the rest is unknown.

Printed with -s: precision and recall of each label.
"""

from pathlib import Path

import pytest
from by_hand import Case, agreement, read_cases

from knowledge.facts.lexical import LexicalVerifier
from knowledge.store.result import Passage

CASES, SEVERAL = (
    read_cases(Path(__file__).parent / name) for name in ("facts_by_hand.txt", "facts_of_several_verbs.txt")
)


def verdicts(cases: list[Case], is_chinese: bool) -> list[tuple[str, str]]:
    found = []
    for case in cases:
        if case.is_chinese == is_chinese:
            passage = Passage("passage", case.first, case.second, 1.0)
            (verdict,) = LexicalVerifier().verify([(case.text, [passage])])
            found.append((case.label, verdict.label))
    return found


@pytest.mark.parametrize(
    "cases, is_chinese, label, min_recall",
    [
        (CASES, False, "supported", 0.75),
        (CASES, False, "refuted", 0.85),
        (CASES, True, "supported", 0.9),
        (CASES, True, "refuted", 1.0),
        (SEVERAL, False, "supported", 0.65),
        (SEVERAL, False, "refuted", 0.2),
        (SEVERAL, True, "supported", 0.3),
        (SEVERAL, True, "refuted", 0.05),
    ],
)
def test_what_it_decides_is_right(cases, is_chinese, label, min_recall):
    both, ours, readers = agreement(verdicts(cases, is_chinese), label)
    print(f"{'Chinese' if is_chinese else 'English'}, {label}: precision {both} of {ours}, recall {both} of {readers}")
    assert both == ours and both / readers >= min_recall


def test_there_are_enough_cases_of_each_kind():
    labels = [case.label for case in CASES]
    assert len(CASES) >= 100 and min(labels.count(label) for label in ("supported", "refuted", "unknown")) >= 25


@pytest.mark.parametrize(
    "said, fact",
    [
        ("上海是中国的直辖市。", "上海是中国的城市"),
        ("上海是中国的直辖市。", "上海是直辖市"),
        ("上海是一座港口城市。", "上海是一座旅游城市"),
        ("上海为中国最大的城市。", "上海为中国最富的城市"),
        ("上海有外滩。", "上海有豫园"),
        ("上海属于华东地区。", "上海属于长三角地区"),
    ],
)
def test_what_something_is_called_refutes_no_other_name_for_it(said, fact):
    (verdict,) = LexicalVerifier().verify([(fact, [Passage("上海#0", "上海", said, 1.0)])])
    assert verdict.label != "refuted"


@pytest.mark.parametrize(
    "said, fact",
    [
        ("Velda is a port.", "Velda is a city"),
        ("Velda is a large port of Orun.", "Velda is a large city of Orun"),
        ("Velda was the capital of Orun.", "Velda was the capital of Tane"),
        ("Velda became a rich town in Orun.", "Velda became a rich city in Orun"),
        ("Velda is in Orun.", "Velda is in Tane"),
        ("Velda was rich.", "Velda was old"),
    ],
)
def test_a_description_refutes_no_other_description(said, fact):
    (verdict,) = LexicalVerifier().verify([(fact, [Passage("Velda#0", "Velda", said, 1.0)])])
    assert verdict.label == "unknown"
