"""Factuality: how far a knowledge base supports what a think block states, from 0 to 1, or unscorable with a reason.

    judge = FactualityJudge(base, by_rules, LexicalVerifier())
    found = await judge.judge(think, "Where was Mira Tolan born?", "Mira Tolan")
    found.value, found.reason, found.facts          # 0.5, "3 of 3 facts supported, 0 refuted", (FactVerdict(fact, verdict), ...)
    str(found)                                      # "3 of 3 ..., 0 refuted; Mira Tolan was born in Velda → supported [Mira Tolan#0]; ..."

The facts of the text (knowledge/facts/claims.py) are each held against the five best passages for title and fact, in the
documents of the title. The event loop never waits for work: look-ups and searches run on a thread pool, and verdicts on
one thread that takes up all facts which have gathered meanwhile, so that completions share the model's batches.
"""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from knowledge.errors import KnowledgeBusy
from knowledge.facts.claims import Decompose
from knowledge.facts.clauses import subject_of_title
from knowledge.facts.verdict import LABELS, Label, Question, Verdict, Verifier
from knowledge.store.base import KnowledgeBase
from knowledge.store.result import Lookup

NUM_PASSAGES = 5  # evidence per fact, as in KnowRL
NUM_THREADS = 4  # look-ups and searches at once
MAX_FACT_CHARS = 120  # of a fact, where a score is explained
PRIOR_FACTS = 3  # of `hardened`: half of the credit is reached at this number of supported facts
MissingTitle = Literal["zero", "unscored", "search"]


def knowrl_v1(labels: Sequence[Label]) -> float:
    """min(supported / 15, 1): KnowRL's guide. What is wrong or unknown costs nothing."""
    return min(labels.count("supported") / 15, 1.0)


def knowrl_v2(labels: Sequence[Label]) -> float:
    """mean(supported) x penalty, penalty = 1 for more than 10 facts, else exp(1 - 10 / n): KnowRL since October 2025. 0
    without facts."""
    n = len(labels)
    return labels.count("supported") / n * (1.0 if n > 10 else math.exp(1 - 10 / n)) if n else 0.0


def hardened(labels: Sequence[Label]) -> float:
    """max(0, supported - refuted) / (n + 3), the default. 0 without facts, 1/4 for one supported fact, 1/2 for three,
    10/13 for ten.

    Unlike v1, volume does not pay: what the base contradicts cancels a supported fact, what it does not know dilutes.
    Unlike v2, a false statement is worse than one that cannot be checked, and there is no cliff that makes ten facts
    worth ten times three and so teaches padding. Three imaginary unknown facts (a prior: nothing is certain of a text
    that has shown little) keep a single safe statement from full credit. One more supported fact always raises a value
    above 0, an unknown one lowers it, a refuted one lowers it more.
    """
    return max(0, labels.count("supported") - labels.count("refuted")) / (len(labels) + PRIOR_FACTS)


Formula = Callable[[Sequence[Label]], float]
FORMULAS: dict[str, Formula] = {"hardened": hardened, "knowrl_v1": knowrl_v1, "knowrl_v2": knowrl_v2}


@dataclass(frozen=True)
class FactVerdict:
    """A fact of the text and what the knowledge base says of it."""

    fact: str
    verdict: Verdict

    def __str__(self) -> str:
        fact = self.fact if len(self.fact) <= MAX_FACT_CHARS else self.fact[:MAX_FACT_CHARS] + "…"
        return f"{fact} → {self.verdict.label}" + (f" [{self.verdict.evidence}]" if self.verdict.evidence else "")


@dataclass(frozen=True)
class Factuality:
    """value: 0 to 1; None if it cannot be told, and reason says why."""

    value: float | None
    facts: tuple[FactVerdict, ...] = ()
    reason: str = ""

    def count(self, label: Label) -> int:
        """How many facts have this verdict."""
        return sum(fact.verdict.label == label for fact in self.facts)

    def __str__(self) -> str:
        """The reason with every fact, its verdict and the passage that decided."""
        return "; ".join([self.reason, *map(str, self.facts)])


def titles_of(value: Any) -> str:
    """What a row's title column names, as one string joined by semicolons: a string is that already, a list holds
    several; the novel 1984 may be a number. "" if it names nothing."""
    if isinstance(value, list | tuple):
        return ";".join(str(title) for title in value if title is not None)
    return "" if value is None else str(value)


