"""KnowRL's reward: correctness, and factuality where it can matter. Three versions of it, by their names in a config:

                    combined (`knowrl`)              combined_v1 (`knowrl_v1`)        combined_v2 (`knowrl_v2`)
    correctness     rules, judge (correctness.py)    refusal and keyword rules, judge the judge alone
    right           2                                2                                2
    refused         1                                -1 + fact                        1
    wrong           -1 + fact                        -1 + fact                        -1 + fact
    fact            (supported - refuted) / (n + 3)  min(supported / 15, 1)           share supported x length penalty
    supported if    entailment >= 0.3, and more      entailment >= 0.3                entailment >= 0.3
                    than contradiction
    n counts        facts of the text, each once     all that are listed              all that are listed

fact lies in [0, 1], so a wrong answer never beats a refusal that is paid. With `format` (+1 / -1, weight 1) this is
KnowRL's total: the presets knowrl, knowrl_v1 and knowrl_v2 stand for both. Where facts decide nothing, nothing is
looked up and no model is asked.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.errors import CONFIG, PREFLIGHT, UserError
from grpo.schema import Score
from knowledge.facts.claims import Claims, Decompose, admissible, by_model, by_rules, every_fact
from knowledge.facts.lexical import LexicalVerifier
from knowledge.facts.verdict import CachedVerifier, Verifier
from knowledge.store.base import KnowledgeBase
from rewards.format import thoughts
from rewards.knowrl import correctness, factuality
from rewards.knowrl.factuality import Factuality, FactualityMeter, Formula, titles_of
from rewards.registry import Reward

if TYPE_CHECKING:
    from rewards.api.client import ApiClient

KNOWN_TEXT = (  # text, question, subject
    "Paris is the capital of France, and it lies on the Seine.",
    "What is the capital of France?",
    "Paris",
)
LOWEST_COVERAGE = 0.5  # of the data set's titles in the knowledge base; below it the run warns


def knowrl(options: Mapping[str, Any]) -> Reward:
    """Build this project's version, the default."""
    return _build("combined", options, correctness.knowrl, factuality.knowrl)


def knowrl_v1(options: Mapping[str, Any]) -> Reward:
    """Build the version of KnowRL's guide."""
    return _build("combined_v1", options, correctness.knowrl_v1, factuality.knowrl_v1, is_knowrls=True)


def knowrl_v2(options: Mapping[str, Any]) -> Reward:
    """Build KnowRL's version since October 2025."""
    return _build("combined_v2", options, correctness.knowrl_v2, factuality.knowrl_v2, is_knowrls=True)


