"""Grade the answer: KnowRL's two versions, faithful in outcome, and this project's own, `knowrl`, the default.

                         knowrl                            knowrl_v1                            knowrl_v2
    no answer block      -1 (as for anything but one       -1                                   -1
                         pair of each tag)
    before the judge     no letter or digit: -1;           refusal pattern: -1;                 nothing
                         a refusal: 1;                     truth without a digit, and
                         nothing but alternatives: -1      no word in common with it: -1
    judge: correct       2                                 2                                    2
    judge: wrong         -1                                -1                                   -1
    judge: no attempt    1                                 -1                                   1
    judge fails          unscorable                        unscorable                           unscorable

The judge sees the row's question, never the rendered prompt. (The original pays 0 when the judge fails, more than for a
wrong answer; it pays 2 for any reply that holds the article "a"; and its v1 finds "red" in "scared".)
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from grpo.base.schema import Score
from knowledge.store.tokens import UNSPACED
from rewards.exact import normalise, truths
from rewards.format import parse
from rewards.knowrl.judge import Judge, ModelJudge
from rewards.knowrl.offline_judge import OfflineJudge, is_unspaced
from rewards.knowrl.refusal import is_refusal, matches_knowrl_v1
from rewards.registry import Columns, Options, Reward

CORRECT, REFUSED, WRONG = 2.0, 1.0, -1.0
MAX_ALTERNATIVE_WORDS = 12
TRUE = ("true", "1", "1.0", "yes")  # in the column unanswerable, also of a CSV file
NO_ANSWER = "This question has no known answer."
STOP_WORDS = set(  # of knowrl_v1
    "the a an and or but is are was were in on at to for with by about like from of that this these those it they he "
    "she we you i me my your our their".split()
)
_ALTERNATIVES = {  # how answers list alternatives: what separates them, and how often at least
    "or": (re.compile(r"\bor\b|或者|还是", re.IGNORECASE), 1),
    "slash": (re.compile(r"\s/\s|(?<=[^\W\d_]{3})/(?=[^\W\d_]{3})"), 1),  # "km/h" and "AC/DC" list none
    "semicolon": (re.compile(r"[;；|](?=\s*\w)"), 1),
    "list": (re.compile(r"^[ \t]*[-*•][ \t]+(?=\S)|(?<!\S)\d{1,2}[.)]\s+(?=\S)", re.MULTILINE), 2),
}
_WORD = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+")


@dataclass(frozen=True)
class Case:
    """What is graded: an answer, and what its row asks and accepts."""

    question: str
    answer: str
    truths: list[str]
    falsehoods: list[str]  # known wrong answers, of the column incorrect_answers
    is_unanswerable: bool  # of the column unanswerable: to decline is right
    is_well_tagged: bool  # see rewards/format.py


GradeAnswer = Callable[[str, Columns], Awaitable[Score]]
Grader = Callable[[Judge], GradeAnswer]
FinishGroup = Callable[[Sequence[Score]], list[Score]]
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


def knowrl(judge: Judge) -> GradeAnswer:
    """Grade as this project does by default; see the table."""
    return _grader(judge, _rules, refused=REFUSED)


def knowrl_v1(judge: Judge) -> GradeAnswer:
    """Grade as KnowRL's guide does; see the table."""
    return _grader(judge, _rules_of_v1, refused=WRONG)


def knowrl_v2(judge: Judge) -> GradeAnswer:
    """Grade as KnowRL does since October 2025; see the table."""
    return _grader(judge, lambda case: None, refused=REFUSED)


def _grader(judge: Judge, rules: Rules, refused: float) -> GradeAnswer:
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


def _rules(case: Case) -> Score | None:
    if not case.is_well_tagged:
        return Score(WRONG, "not exactly one think block and one answer block", "wrong")
    if not any(char.isalnum() for char in case.answer):
        return Score(WRONG, "the answer holds neither letter nor digit", "wrong")
    if normalise(case.answer) in {normalise(truth) for truth in case.truths}:
        return None  # such an answer is neither a refusal nor a list, even if it is "Unknown" or "Trick or Treat"
    if is_refusal(case.answer):
        return Score(REFUSED, "declines to answer", "refused")
    kind = lists_alternatives(case.answer, case.truths)
    if kind:
        return Score(WRONG, f"lists alternatives ({kind})", "wrong")
    return None


def _rules_of_v1(case: Case) -> Score | None:
    if matches_knowrl_v1(case.answer):
        return Score(WRONG, "matches a refusal pattern", "refused")
    if any(_has_digit(truth) or shares_keyword(case.answer, truth) for truth in case.truths):
        return None
    outcome = "refused" if is_refusal(case.answer) else "wrong"
    return Score(WRONG, "has no word in common with the truth", outcome)


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def shares_keyword(answer: str, truth: str) -> bool:
    """Return whether a word of the truth (two characters or more, no stop word) is a word of the answer."""
    answer = answer.lower()
    said = set(re.findall(r"\w+", answer))
    for word in re.findall(r"\w+", truth.lower()):
        if len(word) > 1 and word not in STOP_WORDS:
            if word in said or (is_unspaced(word) and word in answer):
                return True
    return False


def lists_alternatives(answer: str, accepted: Sequence[str]) -> str:
    """Say in which way an answer consists of alternatives, unless a truth lists some in that way; "" if it does not.

    All parts must be short: in a longer text an "or" or a list is nearly always incidental, and the judge grades
    alternatives.
    """
    for kind, (separator, min_separators) in _ALTERNATIVES.items():
        parts = separator.split(answer)
        if len(parts) <= min_separators or any(separator.search(truth) for truth in accepted):
            continue
        if all(len(_WORD.findall(part)) <= MAX_ALTERNATIVE_WORDS for part in parts):
            return kind
    return ""
