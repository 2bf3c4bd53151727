"""How often a model calls its tools, such as the search of a knowledge base, and how well it answers with and without.

calls_per_question      mean number of calls of an answer
searched_frac           share of the answers that call a tool
accuracy_searched       accuracy among these; accuracy_unsearched: among the others
"""

from collections.abc import Sequence
from statistics import fmean

from grpo.algorithm.schema import Completion, Group, Outcome, completions_of
from grpo.data.worlds.kinds import DECLINED
from rewards.exact import is_unanswerable


def searching(groups: Sequence[Group]) -> dict[str, float]:
    """Return the measures above; {} if no answer calls a tool."""
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
