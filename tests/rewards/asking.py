"""How the tests ask an endpoint: a client for a server, with short pauses, and questions all at once."""

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Callable
from dataclasses import replace

from api_server import ApiServer

from grpo.config.options import TrainConfig
from rewards.api.client import ApiClient, Limits
from rewards.api.endpoint import Endpoint
from rewards.api.reply import ChatReply
from rewards.outcome.judge import Judgement, ModelJudge
from rewards.registry import Resource

KEY = "canary-5e2b-key"
KEY_NAME, FACTS_KEY_NAME = "OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE"
PACES = (1, 2, 4, 8)
# For what comes by itself. A busy machine may take its time; only a broken program makes a test wait for this in vain.
PATIENCE_S = float(os.environ.get("PATIENCE_S", 600))
FAST = Limits(deadline_s=PATIENCE_S)


def client_of(server: ApiServer, cache=None, **limits) -> ApiClient:
    return ApiClient(Endpoint("judge", server.url, KEY_NAME, "m"), replace(FAST, **limits), cache)


def judge_of(server: ApiServer, cache=None) -> ModelJudge:
    return ModelJudge(client_of(server, cache), TrainConfig().judge_max_tokens)


class SetJudge(Resource):
    """A judge that gives one verdict and remembers what it was asked."""

    def __init__(self, outcome: str | None):
        self.outcome, self.asked = outcome, []

    async def judge(self, *asked) -> Judgement:
        self.asked.append(asked)
        return self.outcome, "as told"


async def complete(client: ApiClient, text: str, **more) -> ChatReply:
    return await client.complete([{"role": "user", "content": text}], **{"max_tokens": 4, "prompt_version": "1"} | more)


def check(client: ApiClient) -> ChatReply:
    """Asks as the preflight does."""
    return client.run_sync(client.check([{"role": "user", "content": "question"}], max_tokens=4))


def ask(client: ApiClient, *texts: str) -> list[ChatReply]:
    """All texts at once, then closes the client."""

    try:
        return client.run_sync(complete_all(client, *texts))
    finally:
        client.close()


async def complete_all(client: ApiClient, *texts: str) -> list[ChatReply]:
    return await asyncio.gather(*[complete(client, text) for text in texts])


def until(condition: Callable[[], object]) -> bool:
    """Wait for what another thread or process does. Return whether it came to be."""
    ends = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < ends:
        time.sleep(0.01)
    return bool(condition())


def at_any_pace(test: Callable) -> Callable:
    """For a test with a limit of time, which multiplies all its times by `pace`. A busy machine needs more time for
    everything, so the test passes if it does in one of four worlds, each twice as slow as the one before."""

    @functools.wraps(test)
    def tried(*arguments, **options):
        for pace in PACES:
            try:
                return test(*arguments, **options, pace=pace)
            except AssertionError:
                if pace == PACES[-1]:
                    raise

    signature = inspect.signature(test)
    others = [parameter for name, parameter in signature.parameters.items() if name != "pace"]
    tried.__signature__ = signature.replace(parameters=others)  # pytest would take `pace` for a fixture
    return tried