class FactualityJudge:
    """Holds the thread pool, the verdict thread and the counters; not the knowledge base, the verifier or its cache.
    May be used from several event loops. `close` it.

    missing_title: what a completion is worth whose title is not in the base. "zero": the base supports nothing of it.
    "unscored": None, so that only the wrong answers leave their group (right ones and refusals are never looked up),
    and refusing is the worst in it. "search": evidence is taken from the documents that full-text search guesses, and
    the reason says so; unscored if it guesses none. It concerns that completion alone. A locked base makes it unscored
    too; any other failure of the base (UserError) or the verifier ends the run.
    """

    def __init__(
        self,
        base: KnowledgeBase,
        decompose: Decompose,
        verifier: Verifier,
        *,
        formula: Formula = hardened,
        missing_title: MissingTitle = "zero",
        num_passages: int = NUM_PASSAGES,
    ):
        self.base, self.decompose, self.formula = base, decompose, formula
        self.missing_title, self.num_passages = missing_title, num_passages
        self.counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="knowledge")
        self._queue = VerdictQueue(verifier)
        if missing_title == "search":
            base.prepare_search()

    async def judge(self, think: str, question: str, titles: Any) -> Factuality:
        """The factuality of one text. titles: as in the data (see `titles_of`). Any strings are safe."""
        title = titles_of(titles)
        try:
            found = await self._run(self.base.lookup, title) if title.strip() else Lookup(title, (), "missing")
            self._count({f"lookups_{found.how}": 1})
            if found.how == "missing" or (found.how == "search" and self.missing_title != "search"):
                return self._without_document(title)
            is_about_title = found.how == "exact" and ";" not in title
            claims = await self.decompose(think, question, subject_of_title(title.strip()) if is_about_title else "")
            if claims.facts is None:
                return self._unscored(claims.reason)
            questions = await self._run(self._evidence, claims.facts, found)
        except KnowledgeBusy as error:
            return self._unscored(f"{error.what}: {error.why}")
        verdicts = await asyncio.wrap_future(self._queue.submit(questions)) if questions else []
        return self._value(claims.facts, verdicts, found)

    def metrics(self) -> dict[str, float]:
        """The kb/* metrics of the completions judged since the last call, whose counters start afresh; shares are of
        all their facts."""
        with self._lock:
            counts, self.counters = self.counters, Counter()
        texts, facts = max(counts["texts"], 1), max(counts["facts"], 1)
        return {
            "kb/lookups_exact": counts["lookups_exact"],
            "kb/lookups_parts": counts["lookups_parts"],
            "kb/lookups_search": counts["lookups_search"],
            "kb/lookups_missing": counts["lookups_missing"],
            "kb/unscored": counts["unscored"],
            "kb/facts_per_completion": counts["facts"] / texts,
            "kb/supported_frac": counts["supported"] / facts,
            "kb/refuted_frac": counts["refuted"] / facts,
            "kb/unknown_frac": counts["unknown"] / facts,
        }

    def close(self) -> None:
        """Lets running work end and takes no more."""
        self._pool.shutdown(cancel_futures=True)
        self._queue.close()

    def _evidence(self, facts: Sequence[str], found: Lookup) -> list[Question]:
        """Each fact with its passages. The query is title and fact."""
        title = " ".join(found.titles)
        return [(fact, self.base.search(f"{title} {fact}", self.num_passages, found.titles)) for fact in facts]

    def _value(self, facts: Sequence[str], verdicts: Sequence[Verdict], found: Lookup) -> Factuality:
        labels = [verdict.label for verdict in verdicts]
        self._count({"texts": 1, "facts": len(facts)} | {label: labels.count(label) for label in LABELS})
        supported, refuted = labels.count("supported"), labels.count("refuted")
        reason = f"{supported} of {len(facts)} facts supported, {refuted} refuted" if facts else "no facts stated"
        if found.how == "search":
            reason += f"; the title is not in the knowledge base, search guessed {', '.join(found.titles)}"
        pairs = tuple(FactVerdict(fact, verdict) for fact, verdict in zip(facts, verdicts, strict=True))
        return Factuality(self.formula(labels), pairs, reason)

    def _without_document(self, title: str) -> Factuality:
        reason = f"the title {title[:80]!r} is not in the knowledge base" if title.strip() else "the row names no title"
        return Factuality(0.0, (), reason) if self.missing_title == "zero" else self._unscored(reason)

    def _unscored(self, reason: str) -> Factuality:
        self._count({"unscored": 1})
        return Factuality(None, (), reason)

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self.counters.update(counts)

    async def _run(self, function: Callable, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


class VerdictQueue:
    """Micro-batching: while the verifier works, further facts gather, and the next call takes them all at once."""

    def __init__(self, verifier: Verifier):
        self.verifier = verifier
        self._waiting: list[tuple[Sequence[Question], Future]] = []
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verdicts")

    def submit(self, questions: Sequence[Question]) -> "Future[list[Verdict]]":
        """The verdicts, in order, as soon as they are there; or the verifier's exception."""
        future: Future[list[Verdict]] = Future()
        with self._lock:
            self._waiting.append((questions, future))
        self._thread.submit(self._work)
        return future

    def close(self) -> None:
        """What is waiting is still judged."""
        self._thread.shutdown()

    def _work(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        waiting = [(questions, future) for questions, future in waiting if future.set_running_or_notify_cancel()]
        if not waiting:
            return  # an earlier call took them along, or nobody waits for them any more
        try:
            verdicts = iter(self.verifier.verify([question for questions, _ in waiting for question in questions]))
            answers = [list(islice(verdicts, len(questions))) for questions, _ in waiting]
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), answer in zip(waiting, answers, strict=True):
            future.set_result(answer)
