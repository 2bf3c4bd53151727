"""Grade the answer: by rules, then by a judge. The values are KnowRL's.

                         this project's rules                 knowrl_v1                            knowrl_v2
    no answer block      -1 (as for anything but one          -1                                   -1
                         pair of each tag)
    before the judge     no letter or digit: -1;              refusal pattern: -1;                 nothing
                         a refusal: 1;                        truth without a digit, and
                         nothing but alternatives or          no word in common with it: -1
                         candidates of the question: -1
    judge: correct       2                                    2                                    2
    judge: wrong         -1                                   -1                                   -1
    judge: no attempt    1                                    -1                                   1
    judge fails          unscorable                           unscorable                           unscorable

The judge sees the row's question, never the rendered prompt. (The original pays 0 when the judge fails, more than for a
wrong answer; and 2 for any reply that holds the article "a".)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo.base.schema import Outcome, Score
from rewards.exact import equals_one, truths
from rewards.format import final_text, parse
from rewards.outcome.choices import lists_alternatives, num_candidates
from rewards.outcome.judge import Judge, Judgement, build_judge
from rewards.outcome.refusal import is_refusal
from rewards.registry import Columns, Options, Reward

CORRECT, REFUSED, WRONG = 2.0, 1.0, -1.0
TRUE = ("true", "1", "1.0", "yes")  # in the column unanswerable, also of a CSV file
NO_ANSWER = "This question has no known answer."
Values = Mapping[Outcome, float]  # what each outcome is worth
KNOWRL: Values = {"correct": CORRECT, "refused": REFUSED, "wrong": WRONG}
SIMPLEQA: Values = {"correct": 1.0, "refused": 0.0, "wrong": 0.0}
GradeAnswer = Callable[[str, Columns], Awaitable[Score]]
FinishGroup = Callable[[Sequence[Score]], list[Score]]


@dataclass(frozen=True)
class Answer:
    """An answer to be graded, and what its row asks and accepts."""

    text: str
    is_well_tagged: bool  # see rewards/format.py
    question: str
    truths: list[str]
    falsehoods: list[str]  # known wrong answers, of the column incorrect_answers
    is_unanswerable: bool  # of the column unanswerable: to decline is right


Rules = Callable[[Answer], Judgement | None]  # a judgement where no judge is needed


def no_rules(answer: Answer) -> None:
    """Leave every answer to the judge."""


def strict_rules(answer: Answer) -> Judgement | None:
    """Judge an answer for which no judge is needed; None if a judge is to decide."""
    if not answer.is_well_tagged:
        return Judgement("wrong", "not exactly one think block and one answer block")
    if not any(char.isalnum() for char in answer.text):
        return Judgement("wrong", "the answer holds neither letter nor digit")
    if equals_one(answer.text, answer.truths):
        return None  # such an answer is neither a refusal nor a list, even if it is "Unknown" or "Trick or Treat"
    if is_refusal(answer.text):
        return Judgement("refused", "declines to answer")
    kind = lists_alternatives(answer.text, answer.truths)
    if kind:
        return Judgement("wrong", f"lists alternatives ({kind})")
    num_right = max(num_candidates(answer.question, truth) for truth in answer.truths)
    if num_candidates(answer.question, answer.text) > max(num_right, 1):
        return Judgement("wrong", "lists candidates of the question")
    return None


def grader(judge: Judge, rules: Rules = strict_rules, values: Values = KNOWRL, needs_block: bool = True) -> GradeAnswer:
    """Grade by the rules, else by the judge.

    needs_block: without an answer block, a completion is wrong; else what follows the thoughts is its answer.
    """

    async def grade(completion: str, columns: Columns) -> Score:
        parsed = parse(completion)
        text = parsed.answer if needs_block else final_text(completion)
        if not text:
            outcome = "wrong" if needs_block else "refused"
            return Score(values[outcome], "no answer block" if text is None else "the answer is empty", outcome)
        answer = read_answer(text, parsed.is_well_tagged, columns)
        if isinstance(answer, str):
            return Score(None, answer)
        judgement, asked = rules(answer), {}
        if judgement is None:
            judgement = await judge.judge(answer.question, answer.text, answer.truths, answer.falsehoods)
            asked = {"judge": judgement.outcome is not None}
        is_right = answer.is_unanswerable and judgement.outcome == "refused"
        outcome = "correct" if is_right else judgement.outcome
        return Score(values.get(outcome), judgement.reason, outcome, asked=asked)

    return grade


def read_answer(text: str, is_well_tagged: bool, columns: Columns) -> Answer | str:
    """Collect what is graded; or say what the row lacks."""
    question = str(columns.get("question") or "").strip()
    if not question:
        return "the row has no question"
    is_unanswerable = str(columns.get("unanswerable")).strip().lower() in TRUE
    accepted = truths(columns.get("answer")) or ([NO_ANSWER] if is_unanswerable else [])
    if not accepted:
        return "the row has no answer to compare with"
    falsehoods = truths(columns.get("incorrect_answers"))
    return Answer(text, is_well_tagged, question, accepted, falsehoods, is_unanswerable)


def judged_reward(
    name: str,
    options: Options,
    rules: Rules = strict_rules,
    values: Values = KNOWRL,
    needs_block: bool = True,
    finish: FinishGroup | None = None,
) -> Reward:
    """Build a reward that needs the judge and nothing else; see `grader`."""
    judge = build_judge(options)
    return Reward(
        name,
        grader(judge, rules, values, needs_block),
        needs=("answer",),
        slow=options["judge"] == "api",
        prepare=lambda rows, say: judge.check_sync(),
        finish=finish,
        metrics=judge.metrics,
        close=judge.close,
    )


def build(options: Options) -> Reward:
    """Build the reward `correctness`."""
    return judged_reward("correctness", options)


def simpleqa(options: Options) -> Reward:
    """Build the reward `simpleqa` (2411.04368): 1 if the judge alone says correct, else 0.

    It asks for no format: without an answer block, the text after the thoughts is judged.
    """
    return judged_reward("simpleqa", options, no_rules, SIMPLEQA, needs_block=False)
