"""The way to an endpoint: OpenAI's SDK with its retries and redirects off, and without what it sends unasked.

The SDK adds OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS to the requests to whatever host is configured,
and a description of this machine. Here only the headers in SENT leave, and the key is the endpoint's own.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import openai

from rewards.api.endpoint import Limits, is_local

if TYPE_CHECKING:
    from rewards.api.reply import Reply

SENT = {
    "host",
    "accept",
    "accept-encoding",
    "connection",
    "content-type",
    "content-length",
    "user-agent",
    "x-stainless-raw-response",
}  # by the last one the SDK remembers to hand over the body as it is
REQUESTS_PER_SDK = 12


class Connections:
    """What belongs to the running event loop: connections, slots for requests, and the items under way by their cache
    key.

    Connections are spread over several SDK clients, opened as needed: a pool looks at all its connections at each
    request, so that one pool of 96 costs 0.1 s more than eight of 12.
    """

    def __init__(self, base_url: str, key: str, limits: Limits):
        self.loop, self.slots = asyncio.get_running_loop(), asyncio.Semaphore(limits.max_concurrency)
        self.running: dict[str, asyncio.Task[Reply]] = {}
        self._base_url, self._key, self._timeout_s = base_url, key, limits.deadline_s / 2
        self._busy: dict[openai.AsyncOpenAI, int] = {}  # requests under way

    async def post(self, request: dict[str, Any]) -> bytes:
        """The body of the endpoint's answer to a chat request. Raises what the SDK raises, and TimeoutError.

        One timeout spans the whole exchange: the SDK's own is per read, so that a slow drip outlives it.
        """
        sdk = next((sdk for sdk, num in self._busy.items() if num < REQUESTS_PER_SDK), None) or self._new_sdk()
        self._busy[sdk] = self._busy.get(sdk, 0) + 1
        try:
            async with asyncio.timeout(self._timeout_s):
                raw = await sdk.chat.completions.with_raw_response.create(**request)
            return raw.http_response.content
        finally:
            self._busy[sdk] -= 1

    async def close(self) -> None:
        """Cancels the items under way and closes all sockets."""
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sdk in self._busy:
            await sdk.close()

    def _new_sdk(self) -> openai.AsyncOpenAI:
        """trust_env: the environment's proxies serve remote hosts only."""
        http_client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=not is_local(self._base_url),
            timeout=self._timeout_s,
            event_hooks={"request": [self._send_our_headers_only]},
        )
        return openai.AsyncOpenAI(
            api_key=self._key, base_url=self._base_url, max_retries=0, timeout=self._timeout_s, http_client=http_client
        )

    async def _send_our_headers_only(self, request: Any) -> None:
        for name in [name for name in request.headers if name.lower() not in SENT]:
            del request.headers[name]
        request.headers["authorization"] = f"Bearer {self._key}"
