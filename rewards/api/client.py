"""Ask a language model behind an API by OpenAI's SDK; retries, deadlines, limits, cache and costs are handled here.

An outage never becomes a number: a question ends as a text, or as unscorable with a reason. What only the user can
repair (key, quota, the model's name) ends the run with exit code 4. One event loop at a time uses a client; `close` may
be called from any thread.
"""

import asyncio
import contextlib
import ipaddress
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import openai

from grpo.errors import MIN_SECRET, PREFLIGHT, SERVICE, UserError
from knowledge.sanitise import encodable
from rewards.api.cache import ReplyCache, cache_key
from rewards.api.connections import Connections
from rewards.api.endpoint import Endpoint, Limits, decomposer_endpoint, is_forbidden, judge_endpoint, read_limits
from rewards.api.limits import Breaker, RateLimit, Reservation, RetryBudget
from rewards.api.reply import CUT, ChatReply, Permanent, Trouble, Usage, excerpt, read_body, read_status

Messages = Sequence[Mapping[str, str]]
Request = dict[str, Any]  # the body of a chat request
PROBE = ({"role": "user", "content": "Reply with the letter A."},)
CLOSED = ChatReply(None, "the client was closed")
COUNTS = ("calls", "retries", "failures", "unscorable", "cache_hits", "prompt_tokens", "completion_tokens")
DEFAULT_LIMITS = Limits()
CHARS_PER_TOKEN = 3  # gives an upper estimate of a prompt's tokens; what the endpoint reports corrects it


