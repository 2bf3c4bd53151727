"""KnowRL's reward: correctness, and factuality where it can matter. Three versions of it:

                    combined (default)              combined_v1                      combined_v2
    correctness     hardened (correctness.py)       refusal and keyword rules, judge the judge alone
    right           2                               2                                2
    refused         1                               -1 + fact                        1
    wrong           -1 + fact                       -1 + fact                        -1 + fact
    fact            (supported - refuted)/(n + 3)   min(supported / 15, 1)           share supported x length penalty
    supported if    entailment >= 0.3, and more     entailment >= 0.3                entailment >= 0.3
                    than contradiction

fact lies in [0, 1], so a wrong answer never beats a refusal that is paid. With `format` (+1 / -1, weight 1) this is
KnowRL's total; the presets knowrl, knowrl_v1 and knowrl_v2 stand for both. Where facts decide nothing, nothing is
looked up and no model is asked.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import CONFIG, UserError
from grpo.schema import Score
from knowledge.facts.claims import Decompose, by_model, by_rules
from knowledge.facts.lexical import LexicalVerifier
from knowledge.facts.verdict import CachedVerifier, Verifier
from knowledge.store.base import KnowledgeBase
from rewards.format import parse
from rewards.knowrl import correctness
from rewards.knowrl.factuality import FORMULAS, Factuality, FactualityJudge, titles_of
from rewards.registry import Reward

LOWEST_COVERAGE = 0.5  # of the data set's titles in the knowledge base; below it the run says so loudly


@dataclass(frozen=True)
class Version:
    """What differs between the three; see the table."""

    correctness: Callable[..., correctness.Grade]
    formula: str
    weigh_contradiction: bool


VERSIONS = {
    "combined": Version(correctness.correctness, "hardened", True),
    "combined_v1": Version(correctness.knowrl_v1, "knowrl_v1", False),
    "combined_v2": Version(correctness.knowrl_v2, "knowrl_v2", False),
}


class Facts:
    """The factuality of completions against the configured knowledge base, and what must be closed with it."""

    def __init__(self, options: Mapping[str, Any], formula: str, weigh_contradiction: bool):
        self.base = KnowledgeBase.open(_knowledge_base(options))
        self.client = None
        self.verifier: Verifier = _verifier(options, weigh_contradiction)
        if options["verdict_cache"]:
            self.verifier = CachedVerifier(self.verifier, options["verdict_cache"])
        self.judge = FactualityJudge(
            self.base,
            self._decomposer(options),
            self.verifier,
            formula=FORMULAS[formula],
            missing_title=options["missing_title_policy"],
        )
        self.drops = options["missing_title_policy"] != "zero"  # completions without their title are left out
        self.lowest_coverage = max(LOWEST_COVERAGE, 1 - options["max_unscored"]) if self.drops else LOWEST_COVERAGE

    async def of(self, completion: str, columns: Mapping[str, Any]) -> Factuality:
        """Of the think block's body, or of the whole completion if there is none."""
        think = parse(completion).think
        return await self.judge.judge(
            completion if think is None else think, str(columns.get("question") or ""), columns.get("title")
        )

    def prepare(self, rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
        """Before the first step: which titles the base knows, and whether the decomposer answers."""
        coverage = self.base.coverage([titles_of(row.get("title")) for row in rows])
        say(f"knowledge base {self.base.path}: {coverage}")
        if coverage.found < self.lowest_coverage:
            say(
                f"warning: {1 - coverage.found:.0%} of the titles are not in the knowledge base, such as {', '.join(coverage.examples_missing[:3])}; "
                f"missing_title_policy is {self.judge.missing_title}"
                + (", which ends a run above max_unscored" if self.drops else "")
            )
        if self.client:
            self.client.check_sync()

    def metrics(self) -> dict[str, float]:
        return self.judge.metrics() | (self.client.metrics() if self.client else {})

    def close(self) -> None:
        self.judge.close()
        if isinstance(self.verifier, CachedVerifier):
            self.verifier.close()
        self.base.close()
        if self.client:
            self.client.close()

    def _decomposer(self, options: Mapping[str, Any]) -> Decompose:
        if options["decomposer"] == "rules":
            return by_rules
        from rewards.api.client import (
            decomposer_client,  # the SDK takes a second to import: only runs that use it pay for it
        )

        self.client = decomposer_client(options)
        return by_model(self.client.complete)


def combined(name: str, options: Mapping[str, Any]) -> Reward:
    """One of VERSIONS."""
    version = VERSIONS[name]
    judge = correctness.build_judge(options)
    facts = Facts(options, version.formula, version.weigh_contradiction)
    grade_answer = version.correctness(judge)

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        answer = await grade_answer(completion, columns)
        if answer.value != correctness.WRONG:  # right, unscorable, or a refusal that is paid
            return answer
        found = await facts.of(completion, columns)
        value = None if found.value is None else answer.value + found.value
        return Score(value, f"{answer.reason}; {found}", answer.outcome, counts(found))

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
    """The hardened correctness: 2 right, 1 refused, -1 wrong."""
    judge = correctness.build_judge(options)
    return Reward(
        "correctness",
        correctness.correctness(judge),
        needs=("answer",),
        slow=options["judge"] == "api",
        prepare=lambda rows, say: judge.check_sync(),
        metrics=judge.metrics,
        close=judge.close,
    )


def factuality_alone(options: Mapping[str, Any]) -> Reward:
    """How far the knowledge base supports the reasoning, 0 to 1, whatever the answer."""
    facts = Facts(options, "hardened", True)

    async def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        found = await facts.of(completion, columns)
        return Score(found.value, str(found), None, counts(found))

    return Reward(
        "factuality",
        grade,
        needs=("title",),
        slow=_is_slow(options),
        prepare=facts.prepare,
        metrics=facts.metrics,
        close=facts.close,
    )


def counts(found: Factuality) -> dict[str, float]:
    """What a factuality adds to a score's details."""
    return (
        {}
        if found.value is None
        else {
            "factuality": found.value,
            "facts": len(found.facts),
            "supported": found.count("supported"),
            "refuted": found.count("refuted"),
        }
    )


def _is_slow(options: Mapping[str, Any]) -> bool:
    return options["judge"] == "api" or options["decomposer"] == "api" or options["verifier"] == "nli"


def _verifier(options: Mapping[str, Any], weigh_contradiction: bool) -> Verifier:
    if options["verifier"] == "lexical":
        return LexicalVerifier()
    from grpo.device.distributed import choose_device
    from knowledge.facts.entailment import EntailmentVerifier

    return EntailmentVerifier.load(
        options["nli_model"],
        device=choose_device(options["device"]),
        threshold=options["entailment_threshold"],
        weigh_contradiction=weigh_contradiction,
    )


def _knowledge_base(options: Mapping[str, Any]) -> str:
    path = options["knowledge_base"] or os.environ.get("FACTSCORE_DB_PATH")
    if not path:
        raise UserError(
            "factuality without a knowledge base",
            "neither knowledge_base nor FACTSCORE_DB_PATH is set",
            "build one with `python -m knowledge.build SOURCE OUT.db` and set knowledge_base: OUT.db",
            CONFIG,
        )
    return path
