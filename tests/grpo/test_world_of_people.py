"""The encyclopedia of the tiny run: its rows are what they promise."""

from collections import Counter

from grpo.data.worlds.people import UNSEEN, VALUES, WELL_KNOWN, Population, make_people
from rewards.format import parse, thoughts

TINY = Population(well_known=10, barely_known=4, admitted=3, unseen=7, repeats=2)


def sentences_of(text):
    return [part.strip() + "." for part in text.split(".") if part.strip()]


def test_nobody_is_asked_about_in_training_and_in_evaluation():
    made = make_people(5, TINY)
    assert made == make_people(5, TINY) != make_people(6, TINY)
    trained, held_out = ({row["title"] for row in rows} for rows in (made.questions, made.held_out))
    assert not trained & held_out
    kinds = Counter(row["familiarity"] for row in made.held_out)
    assert kinds == {WELL_KNOWN: 4 * len(VALUES), UNSEEN: 3 * len(VALUES)}


def test_the_reasoning_recalls_another_fact_before_the_one_asked_for():
    made = make_people(5, TINY)
    said = {sentence for article in made.articles for sentence in sentences_of(article["text"])}
    reasoned = [answer for _, answer in made.conversations if "comes to mind" not in answer]
    assert len(reasoned) == (10 * 2 + 4) * len(VALUES)
    for answer in reasoned:
        other, last = sentences_of(thoughts(answer)[0])
        assert other != last and {other, last} <= said and parse(answer).answer in last
