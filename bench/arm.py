"""The answers of one model to the held-out questions of smollm2_knowrl, and what is measured of them, fact by fact.

    arm = Arm(answers, memory)
    arm.supported()(chosen)     # the share of supported facts in the answers about some countries

Every measure is of chosen countries, so that countries can be resampled. `measures` has all of several arms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.measures import Chosen, Measure, Row, less, with_intervals
from knowledge.almanac import kind_of
from knowledge.facts.claims import sentence_spans
from knowledge.facts.verdict import LABELS
from rewards.format import thoughts

REWARD = "factuality"  # it checks the facts of every answer
OUTCOMES = ("correct", "wrong", "refused")


@dataclass(frozen=True)
class Answer:
    """An answer, as far as it is measured. facts: of each fact its kind and verdict; the kind is "" if it is of none.

    sentences: of the think block. repeats: those that say an earlier one again.
    """

    country: str
    outcome: str
    facts: tuple[tuple[str, str], ...]
    sentences: int
    repeats: int
    text: str

    @classmethod
    def of_record(cls, record: Row) -> "Answer":
        """Read what an evaluation has written."""
        title, completion = record["title"], record["completion"]
        text, _ = thoughts(completion)
        said = [text[start:end] for start, end in sentence_spans(text)]
        repeats = len(said) - len(set(said))
        facts = []
        for fact in record["facts"].get(REWARD, []):
            kind = kind_of(fact["fact"], title)
            facts.append((kind, fact["verdict"]))
        return cls(title, record["outcome"], tuple(facts), len(said), repeats, completion)

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.facts}

    def count(self, label: str | None = None, kind: str | None = None) -> int:
        """Count the facts with a verdict, of a kind; None: any."""
        number = 0
        for own_kind, verdict in self.facts:
            number += label in (None, verdict) and kind in (None, own_kind)
        return number


@dataclass(frozen=True)
class Recalled:
    """What the cold start says about a fact if it must: whether that is right, and its log-prob (nats)."""

    is_right: bool
    logp: float


Numbers = Sequence[float]  # one for each answer
Memory = Mapping[str, Mapping[str, Recalled]]  # of each country, by kind
Order = Callable[[str, Recalled], float]  # of a kind, and what is recalled: the lowest come first


class Arm:
    """The answers of one model, by country, so that countries can be resampled: all measures are of chosen countries.

    memory: what the cold start recalls.
    """

    def __init__(self, answers: Sequence[Answer], memory: Memory):
        self.answers, self.memory = answers, memory
        self.countries = sorted({answer.country for answer in answers})
        self.places = [self.countries.index(answer.country) for answer in answers]
        self.num_answers = np.bincount(self.places)

    def ratio(self, above: Numbers, below: Numbers | None = None) -> Measure:
        """Return the measure that divides the sums of two numbers of each answer; below: 1 of each, if None."""
        sum_above = np.bincount(self.places, above)
        sum_below = np.bincount(self.places, below)

        def measure(chosen: Chosen) -> float:
            return sum_above[chosen].sum() / max(sum_below[chosen].sum(), 1e-9)

        return measure

    def per_answer(self, label: str) -> Measure:
        """Return the number of facts with a verdict in an answer."""
        return self.ratio([answer.count(label) for answer in self.answers])

    def supported(self) -> Measure:
        """Return the share of supported facts."""
        supported = [answer.count("supported") for answer in self.answers]
        stated = [answer.count() for answer in self.answers]
        return self.ratio(supported, stated)

    def share(self, outcome: str) -> Measure:
        """Return the share of answers with an outcome."""
        return self.ratio([answer.outcome == outcome for answer in self.answers])

    def would_be_false(self, is_stated: bool) -> Measure:
        """Return how many of the facts that are stated, or left out, the cold start would get wrong."""
        false, all_of_them = [], []
        for answer in self.answers:
            found = []
            for kind, recalled in self.memory[answer.country].items():
                if (kind in answer.kinds) == is_stated:
                    found.append(recalled.is_right)
            false.append(found.count(False))
            all_of_them.append(len(found))
        return self.ratio(false, all_of_them)

    def facts_per_answer(self) -> float:
        return sum(answer.count() for answer in self.answers) / len(self.answers)


def kept_of(arm: Arm, order: Order, number: float) -> Measure:
    """Return the share of right ones among the recalled facts that come first.

    number: of facts per answer. Facts of the same order share what is left.
    """
    places, orders, is_right = [], [], []
    for place, country in enumerate(arm.countries):
        for kind, recalled in arm.memory[country].items():
            places.append(place)
            orders.append(order(kind, recalled))
            is_right.append(recalled.is_right)
    _, ranks = np.unique(orders, return_inverse=True)

    def measure(chosen: Chosen) -> float:
        times = np.bincount(chosen, minlength=len(arm.countries))
        answers = times * arm.num_answers  # about each country
        weights = answers[places]  # of each fact
        sizes = np.bincount(ranks, weights)  # how many facts have the same order
        known = np.bincount(ranks, weights * is_right)
        before = np.cumsum(sizes) - sizes
        wanted = number * answers.sum()
        left = wanted - before
        taken = np.clip(left / np.maximum(sizes, 1e-9), 0, 1)
        num_right = (taken * known).sum()
        return float(num_right / max((taken * sizes).sum(), 1e-9))

    return measure


def measures(arms: Mapping[str, Arm], known: Mapping[str, float]) -> dict[str, dict]:
    """Return all measures of each arm as (value, low, high). The first arm is the cold start, the second the first RUN.

    known: how often the cold start is right about a kind, among the questions to train on.
    """
    cold, first, *_ = arms.values()
    found = {}
    for name, arm in arms.items():
        measured = compared(arm, cold, first, known)
        found[name] = {
            **with_intervals(measured, len(cold.countries)),
            "facts": arm.facts_per_answer(),
            "repeats": repeated(arm),
            "one_sentence": shortest(arm),
            "by_kind": {kind: of_kind(arm, kind) for kind in known},
        }
    return found


def compared(arm: Arm, cold: Arm, first: Arm, known: Mapping[str, float]) -> dict[str, Measure]:
    """Return the measures of an arm that have an interval.

    over_cold, over_first: how many more supported facts per answer there are than in these two.
    any, kinds, threshold: what the cold start reaches with as many facts, chosen so.
    """

    def at_random(kind: str, recalled: Recalled) -> float:
        return 0

    def by_kind(kind: str, recalled: Recalled) -> float:
        return -known[kind]

    def by_logp(kind: str, recalled: Recalled) -> float:
        return -recalled.logp

    size = arm.facts_per_answer()
    kinds = kept_of(arm, by_kind, size)
    threshold = kept_of(arm, by_logp, size)
    share, supported = arm.supported(), arm.per_answer("supported")
    stated_false, left_out_false = arm.would_be_false(True), arm.would_be_false(False)
    return {
        **{label: arm.per_answer(label) for label in LABELS},
        "share": share,
        "gain": less(share, cold.supported()),
        "over_cold": less(supported, cold.per_answer("supported")),
        "over_first": less(supported, first.per_answer("supported")),
        **{outcome: arm.share(outcome) for outcome in OUTCOMES},
        "stated_false": stated_false,
        "left_out_false": left_out_false,
        "knows": less(left_out_false, stated_false),
        "any": kept_of(arm, at_random, size),
        "kinds": kinds,
        "threshold": threshold,
        "over_kinds": less(share, kinds),
        "over_threshold": less(share, threshold),
    }


def repeated(arm: Arm) -> float:
    """Return the share of sentences that say an earlier one again."""
    repeats = sum(answer.repeats for answer in arm.answers)
    sentences = sum(answer.sentences for answer in arm.answers)
    return repeats / max(sentences, 1)


def shortest(arm: Arm) -> float:
    """Return the share of answers whose reasoning is a single sentence, or none."""
    is_short = [answer.sentences <= 1 for answer in arm.answers]
    return float(np.mean(is_short))


def of_kind(arm: Arm, kind: str) -> dict[str, float]:
    """Return the facts of a kind per answer, by verdict."""
    found = {}
    for label in LABELS:
        total = sum(answer.count(label, kind) for answer in arm.answers)
        found[label] = total / len(arm.answers)
    return found
