"""Score factuality: how far a knowledge base supports what a think block states, 0 to 1, or unscorable.

Each fact of the text (see knowledge/facts) is compared with the five best passages for title and fact, in the
documents of the title. What is said again, in part or in other words, counts once: a fact that follows from the facts
before it is no further fact. The event loop never waits for work: look-ups, searches and verdicts run on a thread pool.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from grpo.algorithm.schema import CheckedFact, Score
from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.text import encodable
from grpo.engine.device.distributed import choose_device
from knowledge.facts.claims import LABELS, Claim, FactToCheck, Keep, Verdict, admissible, every_fact
from knowledge.facts.entailment import EntailmentVerifier
from knowledge.facts.matcher import SentenceMatcher, by_rules
from knowledge.facts.model_decomposer import by_model
from knowledge.store.base import KnowledgeBase, Lookup
from knowledge.store.database import KnowledgeBusy
from knowledge.store.passages import Passage, pack
from knowledge.store.tokens import tokens
from knowledge.text import shortened
from rewards.api.client import ApiClient, ModelService, client_for
from rewards.format import thoughts
from rewards.registry import NO_KNOWLEDGE_BASE, Columns, Counts, Options, Resource, Rows, Say

NUM_PASSAGES = 5  # evidence per fact, as in KnowRL
PREMISE_TOKENS = 384  # of what was said before: with a fact of 400 characters, an entailment model reads 512
NUM_THREADS = 4  # look-ups, searches and verdicts at once
MAX_FACT_CHARS = 120  # of a fact, where a score is explained
MAX_PASSAGE_CHARS = 400  # of the passage that decided
LOWEST_COVERAGE = 0.5  # of the data set's titles in the knowledge base; below it the run warns
BASE, DECOMPOSER = "knowledge base", "decomposer"  # the services of this file
NOTHING_FOUND = {"factuality": 0.0, "facts": 0, "supported": 0, "refuted": 0}
COUNTED = ("kb/lookups_exact", "kb/lookups_parts", "kb/lookups_search", "kb/lookups_missing", "kb/unscored")
KNOWN_TEXT = (  # text, question, subject
    "Paris is the capital of France, and it lies on the Seine.",
    "What is the capital of France?",
    "Paris",
)
Formula = Callable[[int, int, int], float]  # of the facts that count: how many are supported, refuted, and all


def say_coverage(base: KnowledgeBase, rows: Rows, options: Options, say: Say) -> None:
    """Say which titles of rows a knowledge base holds.

    Warn if so many are missing that the reward means little, or that the run would end.
    """
    policy = options["missing_title_policy"]
    coverage = base.coverage([joined_titles(row.get("title")) for row in rows], policy == "search")
    names = f", such as {', '.join(coverage.missing[:3])}" if coverage.missing else ""
    say(f"knowledge base {base.path}: {coverage}{names}")
    lowest = LOWEST_COVERAGE
    consequence = ""
    if policy != "zero":  # completions without their title are unscored
        lowest = max(lowest, 1 - options["max_unscored"])
        consequence = ", which ends a run above max_unscored"
    if coverage.found < lowest:
        share = f"{1 - coverage.found:.0%} of the titles are not in the knowledge base"
        say(f"warning: {share}; missing_title_policy is {policy}{consequence}")


def joined_titles(value: object) -> str:
    """Join the titles that a row's title column names by semicolons; "" if it names none.

    A string is joined already, a list holds several, and the novel 1984 may be a number.
    """
    if isinstance(value, list | tuple):
        return ";".join(str(title) for title in value if title is not None)
    return "" if value is None else str(value)


class FactChecker(Resource):
    """Measure how far the configured knowledge base supports completions. Several event loops may use it.

    is_original: count facts as KnowRL's code does: every one that the decomposer lists, whatever contradicts it, and
    whether or not it follows from the facts before.

    missing_title_policy is the value of a completion whose title is not in the base; others are not affected.
    "zero": 0. "unscored": None; then only the wrong answers leave their group (right ones and refusals are never looked
    up), and refusing is the worst in it. "search": evidence comes from the documents that full-text search guesses, and
    the reason says so; None if search guesses none.

    A locked base makes a completion unscored, too. Every other failure of the base (UserError) ends the run.
    """

    def __init__(self, options: Options, formula: Formula, is_original: bool = False):
        self.options = options
        self.formula = formula
        self.is_original = is_original
        self.base = KnowledgeBase(knowledge_base_path(options))
        self.verifier = build_verifier(options, weigh_contradiction=not is_original)
        self.decomposer = build_decomposer(options, every_fact if is_original else admissible)
        self.counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="knowledge")
        self.may_guess = options["missing_title_policy"] == "search"  # titles
        if self.may_guess:
            self.base.check_search()

    async def check(self, completion: str, columns: Columns) -> Score:
        """Score the facts of the think block, or of the complete text if there is no such block."""
        text, start = thoughts(encodable(completion))
        title = joined_titles(columns.get("title"))
        run = asyncio.get_running_loop().run_in_executor
        try:
            found = await run(self._pool, self.base.lookup, title, self.may_guess)
            self._count({f"kb/lookups_{found.how}": 1})
            if found.how == "missing":
                return self._without_document(title)
            is_about_title = found.how == "exact" and ";" not in title
            subject = title.partition(" (")[0].strip() if is_about_title else ""
            claims = await self.decomposer.decompose(text, str(columns.get("question") or ""), subject)
            if claims.facts is None:
                return self._unscored(claims.reason, {BASE: True, DECOMPOSER: False})
            return await run(self._pool, self._weigh, claims.facts, found, start)
        except KnowledgeBusy as error:
            return self._unscored(f"{error.what}: {error.why}", {BASE: False})

    def prepare(self, rows: Rows, say: Say) -> None:
        """Tell before the first step which titles the knowledge base holds, and check the decomposer."""
        say_coverage(self.base, rows, self.options, say)
        self.decomposer.prepare(rows, say)

    def counts(self) -> Counts:
        """Return the kb/* counts of the completions since the last call, and those of the decomposer."""
        with self._lock:
            counted = self.counters
            self.counters = Counter()
        of_base: Counts = {name: (counted[name], 0) for name in COUNTED}
        of_base["kb/facts_per_completion"] = (counted["facts"], counted["texts"])
        of_base |= {f"kb/{label}_frac": (counted[label], counted["facts"]) for label in LABELS}
        return of_base | self.decomposer.counts()

    def close(self) -> None:
        """Let running work end, and take no more; then close what it uses."""
        self._pool.shutdown(cancel_futures=True)
        self.base.close()
        self.decomposer.close()

    def _weigh(self, claims: Sequence[Claim], found: Lookup, text_start: int) -> Score:
        """Check each fact of a text against the passages that may bear on it. The query is title and fact."""
        title = " ".join(found.titles)
        facts = [
            (claim.fact, self.base.search(f"{title} {claim.fact}", NUM_PASSAGES, found.titles)) for claim in claims
        ]
        verdicts = zip(claims, facts, self.verifier.verify(facts), strict=True)
        checked = [_checked(claim, passages, verdict, text_start) for claim, (_, passages), verdict in verdicts]
        return self._score(checked, set() if self.is_original else self._repeated(checked), found)

    def _repeated(self, facts: Sequence[CheckedFact]) -> set[int]:
        """Return the places of the facts that follow from others with the same verdict.

        So slices, restatements and conjunctions of some facts, in any order, are never more facts than those. First
        each is compared with those before it; then those that are left, which may be slices, with those behind.
        """
        repeated = self._following(facts, range(len(facts)))
        return repeated | self._following(facts, [place for place in range(len(facts))[::-1] if place not in repeated])

    def _following(self, facts: Sequence[CheckedFact], places: Iterable[int]) -> set[int]:
        """Return those of the places where a fact follows from the facts with its verdict at the places before.

        Unknown facts earn nothing, and are left out. The verifier tells it: those facts are its passage.
        """
        said: dict[str, list[str]] = {"supported": [], "refuted": []}
        repeats: dict[int, FactToCheck] = {}
        for place in places:
            fact = facts[place]["fact"]
            label = facts[place]["verdict"]
            if label not in said:
                continue
            if said[label]:
                repeats[place] = (fact, _as_passages(said[label], fact))
            said[label].append(fact)
        verdicts = self.verifier.verify(list(repeats.values()))
        return {place for place, verdict in zip(repeats, verdicts, strict=True) if verdict.label == "supported"}

    def _score(self, facts: Sequence[CheckedFact], repeated: set[int], found: Lookup) -> Score:
        """Value the verdicts on the facts of a text; those at the places `repeated` do not count."""
        labels = [fact["verdict"] for place, fact in enumerate(facts) if place not in repeated]
        explained = [
            f"{shortened(fact['fact'], MAX_FACT_CHARS)} → {fact['verdict']}{', said elsewhere' * (place in repeated)}"
            for place, fact in enumerate(facts)
        ]
        counts: dict[str, int] = {label: labels.count(label) for label in LABELS}
        self._count({"texts": 1, "facts": len(labels), **counts})
        supported = counts["supported"]
        refuted = counts["refuted"]
        reason = f"{supported} of {len(labels)} facts supported, {refuted} refuted" if facts else "no facts stated"
        if found.how == "search":
            reason += f"; the title is not in the knowledge base, search guessed {', '.join(found.titles)}"
        value = self.formula(supported, refuted, len(labels))
        return Score(
            value,
            "; ".join([reason, *explained]),
            details={"factuality": value, "facts": len(labels), "supported": supported, "refuted": refuted},
            asked={BASE: True, DECOMPOSER: True},
            facts=list(facts),
        )

    def _without_document(self, title: str) -> Score:
        reason = f"the title {title[:80]!r} is not in the knowledge base" if title.strip() else "the row names no title"
        if self.options["missing_title_policy"] == "zero":
            return Score(0.0, reason, details=dict(NOTHING_FOUND), asked={BASE: True})
        return self._unscored(reason, {BASE: False})

    def _unscored(self, reason: str, asked: dict[str, bool]) -> Score:
        self._count({"kb/unscored": 1})
        return Score(None, reason, asked=asked)

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self.counters.update(counts)


def _as_passages(said: Sequence[str], fact: str) -> list[Passage]:
    """Write what was said before a fact as passages that a verifier reads completely.

    If it takes several, the facts that share most words with this one come first, and so stand together.
    """

    def packed(facts: Sequence[str]) -> list[str]:
        return pack("".join(f"{fact.rstrip(' .。')}.\n" for fact in facts), PREMISE_TOKENS)

    texts = packed(said)
    if len(texts) > 1:
        words = set(tokens(fact))
        texts = packed(sorted(said, key=lambda other: -len(words & set(tokens(other)))))[:NUM_PASSAGES]
    return [Passage("", "", text, 0.0) for text in texts]


def _checked(claim: Claim, passages: Sequence[Passage], verdict: Verdict, text_start: int) -> CheckedFact:
    """Describe a fact, what the knowledge base says of it, and the passage that decided; if none did, the best one."""
    passage = verdict.evidence or (passages[0] if passages else None)
    return {
        "fact": claim.fact,
        "verdict": verdict.label,
        "passage": passage.id if passage else None,
        "text": shortened(passage.text, MAX_PASSAGE_CHARS) if passage else None,
        "sentences": [[text_start + start, text_start + end] for start, end in claim.sentences],
    }


# --- what it is made of -----------------------------------------------------------------------------------------------
def knowledge_base_path(options: Options) -> Path:
    """Return where the knowledge base is. UserError if nothing says so (exit 2), or if it is not there (exit 3)."""
    path = options["knowledge_base"]
    if not path:
        raise UserError("there is no knowledge base", "knowledge_base is not set", NO_KNOWLEDGE_BASE)
    if not Path(path).exists():
        raise UserError(
            f"the knowledge base {path} does not exist",
            f"there is no such file in {Path.cwd()}",
            NO_KNOWLEDGE_BASE,
            PREFLIGHT,
        )
    return Path(path)


class RuleDecomposer(Resource):
    """Takes texts apart by rules."""

    decompose = staticmethod(by_rules)


class ModelDecomposer(ModelService):
    """Lets a model list the facts of a text. keep: chooses those that count."""

    def __init__(self, client: ApiClient, max_tokens: int, keep: Keep):
        super().__init__(client, max_tokens)
        self.decompose = by_model(client.complete, max_tokens, keep)

    def check(self) -> str:
        claims = self.client.run_sync(by_model(self.client.check, self.max_tokens)(*KNOWN_TEXT))
        if not claims.facts:
            raise self.useless(f"it should list the facts of {KNOWN_TEXT[0]!r}; {claims.reason or 'it found none'}")
        return f"of {KNOWN_TEXT[0]!r} it makes: {'; '.join(claim.fact for claim in claims.facts)}"


def build_decomposer(options: Options, keep: Keep = admissible) -> RuleDecomposer | ModelDecomposer:
    """Build the configured decomposer: `decomposer: api` asks a model, `decomposer: rules` none."""
    if options["decomposer"] == "rules":
        return RuleDecomposer()
    return ModelDecomposer(client_for("decomposer", options), options["decomposer_max_tokens"], keep)


@contextmanager
def without_any_model() -> Iterator[None]:
    """Say in an error of the entailment model how to do without it."""
    try:
        yield
    except UserError as error:
        raise UserError(
            error.what,
            error.why,
            f"{error.fix}; without any model: judge=offline, or verifier=lexical alone",
            error.exit_code,
        ) from None


def build_verifier(options: Options, weigh_contradiction: bool) -> EntailmentVerifier | SentenceMatcher:
    """Build the configured verifier: `verifier: nli` asks a model, `verifier: lexical` compares sentences."""
    if options["verifier"] == "lexical":
        return SentenceMatcher()
    with without_any_model():
        return EntailmentVerifier(
            options["nli_model"],
            device=choose_device(options["device"]),
            threshold=options["entailment_threshold"],
            weigh_contradiction=weigh_contradiction,
        )
