"""When a model calls its tools, such as the search of a knowledge base, and whether it calls where it has to.

calls_per_question      mean number of calls of an answer
searched_frac           share of the answers that call a tool
accuracy_searched       accuracy among these; accuracy_unsearched: among the others
auroc_searching         the probability that a question which the model answers wrong when nothing is found is
                        searched more often than one which it answers right then, a tie being one half: 0.5 is
                        chance. An answer that declines is not right.
"""

from collections.abc import Sequence
from statistics import fmean

from grpo.algorithm.schema import Completion, Group, Outcome, completions_of
from grpo.data.worlds.kinds import DECLINED
from rewards.outcome.correctness import is_unanswerable


def searching(groups: Sequence[Group]) -> dict[str, float]:
    """Return the measures above but the last; {} if no answer calls a tool."""
    completions = completions_of(groups)
    if not any(completion.calls for completion in completions):
        return {}
    found = {
        "calls_per_question": fmean(len(completion.calls) for completion in completions),
        "searched_frac": fmean(bool(completion.calls) for completion in completions),
    }
    known = [completion for completion in completions if completion.outcome]
    for name, has_called in (("accuracy_searched", True), ("accuracy_unsearched", False)):
        some = [completion for completion in known if bool(completion.calls) == has_called]
        if some:
            found[name] = fmean(completion.outcome == "correct" for completion in some)
    return found


def decline(groups: Sequence[Group]) -> list[tuple[Completion, Outcome]]:
    """End the answers that have called a tool that is not there as if they declined; return them and their outcomes."""
    found: list[tuple[Completion, Outcome]] = []
    for group in groups:
        for completion in group.completions:
            if completion.failure:
                is_thinking = "<think>" in group.prompt.text + completion.text and "</think>" not in completion.text
                completion.text += "</think>" * is_thinking + f"<answer>{DECLINED}</answer>"
                completion.calls = []
                found.append((completion, "correct" if is_unanswerable(group.prompt.columns) else "refused"))
    return found


def auroc_searching(groups: Sequence[Group], forced: Sequence[Completion]) -> float | None:
    """Return `auroc_searching`; None if the forced answers are all right, or all not.

    forced: for each answer of the groups, in order, the one that is given when no tool finds anything. One that could
    not be graded counts nowhere.
    """
    shares = []  # of the answers to a question that search, for each of them
    for group in groups:
        share = fmean(bool(completion.calls) for completion in group.completions)
        shares += [share] * len(group.completions)
    of_right, of_others = [], []
    for share, answer in zip(shares, forced, strict=True):
        if answer.outcome:
            some = of_right if answer.outcome == "correct" else of_others
            some.append(share)
    return auroc(of_others, of_right) if of_right and of_others else None


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the probability that a positive score is the higher one, ties counting one half.

    >>> auroc([1.0, 0.5], [0.5, 0.0])
    0.875
    """
    wins = sum((p > n) + (p == n) / 2 for p in positive for n in negative)
    return wins / (len(positive) * len(negative))
