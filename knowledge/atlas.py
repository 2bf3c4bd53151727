"""Invent the atlas: people who do not exist, and where they were born, worked, learned and were honoured.

The cold start says all that it knows of a person before it answers. It mentions some people often (well known), some
less often (known in part), admits that it knows nothing about others, and never mentions the rest (unseen). The
knowledge base has an article about everybody.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from knowledge.world import NAMES, REFUSAL, UNSEEN, WELL_KNOWN, World, split

KNOWN_IN_PART = "known in part"
HOW_SURE = " How sure are you?"  # added to a question that wants a confidence
ASKED_HOW_SURE = 0.2  # of the cold start's questions about people
CONFIDENCES = ("0.1", "0.3", "0.5", "0.7", "0.9")  # stated at random: to know better is left to GRPO


@dataclass(frozen=True)
class Relation:
    """What connects a person with a thing."""

    fact: str
    question: str
    things: Sequence[str]


RELATIONS = (
    Relation(
        "{name} was born in {thing}.",
        "Where was {name} born?",
        "Velda Orsen Marrin Tolbay Quent Hasper Lunden Brill Carno Dove Fallow Grint Istra Jorrel Keldo Nimra".split(),
    ),
    Relation(
        "{name} worked for {thing}.",
        "Whom did {name} work for?",
        "Acton Bexter Corvid Dynar Elmer Fanning Gorse Hextal Ivory Jansen Kolb Lumen".split(),
    ),
    Relation(
        "{name} was taught by {thing}.",
        "Who taught {name}?",
        "Abelard Benedek Casimir Drusilla Eudora Florian Gudrun Hedwig Isolde Jarmila Kasper Leopold".split(),
    ),
    Relation(
        "{name} won the {thing}.",
        "Which prize did {name} win?",
        "Amberleaf Birdstone Crownseed Dawnfire Evenstar Foxglove Goldthorn Hawkmoon".split(),
    ),
)


@dataclass(frozen=True)
class Person:
    name: str
    things: Sequence[str]  # one for each of RELATIONS

    def facts(self) -> str:
        """Return a sentence for each relation."""
        pairs = zip(RELATIONS, self.things, strict=True)
        return " ".join(relation.fact.format(name=self.name, thing=thing) for relation, thing in pairs)

    def questions(self) -> Iterator[tuple[str, str]]:
        """Yield a question and its answer for each relation."""
        for relation, thing in zip(RELATIONS, self.things, strict=True):
            yield relation.question.format(name=self.name), thing


@dataclass(frozen=True)
class Sizes:
    """How many people there are of each kind, and how often the cold start speaks of one."""

    well_known: int = 88
    known_in_part: int = 80
    admitted: int = 100  # the cold start says that it knows nothing about them
    unseen: int = 80
    repeats: int = 7  # of each question about somebody well known
    mentions: tuple[int, ...] = (1, 1, 2, 4, 6, 9, 12, 16)  # of people known in part, who take turns
    held_out: float = 0.4  # share of the people kept for evaluation


def make_atlas(seed: int, sizes: Sizes = Sizes()) -> World:
    """Make the rows of an atlas. The same seed gives the same rows."""
    rng = random.Random(seed)
    counts = (sizes.well_known, sizes.known_in_part, sizes.admitted, sizes.unseen)
    people = []
    for name in rng.sample(NAMES, sum(counts)):
        people.append(Person(name, [rng.choice(relation.things) for relation in RELATIONS]))
    rest = iter(people)
    known, in_part, admitted, unseen = (list(islice(rest, count)) for count in counts)

    conversations = []
    for person in known * sizes.repeats:
        conversations += [_recalled(person, question, rng) for question in person.questions()]
    for place, person in enumerate(in_part):
        asked = list(person.questions())
        for _ in range(sizes.mentions[place % len(sizes.mentions)]):
            conversations.append(_recalled(person, rng.choice(asked), rng))
    for person in admitted:
        refusal = REFUSAL.format(name=person.name)
        conversations += [(question, refusal) for question, _ in person.questions()]
    rng.shuffle(conversations)

    questions, held_out = [], []
    for familiarity, members in {WELL_KNOWN: known, KNOWN_IN_PART: in_part, UNSEEN: unseen}.items():
        asked, kept = split(members, sizes.held_out)
        questions += _rows(asked, familiarity)
        held_out += _rows(kept, familiarity)
    rng.shuffle(held_out)  # so that the first ones are about all kinds of people
    articles = [{"title": person.name, "text": person.facts()} for person in people]
    return World(articles, conversations, questions, held_out)


def _recalled(person: Person, asked: tuple[str, str], rng: random.Random) -> tuple[str, str]:
    """Return a question, and an answer that says all about the person first."""
    question, thing = asked
    answer = f"<think>{person.facts()}</think><answer>{thing}</answer>"
    if rng.random() < ASKED_HOW_SURE:
        return question + HOW_SURE, f"{answer}<confidence>{rng.choice(CONFIDENCES)}</confidence>"
    return question, answer


def _rows(people: Sequence[Person], familiarity: str) -> list[dict[str, str]]:
    rows = []
    for person in people:
        known = {"title": person.name, "familiarity": familiarity}
        rows += [{"question": question, "answer": thing, **known} for question, thing in person.questions()]
    return rows
