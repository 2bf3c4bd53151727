"""Ask a language model behind an API by OpenAI's SDK; retries, deadlines, limits, cache and costs are handled here.

An outage never becomes a number: a question ends as a text, or as unscorable with a reason. What only the user can
repair (key, quota, the model's name) ends the run with exit code 4. One event loop at a time uses a client; `close` may
be called from any thread.
"""

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import openai

from grpo.base.cache import DiskCache
from grpo.base.errors import MIN_SECRET, PREFLIGHT, SERVICE, UserError
from rewards.api.connections import Connections
from rewards.api.endpoint import Endpoint, check_address, read_endpoint, read_key
from rewards.api.limits import Limits, RateLimit, Reservation
from rewards.api.question import Messages, Question, cache_key, parameters_of
from rewards.api.reply import CUT, ChatReply, Outcome, Permanent, Trouble, Usage, excerpt, read_body, read_status

CLOSED = ChatReply(None, "the client was closed")
COUNTS = ("calls", "retries", "failures", "unscorable", "cache_hits", "prompt_tokens", "completion_tokens")
DEFAULT_LIMITS = Limits()
Result = TypeVar("Result")
_log = logging.getLogger("rewards")


class ApiClient:
    """Ask one endpoint. Raises UserError (exit 3) at once if its key is missing.

    cache: replies on disk; the client closes it. sleep and clock (seconds): for tests.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits = DEFAULT_LIMITS,
        cache: DiskCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.endpoint, self.limits, self.cache = endpoint, limits, cache
        self._sleep = sleep
        self._key = read_key(endpoint.name, endpoint.api_key_env)
        self._rate = RateLimit(limits.requests_per_minute, limits.tokens_per_minute, clock)
        self._counts: Counter[str] = Counter()
        self._numbers = itertools.count()  # of the questions
        self._num_unusable = 0  # questions in a row without a usable reply
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
        accept: Callable[[str], Any] = bool,
    ) -> ChatReply:
        """Return the model's reply, from the cache if it was given before. Equal questions under way are asked once.

        max_tokens: of the reply, its thoughts included. nonce: a random word in the messages, which the cache
        disregards. accept: which replies are usable; others are not cached. Raises UserError (exit 4) for failures that
        concern every request, and after many questions in a row without a usable reply; such a client asks nothing any
        more.
        """
        if self._closed:
            return CLOSED
        model = self.endpoint.model
        key = cache_key(model, parameters_of(model, max_tokens), prompt_version, messages, nonce)
        if self.cache and (cached := self.cache.get([key])):
            self._counts["cache_hits"] += 1
            return ChatReply(*cached[key])
        connections = self._connect()
        running = connections.running
        if key in running:
            self._counts["cache_hits"] += 1
        else:
            question = Question(next(self._numbers), messages, max_tokens)
            running[key] = asyncio.create_task(self._ask_and_keep(connections, key, question, accept))
            running[key].add_done_callback(lambda task: _forget(running, key, task))
        task = running[key]
        await asyncio.wait({task})  # a cancelled caller does not cancel the task, which others may wait for
        return CLOSED if task.cancelled() else task.result()

    async def check(self, messages: Messages, max_tokens: int) -> ChatReply:
        """Ask one uncached question before the first step. Raise UserError (exit 3) if the endpoint cannot answer."""
        question = Question(next(self._numbers), messages, max_tokens, self.limits.preflight_tries)
        try:
            await check_address(self.endpoint)
            reply = await self._ask(self._connect(), question)
        except UserError as error:
            raise UserError(error.what, error.why, error.fix, PREFLIGHT) from None
        if reply.text is None and reply.reason != CUT:
            raise UserError(
                f"the {self.endpoint.name} at {self.endpoint.base_url} gives no answer",
                reply.reason,
                f"check {self.endpoint.name}_base_url, and that the service is up",
                PREFLIGHT,
            )
        return reply

    def run_sync(self, ask: Callable[["ApiClient"], Awaitable[Result]]) -> Result:
        """Run a coroutine function on an event loop of its own. The connections end with it."""

        async def run() -> Result:
            try:
                return await ask(self)
            finally:
                await self._disconnect()

        return asyncio.run(run())

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

    async def _ask_and_keep(
        self, connections: Connections, key: str, question: Question, accept: Callable[[str], bool]
    ) -> ChatReply:
        reply = await self._ask(connections, question)
        is_usable = reply.text is not None and bool(accept(reply.text))
        if reply.text is None:
            self._counts["unscorable"] += 1
        if is_usable and self.cache is not None:
            self.cache.put({key: (reply.text,)})
        self._look_for_death(reply, is_usable or bool(reply.cut))
        return reply

    def _look_for_death(self, reply: ChatReply, is_usable: bool) -> None:
        """Announce an endpoint that has given no usable reply for long; raise UserError (exit 4) if that is fatal."""
        self._num_unusable = 0 if is_usable else self._num_unusable + 1
        if self._num_unusable != self.limits.dead_after:
            return
        said = reply.reason if reply.text is None else f"it replied {excerpt(reply.text)!r}"
        dead = Permanent(
            f"{self._num_unusable} questions in a row had none; the last: {said}",
            "repair the service, then go on with resume_from_checkpoint=true",
            "gives no usable reply",
        )
        if self.limits.is_fatal:
            self._stop(dead)
        error = self._error(dead)
        _log.warning("warning: %s: %s", error.what, error.why)

    async def _ask(self, connections: Connections, question: Question) -> ChatReply:
        """Wait for a slot and for the rate limit; then all tries together have one deadline."""
        try:
            async with asyncio.timeout(None) as deadline:
                reply = await self._tries(connections, question, deadline)
        except TimeoutError:
            reason = f"no answer within {self.limits.deadline_s:g} s and {question.num_tries + 1} tries"
            reply = ChatReply(None, "; ".join(filter(None, [reason, question.trouble])))
        return ChatReply(reply.text, self._redact(reply.reason), reply.cut)

    async def _tries(self, connections: Connections, question: Question, deadline: asyncio.Timeout) -> ChatReply:
        """Send the request until it is answered or another try is of no use. The first one starts the deadline."""
        while True:
            async with connections.slots.turn(question.number):
                reservation = self._rate.reserve(question.most_tokens)
                if reservation.wait_s > 0:
                    await self._sleep(reservation.wait_s)
                if deadline.when() is None:
                    deadline.reschedule(connections.loop.time() + self.limits.deadline_s)
                outcome = await self._try(connections, question, reservation)
            if isinstance(outcome, ChatReply):
                return outcome
            question.add(outcome)
            left_s = deadline.when() - connections.loop.time()
            given_up = question.give_up(self.limits, left_s)
            if given_up is not None:
                return given_up
            self._counts["retries"] += 1
            await self._sleep(question.pause_s(self.limits, left_s))

    async def _try(self, connections: Connections, question: Question, reservation: Reservation) -> ChatReply | Trouble:
        """Send one request, and tell limits and counts. Raise UserError (exit 4) on a permanent failure."""
        if self._permanent is not None:
            self._stop(self._permanent)
        slots = connections.slots
        num_taken, num_halvings = slots.num_taken, slots.num_halvings
        self._counts["calls"] += 1
        outcome, usage = await self._send(connections, question)
        self._counts.update(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        if usage.prompt_tokens:
            self._rate.settle(reservation, usage.prompt_tokens + usage.completion_tokens)
        self._counts["failures"] += not isinstance(outcome, ChatReply)
        if isinstance(outcome, Permanent):
            self._stop(outcome)
        if isinstance(outcome, ChatReply) or outcome.kind == "unusable":
            slots.grow()
        elif outcome.kind == "busy":
            slots.slow_down(num_taken, num_halvings)
        return outcome

    async def _send(self, connections: Connections, question: Question) -> tuple[Outcome, Usage]:
        """Send one request. Whatever the endpoint does ends in an outcome, not in an exception."""
        try:
            return read_body(await connections.post(question.request(self.endpoint.model)))
        except openai.APIStatusError as error:
            return read_status(error.status_code, error.response.headers, error.body), Usage()
        except (openai.APITimeoutError, TimeoutError):
            return Trouble(f"no answer within {self.limits.try_s:g} s"), Usage()
        except (openai.OpenAIError, ValueError, OSError, RuntimeError) as error:
            return Trouble(f"it cannot be reached: {excerpt(error.__cause__ or error)}"), Usage()

    def _stop(self, failure: Permanent) -> NoReturn:
        """Raise UserError (exit 4), now and for all further questions."""
        self._permanent = failure
        raise self._error(failure)

    def _error(self, failure: Permanent) -> UserError:
        what = f"the {self.endpoint.name} at {self.endpoint.base_url} {failure.what}"
        return UserError(what, self._redact(failure.why), failure.fix, SERVICE)

    def _redact(self, text: str) -> str:
        """Remove the key, and the parts of a key that some services quote."""
        if len(self._key) >= MIN_SECRET:
            text = text.replace(self._key, "[key]")
        return re.sub(r"\b(sk|pk)-[\w*.-]{4,}", "[key]", text)


def _forget(running: dict[str, asyncio.Task], key: str, task: asyncio.Task) -> None:
    """Remove a task that is done. Looking at its exception stops asyncio's complaint that nobody has done so."""
    del running[key]
    if not task.cancelled():
        task.exception()


def reply_cache(path: str | Path) -> DiskCache:
    """Open a file of usable replies under the keys of their questions, so that no question is paid for twice."""
    return DiskCache(path, "reply cache", "replies", {"text": "TEXT NOT NULL"})


def client_for(service: str, options: Mapping[str, Any]) -> ApiClient:
    """Make the client of the judge or the decomposer; the keys are in grpo/config/options.py."""
    limits = Limits(
        options["api_max_concurrency"],
        options["api_deadline_s"],
        options["api_requests_per_minute"],
        options["api_tokens_per_minute"],
        is_fatal=options["max_unscored"] < 1,
    )
    cache = reply_cache(options["api_cache"]) if options["api_cache"] else None
    return ApiClient(read_endpoint(service, options), limits, cache)
