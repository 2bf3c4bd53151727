"""Call a function in the main thread after some time, and then repeatedly until it is stopped.

Unix has a timer that interrupts even a wait for another thread. Elsewhere a thread asks the interpreter for the call;
it happens as soon as Python code runs in the main thread again.
"""

import _thread
import signal
import threading
from collections.abc import Callable

HAS_TIMER = hasattr(signal, "setitimer")
SIGNAL = signal.SIGALRM if HAS_TIMER else signal.SIGABRT  # the latter exists everywhere, and only this program sends it
AGAIN_S = 0.5


class Alarm:
    """Calls `ring` when the time is up. It owns the signal SIGNAL from `open` to `close`."""

    def __init__(self, ring: Callable[[], None]):
        self.ring = ring
        self.is_stopped = threading.Event()

    def open(self) -> None:
        self.before = signal.signal(SIGNAL, lambda number, frame: self.ring())

    def start(self, seconds: float) -> None:
        """Ring after `seconds`, and then every AGAIN_S."""
        if HAS_TIMER:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        else:
            threading.Thread(target=self._wait, args=(seconds,), name="alarm", daemon=True).start()

    def close(self) -> None:
        """Stop ringing, and give the signal back."""
        self.is_stopped.set()
        if HAS_TIMER:
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(SIGNAL, self.before)

    def _wait(self, seconds: float) -> None:
        while not self.is_stopped.wait(seconds):
            _thread.interrupt_main(SIGNAL)
            seconds = AGAIN_S
