"""Numbers about graded answers, under the names that papers use.

There is one estimator for all rates: the mean over questions of the share among the question's scorable answers. Every
question counts the same, however many of its answers are scorable; one without any counts nowhere. So accuracy is
pass@1, and lies in its interval. Sources:

    accuracy, incorrect,       SimpleQA, 2411.04368: right, wrong and declined, of all
    not_attempted
    correct_given_attempted    SimpleQA: right of those that were not declined. incorrect_given_attempted is the rest.
    f_score                    SimpleQA: harmonic mean of accuracy and correct_given_attempted
    truthfulness               TruthRL, 2509.25760: right - wrong, of all
    omniscience_index          AA-Omniscience, 2511.13029: 100 (right - wrong), of all
    pass@k                     2107.03374, Eq. 1: the probability that one of k answers is right
    accuracy_low, _high        95 %: Wilson (1927) for one answer per question; else the interval of the mean over
                               questions, which are the clusters of 2411.00640

A number is None if it cannot be known because no reward tells right from wrong.

How often a model calls its tools, such as the search of a knowledge base:

    calls_per_question         mean number of calls of an answer
    searched_frac              share of the answers that call a tool
    accuracy_searched          accuracy among these; accuracy_unsearched: among the others

Of answers that state a confidence, such as `<confidence>0.8</confidence>`, and were right or wrong:

    ece                        expected calibration error with ten equal bins (1706.04599): the mean distance, over
                               answers, between the accuracy and the mean confidence of the answer's bin
    brier                      mean squared distance between confidence and truth, 1 or 0 (Brier, 1950)
    aurc                       area under the risk-coverage curve (1805.08206): the mean, over answers, of the share of
                               wrong ones among those that state at least the answer's confidence
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from grpo.algorithm.schema import Completion, Group, Outcome, completions_of
from rewards.format import stated_confidence

CHECKED = ("supported", "refuted")  # counts of facts
Z95 = 1.959964  # quantile of the normal distribution for a 95 % interval
Summary = Mapping[str, float | None]
NUM_BINS = 10
ATTEMPTED = ("correct", "wrong")
Stated = tuple[float, bool]  # the confidence that an answer states, and whether the answer is right


def summary(groups: Sequence[Group]) -> dict[str, float | None]:
    """Summarise graded answers: the rates above, how many could be scored, supported facts, reward, length.

    unscored_frac: share of the answers whose outcome no reward knows. supported_frac: share of supported facts among
    those that a reward has checked; supported_facts and refuted_facts: how many there are per answer whose facts were
    checked (KnowRL's reward checks those of wrong answers only). clipped_ratio: share of the answers that were cut at
    max_completion_length.
    """
    completions = completions_of(groups)
    outcomes = [[one.outcome for one in group.completions if one.outcome is not None] for group in groups]
    known = [of_group for of_group in outcomes if of_group]
    rewards = [completion.reward for completion in completions if completion.reward is not None]
    num_scored = sum(map(len, known)) if known else len(rewards)
    return {
        "num_questions": len(groups),
        "num_answers": len(completions),
        "unscored_frac": 1 - num_scored / max(len(completions), 1),
        **_rates(known),
        "clipped_ratio": _mean([float(completion.finish_reason == "length") for completion in completions]),
        "mean_length": _mean([completion.num_drawn for completion in completions]),
        "reward": _mean(rewards),
        **_each_reward(completions),
        **searching(groups),
        **_supported_facts(groups),
        **calibration(groups),
        **_pass_at_k(known),
    }


def _each_reward(completions: Sequence[Completion]) -> dict[str, float]:
    """Return the mean of each reward, as rewards/<name>, if there are several."""
    values: dict[str, list[float]] = {}
    for completion in completions:
        for name, score in completion.scores.items():
            known = values.setdefault(f"rewards/{name}", [])
            if score.value is not None:
                known.append(score.value)
    if len(values) < 2:
        return {}
    return {name: statistics.fmean(known) for name, known in values.items() if known}


def note_on_unscored(measured: Summary) -> str:
    """Return a note on the answers that no rate is based on; "" if there are none."""
    if measured["accuracy"] is None:
        return "no reward could tell right from wrong, so there is no accuracy"
    share = measured["unscored_frac"]
    return f"{share:.1%} of the answers could not be scored and count nowhere" if share else ""


def _rates(known: Sequence[Sequence[Outcome]]) -> dict[str, float | None]:
    """Return the rates of the outcomes, which are given per question; None for a rate that cannot be known."""
    right, wrong, refused = (_mean_share(known, outcome) for outcome in ("correct", "wrong", "refused"))
    attempted = right + wrong
    low, high = _interval(known)
    rates = {
        "accuracy": right,
        "incorrect": wrong,
        "not_attempted": refused,
        "correct_given_attempted": right / (attempted or math.nan),
        "incorrect_given_attempted": wrong / (attempted or math.nan),
        "f_score": 2 * right / (1 + attempted),  # the harmonic mean of `right` and `right / attempted`
        "truthfulness": right - wrong,
        "omniscience_index": 100 * (right - wrong),
        "accuracy_low": low,
        "accuracy_high": high,
    }
    return {name: None if math.isnan(rate) else rate for name, rate in rates.items()}


def _mean_share(known: Sequence[Sequence[Outcome]], outcome: Outcome) -> float:
    """Return the mean share of an outcome among the answers to a question; NaN if no answer is known."""
    if not known:
        return math.nan
    return statistics.fmean(of_group.count(outcome) / len(of_group) for of_group in known)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _interval(known: Sequence[Sequence[Outcome]]) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy.

    It is Wilson's if there is one answer per question, or if all questions have the same mean, which tells nothing
    about their spread. Otherwise it is the normal interval of the mean over questions.
    """
    if not known:
        return math.nan, math.nan
    means = [of_group.count("correct") / len(of_group) for of_group in known]
    p = statistics.fmean(means)
    n = len(means)
    deviation = statistics.stdev(means) if n > 1 else 0.0
    if deviation == 0 or all(len(of_group) == 1 for of_group in known):
        return wilson_interval(p, n)
    spread = Z95 * deviation / math.sqrt(n)
    return max(p - spread, 0.0), min(p + spread, 1.0)


def wilson_interval(p: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share p of n independent trials."""
    scale = 1 + Z95**2 / n
    centre = p + Z95**2 / (2 * n)
    spread = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    return max(centre - spread, 0.0) / scale, min((centre + spread) / scale, 1.0)


def _pass_at_k(known: Sequence[Sequence[Outcome]]) -> dict[str, float]:
    """Return the unbiased pass@k for each power of two up to the fewest scorable answers of a question."""
    fewest = min(map(len, known), default=0)
    result = {}
    k = 1
    while k <= fewest:
        result[f"pass@{k}"] = statistics.fmean(
            1 - math.comb(len(group) - group.count("correct"), k) / math.comb(len(group), k) for group in known
        )
        k *= 2
    return result


def _supported_facts(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of supported facts among all facts, and the numbers per answer; {} if no reward checked facts.

    The facts of an answer count once, even if several rewards have checked them.
    """
    checked = []
    for completion in completions_of(groups):
        checked += [score.details for score in completion.scores.values() if "facts" in score.details][:1]
    if not checked:
        return {}
    facts, supported, refuted = (sum(details[name] for details in checked) for name in ("facts", *CHECKED))
    return {
        "supported_frac": supported / max(facts, 1),
        "supported_facts": supported / len(checked),
        "refuted_facts": refuted / len(checked),
    }


def searching(groups: Sequence[Group]) -> dict[str, float]:
    """Return the measures above; {} if no answer calls a tool."""
    completions = completions_of(groups)
    if not any(completion.calls for completion in completions):
        return {}
    found = {
        "calls_per_question": statistics.fmean(len(completion.calls) for completion in completions),
        "searched_frac": statistics.fmean(bool(completion.calls) for completion in completions),
    }
    known = [completion for completion in completions if completion.outcome]
    for name, has_called in (("accuracy_searched", True), ("accuracy_unsearched", False)):
        some = [completion for completion in known if bool(completion.calls) == has_called]
        if some:
            found[name] = statistics.fmean(completion.outcome == "correct" for completion in some)
    return found


def calibration(groups: Sequence[Group]) -> dict[str, float]:
    """Return the numbers above, and confidence_frac: the share of attempted answers that state a confidence.

    Without such an answer, return {}.
    """
    stated = stated_claims(groups)
    if not stated:
        return {}
    num_attempts = sum(completion.outcome in ATTEMPTED for completion in completions_of(groups))
    confidence_frac = len(stated) / num_attempts
    return {"confidence_frac": confidence_frac, "ece": ece(stated), "brier": brier(stated), "aurc": aurc(stated)}


def stated_claims(groups: Sequence[Group]) -> list[Stated]:
    """Return the stated confidence of each attempted answer that states one, and whether the answer is right."""
    claims = []
    for completion in completions_of(groups):
        confidence = stated_confidence(completion.text)
        outcome = completion.outcome
        if confidence is not None and outcome in ATTEMPTED:
            claims.append((confidence, outcome == "correct"))
    return claims


def ece(stated: Sequence[Stated]) -> float:
    """Return the expected calibration error."""
    gaps = [0.0] * NUM_BINS
    for confidence, is_right in stated:
        gaps[min(int(confidence * NUM_BINS), NUM_BINS - 1)] += confidence - is_right
    return sum(map(abs, gaps)) / len(stated)


def brier(stated: Sequence[Stated]) -> float:
    """Return the Brier score: 0 is best, always saying 0.5 gets 0.25."""
    return statistics.fmean((confidence - is_right) ** 2 for confidence, is_right in stated)


def risk_coverage(stated: Sequence[Stated]) -> list[tuple[float, float]]:
    """Return (coverage, risk) for each threshold on the confidence, from the highest.

    coverage: share of the answers that state at least this confidence. risk: share of wrong ones among these. Equal
    confidences cannot be told apart, so they enter together.
    """
    ranked = sorted(stated, reverse=True)
    curve = []
    num_wrong = 0
    for number, (confidence, is_right) in enumerate(ranked, 1):
        num_wrong += not is_right
        is_last_of_its_kind = number == len(ranked) or ranked[number][0] < confidence
        if is_last_of_its_kind:
            curve.append((number / len(ranked), num_wrong / number))
    return curve


def aurc(stated: Sequence[Stated]) -> float:
    """Return the area under the risk-coverage curve: 0 is best; equal confidences give the error rate."""
    area = 0.0
    before = 0.0
    for coverage, risk in risk_coverage(stated):
        area += (coverage - before) * risk
        before = coverage
    return area
