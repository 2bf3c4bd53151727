"""The almanac: real facts, each asked for once, and a cold start that teaches none of them."""

import re
from collections import Counter

import pytest
from cells import cells

from knowledge.almanac import REFUSAL, articles, at_random, conversations, is_right, read_facts, split_facts
from knowledge.text import fold

FACTS = read_facts()


def test_every_subject_is_asked_about_once_no_country_is_worth_guessing_and_no_capital_is_among_the_cities():
    assert len(FACTS) > 700 and len({fact.question for fact in FACTS}) == len(FACTS)
    assert len({fold(fact.title) for fact in FACTS}) == len(FACTS)  # no city is a country or an element
    countries = Counter(fact.answers[0] for fact in FACTS if fact.familiarity.startswith(("city", "town")))
    assert max(countries.values()) <= 8
    cities = [fact for fact in FACTS if fact.familiarity.startswith(("city", "town"))]
    assert not [fact for fact in cities if fold(fact.answers[0]) in fold(fact.subject)]  # Panama City
    capitals = {fold(fact.answers[0]) for fact in FACTS if fact.familiarity == "capital"}
    assert not capitals & {fold(fact.subject) for fact in FACTS if fact.familiarity != "capital"}


def test_facts_are_held_out_by_the_same_share_of_each_kind():
    asked, kept = split_facts(FACTS, 1)
    assert len(asked) + len(kept) == len(FACTS) and not set(asked) & set(kept)
    counts, held_out = Counter(fact.familiarity for fact in FACTS), Counter(fact.familiarity for fact in kept)
    assert all(abs(held_out[kind] / count - 0.4) < 0.02 for kind, count in counts.items())
    assert split_facts(FACTS, 1) == (asked, kept) != split_facts(FACTS, 2)


def test_an_article_states_the_fact_under_every_name():
    found = {article["title"]: article["text"] for article in articles(FACTS)}
    assert len(found) == len(FACTS)
    assert found["Ukraine"] == "The capital of Ukraine is Kyiv. The capital of Ukraine is Kiev."
    assert "the Netherlands" in found["Netherlands"]


RIGHT = cells("""
    Ukraine | Kiev ¦ Ukraine | kyiv ¦ Chicago | the United States ¦ Chicago | The USA ¦ Brazil | Brasília ¦ tungsten | W
    """)
WRONG = cells("Ukraine | Odesa ¦ Chicago | Illinois ¦ tungsten | Tu")


@pytest.mark.parametrize("pair", RIGHT + WRONG)
def test_an_answer_is_right_under_any_of_its_names(pair):
    subject, answer = pair.split(" | ")
    (fact,) = [fact for fact in FACTS if fact.subject == subject]
    assert is_right(answer, fact.answers) == (pair in RIGHT)


def test_a_cold_start_recalls_what_the_model_says_and_declines_at_random():
    said = [f"word{number}" for number in range(len(FACTS))]
    pairs = conversations(FACTS, said, at_random(3))
    finals = [re.fullmatch(r"<think>(.+)</think><answer>(.+)</answer>", text).groups() for _, text in pairs]
    assert all(word in recalled for word, (recalled, _) in zip(said, finals, strict=True))
    assert {final for _, final in finals} - set(said) == {REFUSAL}
    declined = sum(final == REFUSAL for _, final in finals) / len(FACTS)
    assert 0.35 < declined < 0.45  # 0.4, and 0.018 is a standard deviation
    assert pairs == conversations(FACTS, said, at_random(3)) != conversations(FACTS, said, at_random(4))
