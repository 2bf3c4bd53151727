"""The offline judge pays the truth itself, in any case and punctuation, and nothing else."""

import asyncio

import pytest
from cells import rows

from rewards.outcome.judge import OfflineJudge

OUTCOMES = {  # answer | truths
    "correct": rows("""
    Paris | Paris ¦ paris. | Paris ¦ **The Eiffel Tower** | Eiffel tower ¦ Paris | London | Paris ¦ A | A
    Schindler’s List | Schindler's List ¦ 北京。 | 北京 ¦ Unknown | Unknown
    Lennon and McCartney | Lennon and McCartney
    """),
    "wrong": rows("""
    B | A ¦ London | Paris ¦ Paris, Rome and Berlin | Paris ¦ Bob, Alice | Alice ¦ 甲乙 | 甲 ¦ It is not Paris | Paris
    I think it is Paris | Paris ¦ ... | ... ¦ I don't know, perhaps Paris | Paris
    1.5 | 15 ¦ 15 | 1.5 ¦ 1/2 | 12 ¦ -5 | 5 ¦ 10:30 | 1030 ¦ 2.4 million | 24 million
    Johnson | Johnson & Johnson ¦ Duran | Duran Duran ¦ before 1949 | 1949 ¦ over 1,000 | 1,000
    more than one thousand people | 1000 ¦ 1949年之前 | 1949年 ¦ 1949年以后 | 1949年 ¦ 14 March | 14 March 2018
    2018-03-14 | 2018-04-13 ¦ one million | one thousand ¦ 240万 | 24万 ¦ 12 April 1962 | April 1962 ¦ 12! | 12
    n! | n ¦ It is 12! | 12 ¦ 5² | 52 ¦ the 18th | 18
    """),
    "refused": [["I don’t know", "Paris"]],
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_offline_judge(outcome):
    for answer, *truths in OUTCOMES[outcome]:
        verdict = asyncio.run(OfflineJudge().judge("?", answer, truths))
        assert verdict[0] == outcome and verdict[1], answer
