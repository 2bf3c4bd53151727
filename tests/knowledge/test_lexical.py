"""The verifier without a model: exact on sentences from templates, cautious on the rest, and fast."""

import random
import time

import pytest

from knowledge.facts.clauses import CLAUSES_VERSION
from knowledge.facts.lexical import LexicalVerifier
from knowledge.facts.rule_decomposer import stated_facts
from knowledge.store.result import Passage
from knowledge.store.tokens import TOKENS_VERSION
from knowledge.world import SENTENCE, VALUES, make_people

MIRA = (
    "Mira Tolan was born in Velda. She works as a baker. She lived in Orun and died in 1962. It is said "
    "that she was not rich."
)
ZH = "米拉·托兰出生于维尔达。她的职业是面包师。她于1962年去世。"
VERIFIER = LexicalVerifier()


def verdict(fact: str, *texts: str, title: str = "Mira Tolan"):
    return VERIFIER.verify([(fact, [Passage(f"{title}#{i}", title, text, 1.0) for i, text in enumerate(texts)])])[0]


@pytest.mark.parametrize(
    "fact, label",
    [
        ("Mira Tolan was born in Velda.", "supported"),
        ("In Velda Mira Tolan was born", "supported"),
        ("MIRA TOLAN was born in VELDA", "supported"),
        ("Mira Tolan works as a baker", "supported"),
        ("Mira Tolan lived in Orun", "supported"),
        ("Mira Tolan died in 1962", "supported"),
        ("Mira Tolan was born in Tane.", "refuted"),
        ("Mira Tolan was born in Orun", "refuted"),
        ("Mira Tolan lived in Velda", "refuted"),
        ("Mira Tolan died in 1963", "refuted"),
        ("Mira Tolan works as a cook", "refuted"),
        ("Mira Tolan was not born in Velda", "refuted"),
        ("Mira Tolan was never born in Velda", "refuted"),
        ("Jon Tolan was born in Velda", "unknown"),
        ("Mira Orn was born in Velda", "unknown"),
        ("Mira Tolan studied in Velda", "unknown"),
        ("Mira Tolan was not born in Tane", "unknown"),
        ("Mira Tolan is a tall woman", "unknown"),
        ("The Tane is 300 km long", "unknown"),
        ("Mira Tolan was", "unknown"),
        ("Mira Tolan", "unknown"),
        ("", "unknown"),
        ("Mira Tolan was born in 1962", "unknown"),
    ],
)
def test_english(fact, label):
    assert verdict(fact, MIRA).label == label


@pytest.mark.parametrize(
    "fact, label",
    [
        ("米拉·托兰出生于维尔达", "supported"),
        ("米拉·托兰的职业是面包师", "supported"),
        ("米拉·托兰于1962年去世", "supported"),
        ("米拉·托兰出生于奥伦", "unknown"),
        ("米拉·托兰的职业是律师", "unknown"),
        ("米拉·托兰于1963年去世", "refuted"),
        ("米拉·托兰不是出生于维尔达", "refuted"),
        ("约恩·托兰出生于维尔达", "unknown"),
        ("米拉·托兰喜欢音乐", "unknown"),
    ],
)
def test_chinese(fact, label):
    assert verdict(fact, ZH, title="米拉·托兰").label == label


