"""The verifier without a model: exact on sentences from templates, cautious on the rest, and fast."""

import random
import time

import pytest

from knowledge.claims import stated_facts
from knowledge.lexical import LexicalVerifier
from knowledge.result import Passage

MIRA = "Mira Tolan was born in Velda. She works as a baker. She lived in Orun and died in 1962. It is said that she was not rich."
ZH = "米拉·托兰出生于维尔达。她的职业是面包师。她于1962年去世。"
VERIFIER = LexicalVerifier()


def verdict(fact: str, *texts: str, title: str = "Mira Tolan"):
    return VERIFIER.verify([(fact, [Passage(f"{title}#{i}", title, text, 1.0) for i, text in enumerate(texts)])])[0]


@pytest.mark.parametrize("fact, label", [
    ("Mira Tolan was born in Velda.", "supported"), ("In Velda Mira Tolan was born", "supported"),
    ("MIRA TOLAN was born in VELDA", "supported"), ("Mira Tolan works as a baker", "supported"),
    ("Mira Tolan lived in Orun", "supported"), ("Mira Tolan died in 1962", "supported"),
    ("Mira Tolan was born in Tane.", "refuted"), ("Mira Tolan was born in Orun", "refuted"), ("Mira Tolan lived in Velda", "refuted"),
    ("Mira Tolan died in 1963", "refuted"), ("Mira Tolan works as a cook", "refuted"), ("Mira Tolan was not born in Velda", "refuted"),
    ("Mira Tolan was never born in Velda", "refuted"),
    ("Jon Tolan was born in Velda", "unknown"), ("Mira Orn was born in Velda", "unknown"), ("Mira Tolan studied in Velda", "unknown"),
    ("Mira Tolan was not born in Tane", "unknown"), ("Mira Tolan is a tall woman", "unknown"), ("The Tane is 300 km long", "unknown"),
    ("Mira Tolan was", "unknown"), ("Mira Tolan", "unknown"), ("", "unknown"), ("Mira Tolan was born in 1962", "unknown"),
])
def test_english(fact, label):
    assert verdict(fact, MIRA).label == label


@pytest.mark.parametrize("fact, label", [
    ("米拉·托兰出生于维尔达", "supported"), ("米拉·托兰的职业是面包师", "supported"), ("米拉·托兰于1962年去世", "supported"),
    ("米拉·托兰出生于奥伦", "refuted"), ("米拉·托兰的职业是律师", "refuted"), ("米拉·托兰于1963年去世", "refuted"),
    ("米拉·托兰不是出生于维尔达", "refuted"), ("约恩·托兰出生于维尔达", "unknown"), ("米拉·托兰喜欢音乐", "unknown"),
])
def test_chinese(fact, label):
    assert verdict(fact, ZH, title="米拉·托兰").label == label


def test_evidence_and_scores():
    found = verdict("Mira Tolan lived in Orun", "The Tane is a river.", MIRA)
    assert (found.evidence, found.entailment, found.contradiction) == ("Mira Tolan#1", 1.0, 0.0)
    found = verdict("Mira Tolan was born in Tane", "The Tane is a river.", MIRA)
    assert (found.evidence, found.contradiction) == ("Mira Tolan#1", 1.0) and found.entailment < 1 and "Velda" in found.reason
    assert verdict("Mira Tolan was born in Velda").label == "unknown"


def test_support_anywhere_wins():
    assert verdict("Mira Tolan lived in Orun", "Mira Tolan lived in Velda.", "Mira Tolan lived in Orun.").label == "supported"


def test_roles_are_not_swapped():
    assert verdict("Athens beat Rome", "Rome beat Athens.").label == "unknown"
    assert verdict("Rome beat Athens", "Rome beat Athens.").label == "supported"


def test_words_of_two_clauses_do_not_add_up():
    assert verdict("Mira Tolan was born in Orun", "Mira Tolan was born in Velda and Jon Orn was born in Orun.").label == "refuted"


def test_exact_on_a_whole_world_of_templates():
    """Each person's true facts are supported; with another person's value they are refuted, in that person's own document."""
    rng = random.Random(0)
    cities, trades = ["Velda", "Orun", "Tane", "New Kesh", "San Lor"], ["baker", "smith", "weaver", "ship builder"]
    names = [f"{first} {last}" for first in ("Mira", "Jon", "Tess") for last in ("Orn", "Tolan")]
    people = [(name, rng.choice(cities), rng.choice(trades), rng.randint(1700, 1999)) for name in names]
    for name, city, trade, year in people:
        document = f"{name} was born in {city} in {year}. They work as a {trade}. {name}'s teacher was {rng.choice(people)[0]}."
        for other in cities:
            assert verdict(f"{name} was born in {other}", document, title=name).label == ("supported" if other == city else "refuted")
        for other in trades:
            assert verdict(f"{name} works as a {other}.", document, title=name).label == ("supported" if other == trade else "refuted")
        assert verdict(f"{name} was born in {year}", document, title=name).label == "supported"
        assert verdict(f"{name} was born in {year + 1}", document, title=name).label == "refuted"
        for stranger, *_ in people:
            if stranger != name:
                assert verdict(f"{stranger} was born in {city}", document, title=name).label == "unknown"


def test_what_the_rules_decomposer_says_can_be_judged():
    facts = stated_facts("She was born in Velda and works as a cook. I am not sure about the rest.", "Mira Tolan")
    assert [verdict(fact, MIRA).label for fact in facts] == ["supported", "refuted"]


def test_it_is_fast():
    """Well under 1 ms per fact with five passages: 0.1 ms on a quiet machine."""
    passages = [Passage(f"Mira Tolan#{i}", "Mira Tolan", MIRA, 1.0) for i in range(5)]
    facts = [(f"Mira Tolan was born in Tane {i}", passages) for i in range(300)]
    VERIFIER.verify(facts[:1])
    best = min(_seconds(facts) for _ in range(3))
    assert best / len(facts) < 1e-3


def _seconds(facts) -> float:
    start = time.perf_counter()
    VERIFIER.verify(facts)
    return time.perf_counter() - start


@pytest.mark.parametrize("text", ["\0", "\ud800 lone", 'title:x AND NEAR("a" OR b*) C++', "x" * 100_000, "born in Velda " * 8_000,
                                  "1,2.3" * 10_000, "不" * 50_000, "’" * 1000, "🙂", "((((", "\\1 \\g<0>"])
def test_hostile_texts(text):
    start = time.perf_counter()
    assert verdict(text, MIRA, text).label in ("supported", "refuted", "unknown")
    assert verdict("Mira Tolan was born in Velda", text, MIRA, title=text[:100]).label in ("supported", "unknown")
    assert time.perf_counter() - start < 2