class ApiClient:
    """Ask one endpoint. Raises UserError (exit 3) at once if its key is missing.

    cache: replies on disk; the client closes it. sleep and clock (seconds): for tests.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits = DEFAULT_LIMITS,
        cache: ReplyCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.endpoint, self.limits, self.cache = endpoint, limits, cache
        self._sleep = sleep
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
        nonce: str = "",
        accept: Callable[[str], bool] = bool,
    ) -> ChatReply:
        """Return the model's reply, from the cache if it was given before. Equal questions under way are asked once.

        max_tokens: of the reply. nonce: a random word in the messages, which the cache disregards. accept: which
        replies may be cached. Raises UserError (exit 4) for failures that concern every request; such a client asks
        nothing any more.
        """
        if self._closed:
            return CLOSED
        parameters = _parameters(max_tokens)
        key = cache_key(self.endpoint.model, parameters, prompt_version, messages, nonce)
        cached = self.cache.get(key) if self.cache else None
        if cached is not None:
            self._counts["cache_hits"] += 1
            return ChatReply(cached)
        connections = self._connect()
        running = connections.running
        if key in running:
            self._counts["cache_hits"] += 1
        else:
            request = self._request(messages, max_tokens)
            running[key] = asyncio.create_task(self._ask_and_keep(connections, key, request, accept))
            running[key].add_done_callback(lambda task: _forget(running, key, task))
        task = running[key]
        await asyncio.wait({task})  # a cancelled caller does not cancel the task, which others may wait for
        return CLOSED if task.cancelled() else task.result()

    async def check(self, messages: Messages = PROBE, max_tokens: int = 16) -> ChatReply:
        """Ask one uncached question before the first step. Raise UserError (exit 3) if the endpoint cannot answer."""
        try:
            await self._check_address()
            reply = await self._ask(self._connect(), self._request(messages, max_tokens))
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

    def check_sync(self, messages: Messages = PROBE, max_tokens: int = 16) -> ChatReply:
        """Run `check` on an event loop of its own, whose connections end with it."""

        async def check() -> ChatReply:
            try:
                return await self.check(messages, max_tokens)
            finally:
                await self._disconnect()

        return asyncio.run(check())

    def metrics(self) -> dict[str, float]:
        """Return the totals since the start, as <endpoint>/<name>: the COUNTS, and the cost in US dollars."""
        prompt_price, completion_price = self.endpoint.prices
        prompt_cost = self._counts["prompt_tokens"] * prompt_price
        completion_cost = self._counts["completion_tokens"] * completion_price
        totals = {name: float(self._counts[name]) for name in COUNTS}
        totals["cost"] = (prompt_cost + completion_cost) / 1e6
        return {f"{self.endpoint.name}/{name}": total for name, total in totals.items()}

    async def aclose(self) -> None:
        """End all questions under way as unscorable; close connections and cache. Call it on the client's loop."""
        self._closed = True
        await self._disconnect()
        if self.cache is not None:
            self.cache.close()

    def close(self, timeout_s: float = 2.0) -> None:
        """Run `aclose` from any thread but the event loop's own; also after that loop has been stopped."""
        self._closed = True
        loop = self._connections.loop if self._connections else None
        if loop is not None and loop.is_running():
            with contextlib.suppress(TimeoutError):  # the loop is stopping or stuck: connections end with the process
                asyncio.run_coroutine_threadsafe(self.aclose(), loop).result(timeout_s)
        elif loop is not None and not loop.is_closed():
            loop.run_until_complete(self.aclose())
        elif self.cache is not None:
            self.cache.close()

    def _connect(self) -> Connections:
        """Return the connections of the running event loop, which replace those of an earlier loop."""
        if self._connections is not None:
            loop = self._connections.loop
            if loop is asyncio.get_running_loop():
                return self._connections
            if loop.is_running():
                raise RuntimeError("an ApiClient is used from one event loop at a time")
        self._connections = Connections(self.endpoint.base_url, self._key, self.limits)
        return self._connections

    async def _disconnect(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    def _request(self, messages: Messages, max_tokens: int) -> Request:
        cleaned = [{"role": message["role"], "content": encodable(message["content"])} for message in messages]
        return {"model": self.endpoint.model, "messages": cleaned, **_parameters(max_tokens)}

    async def _ask_and_keep(
        self, connections: Connections, key: str, request: Request, accept: Callable[[str], bool]
    ) -> ChatReply:
        reply = await self._ask(connections, request)
        if reply.text is None:
            self._counts["unscorable"] += 1
        elif self.cache is not None and accept(reply.text):
            self.cache.put(key, reply.text)
        return reply

    async def _ask(self, connections: Connections, request: Request) -> ChatReply:
        """Wait for a slot and for the rate limit; then all tries together have one deadline."""
        num_chars = sum(len(message["content"]) for message in request["messages"])
        num_tokens = num_chars // CHARS_PER_TOKEN + request["max_tokens"]
        troubles: list[str] = []
        async with connections.slots:
            reservation = await self._reserve(num_tokens)
            try:
                async with asyncio.timeout(self.limits.deadline_s) as deadline:
                    reply = await self._tries(connections, request, reservation, deadline, troubles)
            except TimeoutError:
                reasons = [f"no answer within {self.limits.deadline_s:g} s", *troubles[-1:]]
                reply = ChatReply(None, "; ".join(reasons))
        return ChatReply(reply.text, self._redact(reply.reason))

    async def _tries(
        self,
        connections: Connections,
        request: Request,
        reservation: Reservation,
        deadline: asyncio.Timeout,
        troubles: list[str],
    ) -> ChatReply:
        """Send the request until it is answered or another try is of no use. troubles: collects why tries failed."""
        while True:
            outage = await self._pass_breaker()
            if outage is not None:
                return outage
            outcome = await self._try(connections, request, reservation)
            if isinstance(outcome, ChatReply):
                return outcome
            troubles.append(outcome.reason)
            if len(troubles) >= self.limits.max_tries:
                return ChatReply(None, f"{outcome.reason}; given up after {len(troubles)} tries")
            pause_s = max(outcome.wait_s, self._backoff_s(len(troubles)))
            if pause_s > deadline.when() - connections.loop.time():
                reason = f"{outcome.reason}; the next try, in {pause_s:.0f} s, would come after the deadline"
                return ChatReply(None, reason)
            if not self._budget.spend():
                return ChatReply(None, f"{outcome.reason}; the budget of retries is spent")
            self._counts["retries"] += 1
            await self._sleep(pause_s)
            reservation = await self._reserve(reservation.tokens)

    def _backoff_s(self, num_failures: int) -> float:
        longest_s = self.limits.backoff_s * 2 ** (num_failures - 1)
        return self._random.uniform(0, min(longest_s, self.limits.max_backoff_s))

    async def _reserve(self, tokens: int) -> Reservation:
        """Wait for the rate limit."""
        reservation = self._rate.reserve(tokens)
        if reservation.wait_s > 0:
            await self._sleep(reservation.wait_s)
        return reservation

    async def _pass_breaker(self) -> ChatReply | None:
        """Wait while the endpoint seems to be down. Give up once that has lasted for the deadline of a question."""
        while True:
            wait_s = self._breaker.wait_s()
            if wait_s <= 0:
                return None
            open_for_s = self._breaker.open_for_s
            if open_for_s > self.limits.deadline_s:
                return ChatReply(None, f"the {self.endpoint.name} has failed for {open_for_s:.0f} s")
            await self._sleep(wait_s)

    async def _try(self, connections: Connections, request: Request, reservation: Reservation) -> ChatReply | Trouble:
        """Send one request, and tell breaker, budget and counts. Raise UserError (exit 4) on a permanent failure."""
        if self._permanent is not None:
            raise self._permanent_error()
        is_probe = self._breaker.is_probing
        self._counts["calls"] += 1
        try:
            outcome, usage = await self._send(connections, request)
        except BaseException:
            self._breaker.release(is_probe)
            raise
        self._counts["prompt_tokens"] += usage.prompt_tokens
        self._counts["completion_tokens"] += usage.completion_tokens
        if usage.prompt_tokens:
            self._rate.settle(reservation, usage.prompt_tokens + usage.completion_tokens)
        if isinstance(outcome, ChatReply):
            self._breaker.succeed()
            self._budget.succeed()
            return outcome
        self._counts["failures"] += 1
        if isinstance(outcome, Permanent):
            self._permanent = outcome
            raise self._permanent_error()
        if outcome.outage:
            self._breaker.fail(is_probe)
        else:
            self._breaker.release(is_probe)
        return outcome

    async def _send(self, connections: Connections, request: Request) -> tuple[ChatReply | Trouble | Permanent, Usage]:
        """Send one request. Whatever the endpoint does ends in an outcome, not in an exception."""
        try:
            return read_body(await connections.post(request))
        except openai.APIStatusError as error:
            return read_status(error.status_code, error.response.headers, error.body), Usage()
        except (openai.APITimeoutError, TimeoutError):
            return Trouble(f"no answer within {self.limits.deadline_s / 2:g} s"), Usage()
        except (openai.OpenAIError, ValueError, OSError, RuntimeError) as error:
            return Trouble(f"it cannot be reached: {excerpt(error.__cause__ or error)}"), Usage()

    async def _check_address(self) -> None:
        """Refuse a host whose name hides a link-local address. A name without an address fails when it is asked."""
        host = urlsplit(self.endpoint.base_url).hostname
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:
            return
        for *_, (address, *_) in found:
            if is_forbidden(ipaddress.ip_address(address.partition("%")[0])):
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
        """Remove the key, and the parts of a key that some services quote."""
        if len(self._key) >= MIN_SECRET:
            text = text.replace(self._key, "[key]")
        return re.sub(r"\b(sk|pk)-[\w*.-]{4,}", "[key]", text)


def _parameters(max_tokens: int) -> dict[str, float]:
    return {"max_tokens": max_tokens, "temperature": 0.0}  # the likeliest reply: equal questions get equal replies


def _forget(running: dict[str, asyncio.Task], key: str, task: asyncio.Task) -> None:
    """Remove a task that is done. Looking at its exception stops asyncio's complaint that nobody has done so."""
    del running[key]
    if not task.cancelled():
        task.exception()


def judge_client(options: Mapping[str, Any]) -> ApiClient:
    """Make the judge's client; the keys are in grpo/config/options.py."""
    return ApiClient(judge_endpoint(options), read_limits(options), _open_cache(options))


def decomposer_client(options: Mapping[str, Any]) -> ApiClient:
    """Make the decomposer's client."""
    return ApiClient(decomposer_endpoint(options), read_limits(options), _open_cache(options))


def _open_cache(options: Mapping[str, Any]) -> ReplyCache | None:
    return ReplyCache(options["api_cache"]) if options["api_cache"] else None