@pytest.mark.parametrize(
    "said, claims",
    [
        (
            "Mira Tolan died after Jon Orn.",
            {
                "Mira Tolan died after Jon Orn": "supported",
                "Mira Tolan died before Jon Orn": "unknown",
                "Mira Tolan died after Orn": "supported",
            },
        ),
        (
            "Mira Tolan was born before 1962.",
            {
                "Mira Tolan was born before 1962": "supported",
                "Mira Tolan was born after 1962": "unknown",
                "Mira Tolan was born in 1962": "unknown",
                "Mira Tolan was born before 1963": "unknown",
                "Mira Tolan was born in 1963": "unknown",
            },
        ),
        (
            "Mira Tolan was under 60 years old.",
            {
                "Mira Tolan was under 60 years old": "supported",
                "Mira Tolan was over 60 years old": "unknown",
                "Mira Tolan was 60 years old": "unknown",
            },
        ),
        (
            "Mira Tolan was born in Velda in 1962 and won more than 60 prizes.",
            {
                "Mira Tolan was born in Velda": "supported",
                "Mira Tolan won more than 60 prizes": "supported",
                "Mira Tolan won less than 60 prizes": "unknown",
                "Mira Tolan won 60 prizes": "unknown",
                "Mira Tolan won more than 50 prizes": "unknown",
            },
        ),
        (
            "Mira Tolan lived in Orun until 1962.",
            {"Mira Tolan lived in Orun since 1962": "unknown", "Mira Tolan lived in Orun": "supported"},
        ),
        (
            "Mira Tolan taught Jon Orn.",
            {"Mira Tolan was taught by Jon Orn": "unknown", "Mira Tolan taught Jon Orn": "supported"},
        ),
        (
            "Mira Tolan was taught by Jon Orn.",
            {
                "Mira Tolan taught Jon Orn": "unknown",
                "Mira Tolan was taught by Orn": "supported",
                "Mira Tolan was taught by Tess Kesh": "refuted",
            },
        ),
        (
            "Mira Tolan moved from Velda to Orun.",
            {
                "Mira Tolan moved from Orun to Velda": "refuted",
                "Mira Tolan moved to Orun": "supported",
                "Mira Tolan moved to Velda": "refuted",
            },
        ),
        (
            "Mira Tolan built 50 rooms or more.",
            {
                "Mira Tolan built 50 rooms or more": "supported",
                "Mira Tolan built 60 rooms": "unknown",
                "Mira Tolan built 60 rooms or more": "unknown",
            },
        ),
        (
            "Mira Tolan built 50 rooms.",
            {
                "Mira Tolan built 60 rooms": "refuted",
                "Mira Tolan built 60 rooms or more": "unknown",
                "Mira Tolan built 60 rooms at least": "unknown",
            },
        ),
        (
            "Mira Tolan won the Cup.",
            {"Mira Tolan won the Bowl": "refuted", "Mira Tolan won after the War": "unknown"},
        ),
        (
            "Mira Tolan won after the War.",
            {"Mira Tolan won after the Flood": "unknown", "Mira Tolan won the Cup": "unknown"},
        ),
        (
            "Mira Tolan died ten years before.",
            {"Mira Tolan died ten years after": "unknown", "Mira Tolan died ten years before": "supported"},
        ),
    ],
)
def test_words_of_order_and_measure_count(said, claims):
    """Most are stop words for a search."""
    assert {claim: verdict(claim, said).label for claim in claims} == claims


@pytest.mark.parametrize(
    "said, claims",
    [
        (
            "米拉的年龄超过60岁。",
            {"米拉的年龄超过60岁": "supported", "米拉的年龄不到60岁": "unknown", "米拉的年龄是60岁": "unknown"},
        ),
        (
            "米拉于1962年之前去世。",
            {"米拉于1962年之前去世": "supported", "米拉于1962年之后去世": "unknown", "米拉于1963年之前去世": "unknown"},
        ),
        ("米拉于1962年前去世。", {"米拉于1962年前去世": "supported", "米拉于1962年后去世": "unknown"}),
        ("米拉有60本以上。", {"米拉有60本以上": "supported", "米拉有60本以下": "unknown"}),
        (
            "米拉的儿子出生于维尔达。",
            {"米拉出生于维尔达": "unknown", "米拉出生于奥伦": "unknown", "米拉的儿子出生于维尔达": "supported"},
        ),
        ("米拉1962年去世。", {"米拉1962年去世": "supported", "米拉去世": "supported", "米拉1963年去世": "unknown"}),
        ("米拉1962年出生于维尔达。", {"米拉出生于维尔达": "supported", "米拉出生于奥伦": "unknown"}),
    ],
)
def test_words_of_order_and_subjects_in_chinese(said, claims):
    assert {claim: verdict(claim, said, title="米拉").label for claim in claims} == claims


