"""Summaries of evaluations as a table of text: rates in percent, others with DECIMALS. Unknown values are –."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grpo.base.text import in_words
from grpo.evaluation.measures import Summary

ABSTENTION = ("incorrect", "not_attempted", "correct_given_attempted")  # shown if some answers decline
SHOWN = (
    *("accuracy", *ABSTENTION, "truthfulness"),
    *("calls_per_question", "searched_frac", "accuracy_searched", "accuracy_unsearched"),
    *("supported_frac", "supported_facts", "refuted_facts", "ece", "brier", "aurc", "reward", "mean_length"),
)
SHOWN_OF_PART = (
    *("accuracy", "incorrect", "not_attempted", "searched_frac"),
    *("supported_frac", "supported_facts", "refuted_facts"),
)
ONE_MODEL = ("f_score", "omniscience_index")  # shown only in the table of one evaluation
DECIMALS = {
    "omniscience_index": 1,
    "calls_per_question": 2,
    "supported_facts": 2,
    "refuted_facts": 2,
    "mean_length": 1,
    "reward": 2,
    "ece": 3,
    "brier": 3,
    "aurc": 3,
}
EACH_REWARD = "rewards/"  # begins the name of the mean of one of several rewards
UNKNOWN = "–"


@dataclass(frozen=True)
class Measured:
    """The rows of a table about some of the questions: each measure that is known, with a text per evaluation."""

    name: str
    num_questions: int
    rows: list[tuple[str, list[str]]]


def summary_table(columns: Mapping[str, Mapping[str, Summary]], title: str = "questions") -> str:
    """Return the table of one evaluation, or of several next to each other.

    columns: the head of each evaluation -> part of the questions ("": all) -> summary. title: of all questions.
    The table of one evaluation has no head, but more measures, and the interval of the accuracy.
    """
    is_one = len(columns) == 1
    lines = [] if is_one else [" " * 32 + "".join(f"{head:>10}" for head in columns)]
    for part in parts_of(columns):
        lines.append(f"{part.name or title}: {part.num_questions}")
        for name, cells in part.rows:
            interval = _interval(next(iter(columns.values()))[part.name]) if is_one and name == "accuracy" else ""
            lines.append(f"  {in_words(name):<30}{''.join(cells)}{interval}".rstrip())
    return "\n".join(lines)


def parts_of(columns: Mapping[str, Mapping[str, Summary]]) -> list[Measured]:
    """Return the parts of a table of one evaluation, or of several (see `summary_table`)."""
    parts = []
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        summaries = [column.get(name, {}) for column in columns.values()]
        more = (*ONE_MODEL, *_pass_at_k(summaries[0])) if len(columns) == 1 else ()
        measures = _known(SHOWN_OF_PART if name else (*SHOWN, *more), summaries)
        rows = [(measure, [_cell(measure, summary.get(measure)) for summary in summaries]) for measure in measures]
        num_questions = max(summary.get("num_questions", 0) for summary in summaries)
        parts.append(Measured(name, round(num_questions), rows))
    return parts


def _known(names: Sequence[str], summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield the measures to show: those that are known, with each reward of several after their mean.

    Those about abstention are shown only if an answer declines.
    """
    declines = any(summary.get("not_attempted") for summary in summaries)
    optional = () if declines else (*ABSTENTION, "truthfulness", *ONE_MODEL)
    rewards = [name for name in summaries[-1] if name.startswith(EACH_REWARD)]
    for name in names:
        for each in [name, *rewards] if name == "reward" else [name]:
            if each not in optional and any(summary.get(each) is not None for summary in summaries):
                yield each


def _pass_at_k(summary: Summary) -> list[str]:
    """Return the names of pass@k for k > 1; pass@1 is the accuracy."""
    return [name for name in summary if name.startswith("pass@") and name != "pass@1"]


def _cell(name: str, value: float | None) -> str:
    """Return a number with its unit, ten characters wide."""
    if value is None:
        return f"{UNKNOWN:>8}  "
    if name in DECIMALS or name.startswith(EACH_REWARD):
        return f"{value:>8.{DECIMALS.get(name, DECIMALS['reward'])}f}  "
    return f"{100 * value:>8.1f} %"


def _interval(summary: Summary) -> str:
    low, high = summary.get("accuracy_low"), summary.get("accuracy_high")
    return "" if None in (low, high) else f"   {100 * low:.1f} to {100 * high:.1f} %"
