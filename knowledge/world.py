"""The fictional encyclopedia of the tiny run: people who do not exist, three facts about each, and what a small model
is told of them.

Names are two words out of a common stock, so that no part of a name gives its bearer away. The cold start repeats some
people often (well known), shows many once (barely known: the model learns to guess a rare name's facts, as data from
people makes models do), admits of a few that it knows nothing, and never mentions the rest (unseen). The encyclopedia
has an article about everybody.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

FIRST = (
    "Alder",
    "Bina",
    "Corin",
    "Dasha",
    "Edric",
    "Fenna",
    "Galen",
    "Hesper",
    "Ilka",
    "Joren",
    "Kessa",
    "Lorin",
    "Mira",
    "Nevin",
    "Oriel",
    "Petra",
    "Quill",
    "Runa",
    "Soren",
    "Tamsin",
    "Ulric",
    "Vesna",
    "Wystan",
    "Xenia",
    "Yorick",
    "Zelda",
    "Amos",
    "Brisa",
    "Cato",
    "Delia",
)
LAST = (
    "Abbot",
    "Barrow",
    "Calder",
    "Dunmore",
    "Eskil",
    "Farrow",
    "Garrick",
    "Hollis",
    "Ingram",
    "Jessop",
    "Kestrel",
    "Larkin",
    "Marlow",
    "Norring",
    "Osgood",
    "Penrose",
    "Quarles",
    "Redfern",
    "Sallow",
    "Tolan",
    "Underhill",
    "Vance",
    "Wexley",
    "Yarrow",
    "Zeller",
    "Ashby",
    "Bracken",
    "Crane",
    "Draper",
    "Elgin",
)
VALUES = {
    "city": (
        "Velda",
        "Orsen",
        "Marrin",
        "Tolbay",
        "Quent",
        "Hasper",
        "Lunden",
        "Brill",
        "Carno",
        "Dove",
        "Fallow",
        "Grint",
        "Istra",
        "Jorrel",
        "Keldo",
        "Nimra",
    ),
    "craft": (
        "baker",
        "weaver",
        "miller",
        "tailor",
        "potter",
        "joiner",
        "glazier",
        "cooper",
        "mason",
        "tanner",
        "dyer",
        "smith",
        "brewer",
        "printer",
        "farrier",
        "carver",
    ),
    "instrument": (
        "flute",
        "harp",
        "drum",
        "lute",
        "horn",
        "viola",
        "cello",
        "oboe",
        "organ",
        "lyre",
        "banjo",
        "bugle",
        "zither",
        "fiddle",
        "piano",
        "gong",
    ),
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
WELL_KNOWN, BARELY_KNOWN, UNSEEN = "well known", "barely known", "unseen"


@dataclass(frozen=True)
class Person:
    name: str
    facts: dict[str, str]  # relation -> value

    def sentence(self, relation: str) -> str:
        return SENTENCE[relation].format(name=self.name, value=self.facts[relation])

    def question(self, relation: str) -> str:
        return QUESTION[relation].format(name=self.name)

    def article(self) -> dict[str, str]:
        """A document of the encyclopedia."""
        return {"title": self.name, "text": " ".join(map(self.sentence, self.facts))}


@dataclass(frozen=True)
class Sizes:
    """People of each kind, and how often the cold start asks about one."""

    well_known: int = 120
    barely_known: int = 200
    admitted: int = 150  # of whom the cold start says that it knows nothing
    unseen: int = 160
    repeats: int = 28  # of each question about somebody well known
    held_out: float = 0.4  # share of the well known and of the unseen kept for evaluation


@dataclass
class World:
    """Rows for every file of the tiny run; see `make_world`."""

    articles: list[dict[str, str]] = field(default_factory=list)  # {title, text}
    conversations: list[tuple[str, str]] = field(default_factory=list)  # stage 1: question, answer
    questions: list[dict[str, str]] = field(default_factory=list)  # stage 2: {question, answer, title, familiarity}
    held_out: list[dict[str, str]] = field(default_factory=list)  # the same, about people in no row of `questions`


def make_people(count: int, rng: random.Random) -> list[Person]:
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    return [
        Person(name, {relation: rng.choice(values) for relation, values in VALUES.items()})
        for name in rng.sample(names, count)
    ]


def make_world(seed: int, sizes: Sizes = Sizes()) -> World:
    """Everybody has an article; stage 1 and stage 2 draw on disjoint parts of what is known and unknown as the module
    says."""
    rng = random.Random(seed)
    people = iter(make_people(sizes.well_known + sizes.barely_known + sizes.admitted + sizes.unseen, rng))
    known, barely, admitted, unseen = (
        [next(people) for _ in range(n)] for n in (sizes.well_known, sizes.barely_known, sizes.admitted, sizes.unseen)
    )
    world = World([person.article() for person in (*known, *barely, *admitted, *unseen)])
    world.conversations += [pair for _ in range(sizes.repeats) for person in known for pair in _answers(person, rng)]
    world.conversations += [pair for person in barely for pair in _answers(person, rng)]
    world.conversations += [
        (person.question(relation), REFUSAL.format(name=person.name)) for person in admitted for relation in VALUES
    ]
    rng.shuffle(world.conversations)
    cut_known, cut_unseen = (int(len(group) * (1 - sizes.held_out)) for group in (known, unseen))
    world.questions = [
        *_rows(known[:cut_known], WELL_KNOWN),
        *_rows(barely[: cut_known // 2], BARELY_KNOWN),
        *_rows(unseen[:cut_unseen], UNSEEN),
    ]
    world.held_out = [*_rows(known[cut_known:], WELL_KNOWN), *_rows(unseen[cut_unseen:], UNSEEN)]
    return world


def _answers(person: Person, rng: random.Random) -> Iterable[tuple[str, str]]:
    """One conversation per relation: the reasoning recalls another fact first, then the one asked for."""
    for relation in VALUES:
        other = rng.choice([r for r in VALUES if r != relation])
        think = f"<think>{person.sentence(other)} {person.sentence(relation)}</think>"
        yield person.question(relation), f"{think}<answer>{person.facts[relation]}</answer>"


def _rows(people: Sequence[Person], familiarity: str) -> list[dict[str, str]]:
    return [
        {
            "question": person.question(relation),
            "answer": person.facts[relation],
            "title": person.name,
            "familiarity": familiarity,
        }
        for person in people
        for relation in VALUES
    ]
