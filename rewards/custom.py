"""Call a user's own reward: find the function by its name, call it as TRL does, and check what it returns."""

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Set
from concurrent.futures import Future
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from grpo.algorithm.schema import Group, Score
from grpo.base.errors import CONFIG, INTERNAL, UserError, redact
from knowledge.text import encodable

UserFunction = Callable[..., Iterable[float | None] | Awaitable[Iterable[float | None]]]
Grades = tuple[list[Score], dict[str, list[float]]]  # of a group; and the numbers of each metric that was logged

PASSED = tuple("prompts completions completion_ids trainer_state log_extra log_metric".split())  # with the columns
OUR_PACKAGES = ("grpo", "knowledge", "rewards")  # users like these names for files of their own
MAX_NUMBER = 1e15  # in size; sums and squares of larger numbers overflow
NOT_PASSED = ("prompt", "completion")  # columns that TRL holds back, as they have a plural above


@dataclass(frozen=True)
class TrainerState:
    """How far the run is: those attributes of transformers' TrainerState that a reward can use."""

    global_step: int = 0  # steps done
    max_steps: int = 0
    epoch: float = 0.0
    is_world_process_zero: bool = True


@dataclass
class Notes:
    """What a function tells while it grades a group of `size` completions, by the two functions that TRL passes to it.

    extra: column -> a value per completion. metrics: name -> the numbers told.
    """

    size: int
    extra: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Write a value per completion into completions/, among the details of the reward."""
        values = _collected(values)
        if not isinstance(values, list) or len(values) != self.size:
            raise ValueError(f"log_extra({column!r}, ...) needs a list of {self.size} values, one per completion")
        self.extra[_as_name(column)] = [_as_detail(value) for value in values]

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the metric log/NAME, which is the mean of a step's numbers. An infinite one counts as NaN."""
        number = float(value)
        self.metrics.setdefault(f"log/{_as_name(name)}", []).append(number if abs(number) <= MAX_NUMBER else math.nan)


# --- names to functions -------------------------------------------------------------------------------------------


def find_function(name: str) -> UserFunction:
    """Return the function `package.module:function` or `path/file.py:function`; UserError (exit 2) if not found.

    An object with `__call__` counts as a function, and so does a class that makes one without arguments.
    """
    where, _, attributes = name.rpartition(":")
    if where in OUR_PACKAGES and Path(f"{where}.py").is_file():
        where += ".py"
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        found = reduce(getattr, attributes.split("."), module)
        function = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as error:  # the file is the user's and may raise anything
        fix = "correct it; for a file anywhere, name it path/to/file.py:function; "
        fix += "for a module, run from the folder that holds it, or install it"
        raise UserError(f"cannot import the reward {name}", _told(error), fix, CONFIG) from error
    _check_parameters(name, function)
    return function


def short_name(name: str) -> str:
    """Return the name of a reward in metrics and logs: that of a file without its folder and ending."""
    where, _, attributes = name.rpartition(":")
    return _as_name(f"{Path(where).stem}:{attributes}" if where.endswith(".py") else name)


def needed_columns(function: UserFunction) -> tuple[str, ...]:
    """Return the columns of the data that a function cannot do without."""
    return tuple(name for name in _required(function) if name not in PASSED)


