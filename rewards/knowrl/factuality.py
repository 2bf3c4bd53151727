"""Score factuality: how far a knowledge base supports what a think block states, 0 to 1, or unscorable.

    meter = FactualityMeter(base, by_rules, SentenceMatcher())
    found = await meter.measure(think, "Where was Mira Tolan born?", "Mira Tolan")
    found.value, found.reason, found.facts          # 0.25, "1 of 1 facts supported, 0 refuted; Mira …", [{...}]

Each fact of the text (see knowledge/facts) is compared with the five best passages for title and fact, in the
documents of the title. What is said again, in part or in other words, counts once: a fact that follows from the facts
before it is no further fact. The event loop never waits for work: look-ups, searches and verdicts run on a thread pool.
"""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from grpo.base.schema import Score
from knowledge.errors import KnowledgeBusy
from knowledge.facts.claims import Claim, Decompose
from knowledge.facts.verdict import LABELS, FactToCheck, Label, Verdict, Verifier
from knowledge.store.answers import Lookup, Passage
from knowledge.store.base import KnowledgeBase
from knowledge.text import shortened

NUM_PASSAGES = 5  # evidence per fact, as in KnowRL
NUM_THREADS = 4  # look-ups, searches and verdicts at once
MAX_FACT_CHARS = 120  # of a fact, where a score is explained
MAX_PASSAGE_CHARS = 400  # of the passage that decided
BASE, DECOMPOSER = "knowledge base", "decomposer"  # the services of this file
NOTHING_FOUND = {"factuality": 0.0, "facts": 0, "supported": 0, "refuted": 0}
PRIOR_FACTS = 3  # of `knowrl`: half of the credit is reached at this number of supported facts
MissingTitle = Literal["zero", "unscored", "search"]
Formula = Callable[[int, int, int], float]  # of the facts that count: how many are supported, refuted, and all
# knowrl is this project's. No facts give 0, one supported fact 1/4, three 1/2, ten 10/13. Unlike v1, volume does not
# pay: what the base contradicts cancels a supported fact, what it does not know dilutes. Unlike v2, a false statement
# is worse than one that cannot be checked, and going from three facts to ten does not multiply the value. The prior
# keeps a single safe statement from full credit.
FORMULAS: dict[str, Formula] = {
    "knowrl": lambda supported, refuted, n: max(0, supported - refuted) / (n + PRIOR_FACTS),
    "knowrl_v1": lambda supported, refuted, n: min(supported / 15, 1.0),  # KnowRL's guide
    "knowrl_v2": lambda supported, refuted, n: supported / n * _penalty(n) if n else 0.0,  # since October 2025
    "binary_rar": lambda supported, refuted, n: float(not refuted),  # 2510.17733: silence is true
}


def _penalty(n: int) -> float:
    """Return the factor by which version 2 punishes few facts."""
    return 1.0 if n > 10 else math.exp(1 - 10 / n)


@dataclass(frozen=True)
class CheckedFact:
    """A fact of the text, what the knowledge base says of it, and the passage that decided; if none did, the best one.

    is_new: whether it counts, as it does not follow from the facts before it.
    """

    claim: Claim
    verdict: Verdict
    passage: Passage | None = None
    is_new: bool = True

    def __str__(self) -> str:
        fact = shortened(self.claim.fact, MAX_FACT_CHARS)
        evidence = f" [{self.verdict.evidence}]" if self.verdict.evidence else ""
        return f"{fact} → {self.verdict.label}{evidence}{'' if self.is_new else ', said before'}"

    def record(self, text_start: int) -> dict[str, Any]:
        """Return what a score holds about this fact; see grpo.base.schema.Score."""
        return {
            "fact": self.claim.fact,
            "verdict": self.verdict.label,
            "passage": self.passage and self.passage.id,
            "text": self.passage and shortened(self.passage.text, MAX_PASSAGE_CHARS),
            "sentences": [[text_start + start, text_start + end] for start, end in self.claim.sentences],
        }


def joined_titles(value: Any) -> str:
    """Join the titles that a row's title column names by semicolons; "" if it names none.

    A string is joined already, a list holds several, and the novel 1984 may be a number.
    """
    if isinstance(value, list | tuple):
        return ";".join(str(title) for title in value if title is not None)
    return "" if value is None else str(value)


