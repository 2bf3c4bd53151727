"""Calls of tools, each with its deadline: on a thread, or on one event loop if the tool is `async def`.

The calls of an environment have a thread of their own (`Line`), any other call gets one for itself. A call may hang:
nobody waits for it any longer than its deadline. If MAX_HUNG calls hang, further ones fail at once, until one of those
comes back. So there are never many threads.
"""

import asyncio
import inspect
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from grpo.base.errors import reason
from grpo.base.event_loop import EventLoop
from rewards.own import alone, is_async
from rewards.own_names import describe_failure, without_secrets

Function = Callable[..., str | Awaitable[str]]
Reply = tuple[str | None, str]  # the result, and why there is none
MAX_RUNNING, MAX_HUNG = 16, 32  # calls
ADDRESS = re.compile("at 0x[0-9a-f]+>")  # in the text of a generator, a function, or an object without a text
POLL_SECONDS, INSTANT_SECONDS = 0.002, 0.05


class Line:
    """A thread of its own that does one piece of work after the other. What can be awaited has one event loop there."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="tool", daemon=True).start()

    def _serve(self) -> None:
        with closing(asyncio.Runner()) as self.runner:
            while work := self.work.get():
                work()

    def ask(self, work: Callable[[], Any]) -> Future:
        """Do some work after all that was asked before, and return its result."""
        future: Future = Future()
        self.work.put(partial(self._settle, future, work))
        return future

    def result_of(self, value: Any) -> Any:
        """Return a value, or on this thread what comes of awaiting it."""
        return self.runner.run(_result_of(value)) if inspect.isawaitable(value) else value

    def _settle(self, future: Future, work: Callable[[], Any]) -> None:
        try:
            future.set_result(self.result_of(alone(work)))
        except BaseException as error:  # no signal arrives on these threads
            future.set_exception(error)


@dataclass
class Job:
    """A call under way: where its reply goes, and until when it is waited for.

    line: the thread that makes it, if it is of an environment. is_told: what it raises is its result. may_end: None is
    a result, too.
    """

    number: int
    call: partial
    done: "SimpleQueue[tuple[int, Reply]]"
    line: Line | None = None
    is_told: bool = False
    may_end: bool = False
    due: float = 0.0
    is_over: bool = False  # it has replied, or was given up
    future: Future | None = None  # of an `async def`


class Workers:
    """The threads of a run's tools. timeout_s: of a call. max_chars: of a result; the rest is cut off."""

    def __init__(self, timeout_s: float, max_chars: int):
        self.timeout_s, self.max_chars = timeout_s, max_chars
        self.lock = threading.Lock()
        self.num_hung = 0  # calls that were given up and have not ended
        self.loop = EventLoop("tools")

    def start(self, job: Job) -> None:
        """Begin a call."""
        if self.num_hung >= MAX_HUNG:
            job.is_over = True
            job.done.put((job.number, ("", f"not called: {MAX_HUNG} calls of tools hang")))
            return
        job.due = time.monotonic() + self.timeout_s
        if is_async(job.call.func) and not job.line:
            job.future = self.loop.run(self._await(job))
            job.future.add_done_callback(lambda future: self._end(job, _reply_of(future)))
            return
        line = job.line or Line()
        line.work.put(partial(self._call, job, line))
        if not job.line:
            line.work.put(None)

    def give_up(self, job: Job) -> bool:
        """Wait for a call no longer; return False if it has replied in the meantime."""
        with self.lock:
            if job.is_over:
                return False
            job.is_over = True
            self.num_hung += 1
        if job.future:
            job.future.cancel()
        return True

    def close(self) -> None:
        """End the event loop; the threads of calls that hang end with the process."""
        self.loop.close()

    def _end(self, job: Job, reply: Reply) -> None:
        """Pass on the reply of a call, unless it was given up."""
        with self.lock:
            if job.is_over:
                self.num_hung -= 1
                return
            job.is_over = True
        job.done.put((job.number, reply))

    def _call(self, job: Job, line: Line) -> None:
        try:
            value = line.result_of(alone(job.call))
            reply = self._reply(job, value)
        except BaseException as error:  # no signal arrives on these threads
            reply = _failed(job, error)
        self._end(job, reply)

    async def _await(self, job: Job) -> Reply:
        try:
            return self._reply(job, await job.call())
        except BaseException as error:
            return _failed(job, error)

    def _reply(self, job: Job, value: Any) -> Reply:
        if job.may_end:  # an environment's own words
            return value if value is None else str(value), ""
        is_nothing = value is None and job.is_told  # a method may only change a state
        return _text_of(str(value) if is_nothing else value)[: self.max_chars], ""


class Batch:
    """Calls in the order in which they were asked for, MAX_RUNNING at a time."""

    def __init__(self, workers: Workers):
        self.workers, self.done = workers, SimpleQueue()
        self.waiting: deque[Job] = deque()
        self.running: dict[int, Job] = {}

    def add(self, number: int, call: partial, **options: Any) -> None:
        """Ask for a call, and begin it if few are under way. options: of the Job."""
        self.waiting.append(Job(number, call, self.done, **options))
        self._begin()

    def replies(self, wait: bool) -> list[tuple[int, Reply]]:
        """Return the replies that have come, by the numbers of their calls. wait: for one, 50 ms at most."""
        latest = time.monotonic() + INSTANT_SECONDS
        found = self._come()
        while wait and not found and time.monotonic() < latest:
            time.sleep(POLL_SECONDS)
            found = self._come()
        return found

    def all(self) -> dict[int, Reply]:
        """Wait for all replies."""
        found: dict[int, Reply] = {}
        while self.running:
            found |= self.replies(wait=True)
        return found

    def _begin(self) -> None:
        while self.waiting and len(self.running) < MAX_RUNNING:
            job = self.waiting.popleft()
            self.running[job.number] = job
            self.workers.start(job)

    def _come(self) -> list[tuple[int, Reply]]:
        now, late = time.monotonic(), f"no answer within {self.workers.timeout_s:g} s (tool_timeout_s)"
        overdue = [job for job in self.running.values() if job.due < now and not job.is_over]
        found = [(job.number, ("", late)) for job in overdue if self.workers.give_up(job)]
        with suppress(Empty):
            while True:
                found.append(self.done.get_nowait())
        for number, _ in found:
            del self.running[number]
        self._begin()
        return found


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _reply_of(future: Future) -> Reply:
    return ("", "its event loop has ended") if future.cancelled() else future.result()


def _text_of(value: object) -> str:
    """Return a result as text. TypeError for nothing, for bytes, and for what only an address stands for."""
    text = str(value)
    if value is None or isinstance(value, bytes | bytearray) or ADDRESS.search(text):
        raise TypeError(f"the tool returned a {type(value).__name__}; let it return a text")
    return text


def _failed(job: Job, error: BaseException) -> Reply:
    if job.is_told and isinstance(error, Exception):
        return without_secrets(f"Error: {reason(error)}"), ""
    return "", without_secrets(describe_failure(error))
