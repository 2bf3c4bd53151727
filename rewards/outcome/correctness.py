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
from dataclasses import dataclass, replace

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
GradeAnswer = Callable[[str, Columns], Awaitable[Score]]
Grader = Callable[[Judge], GradeAnswer]
FinishGroup = Callable[[Sequence[Score]], list[Score]]


@dataclass(frozen=True)
class Case:
    """What is graded: an answer, and what its row asks and accepts."""

    question: str
    answer: str
    truths: list[str]
    falsehoods: list[str]  # known wrong answers, of the column incorrect_answers
    is_unanswerable: bool  # of the column unanswerable: to decline is right
    is_well_tagged: bool  # see rewards/format.py


Rules = Callable[[Case], Judgement | None]  # a judgement where no judge is needed


def judged_reward(name: str, options: Options, grader: Grader, finish: FinishGroup | None = None) -> Reward:
    """Build a reward that needs the judge and nothing else. grader: makes its `grade` from the judge."""
    judge = build_judge(options)
    return Reward(
        name,
        grader(judge),
        needs=("answer",),
        slow=options["judge"] == "api",
        prepare=lambda rows, say: judge.check_sync(),
        finish=finish,
        metrics=judge.metrics,
        close=judge.close,
    )


def build(options: Options) -> Reward:
    """Build the reward `correctness`."""
    return judged_reward("correctness", options, grader)


def simpleqa(options: Options) -> Reward:
    """Build the reward `simpleqa` (2411.04368): 1 if the judge alone says correct, else 0.

    It asks for no format: without an answer block, the text after the thoughts is judged.
    """

    def grader(judge: Judge) -> GradeAnswer:
        async def grade(completion: str, columns: Columns) -> Score:
            text = final_text(completion)
            if not text:
                return Score(0.0, "nothing follows the thoughts", "refused")
            case = read_case(text, columns)
            if isinstance(case, Score):
                return case
            return await _ask(judge, case, {"correct": 1.0, "refused": 0.0, "wrong": 0.0})

        return grade

    return judged_reward("simpleqa", options, grader)


def strict_rules(case: Case) -> Judgement | None:
    """Judge an answer for which no judge is needed; None if a judge is to decide."""
    if not case.is_well_tagged:
        return Judgement("wrong", "not exactly one think block and one answer block")
    if not any(char.isalnum() for char in case.answer):
        return Judgement("wrong", "the answer holds neither letter nor digit")
    if equals_one(case.answer, case.truths):
        return None  # such an answer is neither a refusal nor a list, even if it is "Unknown" or "Trick or Treat"
    if is_refusal(case.answer):
        return Judgement("refused", "declines to answer")
    kind = lists_alternatives(case.answer, case.truths)
    if kind:
        return Judgement("wrong", f"lists alternatives ({kind})")
    num_right = max(num_candidates(case.question, truth) for truth in case.truths)
    if num_candidates(case.question, case.answer) > max(num_right, 1):
        return Judgement("wrong", "lists candidates of the question")
    return None


def grader(judge: Judge, rules: Rules = strict_rules, values: Values = KNOWRL) -> GradeAnswer:
    """Grade by the rules, else by the judge."""

    async def grade(completion: str, columns: Columns) -> Score:
        parsed = parse(completion)
        if not parsed.answer:
            reason = "no answer block" if parsed.answer is None else "the answer block is empty"
            return Score(values["wrong"], reason, "wrong")
        case = read_case(parsed.answer, columns, parsed.is_well_tagged)
        if isinstance(case, Score):
            return case
        judgement = rules(case)
        return _score(case, judgement, values) if judgement else await _ask(judge, case, values)

    return grade


async def _ask(judge: Judge, case: Case, values: Values) -> Score:
    judgement = await judge.judge(case.question, case.answer, case.truths, case.falsehoods)
    return replace(_score(case, judgement, values), asked={"judge": judgement.outcome is not None})


def _score(case: Case, judgement: Judgement, values: Values) -> Score:
    outcome = "correct" if case.is_unanswerable and judgement.outcome == "refused" else judgement.outcome
    return Score(values.get(outcome), judgement.reason, outcome)


def read_case(answer: str, columns: Columns, is_well_tagged: bool = True) -> Case | Score:
    """Collect what is graded; or say that the row holds too little to grade it."""
    question = str(columns.get("question") or "").strip()
    if not question:
        return Score(None, "the row has no question")
    is_unanswerable = str(columns.get("unanswerable")).strip().lower() in TRUE
    accepted = truths(columns.get("answer")) or ([NO_ANSWER] if is_unanswerable else [])
    if not accepted:
        return Score(None, "the row has no answer to compare with")
    falsehoods = truths(columns.get("incorrect_answers"))
    return Case(question, answer, accepted, falsehoods, is_unanswerable, is_well_tagged)
