"""Keep this process from forking while one of its threads is in a library whose locks a child would find taken."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST_S = 1.0  # that a fork waits; it may come from a thread that is inside itself


class Gate:
    """Counts the threads inside, and lets nobody in while the process forks."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # not on Windows, where processes cannot fork
            os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._renew)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Hold up forks while the code inside runs."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_forking)
            self.num_inside += 1
        try:
            yield
        finally:
            with self.changed:
                self.num_inside -= 1
                self.changed.notify_all()

    def _close(self) -> None:
        with self.changed:
            self.is_forking = True
            self.changed.wait_for(lambda: not self.num_inside, MOST_S)

    def _open(self) -> None:
        with self.changed:
            self.is_forking = False
            self.changed.notify_all()

    def _renew(self) -> None:
        """Begin, also in a child, where only the thread that has forked goes on."""
        self.changed = threading.Condition()
        self.num_inside = 0
        self.is_forking = False


SQLITE = Gate()
