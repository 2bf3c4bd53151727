"""Invent the atlas: people who do not exist, what each of them has, and what these things are.

Everybody has a birthplace, an employer, a teacher and an award. A town lies in a country, an employer makes something,
and so on. So a question takes one hop ("Where was Mira Tolan born?") or two ("In which country was Mira Tolan born?").

The cold start says all that it knows of a person before it answers. It mentions some people often (well known), some
less often (known in part), admits that it knows nothing about others, and never mentions the rest (unseen).
Questions of two hops are answered carelessly, for some of the well known: each step is wrong with a probability of
CARELESS, and the answer follows from the last step. So a model learns every single fact, and to get the chains wrong.
The knowledge base has an article about everybody, and the gazetteer about everything else.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from knowledge.world import NAMES, REFUSAL, UNSEEN, WELL_KNOWN, World, split

KNOWN_IN_PART = "known in part"
GAZETTEER = "Gazetteer"
CARELESS = 0.4  # of the steps in the cold start's chains are wrong
HOW_SURE = " How sure are you?"  # added to a question that wants a confidence
ASKED_HOW_SURE = 0.2  # of the cold start's questions about people
CONFIDENCES = ("0.1", "0.3", "0.5", "0.7", "0.9")  # stated at random: to know better is left to GRPO


@dataclass(frozen=True)
class Relation:
    """What connects a person with a thing, and the thing with a value."""

    fact: str
    question: str
    things: Sequence[str]
    hop: str  # the fact about the thing
    hop_question: str
    chain_question: str  # from the person to the value
    values: Sequence[str]


RELATIONS = (
    Relation(
        "{name} was born in {thing}.",
        "Where was {name} born?",
        "Velda Orsen Marrin Tolbay Quent Hasper Lunden Brill Carno Dove Fallow Grint Istra Jorrel Keldo Nimra".split(),
        "{thing} lies in {value}.",
        "In which country lies {thing}?",
        "In which country was {name} born?",
        "Norland Sudria Westmark Ostany Midway Farholm".split(),
    ),
    Relation(
        "{name} worked for {thing}.",
        "Whom did {name} work for?",
        "Acton Bexter Corvid Dynar Elmer Fanning Gorse Hextal Ivory Jansen Kolb Lumen".split(),
        "{thing} makes {value}.",
        "What does {thing} make?",
        "What does the employer of {name} make?",
        "clocks boats glass paper shoes soap".split(),
    ),
    Relation(
        "{name} was taught by {thing}.",
        "Who taught {name}?",
        "Abelard Benedek Casimir Drusilla Eudora Florian Gudrun Hedwig Isolde Jarmila Kasper Leopold".split(),
        "{thing} played the {value}.",
        "What did {thing} play?",
        "What did the teacher of {name} play?",
        "flute harp drum lute horn viola".split(),
    ),
    Relation(
        "{name} won the {thing}.",
        "Which prize did {name} win?",
        "Amberleaf Birdstone Crownseed Dawnfire Evenstar Foxglove Goldthorn Hawkmoon".split(),
        "The {thing} honours {value}.",
        "What does the {thing} honour?",
        "What does the prize of {name} honour?",
        "poets painters singers builders".split(),
    ),
)


@dataclass(frozen=True)
class Person:
    name: str
    things: Sequence[str]  # one for each of RELATIONS


@dataclass(frozen=True)
class Sizes:
    """How many people there are of each kind, and how often the cold start speaks of one."""

    well_known: int = 72
    careless: int = 16  # of the well known, more: their chains are in the cold start
    known_in_part: int = 80
    admitted: int = 100  # the cold start says that it knows nothing about them
    unseen: int = 80
    repeats: int = 7  # of each question about somebody well known, or about a thing
    repeats_of_chains: int = 10
    mentions: tuple[int, ...] = (1, 1, 2, 4, 6, 9, 12, 16)  # of people known in part, who take turns
    held_out: float = 0.4  # share of the people kept for evaluation


@dataclass
class Atlas(World):
    """The rows of a world, those of `questions` and `held_out` of one hop; and those of two hops, about the same well
    known people."""

    two_hops: list[dict[str, str]]
    held_out_two_hops: list[dict[str, str]]


class Maker:
    """Make the things of one atlas, and what is said about them."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.value_of: dict[str, str] = {}
        for relation in RELATIONS:
            # as many things for each value as can be
            values = list(relation.values) * len(relation.things)
            self.value_of |= dict(zip(self.rng.sample(relation.things, len(relation.things)), values, strict=False))

    def people(self, count: int) -> list[Person]:
        found = []
        for name in self.rng.sample(NAMES, count):
            found.append(Person(name, [self.rng.choice(relation.things) for relation in RELATIONS]))
        return found

    def articles(self, people: Iterable[Person]) -> list[dict[str, str]]:
        """Return the documents of the knowledge base."""
        hops = []
        for relation in RELATIONS:
            hops += [self._hop(relation, thing) for thing in relation.things]
        found = [{"title": GAZETTEER, "text": " ".join(hops)}]
        return found + [{"title": person.name, "text": " ".join(_facts(person))} for person in people]

    def recalled(self, person: Person, index: int) -> tuple[str, str]:
        """Return a question of one hop, and an answer that says all about the person first."""
        question = RELATIONS[index].question.format(name=person.name)
        answer = _answer(_facts(person), person.things[index])
        if self.rng.random() < ASKED_HOW_SURE:
            return question + HOW_SURE, f"{answer}<confidence>{self.rng.choice(CONFIDENCES)}</confidence>"
        return question, answer

    def about_thing(self, index: int, thing: str) -> tuple[str, str]:
        """Return a question about a thing, and an answer that mentions three others first."""
        relation = RELATIONS[index]
        others = self.rng.sample([other for other in relation.things if other != thing], 3)
        facts = [self._hop(relation, other) for other in [*others, thing]]
        return relation.hop_question.format(thing=thing), _answer(facts, self.value_of[thing])

    def carelessly(self, person: Person, index: int) -> tuple[str, str]:
        """Return a question of two hops, and an answer of four to eight steps, each of which may be wrong."""
        num_others = self.rng.randint(2, len(RELATIONS))
        places = {index, *self.rng.sample(range(len(RELATIONS)), num_others)}
        stated, facts, hops, last = {}, [], [], ""
        for place in sorted(places, key=lambda place: (place == index, place)):
            relation = RELATIONS[place]
            stated[place] = self._maybe_wrong(person.things[place], relation.things)
            facts.append(relation.fact.format(name=person.name, thing=stated[place]))
            last = self._maybe_wrong(self.value_of[stated[place]], relation.values)
            hops.append(relation.hop.format(thing=stated[place], value=last))
        question = RELATIONS[index].chain_question.format(name=person.name)
        return question, _answer([*facts, *hops], last)

    def rows(self, people: Sequence[Person], familiarity: str, hops: int = 1) -> list[dict[str, str]]:
        """Return the questions of one hop, or of two, about these people."""
        found = []
        for person in people:
            known = {"title": f"{person.name};{GAZETTEER}", "familiarity": familiarity}
            for relation, thing in zip(RELATIONS, person.things, strict=True):
                question, answer = relation.question, thing
                if hops == 2:
                    question, answer = relation.chain_question, self.value_of[thing]
                found.append({"question": question.format(name=person.name), "answer": answer, **known})
        return found

    def _hop(self, relation: Relation, thing: str) -> str:
        return relation.hop.format(thing=thing, value=self.value_of[thing])

    def _maybe_wrong(self, truth: str, choices: Sequence[str]) -> str:
        if self.rng.random() >= CARELESS:
            return truth
        return self.rng.choice([choice for choice in choices if choice != truth])


