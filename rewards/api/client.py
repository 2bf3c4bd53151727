"""The one client for judge and decomposer: OpenAI's SDK behind one owner of retries, deadlines, limits, cache and
costs.

An outage never becomes a number: an item ends as a text or as unscorable with a reason, and what only the user can mend
(key, quota, model's name) ends the run with exit code 4. One event loop at a time uses a client; `close` may be called
from any thread.
"""

import asyncio
import ipaddress
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import openai

from grpo.errors import PREFLIGHT, SERVICE, UserError
from rewards.api.cache import ReplyCache, cache_key
from rewards.api.connections import Connections
from rewards.api.endpoint import Endpoint, Limits, decomposer_endpoint, forbidden, judge_endpoint, read_limits
from rewards.api.limits import Breaker, RateLimit, Reservation, RetryBudget
from rewards.api.reply import CUT, Permanent, Reply, Trouble, Usage, clean, excerpt, read_body, read_status

Messages = Sequence[Mapping[str, str]]
PROBE = ({"role": "user", "content": "Reply with the letter A."},)
CLOSED = Reply(None, "the client was closed")
COUNTS = ("calls", "retries", "failures", "unscorable", "cache_hits", "prompt_tokens", "completion_tokens")
MIN_SECRET = 6  # characters; a shorter key is a placeholder for a local server, and perhaps an ordinary word
CHARS_PER_TOKEN = 3  # an upper estimate of the tokens a prompt will count for; corrected by what the endpoint reports


