"""The almanac and the atlas: real facts, each asked for once, and a cold start that teaches none of them."""

import re
from collections import Counter

import pytest

from grpo.data.worlds.facts import articles, by_title, conversations, read_facts, split_facts
from grpo.data.worlds.kinds import DECLINED
from knowledge.text import fold

FACTS = read_facts()
ATLAS = read_facts("atlas")


def test_every_subject_is_asked_about_once_no_country_is_worth_guessing_and_no_capital_is_among_the_cities():
    assert len(FACTS) > 700 and len({fact.form("question") for fact in FACTS}) == len(FACTS)
    assert len({fold(fact.title) for fact in FACTS}) == len(FACTS)  # no city is a country or an element
    cities = [fact for fact in FACTS if fact.familiarity.startswith(("city", "town"))]
    assert max(Counter(fact.answers[0] for fact in cities).values()) <= 8
    assert not [fact for fact in cities if fold(fact.answers[0]) in fold(fact.subject)]  # Panama City
    capitals = {fold(fact.answers[0]) for fact in FACTS if fact.familiarity == "capital"}
    assert not capitals & {fold(fact.subject) for fact in FACTS if fact.familiarity != "capital"}


@pytest.mark.parametrize("facts", [FACTS, ATLAS], ids=["almanac", "atlas"])
def test_a_subject_is_asked_about_completely_or_held_out_completely(facts):
    asked, kept = split_facts(facts, 1)
    assert len(asked) + len(kept) == len(facts) and not by_title(asked).keys() & by_title(kept).keys()
    assert split_facts(facts, 1) == (asked, kept) != split_facts(facts, 2)
    counts, held_out = (Counter(fact.familiarity for fact in some) for some in (facts, kept))
    assert all(abs(held_out[kind] / count - 0.4) < 0.02 for kind, count in counts.items())


def test_an_article_states_the_fact_under_every_name():
    found = {article["title"]: article["text"] for article in articles(FACTS)}
    assert len(found) == len(FACTS)
    assert found["Ukraine"] == "The capital of Ukraine is Kyiv. The capital of Ukraine is Kiev."
    assert "the Netherlands" in found["Netherlands"]


def test_a_cold_start_recalls_what_the_model_says_and_declines_at_random():
    said = [f"word{number}" for number in range(len(FACTS))]
    pairs = conversations(FACTS, said, 3)
    finals = [re.fullmatch(r"<think>(.+)</think><answer>(.+)</answer>", text).groups() for _, text in pairs]
    assert all(word in recalled for word, (recalled, _) in zip(said, finals, strict=True))
    assert {final for _, final in finals} - set(said) == {DECLINED}
    declined = sum(final == DECLINED for _, final in finals) / len(FACTS)
    assert 0.35 < declined < 0.45  # 0.4, and 0.018 is a standard deviation
    assert pairs == conversations(FACTS, said, 3) != conversations(FACTS, said, 4)


# --- The atlas -------------------------------------------------------------------------------------------------------


def test_a_cold_start_recalls_some_facts_about_the_country_as_the_model_says_them():
    said = [f"word{number}" for number in range(len(ATLAS))]
    stated = {fact.form("sentence", word): fact for fact, word in zip(ATLAS, said, strict=True)}
    counts = Counter()
    for fact, (question, text) in zip(ATLAS, conversations(ATLAS, said, 3), strict=True):
        recalled = re.findall(r"(?:The|A) .*?\.(?= |<)", text)
        assert question == fact.form("question") and {stated[sentence].title for sentence in recalled} == {fact.title}
        assert stated[recalled[0]] == fact and len(set(recalled)) == len(recalled)
        counts[len(recalled)] += 1
    assert set(counts) == {1, 2, 3, 4, 5, 6} and min(counts.values()) > 100


def test_of_a_currency_only_the_last_word_counts():
    facts = {fact.familiarity: fact for fact in ATLAS if fact.subject == "Algeria"}
    assert facts["currency"].value("Algerian dinar") == "dinar"
    assert facts["neighbour"].value("Burkina Faso") == "Burkina Faso"