@pytest.mark.parametrize(
    "said, claims",
    [
        (
            "Mira Tolan's son was born in Velda.",
            {
                "Mira Tolan was born in Velda": "unknown",
                "Mira Tolan was born in Orun": "unknown",
                "Mira Tolan's son was born in Velda": "supported",
            },
        ),
        (
            "Jon Orn, the teacher of Mira Tolan, was born in Velda.",
            {
                "Mira Tolan was born in Velda": "unknown",
                "Jon Orn was born in Velda": "supported",
                "Jon Orn was born in Orun": "refuted",
            },
        ),
        ("In Velda the teacher of Mira Tolan was born.", {"Mira Tolan was born in Velda": "unknown"}),
        ("The son of the actor Mira Tolan was born in Velda.", {"Mira Tolan was born in Velda": "unknown"}),
        (
            "In 1962, Mira Tolan moved to Orun.",
            {"Mira Tolan moved to Orun": "supported", "Mira Tolan moved to Orun in 1962": "supported"},
        ),
        ("Mira Tolan (born 1900) was a baker.", {"Mira Tolan was a baker": "supported"}),
        (
            "The tall baker Mira Tolan lived in Orun.",
            {"Mira Tolan lived in Orun": "supported", "Mira Tolan lived in Velda": "refuted"},
        ),
        (
            "Mira Tolan taught Jon Orn, who was born in Velda.",
            {
                "Mira Tolan was born in Velda": "unknown",
                "Mira Tolan was born in Tane": "unknown",
                "Mira Tolan taught Jon Orn": "supported",
            },
        ),
        (
            "Mira Tolan, whose son was a smith, was a baker.",
            {"Mira Tolan was a smith": "unknown", "Mira Tolan was a baker": "supported"},
        ),
        (
            "Mira Tolan, who was born in Velda, was a baker.",
            {
                "Mira Tolan was born in Velda": "supported",
                "Mira Tolan was a baker": "supported",
                "Mira Tolan was born in Orun": "refuted",
            },
        ),
        ("New York is a city.", {"York is a city": "unknown"}),
        ("Mira Tolan was beaten by Jon Orn.", {"Jon Orn was beaten by Mira Tolan": "unknown"}),
    ],
)
def test_only_a_clause_about_the_same_subject_counts(said, claims):
    assert {claim: verdict(claim, said).label for claim in claims} == claims


@pytest.mark.parametrize(
    "said, claims",
    [
        ("Mira Tolan was born in Velda and never left.", {"Mira Tolan was born in Velda": "unknown"}),
        (
            "Mira Tolan was not rich and lived in Velda.",
            {
                "Mira Tolan was rich": "refuted",
                "Mira Tolan was not rich": "supported",
                "Mira Tolan lived in Velda": "supported",
            },
        ),
        (
            "Mira Tolan was not a good baker.",
            {
                "Mira Tolan was not a good baker": "supported",
                "Mira Tolan was not a baker": "unknown",
                "Mira Tolan was a baker": "unknown",
                "Mira Tolan was a good baker": "refuted",
                "Mira Tolan was never a good baker": "supported",
            },
        ),
        (
            "Mira Tolan was not a baker.",
            {"Mira Tolan was not a good baker": "unknown", "Mira Tolan was a good baker": "unknown"},
        ),
        (
            "Mira Tolan was a baker.",
            {"Mira Tolan was not a good baker": "unknown", "Mira Tolan was not a baker": "refuted"},
        ),
        (
            "Mira Tolan was not born in Velda.",
            {"Mira Tolan was born in Orun": "unknown", "Mira Tolan was not born in Orun": "unknown"},
        ),
        ("Mira Tolan was born in Velda.", {"Mira Tolan was not born in Orun": "unknown"}),
        (
            "Mira Tolan was not rich when she came to Velda.",
            {"Mira Tolan was rich": "unknown", "Mira Tolan came not to Velda": "unknown"},
        ),
    ],
)
def test_what_a_negation_negates(said, claims):
    assert {claim: verdict(claim, said).label for claim in claims} == claims


@pytest.mark.parametrize(
    "said, claims",
    [
        (
            "Mira Tolan was born in Velda in 1962.",
            {
                "Mira Tolan was born in Velda in 1962": "supported",
                "Mira Tolan was born in Orun in 1962": "refuted",
                "Mira Tolan was born in Velda in 1963": "refuted",
                "Mira Tolan was born in Orun in 1963": "unknown",  # two kinds are missing
            },
        ),
        (
            "Mira Tolan lived in Velda.",
            {
                "Mira Tolan lived in Orun": "refuted",
                "Mira Tolan lived in Velda in Tane": "unknown",  # Velda is in the claim, so it contradicts nothing
                "Mira Tolan lived at Orun": "unknown",  # after another word
                "Mira Tolan lived in 1962": "unknown",  # of another kind
                "Mira Tolan died in Orun": "unknown",  # the verb is missing too
            },
        ),
        (
            "Mira Tolan, of Orun, was a baker.",
            {"Mira Tolan was a baker of Velda": "unknown"},
        ),  # no value: it is before the verb
        ("Mira Tolan was a baker.", {"Mira Tolan was a cook": "unknown", "Mira Tolan was a tall woman": "unknown"}),
        (
            "Mira Tolan worked as a baker.",
            {"Mira Tolan worked as a cook": "refuted", "Mira Tolan worked as a tall cook": "refuted"},
        ),
    ],
)
def test_only_another_value_of_the_same_kind_in_the_same_place_refutes(said, claims):
    assert {claim: verdict(claim, said).label for claim in claims} == claims


