"""Summaries of evaluations as tables of text: rates in percent, others with DECIMALS. Unknown values are shown as –."""

from collections.abc import Mapping, Sequence

from grpo.evaluation.measures import Summary

ABSTENTION = ("incorrect", "not_attempted", "correct_given_attempted")  # shown if some answers decline
SHOWN = (
    *("accuracy", *ABSTENTION, "truthfulness", "auroc_declining"),
    *("supported_frac", "ece", "brier", "aurc", "reward", "mean_length"),
)
SHOWN_OF_PART = ("accuracy", "incorrect", "not_attempted", "supported_frac")
ONE_MODEL = ("f_score", "omniscience_index")  # shown only in the table of one evaluation
DECIMALS = {
    "omniscience_index": 1,
    "mean_length": 1,
    "reward": 2,
    "auroc_declining": 2,
    "ece": 3,
    "brier": 3,
    "aurc": 3,
}
EACH_REWARD = "rewards/"  # begins the name of the mean of one of several rewards
UNKNOWN = "–"


def before_after_table(before: Mapping[str, Summary], after: Mapping[str, Summary], label: str = "before") -> str:
    """Return the table that ends a run: summaries of all held-out questions ("") and of each part of them.

    label: the head of the first column.
    """
    lines = [f"{'':<34}{label:>8}{'after':>10}"]
    for part, last in after.items():
        first = before.get(part, {})
        lines.append(f"{part or 'held-out questions'}: {int(last['num_questions'])}")
        lines += [_line(name, first, last) for name in shown_measures(SHOWN_OF_PART if part else SHOWN, first, last)]
    return "\n".join(lines)


def result_table(parts: Mapping[str, Summary]) -> str:
    """Return the table of one evaluation: summaries of all questions ("") and of each part of them."""
    lines = []
    for part, measured in parts.items():
        lines.append(f"{part or 'questions'}: {int(measured['num_questions'])}")
        names = SHOWN_OF_PART if part else (*SHOWN, *ONE_MODEL, *_pass_at_k(measured))
        for name in shown_measures(names, measured):
            lines.append(_line(name, measured) + (_interval(measured) if name == "accuracy" else ""))
    return "\n".join(lines)


def shown_measures(names: Sequence[str], *summaries: Summary) -> list[str]:
    """Return the measures to show: those that are known, with each reward of several after their mean.

    Those about abstention are shown only if an answer declines.
    """
    declines = any(measured.get("not_attempted") for measured in summaries)
    optional = () if declines else (*ABSTENTION, "truthfulness", "f_score", "omniscience_index")
    rewards = [name for name in summaries[-1] if name.startswith(EACH_REWARD)]
    expanded = [each for name in names for each in ([name, *rewards] if name == "reward" else [name])]
    return [name for name in expanded if name not in optional and any(m.get(name) is not None for m in summaries)]


def is_rate(name: str) -> bool:
    """Return whether a measure is a share, shown in percent."""
    return name not in DECIMALS and not name.startswith(EACH_REWARD)


def _pass_at_k(measured: Summary) -> list[str]:
    """Return the names of pass@k for k > 1; pass@1 is the accuracy."""
    return [name for name in measured if name.startswith("pass@") and name != "pass@1"]


def _line(name: str, *summaries: Summary) -> str:
    return f"  {name:<30}" + "".join(_cell(name, measured.get(name)) for measured in summaries).rstrip()


def _cell(name: str, value: float | None) -> str:
    """Return a number with its unit, ten characters wide."""
    if value is None:
        return f"{UNKNOWN:>8}  "
    if not is_rate(name):
        return f"{value:>8.{DECIMALS.get(name, DECIMALS['reward'])}f}  "
    return f"{100 * value:>8.1f} %"


def _interval(measured: Summary) -> str:
    if measured["accuracy_low"] is None:
        return ""
    return f"   {100 * measured['accuracy_low']:.1f} to {100 * measured['accuracy_high']:.1f} %"
