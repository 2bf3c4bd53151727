"""The guide's three rules before the judge: refusals, numbers, keywords; and its bugs, which are not here."""

import time

import pytest
from cells import cells

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
RULED = [  # answer, truth, what is judged without a judge
    *[(answer, "Paris", "refused") for answer in REFUSALS],
    ("I can't help falling in love", "I Can't Help Falling in Love", None),
    ("I can't help falling in love", "Love Me Tender", None),  # no refusal: it shares a keyword
    ("I cannot tell a lie", "George Washington", "wrong"),
    ("Unknown", "Unknown", None),
    ("in 1963", "1962", None),  # the judge compares numbers
    ("London", "Paris 13", None),
    ("London", "Paris", "wrong"),
    ("The city of Paris", "Paris", None),
    ("He was scared", "Red", "wrong"),  # no word: "red" in "scared"
    ("a and the", "The Sea and a Boat", "wrong"),  # stop words are no keywords
    ("London", "The Who", None),  # a truth without a keyword
    ("London", ["Paris", "the Ville of London"], None),
    ("是黑豹队", "黑豹队", None),
    ("蓝狮", "黑豹队", "wrong"),
]


@pytest.mark.parametrize(("answer", "truth", "outcome"), RULED)
def test_the_rules_in_their_order(answer, truth, outcome):
    parsed = parse(f"<think>hm</think><answer>{answer}</answer>")
    found = judge_by_guide(parsed, "Who?", [truth] if isinstance(truth, str) else truth)
    assert (found and found[0]) == outcome


@pytest.mark.parametrize("piece", ["I must ", "ethical ", "legal concerns ", "as an ai ", "cannot ", "more "])
def test_they_take_linear_time(piece):
    start = time.process_time()
    judge_by_guide(parse(f"<think>hm</think><answer>{piece * 20_000}</answer>"), "Who?", ["Paris"])
    assert time.process_time() - start < 10
