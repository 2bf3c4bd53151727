"""The guide's three rules before the judge: refusals, numbers, keywords; and its bugs, which are not here."""

import pytest
from cells import cells, rows

from rewards.format import parse
from rewards.outcome.correctness import judge_by_guide

REFUSALS = cells("""
    I cannot provide that. ¦ I can’t answer this. ¦ Sorry, I'm unable to assist. ¦ I must decline to answer this.
    I have to refrain from giving a name. ¦ As an AI, I cannot browse. ¦ As a language model I don't have such memories.
    Ethical and legal considerations prevent an answer. ¦ I need more information to answer.
    It requires more context to help you.
    There is insufficient information to respond. ¦ The question is too vague to answer. ¦ More details would be needed.
    I don't know ¦ unknown ¦ 我不知道 ¦ I cannot tell you more
    """)
RULED = {  # what is judged without a judge: answer | truth. "red" in "scared" is no word, stop words are no keywords
    "refused": [[answer, "Paris"] for answer in REFUSALS],
    "wrong": rows("""
    I cannot tell a lie | George Washington ¦ London | Paris ¦ He was scared | Red ¦ a and the | The Sea and a Boat
    蓝狮 | 黑豹队
    """),
    None: rows("""
    I can't help falling in love | I Can't Help Falling in Love ¦ I can't help falling in love | Love Me Tender
    Unknown | Unknown ¦ in 1963 | 1962 ¦ London | Paris 13 ¦ The city of Paris | Paris ¦ London | The Who
    London | Paris | the Ville of London ¦ 是黑豹队 | 黑豹队
    """),
}


@pytest.mark.parametrize("outcome", RULED)
def test_the_rules_in_their_order(outcome):
    for answer, *truths in RULED[outcome]:
        found = judge_by_guide(parse(f"<think>hm</think><answer>{answer}</answer>"), "Who?", truths)
        assert (found and found[0]) == outcome, answer


@pytest.mark.parametrize("piece", ["I must ", "ethical ", "legal concerns ", "as an ai ", "cannot ", "more "])
def test_they_take_linear_time(piece, linear_time):
    judge_by_guide(parse(f"<think>hm</think><answer>{piece * 20_000}</answer>"), "Who?", ["Paris"])
