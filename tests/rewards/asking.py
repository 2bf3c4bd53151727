"""How the tests ask an endpoint: a client for a server, with short pauses, and questions all at once."""

import asyncio
import functools
import time
from collections.abc import Callable

from api_server import ApiServer

from rewards.api.client import ApiClient
from rewards.api.endpoint import Endpoint, Limits
from rewards.api.reply import ChatReply

KEY = "canary-5e2b-key"
KEY_NAME = "OPENAI_API_KEY_JUDGE"
PATIENCE_S = 60.0  # for what comes by itself: a busy machine may take its time, and nothing waits for this in vain
FAST = Limits(backoff_s=0.005, max_backoff_s=0.02, deadline_s=PATIENCE_S, cool_down_s=0.05)


def client_of(server: ApiServer, limits: Limits = FAST, **more) -> ApiClient:
    return ApiClient(Endpoint("judge", server.url, KEY_NAME, "m", more.pop("prices", (0.0, 0.0))), limits, **more)


async def complete(client: ApiClient, text: str, **more) -> ChatReply:
    return await client.complete([{"role": "user", "content": text}], **{"max_tokens": 4, "prompt_version": "1"} | more)


def check(client: ApiClient) -> ChatReply:
    """Asks as the preflight does."""
    return client.run_sync(lambda client: client.check([{"role": "user", "content": "question"}], 4))


def ask(client: ApiClient, *texts: str) -> list[ChatReply]:
    """All texts at once, then closes the client."""

    async def run():
        try:
            return await asyncio.gather(*[complete(client, text) for text in texts])
        finally:
            await client.aclose()

    return asyncio.run(run())


def until(condition: Callable[[], object]) -> bool:
    """Wait for what another thread or process does. Return whether it came to be."""
    ends = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < ends:
        time.sleep(0.01)
    return bool(condition())


def best_of(tries: int) -> Callable:
    """For a test with a limit of time: on a busy machine one moment says little, so it passes if one of its tries
    does."""

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def tried(*arguments, **options):
            for _ in range(tries - 1):
                try:
                    return test(*arguments, **options)
                except AssertionError:
                    continue
            return test(*arguments, **options)

        return tried

    return decorate
