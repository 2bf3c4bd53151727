"""Reward knowing when to answer: value the grade of `correctness` in different ways (Eq. 19, 20).

    name          right         refused   wrong
    simpleqa      1             0         0            SimpleQA, 2411.04368
    correctness   2             1         -1           KnowRL, 2506.19807: t = 2/3
    truthrl       1             0         -1           TruthRL, 2509.25760: t = 1/2
    abstention    1             0         -t / (1-t)   2509.04664, 2511.11500
    rlcr          1 - (1-q)^2   -q^2      -q^2         2507.16806

t is the probability of being right above which answering pays; with `abstention` it is abstention_threshold. q
is the probability that the completion states in its <confidence> block. A completion without one gets the worst value,
as if it had stated 0 for a right answer and 1 for any other.
"""

from dataclasses import replace

from grpo.algorithm.schema import Score
from rewards.format import stated_confidence
from rewards.outcome.correctness import KNOWRL, GradeAnswer, Values, grader, judge_by_rules
from rewards.outcome.judge import build_judge
from rewards.registry import Columns, Options, Reward

SIMPLEQA: Values = {"correct": 1.0, "refused": 0.0, "wrong": 0.0}
TERNARY: Values = {"correct": 1.0, "refused": 0.0, "wrong": -1.0}


def build(name: str, options: Options) -> Reward:
    """Build a reward that needs the judge and nothing else.

    `simpleqa` asks for no format: without an answer block, the judge grades the text after the thoughts.
    """
    judge = build_judge(options)
    values = {"simpleqa": SIMPLEQA, "correctness": KNOWRL}.get(name, TERNARY)
    if name == "abstention":
        values = with_threshold(options["abstention_threshold"])
    is_free = name == "simpleqa"
    grade = grader(judge, values, None if is_free else judge_by_rules, needs_block=not is_free)
    if name == "rlcr":
        grade = with_confidence(grade)
    return Reward(name, grade, resources=(judge,))


def with_confidence(grade_answer: GradeAnswer) -> GradeAnswer:
    """Value the stated confidence as well."""

    async def grade(completion: str, columns: Columns) -> Score:
        return value_confidence(await grade_answer(completion, columns), completion)

    return grade


def with_threshold(threshold: float) -> Values:
    """Return the values under which p - (1 - p) t / (1 - t) > 0 exactly if p > t."""
    return TERNARY | {"wrong": -threshold / (1 - threshold)}  # Eq. 19


def value_confidence(score: Score, completion: str) -> Score:
    """Value a grade by 1 if right, minus the squared error (Brier score) of the confidence that the completion states.

    To state the probability of being right is the best policy: it earns p squared on average, never less than a
    refusal.
    """
    if score.outcome is None:
        return score
    is_right, stated = score.outcome == "correct", stated_confidence(completion)
    said = "states no confidence" if stated is None else f"states the confidence {stated:g}"
    confidence = float(not is_right) if stated is None else stated
    value = is_right - (confidence - is_right) ** 2  # Eq. 20
    return replace(score, value=value, reason=f"{score.reason}; {said}")
