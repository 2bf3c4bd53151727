"""Signals by which a process interrupts itself, and handlers that its children do not inherit.

SIGALRM is not among them: it belongs to users, whose functions may set alarms of their own.
"""

import _thread
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None
_installed: Counter[int] = Counter()  # signal -> how many handlers of this program are installed, one over the other


def install(number: int, handler: Handler) -> Handler:
    """Install the handler of a signal, and return the one that it replaces. A forked child gets the default one."""
    before = signal.signal(number, handler)
    _installed[number] += 1
    return before


def put_back(number: int, before: Handler) -> None:
    """Install again the handler that `install` has replaced."""
    if before is not None:  # a program in C has installed it; Python cannot put it back
        signal.signal(number, before)
    _installed[number] -= 1


def interrupt(number: int) -> None:
    """Have the main thread call the handler of a signal at once, whatever it waits for.

    Windows knows no such signals. The main thread calls the handler there as soon as it runs Python code again.
    """
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, number)
    else:
        _thread.interrupt_main(number)


def is_within_reach() -> bool:
    """Tell whether `interrupt` can end what this thread waits for."""
    return hasattr(signal, "pthread_kill") and threading.current_thread() is threading.main_thread()


def _be_default() -> None:
    """Give a forked child the handlers that a new process has: a signal that ends it must not save the run."""
    for number, times in _installed.items():
        if times > 0:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _installed.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where processes cannot fork
    os.register_at_fork(after_in_child=_be_default)