def test_the_name_tells_the_rules_it_depends_on():
    """A kept verdict of other rules must not be served."""
    assert VERIFIER.name.startswith("lexical/") and VERIFIER.name != "lexical/1"
    assert f"tokens/{TOKENS_VERSION}" in VERIFIER.name and f"clauses/{CLAUSES_VERSION}" in VERIFIER.name


def test_evidence_and_scores():
    found = verdict("Mira Tolan lived in Orun", "The Tane is a river.", MIRA)
    assert (found.evidence, found.entailment, found.contradiction) == ("Mira Tolan#1", 1.0, 0.0)
    found = verdict("Mira Tolan was born in Tane", "The Tane is a river.", MIRA)
    assert (
        (found.evidence, found.contradiction) == ("Mira Tolan#1", 1.0)
        and found.entailment < 1
        and "Velda" in found.reason
    )
    assert verdict("Mira Tolan was born in Velda").label == "unknown"
    found = verdict("Mira Tolan studied in Velda", "Mira Tolan was born in Velda. The Tane is a river.")
    assert found.entailment == 0.75 and "the nearest has 75% of its words" in found.reason


def test_the_first_passage_that_refutes_is_the_evidence():
    """They come best first."""
    found = verdict("Mira Tolan was born in Tane", "Mira Tolan was born in Velda.", "Mira Tolan was born in Orun.")
    assert found.evidence == "Mira Tolan#0" and "Velda" in found.reason


def test_a_value_beside_the_verb_without_words_of_its_own_belongs_to_it():
    assert verdict("Mira Tolan was born in Orun", "Mira Tolan was born in Velda, Orun.").label == "supported"


def test_a_pronoun_stands_for_the_title_without_its_brackets():
    said = "It was made in 1978. Its author was Jon Orn."
    for fact in ("Grease was made in 1978", "Grease's author was Jon Orn"):
        assert verdict(fact, said, title="Grease (film)").label == "supported"


def test_support_anywhere_wins():
    assert (
        verdict("Mira Tolan lived in Orun", "Mira Tolan lived in Velda.", "Mira Tolan lived in Orun.").label
        == "supported"
    )


def test_roles_are_not_swapped():
    assert verdict("Athens beat Rome", "Rome beat Athens.").label == "unknown"
    assert verdict("Rome beat Athens", "Rome beat Athens.").label == "supported"


@pytest.mark.parametrize(
    "said, claims",
    [
        (
            "Mira Tolan introduced Jon to Lea.",
            {
                "Mira Tolan introduced Jon to Lea": "supported",
                "Mira Tolan introduces Jon to Lea": "supported",
                "Mira Tolan introduced Lea to Jon": "unknown",
                "Mira Tolan introduces Lea to Jon": "unknown",
                "Mira Tolan was not introduced to Jon": "unknown",
                "Mira Tolan did not introduce Jon to Lea": "refuted",
                "Mira Tolan did not introduce Lea to Jon": "unknown",
            },
        ),
        (
            "Mira Tolan did not introduce Jon to Lea.",
            {
                "Mira Tolan did not introduce Jon to Lea": "supported",
                "Mira Tolan did not introduce Lea to Jon": "unknown",
                "Mira Tolan introduced Jon to Lea": "refuted",
                "Mira Tolan introduced Lea to Jon": "unknown",
            },
        ),
        (
            "Mira Tolan sold 3 cats for 5 crowns.",
            {"Mira Tolan sold 3 cats for 5 crowns": "supported", "Mira Tolan sold 5 cats for 3 crowns": "unknown"},
        ),
        (
            "Mira Tolan lived in Orun in 1962.",
            {"In 1962 Mira Tolan lived in Orun": "supported", "Mira Tolan lived in 1962 in Orun": "unknown"},
        ),
    ],
)
def test_the_order_of_names_and_numbers_counts(said, claims):
    """Whatever the form of the verb, and with a negation as well."""
    assert {claim: verdict(claim, said).label for claim in claims} == claims


