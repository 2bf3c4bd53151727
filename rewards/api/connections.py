"""Send requests to an endpoint by OpenAI's SDK: without its retries and redirects, and without what it adds unasked.

The SDK adds OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS and a description of this machine to the requests
to whatever host is configured. Here only the headers in SENT leave, with the endpoint's own key.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import openai

from rewards.api.endpoint import is_local
from rewards.api.limits import Limits, Slots

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


class Connections:
    """Hold what belongs to the running event loop: the SDK's client, slots, and the questions under way."""

    def __init__(self, base_url: str, key: str, limits: Limits):
        self.loop = asyncio.get_running_loop()
        self.slots = Slots(limits.max_concurrency)
        self.running: dict[str, asyncio.Task[ChatReply]] = {}  # by their keys in the cache
        self._key, self._try_s = key, limits.try_s
        http_client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=not is_local(base_url),  # the environment's proxies serve remote hosts only
            timeout=self._try_s,
            event_hooks={"request": [self._send_our_headers_only]},
        )
        self._sdk = openai.AsyncOpenAI(
            api_key=key, base_url=base_url, max_retries=0, timeout=self._try_s, http_client=http_client
        )

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

    async def _send_our_headers_only(self, request: Any) -> None:
        for name in list(request.headers):
            if name.lower() not in SENT:
                del request.headers[name]
        request.headers["authorization"] = f"Bearer {self._key}"
