"""Limit what a client sends: requests and tokens per minute, requests at once, deadlines.

Nothing here sends or locks anything. All of it is called from one thread.
"""

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much one process asks of an endpoint. 0 requests or tokens per minute: no limit.

    max_concurrency: of requests. While the endpoint says that it is busy, fewer are let out (Slots).
    deadline_s: seconds for one question with all its tries and pauses; a single try may take half of it (try_s). It
    starts when the question's first request is let through, so waiting for a free slot or for the rate limit does not
    count. Until then nothing is given up that another try might answer.
    Backoff: before retry n, wait a random time up to min(backoff_s * 2 ** n, max_backoff_s) seconds ("full jitter").
    max_replies: how often a question is asked whose reply is empty, cut or refused.
    preflight_tries: how often an endpoint that is out of reach is tried before the first step.
    dead_after: this many questions in a row without a usable reply are announced. is_fatal: they end the run.
    """

    max_concurrency: int = 128
    deadline_s: float = 120.0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    backoff_s: float = 0.5
    max_backoff_s: float = 8.0
    max_replies: int = 2
    preflight_tries: int = 4
    dead_after: int = 32
    is_fatal: bool = True

    @property
    def try_s(self) -> float:
        """Return the seconds that one try may take."""
        return self.deadline_s / 2


@dataclass
class Reservation:
    """A place in the queue of requests."""

    wait_s: float  # until its turn
    start_s: float  # its turn, on the clock
    tokens: int  # it counts for this many
    counts: bool = True  # it still lies in the window


class RateLimit:
    """Let at most so many requests and tokens through in any window of 60 s; 0 is no limit. First come, first served.

    The window slides. A bucket that refills would let twice its limit through in its first minute.
    """

    WINDOW_S = 60.0

    def __init__(self, requests: int, tokens: int, clock: Callable[[], float]):
        self.max_requests = requests or float("inf")
        self.max_tokens = tokens or float("inf")
        self.clock = clock
        self._window: deque[Reservation] = deque()
        self._tokens = 0

    def reserve(self, tokens: int) -> Reservation:
        """Find the first moment at which a request of `tokens` fits. One above the limit waits for an empty window."""
        now = start = self.clock()
        if self._window:
            start = max(now, self._window[-1].start_s)
        while self._window and not self._fits(tokens, start):
            oldest = self._window.popleft()  # later requests start later still, so it never counts again
            oldest.counts = False
            self._tokens -= oldest.tokens
            start = max(start, oldest.start_s + self.WINDOW_S)
        reservation = Reservation(start - now, start, tokens)
        self._window.append(reservation)
        self._tokens += tokens
        return reservation

    def _fits(self, tokens: int, start: float) -> bool:
        return (
            self._window[0].start_s + self.WINDOW_S > start
            and len(self._window) < self.max_requests
            and self._tokens + tokens <= self.max_tokens
        )

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Replace the estimate by the tokens that the request really used."""
        if reservation.counts:
            self._tokens += tokens - reservation.tokens
            reservation.tokens = tokens


class Slots:
    """Let as many requests out at once as the endpoint takes. Of those that wait, the oldest question goes first.

    When the endpoint is busy, the number is halved; then each round of successes adds one. Requests under way when it
    was halved do not halve it again: they were sent too early to know.
    """

    def __init__(self, most: int):
        self.most, self.limit = most, float(most)
        self.num_taken = self.num_halvings = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # a heap

    @contextlib.asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """Wait for a slot, and hold it. number: of the question, which waits for one slot at a time."""
        slot = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (number, slot))
        self._let_in()
        try:
            await slot
            yield
        finally:
            if slot.done() and not slot.cancelled():
                self.num_taken -= 1
                self._let_in()

    def slow_down(self, num_taken: int, num_halvings: int) -> None:
        """Halve what was under way. Both numbers are those of the moment when the refused request was sent."""
        if num_halvings == self.num_halvings:
            self.limit = max(1.0, min(self.limit, num_taken) / 2)
            self.num_halvings += 1

    def grow(self) -> None:
        """Count a success."""
        self.limit = min(self.limit + 1 / self.limit, self.most)

    def _let_in(self) -> None:
        while self._waiting and self.num_taken < int(self.limit):
            _, slot = heapq.heappop(self._waiting)
            if not slot.done():  # a caller that was cancelled waits no more
                self.num_taken += 1
                slot.set_result(None)
