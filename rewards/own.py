"""Your own reward: a function that is found by its name, or passed as an object, and called as TRL calls it.

The thread that trains calls plain functions, one after the other, while the step waits for its rewards. An `async def`
runs on an event loop that all of them share, from the end of its group. Each call has a deadline. Whatever a function
raises is a UserError that names it. rewards/README.md has a table of what runs where.
"""

import asyncio
import importlib
import importlib.util
import inspect
import logging
import math
import re
import statistics
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Set
from concurrent.futures import CancelledError, Future
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial, reduce
from importlib.machinery import PathFinder
from itertools import count
from os import sep
from pathlib import Path
from sysconfig import get_path
from typing import Any

from grpo.algorithm.schema import Group, Score, TrainerState
from grpo.base.errors import CONFIG, INTERNAL, UserError, redact
from grpo.base.event_loop import EventLoop, wait_for
from grpo.base.text import encodable
from rewards.deadline import TimeOver, alone, in_time
from rewards.own_words import MAX_NUMBER
from rewards.registry import Functions, Options, Reward, UserFunction

PASSED = tuple("prompts completions completion_ids trainer_state log_extra log_metric".split())  # with the columns
ENVIRONMENTS = "environments"  # the column of a run that has some
NOT_PASSED = ("prompt", "completion")  # columns that TRL holds back, as they have a plural above
OUR_PACKAGES = ("grpo", "knowledge", "rewards")  # users like these names for files of their own
OBJECT = "<python>:"  # before the name of a reward that a program passes as an object, and that no file holds
FORM = "define it as f(prompts, completions, **columns)"
FIX = "correct the function"
# Files that are no place of a user's mistake, unless they are in one of the folders in the second row.
NOT_THEIRS = (
    *(f"{Path(__file__).parents[1] / name}{sep}" for name in OUR_PACKAGES),
    get_path("stdlib") + sep,
    "<frozen ",
)
THEIRS = (str(Path(__file__).with_name("examples")), get_path("purelib"), get_path("platlib"))
MAX_SHOWN = 80  # characters of a user's value in a message
VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_log = logging.getLogger("rewards")
_files: dict[Path, Any] = {}  # modules that a path names


# --- names to functions -------------------------------------------------------------------------------------------


def build(name: str, options: Options, objects: Functions) -> Reward:
    """Build the reward of a user's function: one of `objects`, which a program passes, or what the name says."""
    function = as_function(name, objects[name]) if name in objects else find_function(name)
    needs = needed_columns(function)
    timeout_s = options["reward_timeout_s"]
    return Reward(short_name(name), function=function, needs=needs, timeout_s=timeout_s)


def find_function(name: str) -> UserFunction:
    """Return the function `package.module:function` or `path/file.py:function`; UserError (exit 2) if not found."""
    return as_function(name, find_object(name))


def find_object(name: str, what: str = "reward") -> Any:
    """Return what `package.module:name` or `path/file.py:name` names; UserError (exit 2) if it is not found."""
    if name.startswith(OBJECT):
        raise UserError(
            f"the {what} {name} is in no file",
            "a program passed it to grpo.api.train as an object, and only such a program can pass it again",
            "call grpo.api.train with that object; or write it into a file, and name it path/to/file.py:function",
            CONFIG,
        )
    where, _, attributes = name.rpartition(":")
    if where in OUR_PACKAGES and Path(f"{where}.py").is_file():
        where += ".py"
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        return reduce(getattr, attributes.split("."), module)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the file is the user's and may raise anything
        fix = "correct it; for a file anywhere, name it path/to/file.py:function; "
        fix += "for a module, run from the folder that holds it, or install it"
        raise UserError(f"cannot import the {what} {name}", describe_failure(error), fix, CONFIG) from error


def as_function(name: str, found: Any) -> UserFunction:
    """Return a user's object if it can be called as a reward, or else raise UserError (exit 2).

    An object with `__call__` counts as a function, and so does a class that makes one without arguments.
    """
    function = made("reward", name, found)
    _check_parameters(name, function)
    return function