def _build(
    name: str,
    options: Mapping[str, Any],
    correctness_version: Callable[..., correctness.GradeAnswer],
    formula: Formula,
    is_knowrls: bool = False,
) -> Reward:
    judge = correctness.build_judge(options)
    facts = Facts(options, formula, is_knowrls)
    grade_answer = correctness_version(judge)

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        answer = await grade_answer(completion, columns)
        if answer.value != correctness.WRONG:  # right, unscorable, or a refusal that is paid
            return answer
        found = await facts.of(completion, columns)
        value = None if found.value is None else answer.value + found.value  # Eq. 15
        asked = answer.asked | found.asked
        reason = f"{answer.reason}; {found}"
        return Score(value, reason, answer.outcome, found.details(), asked, facts=found.records())

    def prepare(rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
        judge.check_sync()
        facts.prepare(rows, say)

    def close() -> None:
        judge.close()
        facts.close()

    return Reward(
        name,
        grade,
        needs=("answer", "title"),
        slow=_is_slow(options),
        prepare=prepare,
        metrics=lambda: judge.metrics() | facts.metrics(),
        close=close,
    )


def correctness_alone(options: Mapping[str, Any]) -> Reward:
    """Build the reward `correctness`: 2 right, 1 refused, -1 wrong."""
    return correctness.judged_reward("correctness", options, correctness.knowrl)


def factuality_alone(options: Mapping[str, Any]) -> Reward:
    """Build the reward `factuality`: how far the knowledge base supports the reasoning, 0 to 1, whatever the answer."""
    return _facts_alone("factuality", options, factuality.knowrl)


def binary_rar(options: Mapping[str, Any]) -> Reward:
    """Build the reward `binary_rar`: 1 if the knowledge base refutes nothing of the reasoning, else 0 (2510.17733)."""
    return _facts_alone("binary_rar", options, factuality.binary_rar)


def _facts_alone(name: str, options: Mapping[str, Any], formula: Formula) -> Reward:
    facts = Facts(options, formula)

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        found = await facts.of(completion, columns)
        return Score(found.value, str(found), None, found.details(), found.asked, facts=found.records())

    return Reward(
        name,
        grade,
        needs=("title",),
        slow=_is_slow(options),
        prepare=facts.prepare,
        metrics=facts.metrics,
        close=facts.close,
    )


class Facts:
    """Measure the factuality of completions with the configured knowledge base, decomposer and verifier. `close` it.

    is_knowrls: count facts as KnowRL does: every one that the decomposer lists, whatever contradicts it.
    """

    def __init__(self, options: Mapping[str, Any], formula: Formula, is_knowrls: bool = False):
        self.base = KnowledgeBase.open(knowledge_base_path(options))
        self.verifier = build_verifier(options, weigh_contradiction=not is_knowrls)
        self.client = decomposer_client(options)
        self.missing_title = options["missing_title_policy"]
        self.max_unscored = options["max_unscored"]
        self.max_tokens = options["decomposer_max_tokens"]
        decompose: Decompose = by_rules
        if self.client:
            decompose = by_model(self.client.complete, self.max_tokens, every_fact if is_knowrls else admissible)
        self.meter = FactualityMeter(
            self.base, decompose, self.verifier, formula=formula, missing_title=self.missing_title
        )

    async def of(self, completion: str, columns: Mapping[str, Any]) -> Factuality:
        """Measure the think block, or the complete text if there is no such block."""
        text, start = thoughts(completion)
        found = await self.meter.measure(text, str(columns.get("question") or ""), columns.get("title"))
        return replace(found, start=start)

    def prepare(self, rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
        """Tell before the first step which titles the knowledge base holds, and check that the decomposer answers."""
        coverage = self.base.coverage([titles_of(row.get("title")) for row in rows])
        say(f"knowledge base {self.base.path}: {coverage}")
        lowest, consequence = LOWEST_COVERAGE, ""
        if self.missing_title != "zero":  # completions without their title are unscored
            lowest, consequence = max(lowest, 1 - self.max_unscored), ", which ends a run above max_unscored"
        if coverage.found < lowest:
            say(
                f"warning: {1 - coverage.found:.0%} of the titles are not in the knowledge base, such as "
                f"{', '.join(coverage.examples_missing[:3])}; missing_title_policy is {self.missing_title}{consequence}"
            )
        if self.client:
            check_decomposer(self.client, self.max_tokens)

    def metrics(self) -> dict[str, float]:
        """Return the kb/* metrics, and those of the decomposer's API."""
        return self.meter.metrics() | (self.client.metrics() if self.client else {})

    def close(self) -> None:
        """Close the meter first: it uses the others."""
        self.meter.close()
        if isinstance(self.verifier, CachedVerifier):
            self.verifier.close()
        self.base.close()
        if self.client:
            self.client.close()


def check_decomposer(client: "ApiClient", max_tokens: int) -> Claims:
    """Have a known text taken apart before the first step. Raise UserError (exit 3) if that yields no facts."""

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


def _is_slow(options: Mapping[str, Any]) -> bool:
    return options["judge"] == "api" or options["decomposer"] == "api" or options["verifier"] == "nli"


def decomposer_client(options: Mapping[str, Any]) -> "ApiClient | None":
    """Make the decomposer's client; None if rules take texts apart."""
    if options["decomposer"] == "rules":
        return None
    from rewards.api.client import client_for  # the SDK takes a second to import

    return client_for("decomposer", options)


def build_verifier(options: Mapping[str, Any], weigh_contradiction: bool) -> Verifier:
    """Build the configured verifier: `verifier: nli` asks a model, `verifier: lexical` compares words."""
    if options["verifier"] == "lexical":
        verifier = LexicalVerifier()
    else:
        from grpo.device.distributed import choose_device
        from knowledge.facts.entailment import EntailmentVerifier

        verifier = EntailmentVerifier.load(
            options["nli_model"],
            device=choose_device(options["device"]),
            threshold=options["entailment_threshold"],
            weigh_contradiction=weigh_contradiction,
        )
    return CachedVerifier(verifier, options["verdict_cache"]) if options["verdict_cache"] else verifier


def knowledge_base_path(options: Mapping[str, Any]) -> Path:
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
