"""The offline judge: the right answer in ordinary sentences is right, and no answer that hedges, denies or shouts
several names is."""

import asyncio

import pytest

from rewards.knowrl.offline_judge import OfflineJudge, words

OFFLINE = [  # question, answer, truths, outcome
    ("What is the capital of France?", "Paris", ["Paris"], "correct"),
    ("What is the capital of France?", "paris.", ["Paris"], "correct"),
    ("What is the capital of France?", "The capital of France is Paris.", ["Paris"], "correct"),
    ("?", "I think it is Paris", ["Paris"], "correct"),
    ("What is the capital of France?", "Paris, France", ["Paris"], "correct"),
    ("?", "Paris", ["London", "Paris"], "correct"),
    ("?", "London", ["Paris"], "wrong"),
    ("?", "Paris and London", ["Paris"], "wrong"),
    ("?", "Paris, London", ["Paris"], "wrong"),
    ("?", "Paris or London", ["Paris"], "wrong"),
    ("?", "It is not Paris", ["Paris"], "wrong"),
    ("?", "Paris London Berlin Rome Oslo", ["Paris"], "wrong"),
    ("?", "scared", ["red"], "wrong"),
    ("?", "Canonero", ["Milena Canonero"], "wrong"),
    ("?", "...", ["Paris"], "wrong"),
    ("?", "the", ["The"], "correct"),
    ("When?", "13 March 2018", ["March 13, 2018"], "correct"),
    ("When?", "2018", ["March 13, 2018"], "wrong"),
    ("When?", "March 13th, 2018", ["March 13, 2018"], "correct"),
    ("When?", "March 13 or 14, 2018", ["March 13, 2018"], "wrong"),
    ("When?", "1998", ["1999"], "wrong"),
    ("When?", "In 1998.", ["1998"], "correct"),
    ("How many seasons are there?", "3", ["three seasons"], "correct"),
    ("How many people?", "12,000 people", ["12000"], "correct"),
    ("?", "4.5", ["4.50"], "wrong"),
    ("When?", "1990 1991 1992", ["1991"], "wrong"),
    ("Netflix or Hulu?", "Netflix", ["Hulu"], "wrong"),
    ("?", "Lennon and McCartney", ["Lennon"], "wrong"),
    ("?", "Lennon and McCartney", ["Lennon and McCartney"], "correct"),
    ("?", "I don’t know", ["Paris"], "refused"),
    ("?", "Unknown", ["Unknown"], "correct"),
    ("?", "I don't know, perhaps Paris", ["Paris"], "wrong"),
    ("中国的首都是哪里？", "是北京", ["北京"], "correct"),
    ("中国的首都是哪里？", "不是北京", ["北京"], "wrong"),
    ("?", "北京上海", ["北京"], "wrong"),
    ("?", "答案是北京。", ["北京"], "correct"),
    ("?", "Paris " * 500, ["Paris"], "wrong"),
    ("?", "it is " * 100 + "Paris", ["Paris"], "correct"),
    ("?", "it is " * 200 + "Paris", ["Paris"], "wrong"),  # of more than 1000 characters
    ("?", "Schindler’s List", ["Schindler's List"], "correct"),
]


@pytest.mark.parametrize("number", range(len(OFFLINE)))
def test_offline_judge(number):
    question, answer, truths, outcome = OFFLINE[number]
    verdict = asyncio.run(OfflineJudge().judge(question, answer, truths))
    assert verdict.outcome == outcome, verdict.reason
    assert verdict.reason


def test_words_are_compared_in_one_spelling():
    assert words("The three mén's 3rd, 1200.5 – 2") == ["three", "men", "3rd", "1200.5", "2"]


