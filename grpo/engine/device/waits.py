"""How OpenMP's threads wait for each other on a CPU: spinning while the cores are ours, asleep while they are shared.

Between two products each thread of torch waits for the others. libgomp, which the Linux wheels of torch bring, lets it
spin for 3 ms, which is fastest as long as the machine is quiet. Beside one busy process it then holds the core that the
awaited thread needs, and generation takes up to 20 times as long. No variable of the environment serves both. But
libgomp hardly spins once a process has more OpenMP threads than cores; so while our threads are kept waiting for a
core, another thread keeps a team of its own. Measured: bench/LOG.md.
"""

import atexit
import functools
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

PERIOD = 1.0  # seconds between two looks
SHARED, ALONE = 0.25, 0.1  # of a second per second: waits above the first mean shared cores, below the second our own
TEAM_WORK = 1 << 20  # numbers: enough for torch to share them out


def waited() -> float:
    """Return the seconds in which the main thread of this process could run but had no core. Linux counts them."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


class Team:
    """One more team of OpenMP threads, which exists until `end`."""

    def __init__(self):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()

    def _stay(self) -> None:
        torch.zeros(TEAM_WORK).add_(1)
        self._over.wait()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def _watch(over: threading.Event) -> None:
    team, before, then = None, waited(), time.perf_counter()
    while not over.wait(PERIOD):
        try:
            total, now = waited(), time.perf_counter()
        except OSError:  # no file can be opened now
            continue
        share = (total - before) / (now - then)
        before, then = total, now
        if team is None and share > SHARED:
            team = Team()
        elif team and share < ALONE:
            team.end()
            team = None
    if team:
        team.end()


@functools.cache
def watch() -> None:
    """Watch the waits of this process from now on, where the system counts them."""
    with suppress(OSError):  # not on Linux
        waited()
        over = threading.Event()
        thread = threading.Thread(target=_watch, args=(over,), name="waits", daemon=True)
        thread.start()
        # Python ends threads that are left over by force; inside an operation of torch that would abort the process.
        atexit.register(thread.join)
        atexit.register(over.set)  # this one is called first
