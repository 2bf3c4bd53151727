"""What an audit finds: the bars that honest texts set for dishonest ones, and the texts that reach them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from grpo.algorithm.schema import Score
from grpo.data.rows import Row
from rewards.audit.attacks import WRONG, Aim, Attack

TOGETHER = "all together"  # the weighted sum of the rewards
RIGHT = "a right answer"
WEIGH = "set reward_weights so that a right answer outweighs whatever else is paid"
FAILS = "fails"  # in the details of a score: the reward raised an error


@dataclass(frozen=True)
class Finding:
    """An attack that earns too much by a reward. is_paid: like an honest answer, or it makes the reward fail.

    value: what its text earns on a row (numbered from 1) of the data; None if the reward fails. honest: what the text
    `instead_of` earns there. num_rows: on how many of the audited rows an attack of this name earns too much.
    """

    reward: str
    attack: str
    instead_of: str
    value: float | None
    honest: float
    row: int
    question: str
    text: str
    remedy: str
    is_paid: bool
    num_rows: int = 1

    @property
    def headline(self) -> str:
        if self.value is None:
            return f"{self.reward} fails: {self.attack}"
        value, honest = self.value + 0.0, self.honest + 0.0  # -0.0 becomes 0.0
        return f"{self.reward} gives {value:g}: {self.attack}; {self.instead_of} earns {honest:g}"


@dataclass(frozen=True)
class Limit:
    """What an honest text earns. is_paid: to reach it is to be paid like an honest answer."""

    instead_of: str
    honest: float
    is_paid: bool
    may_equal: bool = False

    def is_reached(self, value: float) -> bool:
        return value > self.honest or (value == self.honest and not self.may_equal)


@dataclass(frozen=True)
class Bars:
    """What a reward pays for honest texts about a row: what dishonest ones must stay below. None: it cannot say.

    wrong: an honest answer that is wrong. facts: the same, with true facts in its reasoning. unformed: the same as
    wrong, but without the form. elsewhere: the right answer, where the wrong one is the truth.
    """

    right: float
    refused: float | None
    wrong: float
    facts: float | None
    unformed: float | None
    elsewhere: float | None

    @property
    def sees(self) -> list[Aim]:
        """Return what the reward pays for. One that pays for the right answer is not asked about the form."""
        compares = self.elsewhere is None or self.right > self.elsewhere
        sees: list[Aim] = ["answer"] if compares and self.right > self.wrong else []
        if self.facts is not None and self.facts > self.wrong:
            sees.append("facts")
        if not sees and self.unformed is not None and self.wrong > self.unformed:
            sees.append("form")
        return sees

    def limits(self, attack: Attack, is_last_word: bool) -> Iterator[Limit]:
        """Yield what the texts of an attack must stay below, the highest bar first."""
        if attack.aim == "facts":
            yield Limit("true facts", self.facts, True)
        elif attack.aim == "form":
            yield Limit("the honest form", self.wrong, is_last_word)
        elif "answer" in self.sees:
            yield Limit(RIGHT, self.right, True)
            if self.refused is not None:
                insures = attack.is_hedge and self.refused > self.wrong
                yield Limit("an honest refusal", self.refused, False, may_equal=not insures)
        else:
            may_equal = "facts" in self.sees or not is_last_word or attack is not WRONG
            yield Limit(RIGHT, self.right, is_last_word, may_equal)


@dataclass
class Tried:
    """What a reward, or their sum, says to attacks. is_last_word: no other reward decides.

    bars: of each row. untried: reason -> number of texts.
    """

    reward: str
    is_last_word: bool
    bars: list[Bars] = field(default_factory=list)
    num_tried: int = 0
    untried: Counter[str] = field(default_factory=Counter)
    found: dict[tuple[str, str], list[Finding]] = field(default_factory=dict)

    @property
    def sees(self) -> list[str]:
        return list(dict.fromkeys(aim for bars in self.bars for aim in bars.sees))

    @property
    def means(self) -> dict[str, float | None]:
        """Return what honest answers earn: right, refused, wrong -> the mean over the rows, None if not known."""
        means = {}
        for kind in ("right", "refused", "wrong"):
            values = [getattr(bars, kind) for bars in self.bars]
            means[kind] = fmean(values) if values and None not in values else None
        return means

    @property
    def findings(self) -> list[Finding]:
        """Return for each attack the text that gains most; first what is paid."""
        merged = []
        for same in self.found.values():
            best = max(same, key=lambda one: (one.value or 0.0) - one.honest)
            merged.append(replace(best, num_rows=len({one.row for one in same})))
        return sorted(merged, key=lambda one: not one.is_paid)

    def learn(self, honest: Mapping[str, Score], elsewhere: float | None, num_texts: int) -> Bars | None:
        """Note what honest texts about a row earn; return None if its `num_texts` attacks have no bar."""
        values = {kind: score.value for kind, score in honest.items()}
        if values["right"] is None or values["wrong"] is None:
            score = honest["right" if values["right"] is None else "wrong"]
            self.untried[score.reason] += num_texts
            return None
        self.bars.append(Bars(**values, elsewhere=elsewhere))
        return self.bars[-1]

    def note(self, row: Row, attack: Attack, text: str, score: Score, limits: Iterable[Limit]) -> None:
        """Note what a text earns, if it reaches one of the limits."""
        if score.value is None and not score.details.get(FAILS):
            self.untried[score.reason] += 1
            return
        self.num_tried += 1
        if score.value is None:
            limit, remedy = Limit("a number or None", 0.0, True), f"return a number for any text: {score.reason}"
        else:
            limit = next((limit for limit in limits if limit.is_reached(score.value)), None)
            remedy = WEIGH if self.reward == TOGETHER else attack.remedy
        if limit:
            found = (self.reward, attack.name, limit.instead_of, score.value, limit.honest)
            finding = Finding(*found, row.index + 1, row.question, text, remedy, limit.is_paid)
            self.found.setdefault((attack.name, limit.instead_of), []).append(finding)


@dataclass(frozen=True)
class Audit:
    """What was found. form: of honest completions. num_rows: of the data. num_asked: questions to services."""

    form: str
    num_rows: int
    num_asked: int
    tried: list[Tried]

    @property
    def findings(self) -> list[Finding]:
        """Return all findings; of the sum only those that no single reward has."""
        single = [found for one in self.tried if one.reward != TOGETHER for found in one.findings]
        known = {(found.attack, found.is_paid) for found in single}
        together = [found for one in self.tried if one.reward == TOGETHER for found in one.findings]
        return single + [found for found in together if (found.attack, found.is_paid) not in known]

    def as_json(self) -> dict[str, Any]:
        rewards = []
        for one in self.tried:
            counts = {"tried": one.num_tried, "untried": dict(one.untried)}
            rewards.append({"reward": one.reward, **one.means, "sees": one.sees, **counts})
        told = {"form": self.form, "num_rows": self.num_rows, "num_asked": self.num_asked}
        return {**told, "rewards": rewards, "findings": [asdict(found) for found in self.findings]}

    def __str__(self) -> str:
        """Say in one line what was found."""
        num_texts = max((one.num_tried for one in self.tried), default=0)
        paid = dict.fromkeys(f"{found.attack} ({found.reward})" for found in self.findings if found.is_paid)
        return f"{num_texts} dishonest answers to {self.num_rows} rows; paid: {', '.join(paid) or 'none'}"
