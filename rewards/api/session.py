"""Send requests to an endpoint by OpenAI's SDK: without its retries and redirects, and without what it adds unasked.

The SDK adds OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS and a description of this machine to the requests
to whatever host is configured. Here only the headers in SENT leave, with the endpoint's own key.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import openai

from rewards.api.reply import ChatReply, Outcome, Trouble, Usage, excerpt, read_body, read_status

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


@dataclass(frozen=True)
class Limits:
    """How much one process asks of an endpoint.

    max_concurrency: questions under way.
    deadline_s: seconds for one question with all its tries and pauses; a single try may take half of it. It starts with
    the question's first request, so waiting for its turn does not count.
    Backoff: before retry n, wait a random time up to min(backoff_s * 2 ** n, max_backoff_s) seconds ("full jitter").
    max_replies: how often a question is asked whose reply is empty or cut.
    preflight_tries: how often an endpoint is asked before the first step.
    dead_after: this many questions in a row without a reply are announced. is_fatal: they end the run.
    """

    max_concurrency: int = 128
    deadline_s: float = 120.0
    backoff_s: float = 0.5
    max_backoff_s: float = 8.0
    max_replies: int = 2
    preflight_tries: int = 4
    dead_after: int = 32
    is_fatal: bool = True


class Session:
    """Hold what belongs to the running event loop: the SDK's client, its limits, and the questions under way."""

    def __init__(self, base_url: str, key: str, limits: Limits):
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(limits.max_concurrency)
        self.running: dict[str, asyncio.Task[ChatReply]] = {}  # by their keys in the cache
        self._key = key
        http_client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=base_url.startswith("https:"),  # the environment's proxies do not serve this machine or network
            timeout=limits.deadline_s,
            event_hooks={"request": [self._send_our_headers_only]},
        )
        self._sdk = openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=http_client)

    async def send(self, request: dict[str, Any], timeout_s: float) -> tuple[Outcome, Usage]:
        """Send one chat request. Whatever the endpoint does ends in an outcome, not in an exception.

        One timeout spans the complete exchange: the SDK's own timeout is per read, so a slow drip would outlive it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self._sdk.chat.completions.with_raw_response.create(**request)
                return read_body(await raw.http_response.aread())
        except openai.APIStatusError as error:
            return read_status(error.status_code, error.response.headers, error.body), (0, 0)
        except (openai.APITimeoutError, TimeoutError):
            return Trouble(f"no answer within {timeout_s:g} s"), (0, 0)
        except (openai.OpenAIError, ValueError, OSError, RuntimeError) as error:
            return Trouble(f"it cannot be reached: {excerpt(error.__cause__ or error)}"), (0, 0)

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
