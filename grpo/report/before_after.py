"""The gains of a run on held-out questions: one sentence, and each measure before and after with its 95 % interval."""

from dataclasses import dataclass

from grpo.diagnosis.glossary import Metrics
from grpo.diagnosis.record import Record
from grpo.evaluation.compare import Comparison, compare, measure_answers
from grpo.evaluation.measures import wilson_interval
from grpo.evaluation.table import SHOWN, SHOWN_OF_PART, is_rate, shown_measures

OF_ATTEMPTED = "correct_given_attempted"  # a rate among the questions that were not declined
HEADLINE = {"accuracy": "right", "incorrect": "wrong", "not_attempted": "declined", "reward": "mean reward"}
RATES_OF_ANSWERS = ("accuracy", "incorrect", "not_attempted", OF_ATTEMPTED)


@dataclass(frozen=True)
class Value:
    """A measured value, and its 95 % interval if that is known."""

    value: float
    is_rate: bool
    low: float | None = None
    high: float | None = None


QuestionSets = dict[str, dict[str, list[Value | None]]]  # title -> measure -> its value before, and after


def headline(record: Record) -> str:
    """Return what training has changed, in one sentence; "" if nothing was measured twice."""
    compared = _compare(record)
    if compared is None:
        return ""
    changes = []
    for name, words in HEADLINE.items():
        of = compared.measures.get(name)
        if of and (of.a or of.b) and not (name == "reward" and changes):
            values = f"{of.a:.1%} → {of.b:.1%}" if name != "reward" else f"{of.a:.2f} → {of.b:.2f}"
            changes.append(f"{words} {values} ({'p < 0.001' if of.p < 0.001 else f'p = {of.p:.2g}'})")
    return f"On {compared.num_questions} held-out questions, before and after training: {', '.join(changes)}."


def _compare(record: Record) -> Comparison | None:
    """Compare the first answers to the held-out questions with the last ones, paired."""
    steps = record.answer_steps("evaluation")
    if len(steps) < 2:
        return None
    first, last = (measure_answers(map(vars, record.answers(step, "evaluation"))) for step in (steps[0], steps[-1]))
    return compare(first, last) if any(first[name].keys() & last.get(name, {}).keys() for name in first) else None


def before_and_after(record: Record) -> QuestionSets:
    """Return the measures of each set of held-out questions."""
    columns = list(record.summaries.values())
    question_sets = {}
    for name in dict.fromkeys(name for column in columns for name in column):
        summaries = [column.get(name, {}) for column in columns]
        number = max(summary.get("num_questions", 0) for summary in summaries)
        question_sets[f"{name or 'all held-out questions'}: {number:.0f}"] = {
            measure: [_with_interval(summary, measure) for summary in summaries]
            for measure in shown_measures(SHOWN_OF_PART if name else SHOWN, *summaries)
        }
    return question_sets


def _with_interval(summary: Metrics, name: str) -> Value | None:
    value = summary.get(name)
    if value is None:
        return None
    low, high = summary.get(f"{name}_low"), summary.get(f"{name}_high")
    if low is not None and high is not None:
        return Value(value, is_rate(name), low, high)
    num_answers = summary.get("num_answers", 0)
    if name not in RATES_OF_ANSWERS or num_answers != summary.get("num_questions") or not 0 <= value <= 1:
        return Value(value, is_rate(name))
    if name == OF_ATTEMPTED:
        num_answers *= 1 - summary.get("not_attempted", 0.0)
    return Value(value, True, *wilson_interval(value, num_answers * (1 - summary.get("unscored_frac", 0.0))))