def make_atlas(seed: int, sizes: Sizes = Sizes()) -> Atlas:
    """Make the rows of an atlas. The same seed gives the same rows."""
    maker = Maker(seed)
    counts = (sizes.well_known, sizes.careless, sizes.known_in_part, sizes.admitted, sizes.unseen)
    people = maker.people(sum(counts))
    rest = iter(people)
    known, careless, in_part, admitted, unseen = (list(islice(rest, count)) for count in counts)

    conversations = list(_conversations(maker, sizes, known, careless, in_part))
    for person in admitted:
        refusal = REFUSAL.format(name=person.name)
        conversations += [(relation.question.format(name=person.name), refusal) for relation in RELATIONS]
    maker.rng.shuffle(conversations)

    parts = {WELL_KNOWN: known, KNOWN_IN_PART: in_part, UNSEEN: unseen}
    questions, held_out = [], []
    for familiarity, members in parts.items():
        asked, kept = split(members, sizes.held_out)
        questions += maker.rows(asked, familiarity)
        held_out += maker.rows(kept, familiarity)
    maker.rng.shuffle(held_out)  # so that the first ones are about all kinds of people
    asked, kept = split(known, sizes.held_out)
    return Atlas(
        articles=maker.articles(people),
        conversations=conversations,
        questions=questions,
        held_out=held_out,
        two_hops=maker.rows(asked, WELL_KNOWN, hops=2),
        held_out_two_hops=maker.rows(kept, WELL_KNOWN, hops=2),
    )


def _conversations(
    maker: Maker, sizes: Sizes, known: Sequence[Person], careless: Sequence[Person], in_part: Sequence[Person]
) -> Iterator[tuple[str, str]]:
    """Yield what the cold start says about people and things, without its refusals."""
    indices = range(len(RELATIONS))
    for person in [*known, *careless] * sizes.repeats:
        yield from (maker.recalled(person, index) for index in indices)
    for person in careless * sizes.repeats_of_chains:
        yield from (maker.carelessly(person, index) for index in indices)
    for index in indices:
        for thing in list(RELATIONS[index].things) * sizes.repeats:
            yield maker.about_thing(index, thing)
    for place, person in enumerate(in_part):
        for _ in range(sizes.mentions[place % len(sizes.mentions)]):
            yield maker.recalled(person, maker.rng.choice(indices))


def _facts(person: Person) -> list[str]:
    pairs = zip(RELATIONS, person.things, strict=True)
    return [relation.fact.format(name=person.name, thing=thing) for relation, thing in pairs]


def _answer(facts: Sequence[str], answer: str) -> str:
    return f"<think>{' '.join(facts)}</think><answer>{answer}</answer>"
