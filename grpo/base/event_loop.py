"""An event loop on a thread of its own: what waits there holds nobody up, and touches no other thread's loop."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

POLL_SECONDS = 0.002
CLOSE_SECONDS = 1.0  # that closing waits for what is cancelled
T = TypeVar("T")


class EventLoop:
    """Runs coroutines. Its thread starts with the first one, and starts again if one of them has ended the loop."""

    def __init__(self, name: str):
        self.name = name
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine."""
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self.loop,), name=self.name, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def result_of(self, work: Awaitable[T]) -> T:
        """Wait for what can be awaited, and return its result. Whatever interrupts the wait cancels it."""
        future = self.run(_await(work))
        try:
            wait_for(future)
            return future.result()
        finally:
            future.cancel()  # without effect if it is done

    def close(self) -> None:
        """Cancel what is under way, and end the thread, unless something there blocks it."""
        if self.loop is None:
            return
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        latest = time.monotonic() + CLOSE_SECONDS
        while not self.loop.is_closed() and time.monotonic() < latest:
            time.sleep(POLL_SECONDS)


def wait_for(future: Future, latest: float = math.inf) -> None:
    """Wait until a future is done, or until the time `latest` of the monotonic clock.

    A signal interrupts this wait on every system, which a lock's would not.
    """
    while not future.done() and time.monotonic() < latest:
        time.sleep(POLL_SECONDS)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped; cancel what is left, and close the loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


async def _await(work: Awaitable[T]) -> T:
    return await work
