"""How a signal ends a run: after the step that is under way, or, after a grace period, in the middle of its rollout.

A thread rings the alarm, and not the system's timer, since that one and SIGALRM belong to users' functions.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from grpo.base.alarms import Handler, install, interrupt, put_back
from grpo.base.errors import SIGINT, Interrupted
from grpo.engine.device.distributed import Ranks

GRACE_S = 20.0  # after a signal, the step has this long to end; then its rollout is dropped
AGAIN_S = 0.5  # the alarm rings until the run ends, since libraries can swallow what a handler raises
ALARM = getattr(signal, "SIGVTALRM", signal.SIGABRT)  # the latter exists everywhere, and only this program sends it


class Signals:
    """Receives the signals of a run, from `open` to `close`.

    A signal sets `stop_code` to the exit code that it asks for. Before the first step and after the last checkpoint it
    ends the run at once. Otherwise the run ends with the step, or after GRACE_S where `interruptible` allows it.
    """

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.stop_code = 0
        self.is_training = False
        self.is_interruptible = False
        self.is_overdue = False  # whether the grace is over, for shards
        self.is_closed = threading.Event()
        self.alarms: list[threading.Thread] = []
        self.before: dict[int, Handler] = {}  # that were replaced

    def open(self) -> None:
        """Install the handlers, and keep the ones that they replace. Only the main thread receives signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.before = {ALARM: install(ALARM, self._on_alarm)}
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):  # nohup ignores it
                self.before[number] = install(number, self._on_signal)

    def close(self) -> None:
        """Stop the alarm, and install the former handlers again."""
        self.is_closed.set()
        for thread in self.alarms:
            thread.join()  # a late alarm would meet a handler of others
        for number, handler in self.before.items():
            put_back(number, handler)
        self.before = {}

    @property
    def may_end_at_once(self) -> bool:
        """Return whether a signal came that need not wait for the end of a step."""
        return self.stop_code > 0 and not self.is_training

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stop_code == SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait
        self.stop_code = 128 + number
        if self.is_training and self.ranks.is_main:
            again = "; Ctrl-C again stops now" if number == signal.SIGINT else ""
            _write_at_once(f"\nfinishing the step, then saving, for {GRACE_S:.0f} s at most{again}\n")
        self._start_alarm(GRACE_S if self.is_training else AGAIN_S)
        if self.may_end_at_once:
            raise Interrupted(self.stop_code)

    def _start_alarm(self, seconds: float) -> None:
        """Ring after `seconds`, and then every AGAIN_S."""
        thread = threading.Thread(target=self._ring, args=(seconds,), name="alarm", daemon=True)
        thread.start()
        self.alarms.append(thread)

    def _ring(self, seconds: float) -> None:
        while not self.is_closed.wait(seconds):
            interrupt(ALARM)
            seconds = AGAIN_S

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self.is_closed.is_set():
            return
        if self.is_interruptible and self.ranks.shard.world > 1:
            self.is_overdue = True  # the other shards wait in the middle of a product: see `stop_with_shards`
        elif self.may_end_at_once or self.is_interruptible:
            self.is_interruptible = False
            raise Interrupted(self.stop_code)

    @contextmanager
    def interruptible(self, together: bool = False) -> Iterator[None]:
        """Let a signal whose grace is over interrupt the code inside.

        together: all ranks run this code, so all of them stop as soon as one does. Without it, several ranks are not
        interrupted, since the others wait for this rank until the end of the step.
        """
        if self.ranks.world > 1 and not together:
            yield
            return
        stop_code = 0
        self.is_interruptible = True
        try:
            yield
        except Interrupted as stop:
            stop_code = stop.exit_code
        finally:
            self.is_interruptible = self.is_overdue = False
        stop_code = int(self.ranks.max(stop_code))
        if stop_code:
            raise Interrupted(stop_code)

    def stop_with_shards(self) -> None:
        """End the rollout if one of the shards of this model should. All of them call it at the same moments."""
        if self.ranks.shard.world > 1:
            code = int(self.ranks.shard.max(self.stop_code if self.is_overdue else 0))
            if code:
                raise Interrupted(code)

    def stop_if_asked(self, save: Callable[[], None] = lambda: None) -> None:
        """End the run if any rank has received a signal; all ranks `save` before."""
        code = int(self.ranks.max(self.stop_code))
        if code:
            save()
            raise Interrupted(code)


def _write_at_once(text: str) -> None:
    """Write to stderr in a signal handler. In a command, `print` itself may be what the signal has interrupted."""
    if "ipykernel" in sys.modules:  # a notebook shows only what is printed, and its streams may be entered twice
        print(text, file=sys.stderr, flush=True)
    else:
        os.write(2, text.encode())
