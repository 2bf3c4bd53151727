"""Your own reward: a function that is found by its name, or passed as an object, and called as TRL calls it.

The thread that trains calls plain functions, one after the other, while the step waits for its rewards. An `async def`
runs on an event loop that all of them share, from the end of its group. Each call has a deadline. Whatever a function
raises is a UserError that names it. rewards/README.md has a table of what runs where.
"""

import asyncio
import inspect
import logging
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import CancelledError, Future
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from grpo.algorithm.schema import Group, Score, TrainerState
from grpo.base.errors import INTERNAL, UserError
from grpo.base.event_loop import EventLoop, wait_for
from grpo.base.storage import Json
from grpo.base.text import encodable
from rewards.deadline import TimeOver, alone, in_time
from rewards.own_names import describe_failure, find_object, made, result_of, short_name, shown, without_secrets
from rewards.own_words import MAX_NUMBER
from rewards.registry import Options, Reward, UserFunction, UserFunctions

Said = str | list[dict[str, str]]  # a text, or messages
Detail = str | float | None  # as JSON holds it
PASSED = tuple("prompts completions completion_ids trainer_state log_extra log_metric".split())  # with the columns
ENVIRONMENTS = "environments"  # the column of a run that has some
NOT_PASSED = ("prompt", "completion")  # columns that TRL holds back, as they have a plural above
FORM = "define it as f(prompts, completions, **columns)"
FIX = "correct the function"
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_log = logging.getLogger("rewards")


def build(name: str, options: Options, objects: UserFunctions) -> Reward:
    """Build the reward of a user's function: one of `objects`, which a program passes, or what the name says."""
    function = as_function(name, objects[name] if name in objects else find_object(name))
    return Reward(
        short_name(name),
        function=function,
        needs=needed_columns(function),
        timeout_s=options["reward_timeout_s"],
    )


# --- parameters ---------------------------------------------------------------------------------------------------


def as_function(name: str, found: Any) -> UserFunction:
    """Return a user's object if it can be called as TRL calls a function: with names alone, and all columns.

    An object with `__call__` counts as a function, and so does a class that makes one without arguments. UserError
    (exit 2) for anything else.
    """
    function = made("reward", name, found)
    problem = f"the reward {name} is no function that tells its parameters"  # some in C do not
    parameters = result_of(lambda: _parameters(function), problem, FORM).values()
    kinds = {parameter.kind for parameter in parameters}
    has = f"its parameters are {', '.join(map(str, parameters))}"
    if inspect.Parameter.VAR_KEYWORD not in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        raise UserError(
            f"the reward {name} takes no **kwargs", f"{has}; all columns of the data are passed, by name", FORM
        )
    for column in set(NOT_PASSED) & set(_required(function)):
        raise UserError(f"the reward {name} asks for {column}", f"{has}; it sees a whole group", f"use {column}s")
    return function


def needed_columns(function: UserFunction) -> tuple[str, ...]:
    """Return the columns of the data that a function cannot do without."""
    return tuple(name for name in _required(function) if name not in (*PASSED, ENVIRONMENTS))


def is_async(function: UserFunction) -> bool:
    """Tell whether a call waits without keeping a thread busy."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _parameters(function: UserFunction) -> dict[str, inspect.Parameter]:
    """Return the parameters of what is called, which may be a decorator's function."""
    return dict(inspect.signature(function, follow_wrapped=False).parameters)


def _required(function: UserFunction) -> list[str]:
    found = _parameters(function).items()
    return [name for name, one in found if one.default is one.empty and one.kind not in VARIADIC]


# --- what a function is given, and what it says -------------------------------------------------------------------


@dataclass
class OwnCall:
    """A call of a user's function on a group. Two of its methods are passed to the function, as TRL does.

    future: what it returns. began: by the monotonic clock; 0 before that. seconds: that it took.
    extra: column -> a value per completion, told by the function. metrics: name -> the numbers told.
    """

    name: str
    function: UserFunction
    timeout_s: float | None
    group: Group
    state: TrainerState
    future: "Future[object]" = field(default_factory=Future)
    began: float = 0.0
    seconds: float = 0.0
    extra: dict[str, list[Detail]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def make(self) -> object:
        """Return what the function returns: a list, or what can be awaited."""
        values = self.function(**self.arguments())
        return values if inspect.isawaitable(values) else _listed(values)

    def arguments(self) -> Json:
        """Return what TRL passes to a function for the completions of a prompt: copies, which it may change.

        prompts, completions: texts; lists of messages if the data holds conversations. Every column holds one value
        per completion.
        """
        prompt = self.group.prompt
        texts = [completion.text for completion in self.group.completions]
        prompts: list[Said] = [prompt.text for _ in texts]
        completions: list[Said] = [*texts]
        if prompt.messages:
            prompts = [deepcopy(list(prompt.messages)) for _ in texts]
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        columns: Json = {
            name: [deepcopy(value) for _ in texts]
            for name, value in prompt.columns.items()
            if name not in (*PASSED, *NOT_PASSED)
        }
        ids = [copy(completion.ids) for completion in self.group.completions]
        passed = (prompts, completions, ids, self.state, self.log_extra, self.log_metric)
        environments = [one.environment.object for one in self.group.completions if one.environment]
        if environments:
            columns[ENVIRONMENTS] = environments
        return columns | dict(zip(PASSED, passed, strict=True))

    def log_extra(self, column: str, values: Iterable[object]) -> None:
        """Write a value per completion into completions/, among the details of the reward."""
        told = _listed(values)
        size = len(self.group.completions)
        if not isinstance(told, list) or len(told) != size:
            raise ValueError(f"log_extra({column!r}, ...) needs a list of {size} values, one per completion")
        self.extra[without_secrets(column)] = list(map(_as_detail, told))

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the metric log/NAME, which is the mean of a step's numbers. An infinite one counts as NaN."""
        number = float(value)
        numbers = self.metrics.setdefault(f"log/{without_secrets(name)}", [])
        numbers.append(number if abs(number) <= MAX_NUMBER else math.nan)

    def scores(self) -> list[Score]:
        """Return the score of each completion. UserError if the function did not return a number or None for each."""
        values = self.future.result()
        count = len(self.group.completions)
        if not isinstance(values, list) or len(values) != count:
            raise UserError(
                f"the reward {self.name} must return a list of {count} numbers or None",
                f"it returned {shown(values)}",
                "return one value per completion",
                INTERNAL,
            )
        applies = any(value is not None for value in values)
        silent = Score(None, "the function returned None" + " for the whole group" * (not applies), applies=applies)
        scores = []
        for index, value in enumerate(values):
            score = silent if value is None else Score(as_number(self.name, value))
            extra = {column: told[index] for column, told in self.extra.items()}
            scores.append(replace(score, details={"extra": extra}) if extra else score)
        return scores


def as_number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except BaseException:
        raise UserError(
            f"the reward {name} returned {shown(value)!r}", "a reward is a number or None", FIX, INTERNAL
        ) from None


def _listed(values: object) -> object:
    """Make a list of an array, a tensor or any other ordered collection; leave everything else alone."""
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | Set):
        return list(values)
    return values


