"""Limits on time and memory of foreign code, such as a chat template or a regular expression of a download."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the `with` block after `seconds` of CPU time.

    Python can interrupt only its main thread, and only on Unix; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"it had not ended after {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)  # again and again: Jinja swallows some exceptions
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """Raise MemoryError if the `with` block allocates more than `num_bytes`; only Linux has such a limit.

    It stops a single long operation, such as 'x' * 10**10, which Python cannot interrupt: a long one needs much memory.
    """
    statm = Path("/proc/self/statm")
    try:
        import resource
    except ImportError:
        resource = None
    if resource is None or not statm.exists():
        yield
        return
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    limits = [used + num_bytes, *(limit for limit in before if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    except MemoryError:
        raise MemoryError(f"it takes more than {num_bytes / 1e9:.1f} GB") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
