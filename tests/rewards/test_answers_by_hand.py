"""The offline judge on answers that were judged by hand: no wrong answer is paid, right ones and refusals are seen.

Printed with -s: precision and recall of each outcome.
"""

import asyncio
import time
from pathlib import Path

import pytest
from by_hand import Case, agreement, read_cases

from rewards.exact import normalise
from rewards.knowrl.offline_judge import OfflineJudge
from rewards.knowrl.refusal import is_refusal

CASES, BESIDE = (
    read_cases(Path(__file__).parent / name) for name in ("answers_by_hand.txt", "answers_beside_the_truth.txt")
)


def outcomes(cases: list[Case], is_chinese: bool) -> list[tuple[str, str]]:
    found = []
    for case in cases:
        if case.is_chinese == is_chinese:
            judgement = asyncio.run(OfflineJudge().judge(case.first, case.text, [case.second]))
            found.append((case.label, judgement.outcome))
    return found


@pytest.mark.parametrize(
    "cases, is_chinese, label, min_recall",
    [
        (CASES, False, "correct", 0.8),
        (CASES, False, "refused", 0.9),
        (CASES, True, "correct", 0.8),
        (CASES, True, "refused", 1.0),
        (BESIDE, False, "correct", 0.7),
        (BESIDE, True, "correct", 0.65),
    ],
)
def test_what_it_pays_is_right(cases, is_chinese, label, min_recall):
    both, ours, readers = agreement(outcomes(cases, is_chinese), label)
    print(f"{'Chinese' if is_chinese else 'English'}, {label}: precision {both} of {ours}, recall {both} of {readers}")
    assert both == ours and both / readers >= min_recall


def test_there_are_enough_cases_of_each_kind():
    labels = [case.label for case in CASES]
    assert len(CASES) >= 140 and min(labels.count(label) for label in ("correct", "wrong", "refused")) >= 45


EVERYDAY_REFUSALS = [  # written after the rules, which then learned those that they missed
    "I couldn't find any information on that",
    "There isn't any information available",
    "I haven't heard of this person",
    "I'm not 100% sure",
    "I must admit I don't know",
    "I cannot confidently answer this question",
    "I have never heard of it",
    "Hmm, I'm not sure about this one.",
    "I don't have enough knowledge to answer this",
    "I was unable to find the answer",
    "我对此一无所知",
    "不好意思，我不知道",
    "抱歉，我没有关于此人的信息",
    "我无法提供答案",
    "我也不知道呢",
]


@pytest.mark.parametrize("answer", EVERYDAY_REFUSALS)
def test_everyday_refusals(answer):
    assert is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "I am sure about that",
            "Sure",
            "Certain",
            "Able to help",
            "I know that",
            "I have the answer",
            "not",
            "Never",
        ),
        *(
            "I have no idea Paris",
            "I never knew Paris",
            "I don't know Italy",
            "I am not able to say Paris",
            "It is known",
        ),
        *("No Country for Old Men", "Not Without My Daughter", "uncertainty", "The answer is not Paris", "Know"),
        *("不确定是北京", "不知道北京", "不是北京", "没有", "不丹", "无锡", "不知火", "说不定是北京", "北京不清楚"),
    ],
)
def test_no_refusal_with_something_in_it(answer):
    assert not is_refusal(answer)


@pytest.mark.parametrize(
    "text",
    ["really ", "sorry that ", "i am sorry to say that ", "not ", "have no ", "it is ", "我真的", "对此", "没有"],
)
def test_refusals_cost_linear_time(text):
    start = time.process_time()
    is_refusal(text * (1000 // len(text)))
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    "answer, truth",
    [
        ("1.5", "15"),
        ("15", "1.5"),
        ("1/2", "12"),
        ("-5", "5"),
        ("10:30", "1030"),
        ("2.4 million", "24 million"),
        ("Johnson", "Johnson & Johnson"),
        ("Duran", "Duran Duran"),
        ("before 1949", "1949"),
        ("over 1,000", "1,000"),
        ("more than one thousand people", "1000"),
        ("1949年之前", "1949年"),
        ("1949年以后", "1949年"),
        ("14 March", "14 March 2018"),
        ("2018-03-14", "2018-04-13"),
        ("one million", "one thousand"),
        ("240万", "24万"),
        ("12 April 1962", "April 1962"),
        ("12!", "12"),
        ("n!", "n"),
        ("It is 12!", "12"),
        ("5²", "52"),
        ("the 18th", "18"),
    ],
)
def test_another_number_is_never_paid(answer, truth):
    assert normalise(answer) != normalise(truth)
    assert asyncio.run(OfflineJudge().judge("Which?", answer, [truth])).outcome == "wrong"


def test_a_choice_may_be_an_article():
    assert asyncio.run(OfflineJudge().judge("Which?", "A", ["A"])).outcome == "correct"
    assert normalise("A") != normalise("B")
