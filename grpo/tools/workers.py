"""Calls of tools, each with its deadline: on a thread of its own, or on one event loop if the tool is `async def`.

A call may hang: nobody waits for it any longer than its deadline. If MAX_HUNG calls hang, further ones fail at once,
until one of those comes back. So there are never many threads.
"""

import asyncio
import inspect
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from grpo.base.event_loop import EventLoop
from rewards.own import alone, describe_failure, is_async, without_secrets

Function = Callable[[str], str | Awaitable[str]]
Reply = tuple[str, str]  # the result, and why there is none
MAX_RUNNING, MAX_HUNG = 16, 32  # calls
ADDRESS = re.compile("at 0x[0-9a-f]+>")  # in the text of a generator, a function, or an object without a text
POLL_SECONDS, INSTANT_SECONDS = 0.002, 0.05


@dataclass
class Job:
    """A call under way: where its reply goes, and until when it is waited for."""

    number: int
    function: Function
    query: str
    done: "SimpleQueue[tuple[int, Reply]]"
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
        if is_async(job.function):
            job.future = self.loop.run(self._await(job))
            job.future.add_done_callback(lambda _: self._end(job, _reply_of(job.future)))
        else:
            threading.Thread(target=self._call, args=(job,), name="tool", daemon=True).start()

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

    def _call(self, job: Job) -> None:
        try:
            value = alone(partial(job.function, job.query))
            if inspect.isawaitable(value):
                value = asyncio.run(_result_of(value))
            reply = _text_of(value)[: self.max_chars], ""
        except BaseException as error:  # no signal arrives on these threads
            reply = _failed(error)
        self._end(job, reply)

    async def _await(self, job: Job) -> Reply:
        try:
            return _text_of(await job.function(job.query))[: self.max_chars], ""
        except BaseException as error:
            return _failed(error)


class Batch:
    """The calls of one `sample`, in the order in which they were asked for, MAX_RUNNING at a time."""

    def __init__(self, workers: Workers):
        self.workers, self.done = workers, SimpleQueue()
        self.waiting: deque[Job] = deque()
        self.running: dict[int, Job] = {}

    def add(self, number: int, function: Function, query: str) -> None:
        """Ask for a call, and begin it if few are under way."""
        self.waiting.append(Job(number, function, query, self.done))
        self._begin()

    def replies(self, wait: bool) -> list[tuple[int, Reply]]:
        """Return the replies that have come, by the numbers of their calls. wait: for one, 50 ms at most."""
        latest = time.monotonic() + INSTANT_SECONDS
        found = self._come()
        while wait and not found and time.monotonic() < latest:
            time.sleep(POLL_SECONDS)
            found = self._come()
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


async def _result_of(awaitable: Awaitable[str]) -> str:
    return await awaitable


def _reply_of(future: Future) -> Reply:
    return ("", "its event loop has ended") if future.cancelled() else future.result()


def _text_of(value: object) -> str:
    """Return a result as text. TypeError for nothing, for bytes, and for what only an address stands for."""
    text = str(value)
    if value is None or isinstance(value, bytes | bytearray) or ADDRESS.search(text):
        raise TypeError(f"the tool returned a {type(value).__name__}; let it return a text")
    return text


def _failed(error: BaseException) -> Reply:
    return "", without_secrets(describe_failure(error))
