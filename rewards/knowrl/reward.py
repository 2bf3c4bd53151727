"""Build KnowRL's reward: correctness, and factuality where it can matter. Its three versions:

                    knowrl                           knowrl_v1                        knowrl_v2
    correctness     rules, judge (correctness.py)    refusal and keyword rules, judge the judge alone
    right           2                                2                                2
    refused         1                                -1 + fact                        1
    wrong           -1 + fact                        -1 + fact                        -1 + fact
    fact            (supported - refuted) / (n + 3)  min(supported / 15, 1)           share supported x length penalty
    supported if    entailment >= 0.3, and more      entailment >= 0.3                entailment >= 0.3
                    than contradiction
    n counts        facts of the text, each once     all that are listed              all that are listed

fact lies in [0, 1], so a wrong answer never beats a refusal that is paid. Each version brings the reward `format` (+1 /
-1, weight 1) along: together they are KnowRL's total. Where facts decide nothing, nothing is looked up and no model is
asked.
"""

from collections.abc import Sequence
from dataclasses import replace

from grpo.base.schema import Score
from rewards.knowrl import v1
from rewards.knowrl.fact_checker import FactChecker
from rewards.knowrl.factuality import FORMULAS
from rewards.outcome.correctness import KNOWRL, WRONG, Rules, Values, grader, no_rules, strict_rules
from rewards.outcome.judge import build_judge
from rewards.registry import Columns, Options, Reward, Say


def _build(name: str, options: Options, rules: Rules, values: Values = KNOWRL, is_original: bool = False) -> Reward:
    """Build a version. is_original: it counts facts as KnowRL's code does."""
    judge = build_judge(options)
    grade_answer = grader(judge, rules, values)
    checker = FactChecker(options, FORMULAS[name], is_original)

    async def grade(completion: str, columns: Columns) -> Score:
        answer = await grade_answer(completion, columns)
        if answer.value != WRONG:  # right, unscorable, or a refusal that is paid
            return answer
        found = await checker.check(completion, columns)
        return replace(
            found,
            value=None if found.value is None else answer.value + found.value,  # Eq. 15
            reason=f"{answer.reason}; {found.reason}",
            outcome=answer.outcome,
            asked=answer.asked | found.asked,
        )

    def prepare(rows: Sequence[Columns], say: Say) -> None:
        judge.check_sync()
        checker.prepare(rows, say)

    def close() -> None:
        judge.close()
        checker.close()

    return Reward(
        name,
        grade,
        needs=("answer", "title"),
        slow=_is_slow(options),
        prepare=prepare,
        metrics=lambda: judge.metrics() | checker.metrics(),
        close=close,
    )


def _facts_alone(name: str, options: Options, formula: str) -> Reward:
    """Build a reward of the reasoning's facts, whatever the answer."""
    checker = FactChecker(options, FORMULAS[formula])

    return Reward(
        name,
        checker.check,
        needs=("title",),
        slow=_is_slow(options),
        prepare=checker.prepare,
        metrics=checker.metrics,
        close=checker.close,
    )


def _is_slow(options: Options) -> bool:
    return options["judge"] == "api" or options["decomposer"] == "api" or options["verifier"] == "nli"


def knowrl(options: Options) -> Reward:
    return _build("knowrl", options, strict_rules)


def knowrl_v1(options: Options) -> Reward:
    return _build("knowrl_v1", options, v1.rules, KNOWRL | {"refused": WRONG}, is_original=True)


def knowrl_v2(options: Options) -> Reward:
    return _build("knowrl_v2", options, no_rules, is_original=True)


def factuality_alone(options: Options) -> Reward:
    return _facts_alone("factuality", options, "knowrl")


def binary_rar(options: Options) -> Reward:
    return _facts_alone("binary_rar", options, "binary_rar")