def is_async(function: UserFunction) -> bool:
    """Tell whether a call waits without keeping a thread busy."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _load_file(path: Path) -> Any:
    """Import a file under its path, which no other module has, so that it may bear any name. It runs once."""
    name = str(path.resolve())
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.append(str(path.resolve().parent))  # for what it imports from its own folder
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _required(function: UserFunction) -> list[str]:
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        is_variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not is_variable:
            required.append(name)
    return required


def _check_parameters(name: str, function: UserFunction) -> None:
    fix = "define it as f(prompts, completions, **columns)"
    if not callable(function):
        raise UserError(f"the reward {name} is no function", f"it is {str(function)[:80]}", fix, CONFIG)
    parameters = inspect.signature(function).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    shown = ", ".join(map(str, parameters.values()))
    if inspect.Parameter.VAR_KEYWORD not in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        why = f"its parameters are {shown}; all columns of the data are passed, by name"
        raise UserError(f"the reward {name} takes no **kwargs", why, fix, CONFIG)
    for parameter in set(_required(function)) & set(NOT_PASSED):
        why = f"its parameters are {shown}; a function sees a whole group"
        raise UserError(f"the reward {name} asks for {parameter}", why, f"use {parameter}s", CONFIG)


# --- calling them -------------------------------------------------------------------------------------------------


def _arguments(group: Group, trainer_state: TrainerState, notes: Notes) -> dict[str, Any]:
    """Return what TRL passes to a function for the completions of a prompt: copies, which the function may change.

    prompts, completions: texts; lists of messages if the data holds conversations. Every column holds one value per
    completion.
    """
    texts = [completion.text for completion in group.completions]
    prompt, size = group.prompt, len(texts)
    prompts, completions = [prompt.text] * size, texts
    if prompt.messages:
        prompts = [deepcopy(list(prompt.messages)) for _ in texts]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
    hidden = (*PASSED, *NOT_PASSED)
    columns = {}
    for name, value in prompt.columns.items():
        if name not in hidden:
            columns[name] = [deepcopy(value) for _ in texts]
    ids = [copy(completion.ids) for completion in group.completions]
    passed = (prompts, completions, ids, trainer_state, notes.log_extra, notes.log_metric)
    return {**columns, **dict(zip(PASSED, passed, strict=True))}


def on_thread(work: Coroutine[Any, Any, Grades]) -> "Future[Grades]":
    """Run a coroutine on a thread that nobody waits for: it may hang, and the program must be able to end."""
    future: Future[Grades] = Future()

    def run() -> None:
        try:
            grades, error = asyncio.run(work), None
        except Exception as raised:
            grades, error = None, raised
        if future.set_running_or_notify_cancel():
            future.set_exception(error) if error else future.set_result(grades)

    threading.Thread(target=run, name="reward", daemon=True).start()
    return future


async def call(name: str, function: UserFunction, group: Group, trainer_state: TrainerState) -> Grades:
    """Call a function, plain or `async def`, for a group. Whatever it raises is a UserError."""
    size = len(group.completions)
    notes = Notes(size)
    try:
        values = function(**_arguments(group, trainer_state, notes))
        values = _collected(await values if inspect.isawaitable(values) else values)
    except UserError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a reward is never invented in its place
        raise UserError(f"the reward {name} failed", _told(error), "correct the function", INTERNAL) from error
    if not isinstance(values, list) or len(values) != size:
        what, why = f"the reward {name} must return a list of {size} numbers or None", f"it returned {str(values)[:80]}"
        raise UserError(what, why, "return one value per completion", INTERNAL)
    extras = [{column: told[index] for column, told in notes.extra.items()} for index in range(size)]
    details = [{"extra": extra} if extra else {} for extra in extras]
    if all(value is None for value in values):
        reason = "the function returned None for the whole group"
        return [Score(None, reason, details=of_one, applies=False) for of_one in details], notes.metrics
    return [_score(name, value, of_one) for value, of_one in zip(values, details, strict=True)], notes.metrics


def _collected(values: Any) -> Any:
    """Make a list of an array, a tensor or any other ordered collection; leave everything else alone."""
    if hasattr(values, "tolist"):
        return values.tolist()
    is_ordered = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping, Set, Awaitable))
    return list(values) if is_ordered else values


def _as_name(text: Any) -> str:
    """Return the name of a metric or column as files can hold it: without a secret."""
    return encodable(redact(str(text)))


def _as_detail(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return encodable(str(value))


def _score(name: str, value: Any, details: dict[str, Any]) -> Score:
    if value is None:
        return Score(None, "the function returned None", details=details)
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return Score(float(value), details=details)
    except (TypeError, ValueError, OverflowError):
        what = f"the reward {name} returned {str(value)[:80]!r}"
        raise UserError(what, "a reward is a number or None", "correct the function", INTERNAL) from None


def _told(error: BaseException) -> str:
    """Describe an exception, with the file and line in the user's code where it came from, if that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f" ({own[-1].filename}:{own[-1].lineno} in {own[-1].name})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {error}{place}"