def _as_detail(value: object) -> Detail:
    """Return a value as JSON can hold it."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return encodable(str(value))


# --- calls --------------------------------------------------------------------------------------------------------


class OwnCalls:
    """The calls of users' functions in a run."""

    def __init__(self) -> None:
        self.loop = EventLoop("own rewards")
        self.late: set[str] = set()  # functions that could not be interrupted
        # Since the last metrics(): the seconds of each function, and the numbers that they have logged.
        self.seconds: dict[str, float] = defaultdict(float)
        self.logged: dict[str, list[float]] = defaultdict(list)

    def start(self, rewards: Iterable[Reward], group: Group, state: TrainerState) -> list[OwnCall]:
        """Return the calls of rewards on a complete group. Each `async def` begins; plain functions wait for `make`."""
        calls = [
            OwnCall(reward.name, reward.function, reward.timeout_s, group, state)
            for reward in rewards
            if reward.function is not None
        ]
        for call in calls:
            if is_async(call.function):
                self.make(call)
        return calls

    def make(self, call: OwnCall) -> None:
        """Call a function: an `async def` on the event loop, any other one on this thread.

        If what the latter returns can be awaited, that goes on, on the event loop.
        """
        call.began = time.monotonic()
        if is_async(call.function):
            call.future = self.loop.run(_await(call, call.make))
            return
        try:
            values = in_time(call.timeout_s, partial(alone, call.make), partial(self._say_late, call))
        except TimeOver:
            call.future.cancel()
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise failure_of(call.name, error) from error
        else:
            if inspect.isawaitable(values):
                call.future = self.loop.run(_await(call, lambda: values))
            else:
                call.future.set_result(values)
        finally:
            call.seconds = time.monotonic() - call.began

    def scores(self, call: OwnCall) -> list[Score]:
        """Wait for a call until its deadline, and return its scores."""
        limit_s = call.timeout_s or math.inf
        wait_for(call.future, call.began + limit_s)
        if not call.future.done() or call.seconds >= limit_s:
            call.future.cancel()
            self.seconds[call.name] += max(call.seconds, limit_s)
            return [Score(None, f"no answer within {limit_s:g} s (reward_timeout_s)")] * len(call.group.completions)
        self.seconds[call.name] += call.seconds
        try:
            scores = call.scores()
        except CancelledError as error:
            raise UserError(
                f"the reward {call.name} failed",
                "its event loop has ended: one of its tasks raised SystemExit or KeyboardInterrupt",
                FIX,
                INTERNAL,
            ) from error
        for metric, numbers in call.metrics.items():
            self.logged[metric] += numbers
        return scores

    def metrics(self) -> dict[str, float]:
        """Return the seconds of the functions, and the means of what was logged, since the last call."""
        metrics = {f"rewards/{name}/time": seconds for name, seconds in self.seconds.items()}
        metrics |= {name: statistics.fmean(numbers) for name, numbers in self.logged.items()}
        self.logged.clear()
        self.seconds.clear()
        return metrics

    def _say_late(self, call: OwnCall) -> None:
        if call.name not in self.late:
            self.late.add(call.name)
            _log.warning(
                f"warning: the reward {call.name} takes more than {call.timeout_s:g} s (reward_timeout_s), and nothing "
                "can end it: the run waits for it"
            )


async def _await(call: OwnCall, begin: Callable[[], Any]) -> object:
    """Begin a call, and wait for it, on its event loop."""
    try:
        return _listed(await begin())
    except BaseException as error:
        task = asyncio.current_task()
        if task and task.cancelling():  # its time is over; or the run ends, or the event loop
            raise asyncio.CancelledError from None
        raise error if isinstance(error, UserError) else failure_of(call.name, error) from error
    finally:
        call.seconds = time.monotonic() - call.began


def failure_of(name: str, error: BaseException) -> UserError:
    """Return the error that ends a run whose function has failed: a reward is never invented in its place."""
    return UserError(f"the reward {name} failed", describe_failure(error), FIX, INTERNAL)
