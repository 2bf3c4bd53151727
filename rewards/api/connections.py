"""Send requests to an endpoint by OpenAI's SDK: without its retries and redirects, and without what it adds unasked.

The SDK adds OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS and a description of this machine to the requests
to whatever host is configured. Here only the headers in SENT leave, with the endpoint's own key.
"""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import openai

from rewards.api.endpoint import is_local
from rewards.api.limits import Concurrency

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


class Slots:
    """Let as many requests out at once as the endpoint takes. Of those that wait, the oldest question goes first."""

    def __init__(self, concurrency: Concurrency):
        self.concurrency = concurrency
        self.num_taken = 0
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

    def _let_in(self) -> None:
        while self._waiting and self.concurrency.lets_in(self.num_taken):
            _, slot = heapq.heappop(self._waiting)
            if not slot.done():  # a caller that was cancelled waits no more
                self.num_taken += 1
                slot.set_result(None)


class Connections:
    """Hold what belongs to the running event loop: the SDK's client, slots, and the questions under way."""

    def __init__(self, base_url: str, key: str, try_s: float, concurrency: Concurrency):
        self.loop = asyncio.get_running_loop()
        self.slots = Slots(concurrency)
        self.running: dict[str, asyncio.Task[ChatReply]] = {}  # by their keys in the cache
        self._key, self._try_s = key, try_s
        self._sdk = self._new_sdk(base_url)

    async def post(self, request: dict[str, Any]) -> bytes:
        """Return the body of the endpoint's answer to a chat request. Raise what the SDK raises, and TimeoutError.

        One timeout spans the complete exchange: the SDK's own timeout is per read, so a slow drip would outlive it.
        """
        async with asyncio.timeout(self._try_s):
            raw = await self._sdk.chat.completions.with_raw_response.create(**request)
            return await raw.http_response.aread()

    async def close(self) -> None:
        """Cancel the questions under way, and close all sockets."""
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sdk.close()

    def _new_sdk(self, base_url: str) -> openai.AsyncOpenAI:
        http_client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=not is_local(base_url),  # the environment's proxies serve remote hosts only
            timeout=self._try_s,
            event_hooks={"request": [self._send_our_headers_only]},
        )
        return openai.AsyncOpenAI(
            api_key=self._key, base_url=base_url, max_retries=0, timeout=self._try_s, http_client=http_client
        )

    async def _send_our_headers_only(self, request: Any) -> None:
        for name in list(request.headers):
            if name.lower() not in SENT:
                del request.headers[name]
        request.headers["authorization"] = f"Bearer {self._key}"
