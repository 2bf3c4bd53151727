"""Prompts to answers, and the records of answers that could not be graded."""

from collections.abc import Sequence
from pathlib import Path

from grpo.algorithm.schema import Completion, Group, Outcome, Prompt, completions_of, hash_seed
from grpo.base.progress import counting
from grpo.base.storage import Json
from grpo.data.count import is_empty
from grpo.data.worlds.kinds import DECLINED
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler, check_finite
from grpo.policy import Policy
from grpo.run.log import call_record
from rewards.exact import is_unanswerable
from rewards.own_words import CALLS


def generate_groups(
    policy: Policy, sampler: Sampler, prompts: list[Prompt], n: int, sampling: SamplingParams, seed: int
) -> list[Group]:
    """Generate and decode n completions of each prompt. UserError (exit 5) if the model's logits are not finite."""
    seeds = [hash_seed(seed, prompt.row, index) for prompt in prompts for index in range(n)]
    prompts = sampler.reset(prompts, n, seeds)
    with counting(len(seeds), "answering", "answers") as add:
        answers = sampler.sample([prompt.ids for prompt in prompts], n, sampling, seeds, lambda *finished: add(1))
    groups = [Group(prompt, completions) for prompt, completions in zip(prompts, answers, strict=True)]
    for completion in completions_of(groups):
        check_finite(*completion.logps)
        completion.text = policy.decode(completion.ids)
    return groups


def split_into_parts(groups: Sequence[Group], column: str | None) -> dict[str, list[Group]]:
    """Return all groups under "", and under each value of a data column the groups with that value.

    Those whose column is empty are under "None".
    """
    parts: dict[str, list[Group]] = {"": list(groups)}
    if column:
        for group in groups:
            value = group.prompt.columns.get(column)
            name = str(None if is_empty(value) else value)
            parts.setdefault(name, []).append(group)
    return parts


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


def ungraded_records(groups: Sequence[Group]) -> list[Json]:
    """Return one record per answer as `python -m rewards.score` takes it: the row's columns, prompt and completion."""
    return [
        group.prompt.columns
        | {
            "row": group.prompt.row,
            "prompt": list(group.prompt.messages) or group.prompt.text,
            "completion": completion.text,
            CALLS: [call_record(call) for call in completion.calls],
        }
        for group in groups
        for completion in group.completions
    ]


def unused(path: Path) -> Path:
    """Return the path, or one with a number in its name if there is such a file already."""
    candidate = path
    number = 1
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate
