"""Grade the answer: by rules, then by a judge. The values are KnowRL's.

                         this project's rules                     knowrl_v1             knowrl_v2
    no answer block      -1 (as for anything but one              -1                    -1
                         pair of each tag)
    before the judge     no letter or digit, or nothing but       the guide's rules     nothing
                         alternatives or candidates of the        (rewards/knowrl/
                         question: -1; a refusal: 1; what         guide_rules.py): -1
                         equals a truth is none of these
    judge: correct       2                                        2                     2
    judge: wrong         -1                                       -1                    -1
    judge: no attempt    1                                        -1                    1
    judge fails          unscorable                               unscorable            unscorable

The judge sees the row's question, never the rendered prompt. (The original pays 0 when the judge fails, more than for a
wrong answer; and 2 for any reply that holds the article "a".)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from grpo.algorithm.schema import Outcome, Score
from rewards.exact import equals_one, truths
from rewards.format import Parsed, final_text, parse
from rewards.outcome.choices import lists_alternatives, num_candidates
from rewards.outcome.judge import Judge, Judgement
from rewards.outcome.refusal import is_refusal
from rewards.registry import Columns

CORRECT, REFUSED, WRONG = 2.0, 1.0, -1.0
TRUE = ("true", "1", "1.0", "yes")  # in the column unanswerable, also of a CSV file
NO_ANSWER = "This question has no known answer."
Values = Mapping[Outcome, float]  # what each outcome is worth
KNOWRL: Values = {"correct": CORRECT, "refused": REFUSED, "wrong": WRONG}
GradeAnswer = Callable[[str, Columns], Awaitable[Score]]
Rules = Callable[[Parsed, str, Sequence[str]], Judgement | None]  # of the completion, the question, the truths


def is_unanswerable(columns: Columns) -> bool:
    """Return whether a row says of its question that to decline is right."""
    return str(columns.get("unanswerable")).strip().lower() in TRUE


def judge_by_rules(parsed: Parsed, question: str, accepted: Sequence[str]) -> Judgement | None:
    """Judge an answer for which no judge is needed; None if a judge is to decide."""
    if not parsed.is_well_tagged:
        return Judgement("wrong", "not exactly one think block and one answer block")
    if equals_one(parsed.answer, accepted):
        return None  # such an answer is no refusal and no list, even if it is "Unknown", "Trick or Treat" or "∞"
    if not any(char.isalnum() for char in parsed.answer):
        return Judgement("wrong", "the answer holds neither letter nor digit")
    if is_refusal(parsed.answer):
        return Judgement("refused", "declines to answer")
    kind = lists_alternatives(parsed.answer, accepted)
    if kind:
        return Judgement("wrong", f"lists alternatives ({kind})")
    num_right = max(num_candidates(question, truth) for truth in accepted)
    if num_candidates(question, parsed.answer) > max(num_right, 1):
        return Judgement("wrong", "lists candidates of the question")
    return None


def grader(
    judge: Judge, values: Values = KNOWRL, rules: Rules | None = judge_by_rules, needs_block: bool = True
) -> GradeAnswer:
    """Grade by the rules, if there are any, and by the judge if no rule decides.

    needs_block: without an answer block, a completion is wrong; else what follows the thoughts is its answer.
    """

    async def grade(completion: str, columns: Columns) -> Score:
        parsed = parse(completion)
        text = parsed.answer if needs_block else final_text(completion)
        if not text:
            outcome = "wrong" if needs_block else "refused"
            return Score(values[outcome], "no answer block" if text is None else "the answer is empty", outcome)
        question = str(columns.get("question") or "").strip()
        accepted = truths(columns.get("answer")) or [NO_ANSWER] * is_unanswerable(columns)
        if not question or not accepted:
            return Score(None, "the row has no answer to compare with" if question else "the row has no question")
        judgement, asked = rules(parsed, question, accepted) if rules else None, {}
        if judgement is None:
            judgement = await judge.judge(question, text, accepted, truths(columns.get("incorrect_answers")))
            asked = {"judge": judgement.outcome is not None}
        is_right = judgement.outcome == "refused" and is_unanswerable(columns)
        outcome = "correct" if is_right else judgement.outcome
        return Score(values.get(outcome), judgement.reason, outcome, asked=asked)

    return grade