def made(what: str, name: str, found: Any) -> Any:
    """Return what a user's name stands for: of a class, the object that it makes; UserError (exit 2) if it fails."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        fix = "give its parameters defaults, or name an object of the class"
        raise UserError(f"cannot make the {what} {name}", describe_failure(error), fix, CONFIG) from error


def short_name(name: str) -> str:
    """Return the name of a reward in metrics and logs: that of a file without its folder and ending."""
    where, _, attributes = name.rpartition(":")
    short = f"{Path(where).stem}:{attributes}" if where.endswith(".py") else name.removeprefix(OBJECT)
    return without_secrets(short)


def without_secrets(text: Any) -> str:
    """Return the name of a metric or column as files can hold it."""
    return encodable(redact(str(text)))


def _load_file(path: Path) -> Any:
    """Import a file, whatever its name. It runs once.

    Its module is named like the file if that is how other processes find it, for they import what they are sent. Where
    another module has that name, only forked processes know the file's own.
    """
    path = path.resolve()
    if path not in _files:
        sys.path.append(str(path.parent))  # for what it imports from its own folder
        name, found = path.stem, PathFinder.find_spec(path.stem)
        if name in sys.modules or found is None or found.origin != str(path):
            name = re.sub(r"\W", "_", str(path))
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _files[path] = module
    return _files[path]


# --- functions to names -------------------------------------------------------------------------------------------


def name_function(function: Any, taken: Mapping[str, Any]) -> str:
    """Return the name of a function in a configuration. taken: names that other functions have.

    It is `module:function` where every program finds this very object. Elsewhere it is OBJECT and the function's own
    name, or that of its class, and a number if another one has that name.
    """
    if name := _name_in_module(function):
        return name
    base = getattr(function, "func", function)  # of a partial
    own = re.sub(r"\W+", "_", str(getattr(base, "__name__", type(base).__name__))).strip("_") or "reward"
    names = (f"{OBJECT}{own}" if number == 1 else f"{OBJECT}{own}_{number}" for number in count(1))
    return next(name for name in names if taken.get(name, function) is function)


def _name_in_module(function: Any) -> str:
    """Return the name under which a module that any program can import holds this very object; "" if none does."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return ""
    if not PathFinder.find_spec(module.partition(".")[0]):
        return ""
    try:
        found = reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):  # it was made inside another function, for one
        return ""
    return f"{module}:{name}" if found is function else ""


# --- parameters ---------------------------------------------------------------------------------------------------


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
    required = []
    for name, parameter in _parameters(function).items():
        if parameter.default is parameter.empty and parameter.kind not in (VAR_KEYWORD, VAR_POSITIONAL):
            required.append(name)
    return required


def _check_parameters(name: str, function: Any) -> None:
    """Raise UserError (exit 2) for what cannot be called as TRL calls a function: with names alone, and all columns."""
    if not callable(function):
        raise UserError(f"the reward {name} is no function", f"it is {shown(function)}", FORM, CONFIG)
    try:
        parameters = _parameters(function).values()
    except Exception as error:  # functions written in C do not tell their parameters
        what = f"the reward {name} does not tell its parameters"
        raise UserError(what, describe_failure(error), FORM, CONFIG) from error
    kinds = {parameter.kind for parameter in parameters}
    has = f"its parameters are {', '.join(map(str, parameters))}"
    if VAR_KEYWORD not in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        why = f"{has}; all columns of the data are passed, by name"
        raise UserError(f"the reward {name} takes no **kwargs", why, FORM, CONFIG)
    for column in set(NOT_PASSED) & set(_required(function)):
        fix = f"use {column}s"
        raise UserError(f"the reward {name} asks for {column}", f"{has}; it sees a whole group", fix, CONFIG)


# --- messages -----------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """Return the beginning of a user's value as text."""
    return _text_of(value)[:MAX_SHOWN]


