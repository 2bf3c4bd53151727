"""Check the facts of completions with what the configuration names: knowledge base, decomposer and verifier."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.base.errors import CONFIG, PREFLIGHT, UserError
from grpo.base.schema import Score
from knowledge.facts.claims import Claims, Decompose, admissible, every_fact
from knowledge.facts.matcher import SentenceMatcher, by_rules
from knowledge.facts.model_decomposer import by_model
from knowledge.facts.verdict import Verifier
from knowledge.store.answers import Coverage
from knowledge.store.base import KnowledgeBase
from rewards.format import thoughts
from rewards.knowrl.factuality import FactualityMeter, Formula, joined_titles
from rewards.registry import Columns, Options, Say

if TYPE_CHECKING:
    from rewards.api.client import ApiClient

KNOWN_TEXT = (  # text, question, subject
    "Paris is the capital of France, and it lies on the Seine.",
    "What is the capital of France?",
    "Paris",
)
LOWEST_COVERAGE = 0.5  # of the data set's titles in the knowledge base; below it the run warns


class FactChecker:
    """Measure how far the configured knowledge base supports completions. Call `close` when done.

    is_original: count facts as KnowRL's code does: every one that the decomposer lists, whatever contradicts it.
    """

    def __init__(self, options: Options, formula: Formula, is_original: bool = False):
        self.base = KnowledgeBase.open(knowledge_base_path(options))
        self.verifier = build_verifier(options, weigh_contradiction=not is_original)
        self.client = decomposer_client(options)
        self.max_tokens = options["decomposer_max_tokens"]
        self.max_unscored = options["max_unscored"]
        decompose: Decompose = by_rules
        if self.client:
            keep = every_fact if is_original else admissible
            decompose = by_model(self.client.complete, self.max_tokens, keep)
        self.meter = FactualityMeter(
            self.base,
            decompose,
            self.verifier,
            formula=formula,
            missing_title=options["missing_title_policy"],
            count_repeats=is_original,
        )

    async def check(self, completion: str, columns: Columns) -> Score:
        """Score the facts of the think block, or of the complete text if there is no such block."""
        text, start = thoughts(completion)
        return await self.meter.measure(text, str(columns.get("question") or ""), columns.get("title"), start)

    def prepare(self, rows: Sequence[Columns], say: Say) -> None:
        """Tell before the first step which titles the knowledge base holds, and check that the decomposer answers."""
        coverage = self.base.coverage([joined_titles(row.get("title")) for row in rows])
        say(f"knowledge base {self.base.path}: {coverage}")
        self._warn_of_missing(coverage, say)
        if self.client:
            check_decomposer(self.client, self.max_tokens)

    def metrics(self) -> dict[str, float]:
        """Return the kb/* metrics, and those of the decomposer's API."""
        return self.meter.metrics() | (self.client.metrics() if self.client else {})

    def close(self) -> None:
        """Close the meter first: it uses the others."""
        self.meter.close()
        self.base.close()
        if self.client:
            self.client.close()

    def _warn_of_missing(self, coverage: Coverage, say: Say) -> None:
        """Warn if so many titles are missing that the reward means little, or that the run would end."""
        lowest, consequence, policy = LOWEST_COVERAGE, "", self.meter.missing_title
        if policy != "zero":  # completions without their title are unscored
            lowest, consequence = max(lowest, 1 - self.max_unscored), ", which ends a run above max_unscored"
        if coverage.found < lowest:
            say(
                f"warning: {1 - coverage.found:.0%} of the titles are not in the knowledge base, such as "
                f"{', '.join(coverage.missing[:3])}; missing_title_policy is {policy}{consequence}"
            )


def decomposer_client(options: Options) -> "ApiClient | None":
    """Make the decomposer's client; None if texts are taken apart without a model."""
    if options["decomposer"] == "rules":
        return None
    from rewards.api.client import client_for  # the SDK takes a second to import

    return client_for("decomposer", options)


def check_decomposer(client: "ApiClient", max_tokens: int) -> Claims:
    """Let the model take a known text apart before the first step. Raise UserError (exit 3) if that yields no facts."""

    async def check(client: "ApiClient") -> Claims:
        decompose = by_model(lambda messages, max_tokens, **_: client.check(messages, max_tokens), max_tokens)
        return await decompose(*KNOWN_TEXT)

    claims = client.run_sync(check)
    if not claims.facts:
        raise UserError(
            f"the model {client.endpoint.model} does not work as a decomposer",
            f"it should list the facts of {KNOWN_TEXT[0]!r}; {claims.reason or 'it found none'}",
            "set decomposer_model to a model that follows instructions, or decomposer_max_tokens to leave it more room",
            PREFLIGHT,
        )
    return claims


def build_verifier(options: Options, weigh_contradiction: bool) -> Verifier:
    """Build the configured verifier: `verifier: nli` asks a model, `verifier: lexical` compares sentences."""
    if options["verifier"] == "lexical":
        return SentenceMatcher()
    from grpo.device.distributed import choose_device
    from knowledge.facts.entailment import EntailmentVerifier

    try:
        return EntailmentVerifier.load(
            options["nli_model"],
            device=choose_device(options["device"]),
            threshold=options["entailment_threshold"],
            weigh_contradiction=weigh_contradiction,
        )
    except UserError as error:
        fix = f"{error.fix}; without any model: judge=offline, or verifier=lexical alone"
        raise UserError(error.what, error.why, fix, error.exit_code) from None


def knowledge_base_path(options: Options) -> Path:
    """Return where the knowledge base is. Raise UserError (exit 2) if nothing says so."""
    path = options["knowledge_base"] or os.environ.get("FACTSCORE_DB_PATH")
    if not path:
        raise UserError(
            "factuality without a knowledge base",
            "neither knowledge_base nor FACTSCORE_DB_PATH is set",
            "build one with `python -m knowledge.build SOURCE OUT.db` and set knowledge_base: OUT.db",
            CONFIG,
        )
    return Path(path)
