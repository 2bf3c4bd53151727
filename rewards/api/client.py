"""Ask a language model behind an API by OpenAI's SDK; retries, deadlines and cache are handled here.

An outage never becomes a number: a question ends as a text, or as unscorable with a reason. What only the user can
repair (key, quota, the model's name) ends the run with exit code 4. One event loop at a time uses a client; `close` may
be called from any thread.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grpo.base.errors import PREFLIGHT, SERVICE, UserError
from grpo.base.event_loop import EventLoop
from grpo.base.storage import Json
from grpo.base.text import encodable
from rewards.api.cache import ReplyCache
from rewards.api.endpoint import Endpoint, read_endpoint, read_key
from rewards.api.reply import CUT, ChatReply, Permanent, Response, Trouble, Usage, excerpt, read_body, read_status
from rewards.registry import Counts, Options, Resource, Rows, Say

Messages = Sequence[Mapping[str, str]]
CLOSED = ChatReply(None, "the client was closed")
SPENT = ChatReply(None, "no further question is allowed")
MAX_REPLIES = 2  # how often a question is asked whose reply is empty or cut
PREFLIGHT_TRIES = 4  # how often an endpoint is asked before the first step
BACKOFF_S, MAX_BACKOFF_S = 0.5, 8.0  # before retry n, wait a random time up to the first times 2^n ("full jitter")
CLOSE_S = 2.0  # that `close` waits for the event loop
COUNTS = ("calls", "retries", "failures", "unscorable", "cache_hits", "prompt_tokens", "completion_tokens")
T = TypeVar("T")
_REASONS = re.compile(r"(^|/)(o\d|gpt-5)")  # OpenAI's reasoning models: another name for max_tokens, no temperature
_WANTS_OTHERS = re.compile("max_completion_tokens|temperature")  # so a service refuses a reasoning model's request
_log = logging.getLogger("rewards")


@dataclass(frozen=True)
class Limits:
    """How much one process asks of an endpoint.

    max_concurrency: questions under way.
    deadline_s: seconds for one question with all its tries and pauses; a single try may take half of it. It starts with
    the question's first request, so waiting for a free place does not count.
    dead_after: this many questions in a row without a reply are announced. is_fatal: they end the run.
    """

    max_concurrency: int = 128
    deadline_s: float = 120.0
    dead_after: int = 32
    is_fatal: bool = True


class ApiClient:
    """Ask one endpoint. Raises UserError (exit 3) at once if its key is missing.

    cache: replies on disk; the client closes it. allowance: has one for each question that may be asked.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        cache: ReplyCache | None = None,
        allowance: Iterator[int] | None = None,
    ):
        self.endpoint = endpoint
        self.limits = limits
        self.cache = cache
        self._key = read_key(endpoint.name, endpoint.api_key_env)
        self.allowance = itertools.count() if allowance is None else allowance
        self.counts: Counter[str] = Counter()
        self._is_reasoner = False  # learned from a refusal, if its name does not tell
        self._num_unusable = 0  # questions in a row without a usable reply
        self._session: Session | None = None
        self._failure: UserError | None = None  # that concerns every request
        self._is_closed = False

    async def complete(
        self,
        messages: Messages,
        *,
        max_tokens: int,
        prompt_version: str,
        nonce: str = "",
        read: Callable[[str], object] = str,
    ) -> ChatReply:
        """Return the model's reply, from the cache if it was given before. Equal questions under way are asked once.

        max_tokens: of the reply, its thoughts included. nonce: a random word in the messages, which the cache
        disregards. read: returns None for a reply of no use, which is not cached. Raises UserError (exit 4) for
        failures that concern every request, and after many questions in a row without a usable reply; such a client
        asks nothing any more.
        """
        if self._is_closed:
            return CLOSED
        key = cache_key(prompt_version, request_of(self.endpoint.model, messages, max_tokens), nonce)
        if self.cache and (cached := self.cache.get(key)) is not None:
            self.counts["cache_hits"] += 1
            return ChatReply(cached)
        running = self._connect().running
        if key in running:
            self.counts["cache_hits"] += 1
        else:
            running[key] = asyncio.create_task(self._ask_and_keep(key, messages, max_tokens, read))
            running[key].add_done_callback(lambda task: _forget(running, key, task))
        task = running[key]
        await asyncio.wait({task})  # a cancelled caller does not cancel the task, which others may wait for
        return CLOSED if task.cancelled() else task.result()

    async def check(self, messages: Messages, *, max_tokens: int, **_: object) -> ChatReply:
        """Ask one question, as `complete` does but uncached, before the first step.

        Raises UserError (exit 3) if the endpoint cannot answer.
        """
        try:
            reply = await self._ask(messages, max_tokens, PREFLIGHT_TRIES)
        except UserError as error:
            raise UserError(error.what, error.why, error.fix, PREFLIGHT) from None
        if reply.text is None and reply.reason != CUT:
            name = self.endpoint.name
            fix = f"check {name}_base_url, and that the service is up"
            if reply.reason.startswith("it answered 4"):
                fix = f"correct {name}_model or {name}_max_tokens: the service is up, and says why it refuses"
            raise self._error("gives no answer", reply.reason, fix, PREFLIGHT)
        return reply

    def run_sync(self, asking: Awaitable[T]) -> T:
        """Wait for what asks this client, on an event loop and a thread of its own. The session ends with it."""

        async def run() -> T:
            try:
                return await asking
            finally:
                await self._disconnect()

        loop = EventLoop(self.endpoint.name)
        try:
            return loop.result_of(run())
        finally:
            loop.close()

    def close(self) -> None:
        """End all questions under way as unscorable, from any thread but the event loop's own; close the cache."""
        self._is_closed = True
        loop = self._session.loop if self._session else None
        if loop is not None and loop.is_running():
            with contextlib.suppress(TimeoutError):  # the loop is stopping or stuck: sockets end with the process
                asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(CLOSE_S)
        if self.cache is not None:
            self.cache.close()

    def _connect(self) -> "Session":
        """Return the session, which belongs to the event loop that asks first."""
        self._session = self._session or Session(self.endpoint.base_url, self._key, self.limits)
        return self._session

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session:
            await session.close()

    async def _ask_and_keep(
        self, key: str, messages: Messages, max_tokens: int, read: Callable[[str], object]
    ) -> ChatReply:
        if next(self.allowance, None) is None:
            return SPENT
        reply = await self._ask(messages, max_tokens)
        is_usable = reply.text is not None and read(reply.text) is not None
        self.counts["unscorable"] += reply.text is None
        if reply.text and is_usable and self.cache is not None:
            self.cache.put(key, reply.text)
        self._look_for_death(reply, is_usable or bool(reply.cut))
        return reply

    def _look_for_death(self, reply: ChatReply, is_usable: bool) -> None:
        """Announce an endpoint that has given no usable reply for long; raise UserError (exit 4) if that is fatal."""
        self._num_unusable = 0 if is_usable else self._num_unusable + 1
        if self._num_unusable != self.limits.dead_after:
            return
        said = reply.reason if reply.text is None else f"it replied {excerpt(reply.text)!r}"
        why = f"{self._num_unusable} questions in a row had none; the last: {said}"
        fix = "repair the service, then go on with resume_from_checkpoint=true"
        error = self._error("gives no usable reply", why, fix)
        if self.limits.is_fatal:
            self._failure = error
            raise error
        _log.warning("warning: %s: %s", error.what, error.why)

    async def _ask(self, messages: Messages, max_tokens: int, max_tries: float = float("inf")) -> ChatReply:
        """Send the request until it is answered or another try is of no use.

        The deadline starts with the first try. A reply that was cut gets twice the room in the next one.
        """
        session = self._connect()
        limits = self.limits
        num_tries = 0
        num_replies = 0
        ends = 0.0
        reason = ""
        async with session.slots:
            while True:
                num_tries += 1
                ends = ends or session.loop.time() + limits.deadline_s
                timeout_s = min(limits.deadline_s / 2, max(ends - session.loop.time(), 0.0))
                request = request_of(self.endpoint.model, messages, max_tokens, self._is_reasoner)
                outcome = await self._try(session, request, timeout_s)
                if isinstance(outcome, ChatReply):
                    if outcome.text is None and "temperature" in request and _WANTS_OTHERS.search(outcome.reason):
                        self._is_reasoner = True
                        continue
                    return outcome
                before = reason
                reason = outcome.reason
                num_replies += outcome.is_reply
                if num_replies == MAX_REPLIES:
                    return ChatReply(None, reason, outcome.cut)
                longest_s = min(BACKOFF_S * 2 ** min(num_tries - 1, 30), MAX_BACKOFF_S)
                pause_s = max(outcome.wait_s, random.uniform(0, longest_s))
                if num_tries == max_tries or session.loop.time() + pause_s > ends:
                    tried = f"no answer in {num_tries} tries within {limits.deadline_s:g} s"
                    reasons = dict.fromkeys((tried, before, reason))  # the last try may only have had no time left
                    return ChatReply(None, "; ".join(filter(None, reasons)), outcome.cut)
                if outcome.reason == CUT:
                    max_tokens *= 2
                self.counts["retries"] += 1
                await asyncio.sleep(pause_s)

    async def _try(self, session: "Session", request: Json, timeout_s: float) -> ChatReply | Trouble:
        """Send one request, and count it. Raise UserError (exit 4) on a permanent failure, now and from then on."""
        if self._failure is not None:
            raise self._failure
        outcome, (prompt_tokens, completion_tokens) = await session.send(request, timeout_s)
        self.counts.update(calls=1, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
        self.counts["failures"] += not isinstance(outcome, ChatReply)
        if isinstance(outcome, Permanent):
            self._failure = self._error("refuses the request", outcome.reason, outcome.fix)
            raise self._failure
        return outcome

    def _error(self, problem: str, why: str, fix: str, exit_code: int = SERVICE) -> UserError:
        return UserError(f"the {self.endpoint.name} at {self.endpoint.base_url} {problem}", why, fix, exit_code)


class Session:
    """Hold what belongs to the running event loop: the SDK's client, its limits, and the questions under way.

    The SDK neither retries nor follows redirects here. It adds OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS
    and a description of this machine to the requests, to whatever host is configured; the key is always the endpoint's.
    """

    def __init__(self, base_url: str, key: str, limits: Limits):
        import openai  # takes a second

        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(limits.max_concurrency)
        self.running: dict[str, asyncio.Task[ChatReply]] = {}  # by their keys in the cache
        self._key = key
        http_client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=base_url.startswith("https:"),  # the environment's proxies do not serve this machine or network
            timeout=limits.deadline_s,
            event_hooks={"request": [self._send_our_key]},
        )
        self._sdk = openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=http_client)

    async def send(self, request: Json, timeout_s: float) -> tuple[Response, Usage]:
        """Send one chat request. Whatever the endpoint does ends in an outcome, not in an exception.

        One timeout spans the complete exchange: the SDK's own timeout is per read, so a slow drip would outlive it.
        """
        import openai  # by now it is there

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

    async def _send_our_key(self, request: Any) -> None:
        """Send this key and no other: OPENAI_CUSTOM_HEADERS would replace it."""
        request.headers["authorization"] = f"Bearer {self._key}"