def _text_of(value: Any) -> str:
    """Return a user's value as text, whatever its own `__str__` does."""
    try:
        return str(value)
    except BaseException:
        return f"a {type(value).__name__}"


def describe_failure(error: BaseException) -> str:
    """Describe an exception, with the file and line in the user's code where it came from, if that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [one for one in frames if one.filename.startswith(THEIRS) or not one.filename.startswith(NOT_THEIRS)]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f" ({own[-1].filename}:{own[-1].lineno} in {own[-1].name})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {_text_of(error)}".removesuffix(": ") + place


# --- what a function is given, and what it says -------------------------------------------------------------------


@dataclass
class Graded:
    """What a function says of a group of `size` completions; two of its methods are passed to it, as TRL does.

    values: what it returned. extra: column -> a value per completion. metrics: name -> the numbers told.
    """

    size: int
    values: Any = None
    extra: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Write a value per completion into completions/, among the details of the reward."""
        values = _listed(values)
        if not isinstance(values, list) or len(values) != self.size:
            raise ValueError(f"log_extra({column!r}, ...) needs a list of {self.size} values, one per completion")
        self.extra[without_secrets(column)] = [_as_detail(value) for value in values]

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the metric log/NAME, which is the mean of a step's numbers. An infinite one counts as NaN."""
        number = float(value)
        numbers = self.metrics.setdefault(f"log/{without_secrets(name)}", [])
        numbers.append(number if abs(number) <= MAX_NUMBER else math.nan)

    def scores(self, name: str) -> list[Score]:
        """Return the score of each completion. UserError if the function did not return a number or None for each."""
        values, size = self.values, self.size
        if not isinstance(values, list) or len(values) != size:
            what = f"the reward {name} must return a list of {size} numbers or None"
            raise UserError(what, f"it returned {shown(values)}", "return one value per completion", INTERNAL)
        reason, applies = "the function returned None", True
        if all(value is None for value in values):
            reason, applies = f"{reason} for the whole group", False
        scores = []
        for index, value in enumerate(values):
            extra = {column: told[index] for column, told in self.extra.items()}
            details = {"extra": extra} if extra else {}
            if value is None:
                scores.append(Score(None, reason, details=details, applies=applies))
            else:
                scores.append(Score(as_number(name, value), details=details))
        return scores


@dataclass
class Call:
    """A user's function, and the group that it grades.

    future: what it says, from the call on. began: by the monotonic clock. seconds: that it took.
    """

    name: str
    function: UserFunction
    timeout_s: float | None
    group: Group
    state: TrainerState
    future: "Future[Graded] | None" = None
    began: float = 0.0
    seconds: float = 0.0

    def arguments(self, graded: Graded) -> dict[str, Any]:
        """Return what TRL passes to a function for the completions of a prompt: copies, which it may change.

        prompts, completions: texts; lists of messages if the data holds conversations. Every column holds one value
        per completion.
        """
        prompt, texts = self.group.prompt, [completion.text for completion in self.group.completions]
        prompts, completions = [prompt.text] * len(texts), texts
        if prompt.messages:
            prompts = [deepcopy(list(prompt.messages)) for _ in texts]
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        columns = {}
        for name, value in prompt.columns.items():
            if name not in (*PASSED, *NOT_PASSED):
                columns[name] = [deepcopy(value) for _ in texts]
        ids = [copy(completion.ids) for completion in self.group.completions]
        passed = (prompts, completions, ids, self.state, graded.log_extra, graded.log_metric)
        environments = [one.environment.object for one in self.group.completions if one.environment]
        if environments:
            columns[ENVIRONMENTS] = environments
        return {**columns, **dict(zip(PASSED, passed, strict=True))}


def as_number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except BaseException:
        what = f"the reward {name} returned {shown(value)!r}"
        raise UserError(what, "a reward is a number or None", FIX, INTERNAL) from None


