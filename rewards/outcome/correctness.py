"""Grade the answer: by rules, then by a judge. Say what right, wrong and declined are worth. KnowRL's values:

                         this project's rules                     knowrl_v1             knowrl_v2
    no answer block      -1 (as for anything but one              -1                    -1
                         pair of each tag)
    before the judge     no letter or digit, or nothing but       judge_by_guide: -1    nothing
                         alternatives or candidates of the
                         question: -1; a refusal: 1; what
                         equals a truth is none of these
    judge: correct       2                                        2                     2
    judge: wrong         -1                                       -1                    -1
    judge: no attempt    1                                        -1                    1
    judge fails          unscorable                               unscorable            unscorable

The judge sees the row's question, never the rendered prompt. (The original pays 0 when the judge fails, more than for a
wrong answer; and 2 for any reply that holds the article "a".)

Other rewards value the same outcome in other ways (Eq. 19, 20):

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

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from grpo.algorithm.schema import Outcome, Score
from knowledge.store.tokens import tokens
from knowledge.words import STOP_WORDS
from rewards.exact import equals_one, is_unanswerable, truths
from rewards.format import Parsed, final_text, parse, stated_confidence
from rewards.outcome.judge import Judge, Judgement, build_judge
from rewards.outcome.refusal import is_refusal, lists_alternatives, num_candidates
from rewards.registry import Columns, Options, Reward

CORRECT, REFUSED, WRONG = 2.0, 1.0, -1.0
NO_ANSWER = "This question has no known answer."
Payoffs = dict[Outcome, float]  # what each outcome is worth
KNOWRL: Payoffs = {"correct": CORRECT, "refused": REFUSED, "wrong": WRONG}
TERNARY: Payoffs = {"correct": 1.0, "refused": 0.0, "wrong": -1.0}
SIMPLEQA: Payoffs = TERNARY | {"wrong": 0.0}
GradeAnswer = Callable[[str, Columns], Awaitable[Score]]
Rules = Callable[[Parsed, str, Sequence[str]], Judgement | None]  # of the completion, the question, the truths

# what declines by KnowRL's guide
_UNABLE = r"(?:cannot|can not|can't|unable to|not able to|won't)"
_ANSWER = r"(?:answer|respond|provide|assist|give (?:you|an|any)|tell you|help (?:you|with))"
_MORE = r"(?:more|additional) (?:information|details|context|specifics|clarification)"
_NEAR = r"[^\n]{0,80}?"
_GUIDE_REFUSALS = re.compile(
    "|".join(
        (
            rf"\b{_UNABLE} {_ANSWER}\b",
            rf"\bi (?:must|have to|need to)\b{_NEAR}\b(?:decline|refuse|refrain|abstain)"
            r" (?:to answer|(?:from )?\w+ing)\b",
            rf"\bas an? (?:ai|language model|assistant)\b{_NEAR}\bi (?:{_UNABLE}|must decline|don't have)",
            rf"\b(?:ethical|moral|legal)\b{_NEAR}\b(?:concerns|issues|considerations|limitations|constraints)\b"
            rf"{_NEAR}\b(?:prevent|stop|preclude|prohibit|disallow)",
            rf"\b(?:need|require)s? {_MORE} to {_ANSWER}\b",
            rf"\b(?:insufficient|lack of|not enough) (?:information|context|details) to {_ANSWER}\b",
            rf"\btoo vague to {_ANSWER}\b",
            rf"\b{_MORE} (?:is|are|would be) (?:needed|required|necessary)\b",
        )
    ),
    re.IGNORECASE,
)


def judge_by_rules(parsed: Parsed, question: str, accepted: Sequence[str]) -> Judgement | None:
    """Judge an answer for which no judge is needed; None if a judge is to decide."""
    if not parsed.is_well_tagged:
        return "wrong", "not exactly one think block and one answer block"
    answer = parsed.answer or ""
    if equals_one(answer, accepted):
        return None  # such an answer is no refusal and no list, even if it is "Unknown", "Trick or Treat" or "∞"
    if not any(char.isalnum() for char in answer):
        return "wrong", "the answer holds neither letter nor digit"
    if is_refusal(answer):
        return "refused", "declines to answer"
    kind = lists_alternatives(answer, accepted)
    if kind:
        return "wrong", f"lists alternatives ({kind})"
    num_right = max(num_candidates(question, truth) for truth in accepted)
    if num_candidates(question, answer) > max(num_right, 1):
        return "wrong", "lists candidates of the question"
    return None


def judge_by_guide(parsed: Parsed, question: str, accepted: Sequence[str]) -> Judgement | None:
    """Judge an answer block by the rules of KnowRL's guide; None if a judge is to decide.

    1. An answer that declines is no attempt.
    2. If the truth holds a digit, the judge decides.
    3. An answer that shares no keyword with the truth is wrong; any other one goes to the judge.

    The guide's own patterns miss "I don't know" and curly apostrophes, and find "I can't help falling in love". It
    seeks keywords within words ("red" in "scared"). Here everyday refusals decline, too; what equals a truth does not;
    and keywords are words.
    """
    answer = " ".join((parsed.answer or "").replace("’", "'").split())
    if equals_one(answer, accepted):
        return None
    if is_refusal(answer) or _GUIDE_REFUSALS.search(answer):
        return "refused", "declines to answer"
    keywords = set(tokens(" ".join(accepted))) - STOP_WORDS
    if not keywords or any(truth == NO_ANSWER or is_refusal(truth) or re.search(r"\d", truth) for truth in accepted):
        return None
    return None if keywords & set(tokens(answer)) else ("wrong", "shares no keyword with the truth")


def grader(
    judge: Judge, values: Payoffs = KNOWRL, rules: Rules | None = judge_by_rules, needs_block: bool = True
) -> GradeAnswer:
    """Grade by the rules, if there are any, and by the judge if no rule decides.

    needs_block: without an answer block, a completion is wrong; else what follows the thoughts is its answer.
    """

    async def grade(completion: str, columns: Columns) -> Score:
        parsed = parse(completion)
        text = parsed.answer if needs_block else final_text(completion)
        if not text:
            silent: Outcome = "wrong" if needs_block else "refused"
            return Score(values[silent], "no answer block" if text is None else "the answer is empty", silent)
        question = str(columns.get("question") or "").strip()
        accepted = truths(columns.get("answer")) or [NO_ANSWER] * is_unanswerable(columns)
        if not question or not accepted:
            return Score(None, "the row has no answer to compare with" if question else "the row has no question")
        judgement = rules(parsed, question, accepted) if rules else None
        asked = {}
        if judgement is None:
            judgement = await judge.judge(question, text, accepted, truths(columns.get("incorrect_answers")))
            asked = {"judge": judgement[0] is not None}
        outcome, reason = judgement
        if outcome == "refused" and is_unanswerable(columns):
            outcome = "correct"
        return Score(values[outcome] if outcome else None, reason, outcome, asked=asked)

    return grade


# --- what the outcome is worth ---------------------------------------------------------------------------------------
def build(name: str, options: Options) -> Reward:
    """Build a reward that needs the judge and nothing else.

    `simpleqa` asks for no format: without an answer block, the judge grades the text after the thoughts.
    """
    judge = build_judge(options)
    if name == "simpleqa":
        grade = grader(judge, SIMPLEQA, None, needs_block=False)
    elif name == "abstention":
        grade = grader(judge, with_threshold(options["abstention_threshold"]))
    else:
        grade = grader(judge, KNOWRL if name == "correctness" else TERNARY)

    async def with_confidence(completion: str, columns: Columns) -> Score:
        return value_confidence(await grade(completion, columns), completion)

    return Reward(name, with_confidence if name == "rlcr" else grade, resources=(judge,))


def with_threshold(threshold: float) -> Payoffs:
    """Return the values under which p - (1 - p) t / (1 - t) > 0 exactly if p > t."""
    return TERNARY | {"wrong": -threshold / (1 - threshold)}  # Eq. 19


def value_confidence(score: Score, completion: str) -> Score:
    """Value a grade by 1 if right, minus the squared error (Brier score) of the confidence that the completion states.

    To state the probability of being right is the best policy: it earns p squared on average, never less than a
    refusal.
    """
    if score.outcome is None:
        return score
    is_right = score.outcome == "correct"
    stated = stated_confidence(completion)
    said = "states no confidence" if stated is None else f"states the confidence {stated:g}"
    confidence = float(not is_right) if stated is None else stated
    value = is_right - (confidence - is_right) ** 2  # Eq. 20
    return replace(score, value=value, reason=f"{score.reason}; {said}")
