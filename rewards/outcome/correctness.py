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

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from grpo.base.schema import Score
from rewards.exact import equals_one, truths
from rewards.format import parse
from rewards.outcome.choices import lists_alternatives, num_candidates
from rewards.outcome.judge import Judge, ModelJudge
from rewards.outcome.offline_judge import OfflineJudge
from rewards.outcome.refusal import is_refusal
from rewards.registry import Columns, Options, Reward

CORRECT, REFUSED, WRONG = 2.0, 1.0, -1.0
TRUE = ("true", "1", "1.0", "yes")  # in the column unanswerable, also of a CSV file
NO_ANSWER = "This question has no known answer."
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


Rules = Callable[[Case], Score | None]  # a score where no judge is needed


def build_judge(options: Options) -> Judge:
    """Build the configured judge: `judge: api` asks a model, `judge: offline` matches texts."""
    if options["judge"] == "offline":
        return OfflineJudge()
    from rewards.api.client import client_for  # the SDK takes a second to import

    return ModelJudge(client_for("judge", options), options["judge_max_tokens"])


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


def strict_rules(case: Case) -> Score | None:
    """Return the score of an answer for which no judge is needed; None if a judge is to decide."""
    if not case.is_well_tagged:
        return Score(WRONG, "not exactly one think block and one answer block", "wrong")
    if not any(char.isalnum() for char in case.answer):
        return Score(WRONG, "the answer holds neither letter nor digit", "wrong")
    if equals_one(case.answer, case.truths):
        return None  # such an answer is neither a refusal nor a list, even if it is "Unknown" or "Trick or Treat"
    if is_refusal(case.answer):
        return Score(REFUSED, "declines to answer", "refused")
    kind = lists_alternatives(case.answer, case.truths)
    if kind:
        return Score(WRONG, f"lists alternatives ({kind})", "wrong")
    num_right = max(num_candidates(case.question, truth) for truth in case.truths)
    if num_candidates(case.question, case.answer) > max(num_right, 1):
        return Score(WRONG, "lists candidates of the question", "wrong")
    return None


def grader(judge: Judge, rules: Rules = strict_rules, refused: float = REFUSED) -> GradeAnswer:
    """Grade by the rules, else by the judge. refused: what the judge's "no attempt" is worth."""
    values = {"correct": CORRECT, "wrong": WRONG, "refused": refused, None: None}

    async def grade(completion: str, columns: Columns) -> Score:
        case = _read(completion, columns)
        if isinstance(case, Score):
            return case
        score = rules(case)
        if score is None:
            judged = await ask(judge, case)
            return replace(judged, value=values[judged.outcome])
        if case.is_unanswerable and score.outcome == "refused":
            return Score(CORRECT, score.reason, "correct")
        return score

    return grade


async def ask(judge: Judge, case: Case) -> Score:
    """Ask the judge how an answer turned out. The caller sets the value of the score."""
    judgement = await judge.judge(case.question, case.answer, case.truths, case.falsehoods)
    outcome = "correct" if case.is_unanswerable and judgement.outcome == "refused" else judgement.outcome
    return Score(None, judgement.reason, outcome, asked={"judge": outcome is not None})


def _read(completion: str, columns: Columns) -> Case | Score:
    """Collect what is graded; or give the score, if there is no answer block."""
    parsed = parse(completion)
    if parsed.answer is None:
        return Score(WRONG, "no answer block", "wrong")
    if not parsed.answer:
        return Score(WRONG, "the answer block is empty", "wrong")
    return read_case(parsed.answer, columns, parsed.is_well_tagged)


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