def _listed(values: Any) -> Any:
    """Make a list of an array, a tensor or any other ordered collection; leave everything else alone."""
    if hasattr(values, "tolist"):
        return values.tolist()
    is_ordered = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping, Set))
    return list(values) if is_ordered else values


def _as_detail(value: Any) -> Any:
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
        self.seconds: Counter[str] = Counter()
        self.logged: dict[str, list[float]] = defaultdict(list)

    def start(self, rewards: Iterable[Reward], group: Group, state: TrainerState) -> list[Call]:
        """Return the calls of rewards on a complete group. Each `async def` begins; plain functions wait for `make`."""
        calls = [Call(one.name, one.function, one.timeout_s, group, state) for one in rewards if one.function]
        for call in calls:
            if is_async(call.function):
                self.make(call)
        return calls

    def make(self, call: Call) -> None:
        """Call a function on this thread. If what it returns can be awaited, that goes on, on the event loop."""
        graded, call.began, call.future = Graded(len(call.group.completions)), time.monotonic(), Future()

        def work() -> Any:
            values = call.function(**call.arguments(graded))
            return values if inspect.isawaitable(values) else _listed(values)

        seconds = None if is_async(call.function) else call.timeout_s  # it only begins
        try:
            values = in_time(seconds, partial(alone, work), partial(self._say_late, call))
        except TimeOver:
            call.future.cancel()
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise failure_of(call.name, error) from error
        else:
            if inspect.isawaitable(values):
                call.future = self.loop.run(_await(call, graded, values))
            else:
                graded.values = values
                call.future.set_result(graded)
        finally:
            call.seconds = time.monotonic() - call.began

    def scores(self, call: Call) -> list[Score]:
        """Wait for a call until its deadline, and return its scores."""
        limit_s = call.timeout_s or math.inf
        wait_for(call.future, call.began + limit_s)
        if not call.future.done() or call.seconds >= limit_s:
            call.future.cancel()
            self.seconds[call.name] += max(call.seconds, limit_s)
            return [Score(None, f"no answer within {limit_s:g} s (reward_timeout_s)")] * len(call.group.completions)
        self.seconds[call.name] += call.seconds
        try:
            graded = call.future.result()
        except CancelledError as error:
            why = "its event loop has ended: one of its tasks raised SystemExit or KeyboardInterrupt"
            raise UserError(f"the reward {call.name} failed", why, FIX, INTERNAL) from error
        for metric, numbers in graded.metrics.items():
            self.logged[metric] += numbers
        return graded.scores(call.name)

    def metrics(self, names: Iterable[str]) -> dict[str, float]:
        """Return the seconds of these functions, and the means of what was logged, since the last call."""
        metrics = {f"rewards/{name}/time": self.seconds[name] for name in names}
        metrics |= {name: statistics.fmean(numbers) for name, numbers in self.logged.items()}
        self.logged.clear()
        self.seconds.clear()
        return metrics

    def _say_late(self, call: Call) -> None:
        if call.name not in self.late:
            self.late.add(call.name)
            what = f"the reward {call.name} takes more than {call.timeout_s:g} s (reward_timeout_s)"
            _log.warning(f"warning: {what}, and nothing can end it: the run waits for it")


async def _await(call: Call, graded: Graded, work: Awaitable[Any]) -> Graded:
    """Wait for what a call has returned, on its event loop."""
    try:
        graded.values = _listed(await work)
        return graded
    except BaseException as error:
        if asyncio.current_task().cancelling():  # its time is over; or the run ends, or the event loop
            raise asyncio.CancelledError from None
        raise error if isinstance(error, UserError) else failure_of(call.name, error) from error
    finally:
        call.seconds = time.monotonic() - call.began


def failure_of(name: str, error: BaseException) -> UserError:
    """Return the error that ends a run whose function has failed: a reward is never invented in its place."""
    return UserError(f"the reward {name} failed", describe_failure(error), FIX, INTERNAL)
