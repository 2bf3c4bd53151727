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
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from grpo.base.errors import reason
from grpo.base.event_loop import EventLoop
from rewards.own import alone, is_async
from rewards.own_names import describe_failure, without_secrets

Function = Callable[..., Any]  # returns a text, or what can be awaited for it
Reply = tuple[str | None, str]  # the result, and why there is none
MAX_RUNNING, MAX_HUNG = 16, 32  # calls
ADDRESS = re.compile("at 0x[0-9a-f]+>")  # in the text of a generator, a function, or an object without a text
POLL_SECONDS, INSTANT_SECONDS = 0.002, 0.05


class Line:
    """A thread of its own that does one piece of work after the other. What can be awaited has one event loop there."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="tool", daemon=True).start()

    def ask(self, work: Callable[[], Any]) -> Future:
        """Do some work after all that was asked before, and return its result."""
        future: Future = Future()
        self.work.put(partial(self._settle, future, work))
        return future

    def end(self) -> None:
        """End the thread after all that was asked."""
        self.work.put(None)

    def _serve(self) -> None:
        with closing(asyncio.Runner()) as self.runner:
            while work := self.work.get():
                work()

    def _settle(self, future: Future, work: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            value = alone(work)
            future.set_result(self.runner.run(_result_of(value)) if inspect.isawaitable(value) else value)
        except StopIteration as error:  # asyncio's futures take none
            future.set_exception(RuntimeError(describe_failure(error)))
        except BaseException as error:  # no signal arrives on these threads
            future.set_exception(error)


@dataclass
class Job:
    """A call.

    line: the thread that makes it, if it is of an environment. may_end: None is a result, and an error has none.
    due: until when it is waited for.
    """

    number: int
    call: partial
    line: Line | None = None
    may_end: bool = False
    due: float = 0.0
    future: Future = field(default_factory=Future)


class Workers:
    """Calls in the order in which they were asked for, MAX_RUNNING at a time.

    timeout_s: of a call. is_typed: what a tool raises is its result.
    """

    def __init__(self, timeout_s: float, is_typed: bool):
        self.timeout_s = timeout_s
        self.is_typed = is_typed
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.hung: list[Future] = []  # calls that were given up
        self.loop = EventLoop("tools")

    def add(self, job: Job) -> None:
        """Ask for a call, and begin it if few are under way."""
        self.waiting.append(job)
        self._begin()

    def replies(self, wait: bool) -> list[tuple[int, Reply]]:
        """Return the replies that have come, by the numbers of their calls. wait: for one, 50 ms at most."""
        latest = time.monotonic() + INSTANT_SECONDS
        while not (found := self._come()) and wait and time.monotonic() < latest:
            time.sleep(POLL_SECONDS)
        return found

    def forget(self) -> None:
        """Wait for no call any longer."""
        self.waiting.clear()
        self.running.clear()

    def close(self) -> None:
        """End the event loop; the threads of calls that hang end with the process."""
        self.loop.close()

    def _begin(self) -> None:
        while self.waiting and len(self.running) < MAX_RUNNING:
            job = self.waiting.popleft()
            self.running.append(job)
            job.due = time.monotonic() + self.timeout_s
            self.hung = [future for future in self.hung if not future.done()]
            if len(self.hung) >= MAX_HUNG:
                job.future.set_result(("", f"not called: {MAX_HUNG} calls of tools hang"))
            elif not job.line and is_async(job.call.func):
                job.future = self.loop.run(self._await(job, job.call))
            else:
                line = job.line or Line()
                job.future = line.ask(partial(self._call, job))
                if not job.line:
                    line.end()

    def _come(self) -> list[tuple[int, Reply]]:
        now = time.monotonic()
        found = []
        for job in list(self.running):
            if job.future.done() or job.due < now:
                self.running.remove(job)
                found.append((job.number, self._reply(job)))
        self._begin()
        return found

    def _reply(self, job: Job) -> Reply:
        """Return the reply of a call that is over, or was given up."""
        future = job.future
        if not future.done():
            future.cancel()
            self.hung.append(future)
            return "", f"no answer within {self.timeout_s:g} s (tool_timeout_s)"
        if future.cancelled():
            return "", "its event loop has ended"
        error = future.exception()
        return ("", type(error).__name__) if error else future.result()

    # What follows runs on the thread of a call, since it calls what is the user's: `__str__`, for one.

    def _call(self, job: Job) -> Any:
        """Make a call; return its reply, or what can be awaited for that."""
        try:
            value = alone(job.call)
            return self._await(job, lambda: value) if inspect.isawaitable(value) else (self._text_of(job, value), "")
        except BaseException as error:
            return self._failed(job, error)

    async def _await(self, job: Job, begin: Callable[[], Any]) -> Reply:
        """Return the reply of a call that is awaited."""
        try:
            return self._text_of(job, await begin()), ""
        except BaseException as error:  # SystemExit would end the event loop, and with it the other calls there
            task = asyncio.current_task()
            if task and task.cancelling():  # its time is over, or the event loop ends
                raise asyncio.CancelledError from None
            return self._failed(job, error)

    def _failed(self, job: Job, error: BaseException) -> Reply:
        if self.is_typed and not job.may_end and isinstance(error, Exception):
            return without_secrets(f"Error: {reason(error)}"), ""
        return "", without_secrets(describe_failure(error))

    def _text_of(self, job: Job, value: Any) -> str | None:
        """Return a result as text. TypeError for nothing, for bytes, and for what only an address stands for.

        Of what may end a completion, for all but a text and nothing: an observation of several parts is no text.
        """
        if value is None and job.may_end:
            return None
        text = str(value)
        is_missing = value is None and not self.is_typed  # a method may only change a state
        is_no_text = job.may_end or isinstance(value, bytes | bytearray) or ADDRESS.search(text)
        if is_missing or (is_no_text and not isinstance(value, str)):
            raise TypeError(f"the tool returned a {type(value).__name__}; let it return a text")
        return text


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
