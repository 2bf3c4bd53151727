"""Call users' functions: as TRL does, each within its deadline, and where nothing else waits for it.

A plain function runs on a thread of its own, an `async def` on an event loop of its own. Whatever it raises is a
UserError that names the reward.
"""

import asyncio
import inspect
import math
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field
from typing import Any

from grpo.algorithm.schema import Group, Score
from grpo.base.errors import INTERNAL, UserError
from knowledge.text import encodable
from rewards.custom import NOT_PASSED, PASSED, UserFunction, describe_failure, is_async, shown, without_secrets

Grades = tuple[list[Score], dict[str, list[float]]]  # of a group; and the numbers of each metric that was logged

FIX = "correct the function"
MAX_CALLS = 4  # of plain functions at a time
MAX_NUMBER = 1e15  # in size; sums and squares of larger numbers overflow


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
        self.extra[without_secrets(column)] = [_as_detail(value) for value in values]

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the metric log/NAME, which is the mean of a step's numbers. An infinite one counts as NaN."""
        number = float(value)
        numbers = self.metrics.setdefault(f"log/{without_secrets(name)}", [])
        numbers.append(number if abs(number) <= MAX_NUMBER else math.nan)


class FunctionCalls:
    """The calls of users' functions in a run. One event loop uses it."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(MAX_CALLS)
        self.loops: dict[str, asyncio.AbstractEventLoop] = {}  # by the names of `async def` functions
        # Since the last metrics(): the seconds of each function, and the numbers that they have logged.
        self.seconds: Counter[str] = Counter()
        self.logged: dict[str, list[float]] = defaultdict(list)

    async def grade(
        self, name: str, function: UserFunction, timeout_s: float | None, group: Group, state: TrainerState
    ) -> list[Score]:
        """Call a function; past its deadline, its group is unscorable, and nobody waits for it any longer."""
        has_loop = is_async(function)
        async with nullcontext() if has_loop else self.slots:
            started = time.perf_counter()
            if has_loop:
                work = _await_function(name, function, group, state)
                future = asyncio.run_coroutine_threadsafe(work, self._loop(name))
            else:
                future = _on_thread(name, function, group, state)
            call = asyncio.wrap_future(future)
            try:
                done, _ = await asyncio.wait({call}, timeout=timeout_s)
            finally:
                call.cancel()  # without effect if it is done
                self.seconds[name] += time.perf_counter() - started
        if not done:
            return [Score(None, f"no answer within {timeout_s:g} s (reward_timeout_s)")] * len(group.completions)
        if call.cancelled():
            why = "its event loop has ended: one of its tasks raised SystemExit or KeyboardInterrupt"
            raise UserError(f"the reward {name} failed", why, FIX, INTERNAL)
        scores, logged = call.result()
        for metric, numbers in logged.items():
            self.logged[metric] += numbers
        return scores

    def metrics(self, names: Iterable[str]) -> dict[str, float]:
        """Return the seconds of these functions, and the means of what was logged, since the last call."""
        metrics = {f"rewards/{name}/time": self.seconds[name] for name in names}
        metrics |= {name: statistics.fmean(numbers) for name, numbers in self.logged.items()}
        self.logged.clear()
        self.seconds.clear()
        return metrics

    def close(self) -> None:
        """Give up what is under way."""
        for loop in self.loops.values():
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.stop)

    def _loop(self, name: str) -> asyncio.AbstractEventLoop:
        """Return the event loop of the function with this name. It stays, since a function may keep a session open."""
        if name not in self.loops or self.loops[name].is_closed():
            self.loops[name] = start_loop(f"rewards {name}")
        return self.loops[name]


def start_loop(name: str) -> asyncio.AbstractEventLoop:
    """Start an event loop on a thread of this name; its `stop` cancels what is under way, and closes it."""

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop().run_forever()

    loop = asyncio.new_event_loop()
    threading.Thread(target=serve, name=name, daemon=True).start()
    return loop


# --- a call -------------------------------------------------------------------------------------------------------


def _on_thread(name: str, function: UserFunction, group: Group, state: TrainerState) -> "Future[Grades]":
    """Call a plain function on a thread that nobody waits for: it may hang, and the program must be able to end."""
    future: Future[Grades] = Future()

    def run() -> None:
        try:
            grades, error = _call_function(name, function, group, state), None
        except Exception as raised:
            grades, error = None, raised
        if future.set_running_or_notify_cancel():
            future.set_exception(error) if error else future.set_result(grades)

    threading.Thread(target=run, name="reward", daemon=True).start()
    return future


def _call_function(name: str, function: UserFunction, group: Group, state: TrainerState) -> Grades:
    """Call a plain function, where no event loop runs: it may run one itself. It may also return an awaitable."""
    notes = Notes(len(group.completions))
    with _named(name):
        values = function(**_arguments(group, state, notes))
        values = _collected(asyncio.run(_result_of(values)) if inspect.isawaitable(values) else values)
    return _grades(name, values, notes)


async def _await_function(name: str, function: UserFunction, group: Group, state: TrainerState) -> Grades:
    """Call an `async def` on its event loop."""
    notes = Notes(len(group.completions))
    with _named(name):
        values = _collected(await function(**_arguments(group, state, notes)))
    return _grades(name, values, notes)


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn whatever a function raises into a UserError: a reward is never invented in its place.

    No signal arrives on these threads. So a KeyboardInterrupt is the function's, and so is a CancelledError, unless its
    deadline has passed or the run ends.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_given_up():
            raise
        raise UserError(f"the reward {name} failed", describe_failure(error), FIX, INTERNAL) from error


def _is_given_up() -> bool:
    """Return whether somebody has cancelled the task that runs here."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return False
    return task is not None and task.cancelling() > 0


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


# --- its result ---------------------------------------------------------------------------------------------------


def _grades(name: str, values: Any, notes: Notes) -> Grades:
    """Return the scores of a group. UserError if a function did not return a number or None per completion."""
    size = notes.size
    if not isinstance(values, list) or len(values) != size:
        what, why = f"the reward {name} must return a list of {size} numbers or None", f"it returned {shown(values)}"
        raise UserError(what, why, "return one value per completion", INTERNAL)
    extras = [{column: told[index] for column, told in notes.extra.items()} for index in range(size)]
    details = [{"extra": extra} if extra else {} for extra in extras]
    if all(value is None for value in values):
        reason = "the function returned None for the whole group"
        return [Score(None, reason, details=of_one, applies=False) for of_one in details], notes.metrics
    return [_score(name, value, of_one) for value, of_one in zip(values, details, strict=True)], notes.metrics


def _score(name: str, value: Any, details: dict[str, Any]) -> Score:
    if value is None:
        return Score(None, "the function returned None", details=details)
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return Score(float(value), details=details)
    except BaseException:
        what = f"the reward {name} returned {shown(value)!r}"
        raise UserError(what, "a reward is a number or None", FIX, INTERNAL) from None


def _collected(values: Any) -> Any:
    """Make a list of an array, a tensor or any other ordered collection; leave everything else alone."""
    if hasattr(values, "tolist"):
        return values.tolist()
    is_ordered = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping, Set, Awaitable))
    return list(values) if is_ordered else values


def _as_detail(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return encodable(str(value))