BORN, VELDA = "Where was Mira Tolan born?", "Velda"
OTHERS = [
    "Velda Orsen",
    "Velda Orsen Marrin Tolbay",
    "Orsen Velda",
    "Velda. Orsen.",
    "Orsen Velda. Marrin. Tolbay.",
    "Velda-Orsen",
    "Velda (Orsen)",
    "Velda [Orsen]",
    "Velda: Orsen",
    "Velda – Orsen",
    "Velda\nOrsen",
    "Velda plus Orsen",
    "VELDA ORSEN",
    "velda orsen marrin",
    "Velda orsen marrin",
    "It is Velda (or marrin)",
    "It is Velda. In marrin.",
]
DENIALS = [
    "It can't be Velda",
    "It couldn't be Velda",
    "It doesn't equal Velda",
    "It didn’t happen in Velda",
    "It won't be Velda",
    "Not Velda",
    "Anything but Velda",
    "Anywhere but Velda",
    "Velda is wrong",
    "Velda: false",
    "Hardly Velda",
    "Rather than Velda",
    "It cannot be Velda",
]
ORDINARY = [
    (BORN, "She was born in Velda.", VELDA),
    (BORN, "Mira Tolan was born in Velda", VELDA),
    (BORN, "The answer is Velda", VELDA),
    (BORN, "Located in Velda", VELDA),
    (BORN, "**Velda**", VELDA),
    ("When?", "14 March 1962", "14 March 1962"),
    ("When?", "1962", "1962"),
    ("When did she die?", "She died in 1962.", "1962"),
    ("How much of it?", "12 per cent of it", "12%"),
    ("When?", "It was in the year 1962.", "1962"),
    ("Who?", "It was Jean-Paul.", "Jean-Paul"),
    ("Who?", "Jean Paul", "Jean-Paul"),
    ("Which song?", 'It is "Not Afraid".', "Not Afraid"),
    ("Which song?", "Can't Stop", "Can't Stop"),
    ("Which song?", "The song is called Can't Stop.", "Can't Stop"),
    ("?", "It is called The Who", "The Who"),
    ("When?", "the 1940s", "1940s"),
    ("When?", "1945 BC", "1945 BC"),
    ("Is it a planet?", "No, it is not", "No, it is not"),
    ("Who won, Ali or Frazier?", "Ali won.", "Ali"),
    ("Which is larger, Asia or Africa?", "Asia is larger", "Asia"),
    ("哪座城市？", "答案是京。", "京"),
    ("哪座城市？", "京市", "京"),
    ("เมืองหลวงของประเทศไทยคืออะไร", "คือกรุงเทพ", "กรุงเทพ"),
]
BEYOND_RULES = [  # a reader would accept them; rules that do would accept others, too
    (BORN, "The town of Velda", VELDA),
    (BORN, "Yes, Velda!", VELDA),
    ("When?", "In March 1962", "1962"),
    ("When?", "In mid-1962", "1962"),
    ("When?", "She was born on 14 March 1962 in Velda", "14 March 1962"),
    ("Who?", "It was written by J. K. Rowling.", "J.K. Rowling"),
    ("Who?", "Dr. Velda", "Velda"),
    ("?", "She works as a weaver.", "weaver"),
    ("?", "The film was directed by Mira Tolan", "Mira Tolan"),
    ("How much?", "4.50 dollars", "4.50"),
    ("What was the score?", "They won 3-1.", "3-1"),
    ("How long?", "It takes 12 years.", "12 years"),
]
RIVALS = [
    ("Which novel?", "1984, Dune", "1984"),
    ("Which novel?", "1984. Dune.", "1984"),
    ("?", "weaver baker smith", "weaver"),
    ("?", "Weaver baker", "weaver"),
    ("?", "14 March April 1962", "14 March 1962"),
    ("?", "14 march april 1962", "14 March 1962"),
    ("?", "March 14 May 1962", "14 March 1962"),
    ("?", "กรุงเทพ เชียงใหม่", "กรุงเทพ"),
    ("What was the score?", "1-3", "3-1"),
    ("What was the ratio?", "2 to 1", "1:2"),
    ("When?", "in the 1940s", "1940"),
    ("When?", "the 1940's", "1940"),
    ("When?", "1945 BC", "1945"),
    ("How many?", "half of 50", "50"),
    ("How many?", "50 dozen", "50"),
    ("Is it a planet?", "yes and no", "No"),
    ("Who won, Ali or Frazier?", "Ali or Frazier", "Ali"),
    ("Who won, Ali or Frazier?", "Frazier beat Ali", "Ali"),
    ("Who won, Ali or Frazier?", "Ali, Frazier", "Ali"),
    ("Which came first, the chicken or the egg?", "the chicken and the egg", "the egg"),
    ("?", "I doubt that it was Velda", "Velda"),
    ("哪座城市？", "东京", "京"),
    ("哪个朝代？", "这是西汉", "汉"),
    ("是对还是错？", "不对", "对"),
    ("谁？", "除曹雪芹", "曹雪芹"),
    ("哪一年？", "公元前1949年", "1949年"),
    ("เมืองหลวงของประเทศไทยคืออะไร", "ไม่ใช่กรุงเทพ", "กรุงเทพ"),
]


@pytest.mark.parametrize(
    ("question", "answer", "truth"), [*((BORN, answer, VELDA) for answer in OTHERS + DENIALS), *RIVALS, *BEYOND_RULES]
)
def test_no_answer_with_another_candidate_or_a_denial_is_right(question, answer, truth):
    assert asyncio.run(OfflineJudge().judge(question, answer, [truth])).outcome == "wrong"


@pytest.mark.parametrize(("question", "answer", "truth"), ORDINARY)
def test_an_ordinary_answer_stays_right(question, answer, truth):
    verdict = asyncio.run(OfflineJudge().judge(question, answer, [truth]))
    assert verdict.outcome == "correct", verdict.reason


@pytest.mark.parametrize(
    ("truths", "outcome"), [(["Orun", "Velda"], "correct"), (["Velda", "Orun"], "correct"), (["Orun", "Tane"], "wrong")]
)
def test_a_sentence_around_any_one_of_the_truths_is_right(truths, outcome):
    found = asyncio.run(OfflineJudge().judge("Where was Mira Tolan born?", "She was born in Velda", truths))
    assert found.outcome == outcome