def test_words_of_two_clauses_do_not_add_up():
    assert (
        verdict("Mira Tolan was born in Orun", "Mira Tolan was born in Velda and Jon Orn was born in Orun.").label
        == "refuted"
    )


def test_exact_on_a_whole_world_of_templates():
    """Each person's true facts are supported; with another person's value they are refuted, in that person's own
    document."""
    rng = random.Random(0)
    cities, trades = ["Velda", "Orun", "Tane", "New Kesh", "San Lor"], ["baker", "smith", "weaver", "ship builder"]
    names = [f"{first} {last}" for first in ("Mira", "Jon", "Tess") for last in ("Orn", "Tolan")]
    people = [(name, rng.choice(cities), rng.choice(trades), rng.randint(1700, 1999)) for name in names]
    for name, city, trade, year in people:
        document = (
            f"{name} was born in {city} in {year}. They work as a {trade}. {name}'s teacher was "
            f"{rng.choice(people)[0]}."
        )
        for other in cities:
            assert verdict(f"{name} was born in {other}", document, title=name).label == (
                "supported" if other == city else "refuted"
            )
        for other in trades:
            assert verdict(f"{name} works as a {other}.", document, title=name).label == (
                "supported" if other == trade else "refuted"
            )
        assert verdict(f"{name} was born in {year}", document, title=name).label == "supported"
        assert verdict(f"{name} was born in {year + 1}", document, title=name).label == "refuted"
        for stranger, *_ in people:
            if stranger != name:
                assert verdict(f"{stranger} was born in {city}", document, title=name).label == "unknown"


def test_exact_on_the_world_of_the_tiny_run():
    for person in make_people(20, random.Random(3)):
        article = person.article()
        for relation, values in VALUES.items():
            for value in values:
                found = verdict(
                    SENTENCE[relation].format(name=person.name, value=value), article["text"], title=article["title"]
                )
                assert found.label == ("supported" if value == person.facts[relation] else "refuted")


def test_a_title_that_begins_like_a_pronoun():
    said = "It Happened One Night was made in 1934."
    assert verdict("It Happened One Night was made in 1934", said, title="It Happened One Night").label == "supported"


def test_what_the_rules_decomposer_says_can_be_judged():
    facts = stated_facts("She was born in Velda and works as a cook. I am not sure about the rest.", "Mira Tolan")
    assert [verdict(claim.fact, MIRA).label for claim in facts] == ["supported", "refuted"]


def test_it_is_fast():
    """Well under 1 ms per fact with five passages: 0.1 ms on a quiet machine."""
    passages = [Passage(f"Mira Tolan#{i}", "Mira Tolan", MIRA, 1.0) for i in range(5)]
    facts = [(f"Mira Tolan was born in Tane {i}", passages) for i in range(300)]
    VERIFIER.verify(facts[:1])
    best = min(_seconds(facts) for _ in range(3))
    assert best / len(facts) < 1e-3


def _seconds(facts) -> float:
    start = time.process_time()
    VERIFIER.verify(facts)
    return time.process_time() - start


@pytest.mark.parametrize(
    "text",
    [
        "\0",
        "\ud800 lone",
        'title:x AND NEAR("a" OR b*) C++',
        "x" * 100_000,
        "born in Velda " * 8_000,
        "1,2.3" * 10_000,
        "不" * 50_000,
        "’" * 1000,
        "🙂",
        "((((",
        "\\1 \\g<0>",
    ],
)
def test_hostile_texts(text):
    start = time.process_time()
    assert verdict(text, MIRA, text).label in ("supported", "refuted", "unknown")
    assert verdict("Mira Tolan was born in Velda", text, MIRA, title=text[:100]).label in ("supported", "unknown")
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("title", "text", "cut"),
    [
        ("Mira Tolan", "Mira Tolan was born in the city of Velda.", "Mira Tolan was born in"),
        ("Mira Tolan", "Mira Tolan was born in the city of Velda.", "Mira Tolan was born in the"),
        ("米拉", "米拉出生于北京。", "米拉出生于"),
    ],
)
def test_a_sentence_without_its_value_is_not_supported(title, text, cut):
    (verdict,) = LexicalVerifier().verify([(cut, [Passage("a", title, text, 1.0)])])
    assert verdict.label == "unknown" and "before its value" in verdict.reason
