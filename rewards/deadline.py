"""Give a plain function a deadline on the thread that calls it, and end the children that it forks."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import TypeVar

from grpo.base.alarms import install, interrupt, is_within_reach, put_back
from grpo.base.errors import INTERNAL, exit_now

AGAIN_S = 1.0  # a deadline rings until the function ends, since functions swallow exceptions
T = TypeVar("T")


class TimeOver(BaseException):
    """The time of a function is over. It is no Exception, since functions catch these."""


def in_time(seconds: float | None, work: Callable[[], T], say_late: Callable[[], None]) -> T:
    """Return what `work` returns. Raise TimeOver if it takes more than `seconds`, as soon as it can be interrupted.

    A thread sends SIGPROF to what waits. The system's timer sends the same signal to what computes, since a regular
    expression lets no thread run. Neither reaches another thread than the main one, or one long operation in C: that is
    waited for, and `say_late` is called.
    """
    if seconds is None:
        return work()
    due = time.monotonic() + seconds
    rings_from = due
    is_over = threading.Event()
    can_ring = is_within_reach()

    def ring(number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= rings_from:
            raise TimeOver

    def watch() -> None:
        pause = seconds
        for times in count():
            if is_over.wait(pause):
                return
            if times == can_ring:  # at once where no signal helps, and else if the first one has not
                say_late()
            if can_ring:
                interrupt(signal.SIGPROF)
            pause = AGAIN_S

    before = signal.getsignal(signal.SIGPROF) if can_ring else None
    thread = threading.Thread(target=watch, name="deadline", daemon=True)
    try:
        if can_ring:
            install(signal.SIGPROF, ring)
            signal.setitimer(signal.ITIMER_PROF, AGAIN_S, AGAIN_S)  # `ring` looks at the clock
        thread.start()
        result = work()
    except KeyboardInterrupt:
        raise
    except BaseException:  # after its time it counts for nothing: TimeOver takes its place
        if time.monotonic() < due:
            raise
    finally:
        rings_from = math.inf  # from here on nothing is interrupted
        is_over.set()
        if thread.is_alive():  # the time may be over before it runs; then it ends by itself
            thread.join()
        if can_ring:
            signal.setitimer(signal.ITIMER_PROF, 0)
            put_back(signal.SIGPROF, before)  # a signal that is late would end the process without the steps above
    late = time.monotonic() - due
    if late > 2 * AGAIN_S:  # nothing else could run meanwhile, perhaps not even the thread
        say_late()
    if late >= 0:
        raise TimeOver
    return result


def alone(work: Callable[[], T]) -> T:
    """Return what `work` returns, in this process. A child that it has forked ends here: it must not train, too."""
    process = os.getpid()
    code = 0
    try:
        return work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
        raise
    except BaseException:
        code = INTERNAL
        raise
    finally:
        if os.getpid() != process:
            exit_now(code)
