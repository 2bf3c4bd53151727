"""Summaries of evaluations as a table of text: rates in percent, others with DECIMALS. Unknown values are –."""

from collections.abc import Iterator, Mapping, Sequence

from grpo.base.text import in_words
from grpo.evaluation.measures import Summary

ONE_MODEL = ["f_score", "omniscience_index"]  # shown only in the table of one evaluation
IF_DECLINED = ["incorrect", "not_attempted", "correct_given_attempted", "truthfulness", *ONE_MODEL]
SHOWN = """
    accuracy incorrect not_attempted correct_given_attempted truthfulness calls_per_question searched_frac
    accuracy_searched accuracy_unsearched supported_frac supported_facts refuted_facts ece brier aurc reward mean_length
""".split()
SHOWN_OF_PART = """
    accuracy incorrect not_attempted searched_frac supported_frac supported_facts refuted_facts
""".split()
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


def summary_table(columns: Mapping[str, Mapping[str, Summary]], title: str = "questions") -> str:
    """Return the table of one evaluation, or of several next to each other.

    columns: the head of each evaluation -> part of the questions ("": all) -> summary. title: of all questions.
    The table of one evaluation has no head, but more measures, and the interval of the accuracy.
    """
    is_one = len(columns) == 1
    lines = [] if is_one else [" " * 32 + "".join(f"{head:>10}" for head in columns)]
    for part in dict.fromkeys(name for column in columns.values() for name in column):
        summaries = [column.get(part, {}) for column in columns.values()]
        num_questions = max(summary.get("num_questions", 0) for summary in summaries)
        lines.append(f"{part or title}: {round(num_questions)}")
        more = ONE_MODEL + _pass_at_k(summaries[0]) if is_one else []
        for name in _known(SHOWN_OF_PART if part else SHOWN + more, summaries):
            cells = [_cell(name, summary.get(name)) for summary in summaries]
            interval = _interval(summaries[0]) if is_one and name == "accuracy" else ""
            lines.append(f"  {in_words(name):<30}{''.join(cells)}{interval}".rstrip())
    return "\n".join(lines)


def _known(names: Sequence[str], summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield the measures to show: those that are known, with each reward of several after their mean.

    Those about abstention are shown only if an answer declines.
    """
    declines = any(summary.get("not_attempted") for summary in summaries)
    hidden = [] if declines else IF_DECLINED
    rewards = [name for name in summaries[-1] if name.startswith(EACH_REWARD)]
    for name in names:
        for each in [name, *rewards] if name == "reward" else [name]:
            if each not in hidden and any(summary.get(each) is not None for summary in summaries):
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
    low = summary.get("accuracy_low")
    high = summary.get("accuracy_high")
    return "" if None in (low, high) else f"   {100 * low:.1f} to {100 * high:.1f} %"