class ApiClient:
    """Asks one endpoint. Raises UserError (exit 3) at once if its key is missing.

    cache: replies on disk; the client closes it. sleep and clock (seconds): for tests.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits = Limits(),
        cache: ReplyCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.endpoint, self.limits, self.cache, self._sleep, self._clock = endpoint, limits, cache, sleep, clock
        self._key = endpoint.read_key()
        self._rate = RateLimit(limits.requests_per_minute, limits.tokens_per_minute, clock)
        self._budget = RetryBudget(limits.retry_budget)
        self._breaker = Breaker(limits.breaker_failures, limits.cool_down_s, clock)
        self._random = random.Random()
        self._counts: Counter[str] = Counter()
        self._connections: Connections | None = None
        self._permanent: Permanent | None = None
        self._closed = False

    async def complete(
        self,
        messages: Messages,
        *,
        max_tokens: int,
        prompt_version: str,
        temperature: float = 0.0,
        nonce: str = "",
        accept: Callable[[str], bool] = bool,
    ) -> Reply:
        """The model's reply, from the cache if it was given before. Equal questions under way are asked once.

        max_tokens: of the reply. nonce: a random word in the messages, which the cache disregards. accept: which
        replies may be cached. Raises UserError (exit 4) for failures that concern every request; such a client asks
        nothing any more.
        """
        if self._closed:
            return CLOSED
        key = cache_key(
            self.endpoint.model, {"max_tokens": max_tokens, "temperature": temperature}, prompt_version, messages, nonce
        )
        cached = self.cache.get(key) if self.cache else None
        if cached is not None:
            self._counts["cache_hits"] += 1
            return Reply(cached)
        connections = self._connect()
        task = connections.running.get(key)
        if task is None:
            task = asyncio.create_task(self._ask_and_keep(connections, key, messages, max_tokens, temperature, accept))
            connections.running[key] = task
            task.add_done_callback(lambda done: (connections.running.pop(key), done.cancelled() or done.exception()))
        else:
            self._counts["cache_hits"] += 1
        await asyncio.wait({task})  # neither cancels the task with its caller, nor the caller with the task
        return CLOSED if task.cancelled() else task.result()

    async def check(self, messages: Messages = PROBE, max_tokens: int = 16) -> Reply:
        """One uncached question before the first step. Raises UserError (exit 3) if the endpoint cannot answer it."""
        try:
            await self._check_address()
            reply = await self._ask(self._connect(), messages, max_tokens, 0.0)
        except UserError as error:
            raise UserError(error.what, error.why, error.fix, PREFLIGHT) from None
        if reply.text is None and reply.reason != CUT:
            raise UserError(
                f"the {self.endpoint.name} at {self.endpoint.base_url} gives no answer",
                reply.reason,
                "check its base_url and that the service is up",
                PREFLIGHT,
            )
        return reply

    def check_sync(self, messages: Messages = PROBE, max_tokens: int = 16) -> Reply:
        """`check` on an event loop of its own, whose connections end with it."""

        async def check() -> Reply:
            client = ApiClient(self.endpoint, self.limits, sleep=self._sleep, clock=self._clock)
            try:
                return await client.check(messages, max_tokens)
            finally:
                self._counts.update(client._counts)
                await client.aclose()

        return asyncio.run(check())

    def metrics(self) -> dict[str, float]:
        """Totals since the start, as <endpoint>/<name>: requests sent, tokens, US dollars, ...; see COUNTS."""
        prompt_price, completion_price = self.endpoint.prices
        cost = (
            self._counts["prompt_tokens"] * prompt_price + self._counts["completion_tokens"] * completion_price
        ) / 1e6
        return {f"{self.endpoint.name}/{name}": float(self._counts[name]) for name in COUNTS} | {
            f"{self.endpoint.name}/cost": cost
        }

    async def aclose(self) -> None:
        """Ends everything under way as unscorable, closes connections and cache. Call it on the client's event loop."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()
        if self.cache is not None:
            self.cache.close()

    def close(self, timeout_s: float = 2.0) -> None:
        """`aclose` from any other thread than the event loop's; also after that loop has been stopped."""
        self._closed = True
        loop = self._connections.loop if self._connections else None
        if loop is not None and loop.is_running():
            try:
                asyncio.run_coroutine_threadsafe(self.aclose(), loop).result(timeout_s)
            except TimeoutError:
                pass  # the loop is stopping or stuck: its connections end with the process
        elif loop is not None and not loop.is_closed():
            loop.run_until_complete(self.aclose())
        elif self.cache is not None:
            self.cache.close()

    def _connect(self) -> Connections:
        if self._connections is None or self._connections.loop is not asyncio.get_running_loop():
            if self._connections is not None and self._connections.loop.is_running():
                raise RuntimeError("an ApiClient is used from one event loop at a time")
            self._connections = Connections(self.endpoint.base_url, self._key, self.limits)
        return self._connections

    async def _ask_and_keep(
        self,
        connections: Connections,
        key: str,
        messages: Messages,
        max_tokens: int,
        temperature: float,
        accept: Callable[[str], bool],
    ) -> Reply:
        reply = await self._ask(connections, messages, max_tokens, temperature)
        if reply.text is None:
            self._counts["unscorable"] += 1
        elif self.cache is not None and accept(reply.text):
            self.cache.put(key, reply.text)
        return reply

    async def _ask(self, connections: Connections, messages: Messages, max_tokens: int, temperature: float) -> Reply:
        """One item: waits for a slot and for the rate limit, then has its deadline for all its tries."""
        messages = [{"role": message["role"], "content": clean(message["content"])} for message in messages]
        request = {
            "model": self.endpoint.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        troubles: list[str] = []
        async with connections.slots:
            reservation = await self._reserve(
                sum(len(message["content"]) for message in messages) // CHARS_PER_TOKEN + max_tokens
            )
            try:
                async with asyncio.timeout(self.limits.deadline_s) as deadline:
                    reply = await self._tries(connections, request, reservation, deadline, troubles)
            except TimeoutError:
                reply = Reply(None, "; ".join([f"no answer within {self.limits.deadline_s:g} s", *troubles[-1:]]))
        return Reply(reply.text, self._redact(reply.reason))

    async def _tries(
        self,
        connections: Connections,
        request: dict[str, Any],
        reservation: Reservation,
        deadline: asyncio.Timeout,
        troubles: list[str],
    ) -> Reply:
        """Requests until one is answered or trying again is no use. troubles: collects why they failed."""
        while True:
            if (outage := await self._pass_breaker()) is not None:
                return outage
            outcome = await self._try(connections, request, reservation)
            if isinstance(outcome, Reply):
                return outcome
            troubles.append(outcome.reason)
            if len(troubles) >= self.limits.max_tries:
                return Reply(None, f"{outcome.reason}; given up after {len(troubles)} tries")
            longest_s = min(self.limits.backoff_s * 2 ** (len(troubles) - 1), self.limits.max_backoff_s)
            pause_s = max(outcome.wait_s, self._random.uniform(0, longest_s))
            if pause_s > deadline.when() - connections.loop.time():
                return Reply(None, f"{outcome.reason}; the next try, in {pause_s:.0f} s, would come after the deadline")
            if not self._budget.spend():
                return Reply(None, f"{outcome.reason}; the budget of retries is spent")
            self._counts["retries"] += 1
            await self._sleep(pause_s)
            reservation = await self._reserve(reservation.tokens)

    async def _reserve(self, tokens: int) -> Reservation:
        """Waits for the rate limit."""
        reservation = self._rate.reserve(tokens)
        if reservation.wait_s > 0:
            await self._sleep(reservation.wait_s)
        return reservation

    async def _pass_breaker(self) -> Reply | None:
        """Waits while the endpoint seems down; a Reply once that has lasted for an item's whole deadline."""
        while (wait_s := self._breaker.wait_s()) > 0:
            if self._breaker.open_for_s > self.limits.deadline_s:
                return Reply(None, f"the {self.endpoint.name} has failed for {self._breaker.open_for_s:.0f} s")
            await self._sleep(wait_s)
        return None

    async def _try(
        self, connections: Connections, request: dict[str, Any], reservation: Reservation
    ) -> Reply | Trouble:
        """One request, with its consequences for breaker, budget and counts. Raises UserError (exit 4) on a permanent
        failure."""
        if self._permanent is not None:
            raise self._permanent_error()
        is_probe = self._breaker.probing
        self._counts["calls"] += 1
        try:
            outcome, usage = await self._send(connections, request)
        except BaseException:
            self._breaker.release(is_probe)
            raise
        self._counts.update(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        if usage.prompt_tokens:
            self._rate.settle(reservation, usage.prompt_tokens + usage.completion_tokens)
        if isinstance(outcome, Permanent):
            self._counts["failures"] += 1
            self._permanent = outcome
            raise self._permanent_error()
        if isinstance(outcome, Trouble):
            self._counts["failures"] += 1
            self._breaker.fail(is_probe) if outcome.outage else self._breaker.release(is_probe)
            return outcome
        self._breaker.succeed()
        self._budget.succeed()
        return outcome

    async def _send(
        self, connections: Connections, request: dict[str, Any]
    ) -> tuple[Reply | Trouble | Permanent, Usage]:
        """One request to the wire and back. Whatever the endpoint does ends in an outcome, not in an exception."""
        try:
            return read_body(await connections.post(request))
        except openai.APIStatusError as error:
            return read_status(error.status_code, error.response.headers, error.body), Usage()
        except (openai.APITimeoutError, TimeoutError):
            return Trouble(f"no answer within {self.limits.deadline_s / 2:g} s"), Usage()
        except (openai.OpenAIError, ValueError, OSError, RuntimeError) as error:
            return Trouble(f"it cannot be reached: {excerpt(error.__cause__ or error)}"), Usage()

    async def _check_address(self) -> None:
        """A host's name may hide a link-local address. Names that cannot be looked up show when the endpoint is
        asked."""
        host = urlsplit(self.endpoint.base_url).hostname
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:
            return
        if any(forbidden(ipaddress.ip_address(entry[4][0].partition("%")[0])) for entry in found):
            raise UserError(
                f"{self.endpoint.name}_base_url is not allowed",
                f"{host} stands for a link-local address",
                "name the service itself",
                PREFLIGHT,
            )

    def _permanent_error(self) -> UserError:
        return UserError(
            f"the {self.endpoint.name} at {self.endpoint.base_url} refuses the request",
            self._redact(self._permanent.why),
            self._permanent.fix,
            SERVICE,
        )

    def _redact(self, text: str) -> str:
        """A text without the key, and without the halves of it that some services quote."""
        text = text.replace(self._key, "[key]") if len(self._key) >= MIN_SECRET else text
        return re.sub(r"\b(sk|pk)-[\w*.-]{4,}", "[key]", text)


def judge_client(options: Mapping[str, Any]) -> ApiClient:
    """The judge's client; see grpo/config/options.py for the keys."""
    return ApiClient(judge_endpoint(options), read_limits(options), _open_cache(options))


def decomposer_client(options: Mapping[str, Any]) -> ApiClient:
    """The decomposer's client."""
    return ApiClient(decomposer_endpoint(options), read_limits(options), _open_cache(options))


def _open_cache(options: Mapping[str, Any]) -> ReplyCache | None:
    return ReplyCache(options["api_cache"]) if options["api_cache"] else None
