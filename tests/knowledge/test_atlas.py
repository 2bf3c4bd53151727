"""The atlas, and the world of the tiny run: their rows are what they promise, and offline rules judge every sentence
of the atlas."""

import asyncio
from collections import Counter

import pytest

from knowledge import world
from knowledge.atlas import HOW_SURE, KNOWN_IN_PART, RELATIONS, Sizes, make_atlas
from knowledge.facts.matcher import SentenceMatcher, by_rules
from knowledge.store.base import KnowledgeBase
from knowledge.world import UNSEEN, VALUES, WELL_KNOWN, make_world
from rewards.format import parse, stated_confidence, thoughts
from rewards.knowrl.factuality import FactualityMeter
from tests.making import build_base

TINY = world.Sizes(well_known=10, barely_known=4, admitted=3, unseen=7, repeats=2)
SMALL = Sizes(well_known=6, known_in_part=10, admitted=4, unseen=6)


@pytest.fixture(scope="module")
def atlas():
    return make_atlas(7, SMALL)


@pytest.fixture(scope="module")
def meter(atlas, tmp_path_factory):
    documents = {article["title"]: article["text"] for article in atlas.articles}
    base = KnowledgeBase.open(build_base(tmp_path_factory.mktemp("atlas"), documents))
    meter = FactualityMeter(base, by_rules, SentenceMatcher())
    yield meter
    meter.close()
    base.close()


def verdicts(meter, sentences, title):
    """One label per sentence; the decomposer must find each of them, and nothing else."""
    found = asyncio.run(meter.measure(" ".join(sentences), "Who is it?", title))
    facts = [fact.fact + "." for fact in found.facts]
    assert facts == list(sentences)
    return [fact.verdict.label for fact in found.facts]


def sentences_of(text):
    return [part.strip() + "." for part in text.split(".") if part.strip()]


def true_sentences(atlas):
    return {sentence for article in atlas.articles for sentence in sentences_of(article["text"])}


def test_every_true_sentence_is_supported_and_every_false_one_refuted(atlas, meter):
    said = true_sentences(atlas)
    counts = {}
    for row in atlas.questions[:: len(RELATIONS)]:
        for relation in RELATIONS:
            sentences = [relation.fact.format(name=row["title"], thing=thing) for thing in relation.things]
            for sentence, label in zip(sentences, verdicts(meter, sentences, row["title"]), strict=True):
                counts[sentence in said, label] = counts.get((sentence in said, label), 0) + 1
    assert counts.keys() == {(True, "supported"), (False, "refuted")} and min(counts.values()) > 40, counts


def names(rows):
    return {row["title"] for row in rows}


def test_the_same_seed_makes_the_same_atlas_and_another_seed_another():
    assert make_atlas(3, SMALL) == make_atlas(3, SMALL) != make_atlas(4, SMALL)


def test_held_out_people_are_never_trained_on(atlas):
    assert not names(atlas.questions) & names(atlas.held_out)
    for rows in (atlas.questions, atlas.held_out):
        assert {row["familiarity"] for row in rows} == {WELL_KNOWN, KNOWN_IN_PART, UNSEEN}


def test_the_first_people_held_out_are_of_several_kinds(atlas):
    """An evaluation may take the first rows alone."""
    assert {row["familiarity"] for row in atlas.held_out[:12]} == {WELL_KNOWN, KNOWN_IN_PART, UNSEEN}


def test_nobody_of_the_tiny_run_is_asked_about_in_training_and_in_evaluation():
    made = make_world(5, TINY)
    assert not names(made.questions) & names(made.held_out)
    kinds = Counter(row["familiarity"] for row in made.held_out)
    assert kinds == {WELL_KNOWN: 4 * len(VALUES), UNSEEN: 3 * len(VALUES)}


def test_the_reasoning_of_the_tiny_run_recalls_another_fact_before_the_one_asked_for():
    made = make_world(5, TINY)
    said = {sentence for article in made.articles for sentence in sentences_of(article["text"])}
    reasoned = [answer for _, answer in made.conversations if "comes to mind" not in answer]
    assert len(reasoned) == (10 * 2 + 4) * len(VALUES)
    for answer in reasoned:
        other, last = sentences_of(thoughts(answer)[0])
        assert other != last and {other, last} <= said and parse(answer).answer in last


def test_answers_are_what_the_articles_say(atlas):
    said = true_sentences(atlas)
    for row in atlas.questions:
        name = row["title"]
        assert any(relation.fact.format(name=name, thing=row["answer"]) in said for relation in RELATIONS)


def test_the_cold_start_speaks_of_people_as_often_as_it_knows_them(atlas):
    texts = [answer for _, answer in atlas.conversations]
    mentions = {name: sum(name in text for text in texts) for name in names(atlas.questions + atlas.held_out)}
    kind = {row["title"]: row["familiarity"] for row in atlas.questions + atlas.held_out}
    counts = {familiarity: [] for familiarity in (WELL_KNOWN, KNOWN_IN_PART, UNSEEN)}
    for name, number in mentions.items():
        counts[kind[name]].append(number)
    assert set(counts[UNSEEN]) == {0} and set(counts[WELL_KNOWN]) == {SMALL.repeats * len(RELATIONS)}
    assert sorted(counts[KNOWN_IN_PART]) == sorted([*SMALL.mentions, 1, 1])


def test_the_cold_start_states_every_fact_of_a_person_and_no_other(atlas):
    said = {article["text"] for article in atlas.articles}
    for _, answer in atlas.conversations:
        think, last = thoughts(answer)[0], parse(answer).answer
        assert "comes to mind" in think or (think in said and last in think)


@pytest.mark.parametrize("declined", [0.0, 0.3, 1.0])
def test_a_neutral_cold_start_declines_at_random_whoever_it_is_about(declined):
    """Of 3 x 2,020 conversations, so a share as far off as 4 standard deviations has odds of 1 in 16,000."""
    made = make_world(5, world.Sizes(well_known=100, barely_known=20, admitted=0, repeats=20, declined=declined))
    refused = [question for question, answer in made.conversations if "<answer>I don't know<" in answer]
    spread = (declined * (1 - declined) / len(made.conversations)) ** 0.5
    assert abs(len(refused) / len(made.conversations) - declined) <= 4 * spread
    assert not refused or len(set(refused)) > 300, "it declines everybody"


def test_a_stated_confidence_says_nothing_of_the_answer_yet():
    conversations = make_atlas(11).conversations
    asked = [answer for question, answer in conversations if question.endswith(HOW_SURE)]
    assert all((stated_confidence(answer) is not None) == (answer in asked) for _, answer in conversations)
    stated = [stated_confidence(answer) for answer in asked]
    assert len(stated) > 300 and set(stated) == {0.1, 0.3, 0.5, 0.7, 0.9}
