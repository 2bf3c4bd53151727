"""Turn names into rewards. A reward grades one completion, or is a user's function with TRL's signature for a group."""

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.base.errors import CONFIG, UserError
from grpo.base.schema import Score
from rewards.custom import MAX_NUMBER, Notes, UserFunction, call, find_function, needed_columns, short_name

Options = Mapping[str, Any]  # the keys of the configuration
Columns = Mapping[str, Any]  # the columns of a row, and its prompt
Say = Callable[[str], None]  # shows a message
Grade = Callable[[str, Columns], Score | Awaitable[Score]]

BUILT_IN = {  # a reward's name -> module:function, which builds it from the configuration's keys
    "format": "rewards.format:build",
    "exact": "rewards.exact:build",
    "math": "rewards.math_reward:build",
    "choice": "rewards.choice:build",
    "soft_overlong_punishment": "rewards.overlong:build",
    "simpleqa": "rewards.knowrl.simpleqa:build",
    "correctness": "rewards.knowrl.reward:correctness_alone",
    "factuality": "rewards.knowrl.reward:factuality_alone",
    "truthrl": "rewards.knowrl.outcome:truthrl",
    "abstention": "rewards.knowrl.outcome:abstention",
    "karl": "rewards.knowrl.outcome:karl",
    "tiar": "rewards.knowrl.outcome:tiar",
    "rlcr": "rewards.knowrl.outcome:rlcr",
    "binary_rar": "rewards.knowrl.reward:binary_rar",
    "combined": "rewards.knowrl.reward:knowrl",
    "combined_v1": "rewards.knowrl.reward:knowrl_v1",
    "combined_v2": "rewards.knowrl.reward:knowrl_v2",
}
NEED_KNOWLEDGE = ("factuality", "binary_rar", "combined", "combined_v1", "combined_v2")
CHECK_EVERY_ANSWER = ("factuality", "binary_rar")  # the facts of right ones and refusals, too
NEED_BLOCK = (  # they grade an <answer> block
    "correctness",
    "truthrl",
    "abstention",
    "karl",
    "tiar",
    "rlcr",
    "combined",
    "combined_v1",
    "combined_v2",
)
NEED_JUDGE = ("simpleqa", *NEED_BLOCK)
PRESETS = {
    "knowrl": ("format", "combined"),
    "knowrl_v1": ("format", "combined_v1"),
    "knowrl_v2": ("format", "combined_v2"),
}

NOT_A_REWARD = f"a reward is a number between -{MAX_NUMBER:g} and {MAX_NUMBER:g}, or None"


def usable(score: Score) -> Score:
    """Make a score unscorable whose value is NaN, infinite or too large to calculate with; the reason says so.

    >>> usable(Score(float("nan"))).value is None
    True
    """
    if score.value is None or abs(score.value) <= MAX_NUMBER:
        return score
    return replace(score, value=None, reason=f"the reward returned {score.value}: {NOT_A_REWARD}")


@dataclass(frozen=True)
class Reward:
    """A named reward: it has either `grade` (for one completion and its row's columns) or `function` (for a group).

    timeout_s: seconds that a call of `function` may take.
    needs: columns without which it cannot work.
    slow: it waits for something, such as an API; then micro-batches are trained in the order in which rewards arrive.
    prepare: called once before the first step with the data set's rows, to find out now what would fail later; it may
    `say` something.
    finish: changes the scores of a group once all of them are there, by rules that compare its completions.
    metrics: kb/* since the last call, judge/* and decomposer/* since the start, under their names in the glossary.
    close: frees what the reward holds.
    """

    name: str
    grade: Grade | None = None
    function: UserFunction | None = None
    timeout_s: float | None = None
    needs: tuple[str, ...] = ()
    slow: bool = False
    prepare: Callable[[Sequence[Columns], Say], None] | None = None
    finish: Callable[[Sequence[Score]], list[Score]] | None = None
    metrics: Callable[[], dict[str, float]] | None = None
    close: Callable[[], None] | None = None

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]
    ) -> list[float | None]:
        """Grade as TRL does: return one number, or None, per completion; a column holds one value per completion."""
        if self.function is not None:
            notes = Notes(len(completions))
            told = {"log_extra": notes.log_extra, "log_metric": notes.log_metric}
            given = {**told, "prompts": prompts, "completions": completions, **columns}
            scores = asyncio.run(call(self.name, self.function, given, notes))
        else:
            scores = []
            for i, completion in enumerate(completions):
                row = {name: values[i] for name, values in columns.items()}
                scores.append(self.grade(completion, row | {"prompt": prompts[i]}))
            if inspect.iscoroutinefunction(self.grade):
                scores = asyncio.run(_gather(scores))
        return [usable(score).value for score in scores]


async def _gather(pending: Sequence[Awaitable[Score]]) -> list[Score]:
    return await asyncio.gather(*pending)


def expand(names: Sequence[str]) -> list[str]:
    """Replace presets by the rewards that they stand for."""
    expanded = []
    for name in names:
        expanded += PRESETS.get(name, (name,))
    return expanded


def build_rewards(names: Sequence[str], options: Options) -> list[Reward]:
    """Build the rewards of these names, in order, each from its own keys of the configuration, `options`."""
    rewards = [_build(name, options) for name in expand(names)]
    built = [reward.name for reward in rewards]
    for name in {name for name in built if built.count(name) > 1}:
        raise UserError(f"two rewards are named {name}", "metrics tell them apart by name", "rename a file", CONFIG)
    return rewards


def _build(name: str, options: Options) -> Reward:
    if name in BUILT_IN:
        module_name, _, function_name = BUILT_IN[name].partition(":")
        return getattr(importlib.import_module(module_name), function_name)(options)
    if ":" not in name:
        raise UserError(
            f"unknown reward {name}",
            f"built in: {', '.join([*BUILT_IN, *PRESETS])}",
            "use one of these, or for your own package.module:function or path/file.py:function",
            CONFIG,
        )
    function = find_function(name)
    timeout_s = options["reward_timeout_s"]
    return Reward(short_name(name), function=function, needs=needed_columns(function), timeout_s=timeout_s)
