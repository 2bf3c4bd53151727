"""Send requests to an endpoint by OpenAI's SDK: without its retries and redirects, and without what it adds unasked.

The SDK adds OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS and a description of this machine to the requests
to whatever host is configured. Here only the headers in SENT leave, with the endpoint's own key.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai

from rewards.api.endpoint import is_local

if TYPE_CHECKING:
    from rewards.api.reply import ChatReply

SENT = {
    "host",
    "accept",
    "accept-encoding",
    "connection",
    "content-type",
    "content-length",
    "user-agent",
    "x-stainless-raw-response",  # it makes the SDK hand over the body unread
}
Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Limits:
    """How much one process asks of an endpoint. 0 requests or tokens per minute: no limit.

    max_concurrency: questions under way.
    deadline_s: seconds for one question with all its tries and pauses; a single try may take half of it. It starts with
    the question's first request, so waiting for its turn does not count.
    Backoff: before retry n, wait a random time up to min(backoff_s * 2 ** n, max_backoff_s) seconds ("full jitter").
    max_replies: how often a question is asked whose reply is empty, cut or refused.
    preflight_tries: how often an endpoint is asked before the first step.
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


@dataclass
class Sent:
    """A request of the last minute: when it was sent, and its tokens, estimated until the endpoint reports them."""

    at_s: float
    tokens: int


class RateLimit:
    """Let at most so many requests and tokens through in any window of 60 s; 0 is no limit. First come, first served.

    The window slides. A bucket that refills would let twice its limit through in its first minute.
    """

    WINDOW_S = 60.0

    def __init__(
        self,
        requests: int,
        tokens: int,
        sleep: Sleep = asyncio.sleep,
        clock: Clock = time.monotonic,
    ):
        self.max_requests = requests or float("inf")
        self.max_tokens = tokens or float("inf")
        self._sleep, self._clock = sleep, clock
        self._turn = asyncio.Lock()
        self._window: deque[Sent] = deque()

    async def wait(self, tokens: int) -> Sent:
        """Wait until a request of `tokens` fits. One above the limit waits for an empty window."""
        async with self._turn:
            while self._is_full(tokens):
                await self._sleep(self._window[0].at_s + self.WINDOW_S - self._clock())
            sent = Sent(self._clock(), tokens)
            self._window.append(sent)
            return sent

    def _is_full(self, tokens: int) -> bool:
        while self._window and self._window[0].at_s <= self._clock() - self.WINDOW_S:
            self._window.popleft()
        num_tokens = tokens + sum(sent.tokens for sent in self._window)
        return bool(self._window) and (len(self._window) >= self.max_requests or num_tokens > self.max_tokens)


class Session:
    """Hold what belongs to the running event loop: the SDK's client, its limits, and the questions under way."""

    def __init__(self, base_url: str, key: str, limits: Limits, sleep: Sleep, clock: Clock):
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(limits.max_concurrency)
        self.rate = RateLimit(limits.requests_per_minute, limits.tokens_per_minute, sleep, clock)
        self.running: dict[str, asyncio.Task[ChatReply]] = {}  # by their keys in the cache
        self._key = key
        http_client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=not is_local(base_url),  # the environment's proxies serve remote hosts only
            timeout=limits.deadline_s,
            event_hooks={"request": [self._send_our_headers_only]},
        )
        self._sdk = openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=http_client)

    async def post(self, request: dict[str, Any], timeout_s: float) -> bytes:
        """Return the body of the endpoint's answer to a chat request. Raise what the SDK raises, and TimeoutError.

        One timeout spans the complete exchange: the SDK's own timeout is per read, so a slow drip would outlive it.
        """
        async with asyncio.timeout(timeout_s):
            raw = await self._sdk.chat.completions.with_raw_response.create(**request)
            return await raw.http_response.aread()

    async def close(self) -> None:
        """Cancel the questions under way, and close all sockets."""
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sdk.close()

    async def _send_our_headers_only(self, request: Any) -> None:
        for name in list(request.headers):
            if name.lower() not in SENT:
                del request.headers[name]
        request.headers["authorization"] = f"Bearer {self._key}"
