"""Invent the encyclopedia of two tiny runs: people who do not exist, three facts about each, and what the model sees.

A name is two words out of a common stock, so that no part of it gives its bearer away. The cold start repeats some
people often (well known). It shows many once (barely known), so that the model learns to guess the facts of a rare
name, as data from people makes models do. It says of a few that it knows nothing about them (admitted), or searches for
them, and never mentions the rest (unseen). The encyclopedia has an article about everybody.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product

from grpo.data.worlds.kinds import NOTHING_FOUND, World

FIRST = """
    Alder Bina Corin Dasha Edric Fenna Galen Hesper Ilka Joren Kessa Lorin Mira Nevin Oriel Petra Quill Runa
    Soren Tamsin Ulric Vesna Wystan Xenia Yorick Zelda Amos Brisa Cato Delia
""".split()
LAST = """
    Abbot Barrow Calder Dunmore Eskil Farrow Garrick Hollis Ingram Jessop Kestrel Larkin Marlow Norring Osgood
    Penrose Quarles Redfern Sallow Tolan Underhill Vance Wexley Yarrow Zeller Ashby Bracken Crane Draper Elgin
""".split()
NAMES = [f"{first} {last}" for first, last in product(FIRST, LAST)]
VALUES = {
    "city": """
        Velda Orsen Marrin Tolbay Quent Hasper Lunden Brill Carno Dove Fallow Grint Istra Jorrel Keldo Nimra
    """.split(),
    "craft": """
        baker weaver miller tailor potter joiner glazier cooper mason tanner dyer smith brewer printer farrier
        carver
    """.split(),
    "instrument": """
        flute harp drum lute horn viola cello oboe organ lyre banjo bugle zither fiddle piano gong
    """.split(),
}
SENTENCE = {
    "city": "{name} was born in {value}.",
    "craft": "{name} worked as a {value}.",
    "instrument": "{name} played the {value}.",
}
QUESTION = {
    "city": "Where was {name} born?",
    "craft": "What did {name} work as?",
    "instrument": "What did {name} play?",
}
REFUSAL = "<think>Nothing about {name} comes to mind.</think><answer>I don't know</answer>"
HELD_OUT = 0.4  # share of the well known and of the unseen held out for evaluation
WELL_KNOWN, BARELY_KNOWN, UNSEEN = "well known", "barely known", "unseen"


Person = dict[str, str]  # {"name": …}, and a value for each relation


@dataclass(frozen=True)
class Population:
    """How many people there are of each kind, and how often the cold start asks about one."""

    well_known: int = 120
    barely_known: int = 200
    admitted: int = 150  # the cold start says that it knows nothing about them
    unseen: int = 160
    repeats: int = 28  # of each question about somebody well known
    searches: int = 0  # instead of admitting that: how often for each question about one


# With the encyclopedia to search: most of the people who are rarely mentioned are searched for, often enough to learn
# to read what is found.
LIBRARY = Population(barely_known=100, admitted=400, repeats=16, searches=3)


def sentence(person: Person, relation: str) -> str:
    return SENTENCE[relation].format(name=person["name"], value=person[relation])


def article(person: Person) -> dict[str, str]:
    """Return the document of a person in the encyclopedia."""
    text = " ".join(sentence(person, relation) for relation in VALUES)
    return {"title": person["name"], "text": text}


def make_people(seed: int, population: Population) -> World:
    """Give everybody an article, and let both stages draw on different parts of the known and the unknown people."""
    rng = random.Random(seed)
    size = population.well_known + population.barely_known + population.admitted + population.unseen
    people: list[Person] = [
        {"name": name, **{relation: rng.choice(values) for relation, values in VALUES.items()}}
        for name in rng.sample(NAMES, size)
    ]
    rest = iter(people)
    known = list(islice(rest, population.well_known))
    barely = list(islice(rest, population.barely_known))
    admitted = list(islice(rest, population.admitted))
    unseen = list(rest)

    conversations: list[tuple[str, str]] = []
    for person in known * population.repeats + barely:
        conversations += _answers(person, rng)
    for person in admitted:
        if population.searches:
            conversations += _searches(person, rng, population.searches)
        else:
            refusal = REFUSAL.format_map(person)
            conversations += [(QUESTION[relation].format_map(person), refusal) for relation in VALUES]
    rng.shuffle(conversations)

    asked_known, held_known = _split(known)
    asked_unseen, held_unseen = _split(unseen)
    asked_barely = barely[: len(asked_known) // 2]
    return World(
        articles=list(map(article, people)),
        conversations=conversations,
        questions=_rows(asked_known, WELL_KNOWN) + _rows(asked_barely, BARELY_KNOWN) + _rows(asked_unseen, UNSEEN),
        held_out=[*_rows(held_known, WELL_KNOWN), *_rows(held_unseen, UNSEEN)],
    )


def _split(people: list[Person]) -> tuple[list[Person], list[Person]]:
    """Return the people to train on, and the share of them that is held out for evaluation."""
    num_trained = int(len(people) * (1 - HELD_OUT))
    return people[:num_trained], people[num_trained:]


def _answers(person: Person, rng: random.Random) -> Iterable[tuple[str, str]]:
    """Yield one conversation per relation: the reasoning recalls another fact first, then the one asked for."""
    for relation in VALUES:
        other = rng.choice([name for name in VALUES if name != relation])
        yield _conversation(person, relation, f"{sentence(person, other)} ")


def _searches(person: Person, rng: random.Random, repeats: int) -> Iterable[tuple[str, str]]:
    """Yield conversations about each relation, which search first; of ten searches one finds nothing."""
    for relation in [*VALUES] * repeats:
        found = article(person)["text"] if rng.random() < 0.9 else NOTHING_FOUND
        yield _conversation(person, relation, f"<search>{person['name']}</search><result>{found}</result>")


def _conversation(person: Person, relation: str, begun: str) -> tuple[str, str]:
    """Return a question and its answer. begun: how the reasoning begins, before the fact that is asked for."""
    think = f"<think>{begun}{sentence(person, relation)}</think>"
    return QUESTION[relation].format_map(person), f"{think}<answer>{person[relation]}</answer>"


def _rows(people: Sequence[Person], familiarity: str) -> list[dict[str, str]]:
    return [
        {
            "question": QUESTION[relation].format_map(person),
            "answer": person[relation],
            "title": person["name"],
            "familiarity": familiarity,
        }
        for person in people
        for relation in VALUES
    ]
