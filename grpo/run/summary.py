"""Statistics of graded answers: accuracy with its interval, refusals, hallucinations, supported facts, pass@k."""

import math
import statistics
from collections.abc import Mapping, Sequence

from grpo.run.metrics import outcome_of
from grpo.schema import Group

Z95 = 1.959964  # quantile of the normal distribution for a 95 % interval
SHOWN = ("accuracy", "hallucination_rate", "refusal_rate", "supported_frac", "reward", "mean_length")
SHOWN_OF_PART = ("accuracy", "wrong_rate", "refusal_rate", "supported_frac")
NOT_RATES = ("reward", "mean_length")

Summary = Mapping[str, float]


def summary(groups: Sequence[Group]) -> dict[str, float]:
    """Return rates over all completions whose outcome is known.

    accuracy: right among all, with its 95 % interval; attempted_accuracy: right among answered; hallucination_rate:
    wrong among answered; wrong_rate: wrong among all; refusal_rate: refused among all; supported_frac: supported among
    the facts stated (if a reward checked them); pass@k: the probability that one of k answers is right (2107.03374).
    """
    completions = [completion for group in groups for completion in group.completions]
    known = [_known_outcomes(group) for group in groups]
    outcomes = [outcome for of_group in known for outcome in of_group]
    right, wrong, refused = (outcomes.count(outcome) for outcome in ("correct", "wrong", "refused"))
    rewards = [completion.reward for completion in completions if completion.reward is not None]
    low, high = _interval([of_group for of_group in known if of_group])
    return {
        "num_questions": len(groups),
        "num_answers": len(completions),
        "unscored_frac": 1 - len(outcomes) / max(len(completions), 1),
        "accuracy": right / max(len(outcomes), 1),
        "attempted_accuracy": right / max(right + wrong, 1),
        "hallucination_rate": wrong / max(right + wrong, 1),
        "wrong_rate": wrong / max(len(outcomes), 1),
        "refusal_rate": refused / max(len(outcomes), 1),
        "mean_length": statistics.fmean(len(completion.ids) for completion in completions),
        "reward": statistics.fmean(rewards) if rewards else math.nan,
        "accuracy_low": low,
        "accuracy_high": high,
        **_supported_facts(groups),
        **_pass_at_k(known),
    }


def _known_outcomes(group: Group) -> list[str]:
    outcomes = [outcome_of(completion.scores) for completion in group.completions]
    return [outcome for outcome in outcomes if outcome is not None]


def _interval(groups: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy, from the outcomes of each question.

    It is Wilson's for one answer per question, and otherwise the normal one of the mean over questions.
    """
    means = [group.count("correct") / len(group) for group in groups]
    if not means:
        return 0.0, 1.0
    p, n = statistics.fmean(means), len(means)
    if all(len(group) == 1 for group in groups):
        scale = 1 + Z95**2 / n
        centre = p + Z95**2 / (2 * n)
        spread = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
        return (centre - spread) / scale, (centre + spread) / scale
    deviation = statistics.stdev(means) if n > 1 else 0.0
    spread = Z95 * deviation / math.sqrt(n)
    return max(p - spread, 0.0), min(p + spread, 1.0)


def _supported_facts(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of supported facts among all facts; nothing if no reward checked facts."""
    was_checked, num_facts, num_supported = False, 0, 0
    for group in groups:
        for completion in group.completions:
            for score in completion.scores.values():
                if "facts" in score.details:
                    was_checked = True
                    num_facts += score.details["facts"]
                    num_supported += score.details["supported"]
    return {"supported_frac": num_supported / max(num_facts, 1)} if was_checked else {}


def _pass_at_k(known: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the unbiased pass@k for each power of two up to the fewest known answers of a question."""
    fewest = min(map(len, known), default=0)
    result = {}
    k = 1
    while k <= fewest:
        all_wrong = [math.comb(len(group) - group.count("correct"), k) / math.comb(len(group), k) for group in known]
        result[f"pass@{k}"] = statistics.fmean(1 - probability for probability in all_wrong)
        k *= 2
    return result


def comparison_table(before: Mapping[str, Summary], after: Mapping[str, Summary]) -> str:
    """Return the table that ends a run: summaries of all held-out questions ("") and of each part of them."""
    lines = [f"{'':<34}{'before':>8}{'after':>10}"]
    for part, last in after.items():
        lines.append(f"{part or 'held-out questions'}: {int(last['num_questions'])}")
        for name in SHOWN_OF_PART if part else SHOWN:
            if name in last:
                lines.append(_comparison_line(name, before[part][name], last[name]))
    return "\n".join(lines)


def _comparison_line(name: str, before: float, after: float) -> str:
    scale, unit = (1, "") if name in NOT_RATES else (100, " %")
    return f"  {name:<30}{before * scale:>8.1f}{unit:<2}{after * scale:>8.1f}{unit:<2}".rstrip()