def _forget(running: dict[str, asyncio.Task], key: str, task: asyncio.Task) -> None:
    """Remove a task that is done. Looking at its exception stops asyncio's complaint that nobody has done so."""
    del running[key]
    if not task.cancelled():
        task.exception()


def request_of(model: str, messages: Messages, max_tokens: int, is_reasoner: bool = False) -> Json:
    """Write the body of a chat request. It asks for the likeliest reply, so that equal questions get equal replies.

    is_reasoner: it takes what OpenAI's reasoning models do, whatever its name.
    """
    cleaned = [{"role": message["role"], "content": encodable(message["content"])} for message in messages]
    limits = {"max_tokens": max_tokens, "temperature": 0.0}
    if is_reasoner or _REASONS.search(model):
        limits = {"max_completion_tokens": max_tokens}
    return {"model": model, "messages": cleaned, **limits}


def cache_key(prompt_version: str, request: Json, nonce: str = "") -> str:
    """Hash all that a reply depends on, in the layout of existing caches.

    The nonce, a random word in the messages, is left out.
    """
    texts = [[message["role"], message["content"].replace(nonce, "")] for message in request["messages"]]
    parameters = [item for item in sorted(request.items()) if item[0] not in ("model", "messages")]
    content = json.dumps([request["model"], parameters, prompt_version, texts])
    return hashlib.sha256(content.encode()).hexdigest()


