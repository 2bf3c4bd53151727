"""Build KnowRL's reward: correctness, and factuality where it can matter. Its three versions:

                    knowrl                           knowrl_v1                 knowrl_v2
    correctness     rules, judge (correctness.py)    judge_by_guide, judge     the judge alone
    right           2                                2                         2
    refused         1                                -1 + fact                 1
    wrong           -1 + fact                        -1 + fact                 -1 + fact
    fact            (supported - refuted) / (n + 3)  min(supported / 15, 1)    share supported x length penalty
    supported if    entailment >= 0.3, and more      entailment >= 0.3         entailment >= 0.3
                    than contradiction
    n counts        facts of the text, each once     all that are listed       all that are listed

fact lies in [0, 1], so a wrong answer never beats a refusal that is paid. Each version brings the reward `format` (+1 /
-1, weight 1) along: together they are KnowRL's total. Where facts decide nothing, nothing is looked up and no model is
asked.
"""

import math
from dataclasses import replace

from grpo.algorithm.schema import Score
from rewards.knowrl.fact_checker import FactChecker, Formula
from rewards.outcome.correctness import KNOWRL, WRONG, grader, judge_by_guide, judge_by_rules
from rewards.outcome.judge import build_judge
from rewards.registry import Columns, Options, Reward

PRIOR_FACTS = 3  # of `knowrl`: half of the credit is reached at this number of supported facts
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


def build(name: str, options: Options) -> Reward:
    """Build a version of KnowRL's reward."""
    is_original = name != "knowrl"
    rules = {"knowrl": judge_by_rules, "knowrl_v1": judge_by_guide}.get(name)
    judge = build_judge(options)
    values = KNOWRL | {"refused": WRONG} if name == "knowrl_v1" else KNOWRL
    grade_answer = grader(judge, values, rules)
    checker = FactChecker(options, FORMULAS[name], is_original)

    async def grade(completion: str, columns: Columns) -> Score:
        answer = await grade_answer(completion, columns)
        if answer.value != WRONG:  # right, unscorable, or a refusal that is paid
            return answer
        found = await checker.check(completion, columns)
        return replace(
            found,
            value=None if found.value is None else answer.value + found.value,  # Eq. 18
            reason=f"{answer.reason}; {found.reason}",
            outcome=answer.outcome,
            asked=answer.asked | found.asked,
        )

    return Reward(name, grade, resources=(judge, checker))


def build_of_facts(name: str, options: Options) -> Reward:
    """Build a reward of the reasoning's facts, whatever the answer: `factuality` by knowrl's formula, `binary_rar`."""
    checker = FactChecker(options, FORMULAS["knowrl" if name == "factuality" else name])
    return Reward(name, checker.check, resources=(checker,))
