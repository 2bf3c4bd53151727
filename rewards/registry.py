"""Names to rewards. A reward grades one completion, or is a user's function with TRL's signature for a whole group."""

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import CONFIG, INTERNAL, UserError
from grpo.schema import Score
from rewards import exact, format, overlong
from rewards.boxed import verdict

Grade = Callable[[str, Mapping[str, Any]], Score | Awaitable[Score]]
UserFunction = Callable[..., Sequence[float | None]]


@dataclass(frozen=True)
class Reward:
    """A named reward: exactly one of `grade` (one completion and its row's columns) and `function` (a whole group).

    needs: columns without which it cannot work.
    slow: it waits for something (an API), so that micro-batches are trained in the order in which rewards arrive.
    prepare: called once with the data set's rows before the first step, to find out what would fail later; it may `say`
    something. metrics: counts since the last call, under their names in log.GLOSSARY. close: frees what the reward
    holds.
    """

    name: str
    grade: Grade | None = None
    function: UserFunction | None = None
    needs: tuple[str, ...] = ()
    slow: bool = False
    prepare: Callable[[Sequence[Mapping[str, Any]], Callable[[str], None]], None] | None = None
    metrics: Callable[[], dict[str, float]] | None = None
    close: Callable[[], None] | None = None

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]
    ) -> list[float | None]:
        """TRL's signature: one number, or None, per completion; each column holds one value per completion."""
        if self.function is not None:
            return [score.value for score in self.grade_group(prompts, completions, columns)]
        rows = [
            {name: values[i] for name, values in columns.items()} | {"prompt": prompts[i]}
            for i in range(len(completions))
        ]
        if inspect.iscoroutinefunction(self.grade):
            return asyncio.run(self._grade_all(completions, rows))
        return [self.grade(completion, row).value for completion, row in zip(completions, rows, strict=True)]

    async def _grade_all(self, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [score.value for score in await asyncio.gather(*map(self.grade, completions, rows))]

    def grade_group(
        self, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[Score]:
        """A user function's values for a group, checked: as many as completions, each a number or None."""
        try:
            values = self.function(prompts=prompts, completions=completions, **columns)
        except Exception as error:  # the user's code may raise anything; a reward is never invented in its place
            raise UserError(
                f"the reward {self.name} failed", f"{type(error).__name__}: {error}", "correct the function", INTERNAL
            ) from error
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(completions):
            raise UserError(
                f"the reward {self.name} must return a list of {len(completions)} numbers or None",
                f"it returned {str(values)[:80]}",
                "return one value per completion",
                INTERNAL,
            )
        wrong = [value for value in values if value is not None and not isinstance(value, (int, float))]
        if wrong:
            raise UserError(
                f"the reward {self.name} returned {wrong[0]!r}",
                "a reward is a number or None",
                "correct the function",
                INTERNAL,
            )
        return [Score(None, "the function returned None") if value is None else Score(float(value)) for value in values]


def _math(options: Mapping[str, Any]) -> Reward:
    """The last boxed answer against the truth; what a right, a wrong and a missing answer are worth is configured."""
    values = {
        "correct": options["math_reward_correct"],
        "wrong": options["math_reward_wrong"],
        "no_answer": options["math_reward_no_answer"],
        "unscorable": None,
    }

    def grade(completion: str, columns: Mapping[str, Any]) -> Score:
        kind, reason = min(
            (verdict(completion, truth) for truth in exact.truths(columns.get("answer")) or [""]),
            key=lambda pair: pair[0] != "correct",
        )
        return Score(
            values[kind], reason, None if kind == "unscorable" else "correct" if kind == "correct" else "wrong"
        )

    return Reward("math", grade, needs=("answer",))


def _knowrl(name: str) -> Callable[[Mapping[str, Any]], Reward]:
    """A reward of combined.py, imported when it is used: it needs SQLAlchemy and may need the NLI model's library."""

    def build(options: Mapping[str, Any]) -> Reward:
        from rewards.knowrl import combined

        alone = {"correctness": combined.correctness_alone, "factuality": combined.factuality_alone}
        return alone[name](options) if name in alone else combined.combined(name, options)

    return build


NEED_KNOWLEDGE = ("factuality", "combined", "combined_v1", "combined_v2")
BUILT_IN: dict[str, Callable[[Mapping[str, Any]], Reward]] = {
    "format": lambda options: Reward("format", format.grade),
    "exact": lambda options: Reward("exact", exact.grade, needs=("answer",)),
    "math": _math,
    "soft_overlong_punishment": lambda options: Reward(
        "soft_overlong_punishment",
        overlong.from_columns(options["max_completion_length"], options["soft_punish_cache"]),
    ),
    "correctness": _knowrl("correctness"),
    **{name: _knowrl(name) for name in NEED_KNOWLEDGE},
}
PRESETS = {
    "knowrl": ("format", "combined"),
    "knowrl_v1": ("format", "combined_v1"),
    "knowrl_v2": ("format", "combined_v2"),
}


def expand(names: Sequence[str]) -> list[str]:
    """Presets replaced by the rewards that they stand for."""
    return [reward for name in names for reward in PRESETS.get(name, (name,))]


def build_rewards(names: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """The rewards of these names, in order. options: the configuration's keys, of which each reward takes its own."""
    return [
        BUILT_IN[name](options) if name in BUILT_IN else Reward(name, function=_user_function(name))
        for name in expand(names)
    ]


def _user_function(name: str) -> UserFunction:
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise UserError(
            f"unknown reward {name}",
            f"built in: {', '.join([*BUILT_IN, *PRESETS])}",
            "use one of these, or package.module:function for your own",
            CONFIG,
        )
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"cannot import the reward {name}",
            str(error),
            "run from the folder that holds the module, or install it",
            CONFIG,
        ) from None
    parameters = inspect.signature(function).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        raise UserError(
            f"the reward {name} takes no **kwargs",
            f"its parameters are {', '.join(parameters)}; all columns of the data are passed",
            "define it as f(prompts, completions, **columns)",
            CONFIG,
        )
    return function