def client_for(service: str, options: Options) -> ApiClient:
    """Make the client of the judge or the decomposer; the keys are in grpo/config/options.py."""
    limits = Limits(
        options["api_max_concurrency"],
        options["api_deadline_s"],
        is_fatal=options["max_unscored"] < 1,
    )
    cache = ReplyCache(options["api_cache"]) if options["api_cache"] else None
    return ApiClient(read_endpoint(service, options), limits, cache, options.get("allowance"))


class ModelService(Resource):
    """A model behind an API. A subclass asks it, and has a `check` that asks about something known.

    max_tokens: of a reply.
    """

    def __init__(self, client: ApiClient, max_tokens: int):
        self.client = client
        self.max_tokens = max_tokens

    def check(self) -> str:
        """Ask about something known, and describe the answer. Raise UserError (exit 3) if the model is of no use."""
        raise NotImplementedError

    def prepare(self, rows: Rows, say: Say) -> None:
        self.check()

    def counts(self) -> Counts:
        """Return the COUNTS since the start, as <endpoint>/<name>."""
        return {f"{self.client.endpoint.name}/{name}": (float(self.client.counts[name]), 0) for name in COUNTS}

    def close(self) -> None:
        self.client.close()

    def useless(self, why: str) -> UserError:
        """Return the error that the model cannot do this work."""
        name = self.client.endpoint.name
        return UserError(
            f"the model {self.client.endpoint.model} does not work as a {name}",
            why,
            f"set {name}_model to a model that follows instructions, or {name}_max_tokens to leave it more room",
            PREFLIGHT,
        )
