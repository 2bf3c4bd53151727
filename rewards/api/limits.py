"""What keeps a client polite and calm: requests and tokens per minute, a budget of retries, a circuit breaker.

Plain arithmetic on a clock (seconds, monotonic): nothing here waits, sends or locks; all is called from one thread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Reservation:
    """A place in the queue: seconds to wait for it, its start on the clock, the tokens it counts for, and whether it
    still counts."""

    wait_s: float
    start_s: float
    tokens: int
    counts: bool = True


class RateLimit:
    """At most so many requests and tokens in any window of 60 s; 0 is no limit. First come, first served.

    A sliding window rather than a refilling bucket: a bucket lets twice its limit through in its first minute.
    """

    WINDOW_S = 60.0

    def __init__(self, requests: int, tokens: int, clock: Callable[[], float]):
        self.max_requests, self.max_tokens, self.clock = requests or float("inf"), tokens or float("inf"), clock
        self._window: deque[Reservation] = deque()
        self._tokens = 0

    def reserve(self, tokens: int) -> Reservation:
        """The first moment at which one more request of `tokens` fits. A request above the limit waits for an empty
        window."""
        now = self.clock()
        start = max(now, self._window[-1].start_s) if self._window else now
        while self._window and (
            self._window[0].start_s + self.WINDOW_S <= start
            or len(self._window) >= self.max_requests
            or self._tokens + tokens > self.max_tokens
        ):
            oldest = self._window.popleft()  # nobody after us starts earlier than we do, so it never counts again
            self._tokens -= oldest.tokens
            oldest.counts = False
            start = max(start, oldest.start_s + self.WINDOW_S)
        reservation = Reservation(start - now, start, tokens)
        self._window.append(reservation)
        self._tokens += tokens
        return reservation

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Replaces the estimate by what the request really used."""
        if reservation.counts:
            self._tokens += tokens - reservation.tokens
            reservation.tokens = tokens


class RetryBudget:
    """Retries are spent from `capacity`; every success gives half a retry back. An outage cannot multiply the
    traffic."""

    def __init__(self, capacity: int):
        self.capacity = self.left = float(capacity)

    def spend(self) -> bool:
        """Takes one retry; False if none is left."""
        allowed = self.left >= 1
        self.left -= allowed
        return allowed

    def succeed(self) -> None:
        self.left = min(self.left + 0.5, self.capacity)


class Breaker:
    """After `threshold` failures in a row only one request, the probe, may go out per cool_down_s, until a request
    succeeds."""

    POLL_S = 0.2

    def __init__(self, threshold: int, cool_down_s: float, clock: Callable[[], float]):
        self.threshold, self.cool_down_s, self.clock = threshold, cool_down_s, clock
        self.failures, self.probing = 0, False
        self.opened_at: float | None = None
        self.next_probe = 0.0

    @property
    def open_for_s(self) -> float:
        """Seconds since it opened, 0 while it is closed."""
        return 0.0 if self.opened_at is None else self.clock() - self.opened_at

    def wait_s(self) -> float:
        """Seconds until asking again may help; 0: go. While it is open, 0 makes the caller the probe."""
        if self.opened_at is None:
            return 0.0
        if self.probing or self.clock() < self.next_probe:
            return min(self.POLL_S, self.cool_down_s)
        self.probing = True
        return 0.0

    def succeed(self) -> None:
        self.failures, self.probing, self.opened_at = 0, False, None

    def fail(self, is_probe: bool) -> None:
        self.failures += 1
        if is_probe or (self.opened_at is None and self.failures >= self.threshold):
            now = self.clock()
            self.opened_at = now if self.opened_at is None else self.opened_at
            self.next_probe, self.probing = now + self.cool_down_s, False

    def release(self, is_probe: bool) -> None:
        """The request was given up before it came to an end: another one may be the probe."""
        self.probing = self.probing and not is_probe