class FactualityMeter:
    """Measure the factuality of texts. Several event loops may use it. Call `close` when done.

    It holds the thread pool and the counters; the knowledge base and the verifier belong to the
    caller.

    missing_title: the value of a completion whose title is not in the base; other completions are not affected.
    "zero": 0. "unscored": None; then only the wrong answers leave their group (right ones and refusals are never looked
    up), and refusing is the worst in it. "search": evidence comes from the documents that full-text search guesses, and
    the reason says so; None if search guesses none.

    count_repeats: count also what follows from the facts before, as KnowRL's own code does.

    A locked base makes a completion unscored, too. Any other failure of the base (UserError) or of the verifier ends
    the run.
    """

    def __init__(
        self,
        base: KnowledgeBase,
        decompose: Decompose,
        verifier: Verifier,
        *,
        formula: Formula = FORMULAS["knowrl"],
        missing_title: MissingTitle = "zero",
        count_repeats: bool = False,
    ):
        self.base, self.decompose, self.verifier, self.formula = base, decompose, verifier, formula
        self.missing_title, self.count_repeats = missing_title, count_repeats
        self.counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="knowledge")
        if missing_title == "search":
            base.check_search()

    async def measure(self, text: str, question: str, titles: Any, start: int = 0) -> Score:
        """Measure one text. titles: the row's title column (see `joined_titles`). Any strings are safe.

        start: where the text starts in its completion.
        """
        title = joined_titles(titles)
        try:
            found = await self._look_up(title)
            if found is None:
                return self._without_document(title)
            is_about_title = found.how == "exact" and ";" not in title
            subject = title.partition(" (")[0].strip() if is_about_title else ""
            claims = await self.decompose(text, question, subject)
            if claims.facts is None:
                return self._unscored(claims.reason, {BASE: True, DECOMPOSER: False})
            facts = await self._run(self._with_passages, claims.facts, found)
        except KnowledgeBusy as error:
            return self._unscored(f"{error.what}: {error.why}", {BASE: False})
        verdicts = await self._run(self.verifier.verify, facts)
        checked = []
        for claim, (_, passages), verdict in zip(claims.facts, facts, verdicts, strict=True):
            checked.append(CheckedFact(claim, verdict, _deciding(verdict, passages)))
        return self._score(checked if self.count_repeats else await self._marked(checked), found, start)

    def metrics(self) -> dict[str, float]:
        """Return the kb/* metrics of the completions since the last call, and start to count afresh."""
        with self._lock:
            counts, self.counters = self.counters, Counter()
        num_texts, num_facts = max(counts["texts"], 1), max(counts["facts"], 1)
        return {
            "kb/lookups_exact": counts["lookups_exact"],
            "kb/lookups_parts": counts["lookups_parts"],
            "kb/lookups_search": counts["lookups_search"],
            "kb/lookups_missing": counts["lookups_missing"],
            "kb/unscored": counts["unscored"],
            "kb/facts_per_completion": counts["facts"] / num_texts,
            "kb/supported_frac": counts["supported"] / num_facts,
            "kb/refuted_frac": counts["refuted"] / num_facts,
            "kb/unknown_frac": counts["unknown"] / num_facts,
        }

    def close(self) -> None:
        """Let running work end, and take no more."""
        self._pool.shutdown(cancel_futures=True)

    async def _look_up(self, title: str) -> Lookup | None:
        """Find the documents of the title; None if the base has none that may be used."""
        found = Lookup(title, (), "missing")
        if title.strip():
            found = await self._run(self.base.lookup, title, self.missing_title == "search")
        self._count({f"lookups_{found.how}": 1})
        return None if found.how == "missing" else found

    def _with_passages(self, claims: Sequence[Claim], found: Lookup) -> list[FactToCheck]:
        """Return each fact with the passages that may bear on it. The query is title and fact."""
        title = " ".join(found.titles)
        facts = []
        for claim in claims:
            passages = self.base.search(f"{title} {claim.fact}", NUM_PASSAGES, found.titles)
            facts.append((claim.fact, passages))
        return facts

    async def _marked(self, facts: Sequence[CheckedFact]) -> list[CheckedFact]:
        """Mark the facts that follow from those before them with the same verdict; unknown facts earn nothing.

        The verifier tells it: what was said before is its passage. So slices, restatements and conjunctions of some
        facts, in any order, are never more facts than those.
        """
        said: dict[Label, str] = {"supported": "", "refuted": ""}
        repeats: dict[int, FactToCheck] = {}
        for place, found in enumerate(facts):
            before = said.get(found.verdict.label)
            if before:
                repeats[place] = (found.claim.fact, [Passage("", "", before, 0.0)])
            if before is not None:
                said[found.verdict.label] = f"{before}{found.claim.fact.rstrip(' .。')}.\n"
        verdicts = await self._run(self.verifier.verify, list(repeats.values())) if repeats else []
        repeated = {place for place, verdict in zip(repeats, verdicts, strict=True) if verdict.label == "supported"}
        return [replace(found, is_new=place not in repeated) for place, found in enumerate(facts)]

    def _score(self, facts: Sequence[CheckedFact], found: Lookup, start: int) -> Score:
        """Value the verdicts on a text's facts."""
        labels = [fact.verdict.label for fact in facts if fact.is_new]
        counts = {label: labels.count(label) for label in LABELS}
        self._count({"texts": 1, "facts": len(labels), **counts})
        supported, refuted = counts["supported"], counts["refuted"]
        reason = f"{supported} of {len(labels)} facts supported, {refuted} refuted" if facts else "no facts stated"
        if found.how == "search":
            reason += f"; the title is not in the knowledge base, search guessed {', '.join(found.titles)}"
        value = self.formula(supported, refuted, len(labels))
        return Score(
            value,
            "; ".join([reason, *map(str, facts)]),
            details={"factuality": value, "facts": len(labels), "supported": supported, "refuted": refuted},
            asked={BASE: True, DECOMPOSER: True},
            facts=[fact.record(start) for fact in facts],
        )

    def _without_document(self, title: str) -> Score:
        reason = f"the title {title[:80]!r} is not in the knowledge base" if title.strip() else "the row names no title"
        if self.missing_title == "zero":
            return Score(0.0, reason, details=dict(NOTHING_FOUND), asked={BASE: True})
        return self._unscored(reason, {BASE: False})

    def _unscored(self, reason: str, asked: dict[str, bool]) -> Score:
        self._count({"unscored": 1})
        return Score(None, reason, asked=asked)

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self.counters.update(counts)

    async def _run(self, function: Callable, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


def _deciding(verdict: Verdict, passages: Sequence[Passage]) -> Passage | None:
    """Return the passage that decided, or the best one if none did; None if there is none."""
    decided = (passage for passage in passages if passage.id == verdict.evidence)
    return next(decided, passages[0] if passages else None)
