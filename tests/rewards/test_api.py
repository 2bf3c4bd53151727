"""The API client against an endpoint that behaves well and badly, each row of the promised table; and its lifetime."""

import asyncio
import os
import socket
import threading
import time

import pytest
from api_server import ApiServer, drips, fails, hangs, resets, says, sends
from asking import PATIENCE_S, ask, at_any_pace, check, client_of, complete, complete_all, until
from making import refused

from grpo.base.errors import PREFLIGHT, SERVICE
from rewards.api.reply import ChatReply

PERMANENT = {
    "401": fails(401),
    "quota": fails(429, "insufficient_quota"),
}


@pytest.mark.parametrize("name", PERMANENT)
def test_a_permanent_failure_is_not_retried_and_ends_the_run_with_exit_code_4(name):
    with ApiServer(default=PERMANENT[name]) as server:
        client = client_of(server)
        for text in ("one", "two"):
            error = refused(lambda text=text: client.run_sync(complete(client, text)), exit_code=SERVICE)
        assert len(server.requests) == 1  # the second question was not even sent
        assert ("quota" in str(error)) == name.startswith("quota")
        refused(lambda: check(client_of(server)), exit_code=PREFLIGHT)
        assert len(server.requests) == 2


RETRIED = {
    "429": fails(429, "rate_limit_exceeded"),
    "500": fails(500),
    "reset": resets,
    "hang": hangs,
    "drip": drips,
    "error in a 200": sends(b'{"error": {"message": "overloaded", "code": 529}}'),
    "wrong gzip": sends(b"xxxx", content_encoding="gzip"),
}


@pytest.mark.parametrize("name", RETRIED)
@at_any_pace
def test_a_passing_failure_is_retried(name, pace):
    """A first try that never ends leaves half of the deadline to the second."""
    limits = {"deadline_s": 0.8 * pace} if name in ("hang", "drip") else {}
    with ApiServer(RETRIED[name]) as server:
        client = client_of(server, **limits)
        assert ask(client, "question") == [ChatReply("A")] and len(server.requests) == 2
        assert client.counts["retries"] == client.counts["failures"] == 1


@pytest.mark.parametrize("behaviour", [fails(500), sends(b""), drips])
@at_any_pace
def test_a_lasting_failure_is_tried_until_the_deadline_and_never_a_number(behaviour, pace):
    """The deadline spans all tries, and beats a slow drip."""
    with ApiServer(default=behaviour) as server:
        start = time.monotonic()
        (reply,) = ask(client_of(server, deadline_s=0.6 * pace), "question")
        assert reply.text is None and f"tries within {0.6 * pace:g} s; " in reply.reason and len(server.requests) > 1
        assert 0.4 * pace <= time.monotonic() - start < 1.5 * pace


@at_any_pace
def test_a_refused_connection_is_retried_and_then_unscorable_and_before_the_first_step_it_ends_with_exit_code_3(pace):
    server = ApiServer()
    with socket.socket() as taken:  # a port where nobody listens and that nobody else is given
        taken.bind(("127.0.0.1", 0))
        server.port = taken.getsockname()[1]
        client = client_of(server, deadline_s=0.3 * pace)
        (reply,) = ask(client, "question")
        assert reply.text is None and "reached" in reply.reason and client.counts["calls"] > 1
        refused(lambda: check(client_of(server)), exit_code=PREFLIGHT)


def test_it_is_checked_also_where_an_event_loop_runs_as_in_a_notebook():
    async def cell():
        return check(client_of(server))

    with ApiServer() as server:
        assert asyncio.run(cell()) == ChatReply("A")


UNUSABLE = {
    "null content": says(None),
    "thoughts without an end": says("<think>A"),
    "cut": says("A", "length"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_empty_cut_or_refused_reply_is_asked_for_once_more(name):
    with ApiServer(UNUSABLE[name], says("A"), UNUSABLE[name]) as server:
        assert check(client_of(server)) == ChatReply("A") and len(server.requests) == 2
        assert ask(client_of(server), "question") == [ChatReply("A")] and len(server.requests) == 4
    with ApiServer(default=UNUSABLE[name]) as server:
        (reply,) = ask(client_of(server), "question")
        assert reply.text is None and reply.reason and len(server.requests) == 2


def test_a_reply_that_was_cut_gets_twice_the_room_and_what_there_is_of_it_is_kept():
    with ApiServer(default=says("- one\n- tw", "length")) as server:
        (reply,) = ask(client_of(server), "question")
        assert reply == ChatReply(None, "the reply was cut at max_tokens", "- one\n- tw")
        assert [request.body["max_tokens"] for request in server.requests] == [4, 8]


def test_a_redirect_is_not_followed_so_that_the_prompt_stays_here():
    with (
        ApiServer() as elsewhere,
        ApiServer(default=sends(b"", 307, location=f"{elsewhere.url}/chat/completions")) as server,
    ):
        refused(lambda: ask(client_of(server), "question"), "refuses", exit_code=SERVICE)
        assert not elsewhere.requests


def held():
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def test_a_thousand_calls_leak_no_thread_and_no_socket():
    with ApiServer() as server:
        client = client_of(server, max_concurrency=16)

        async def run():
            sizes = []
            for number in range(5):
                await complete_all(client, *[f"{number} {i}" for i in range(200)])
                sizes.append(held())
            return sizes

        before_files, before_threads = held()
        sizes = client.run_sync(run())
        files, threads = (max(kind) for kind in zip(*sizes, strict=True))
        assert files <= before_files + 2 * 16 + 8  # both ends of a connection are in this process
        assert threads <= before_threads + 16
        assert server.connections <= 32 and len(server.requests) == 1000
        assert until(lambda: server.open_connections == 0)
        assert until(lambda: held()[0] <= before_files + 2) and until(lambda: held()[1] <= before_threads)


@at_any_pace
def test_close_ends_hanging_calls_at_once_as_unscorable(pace, monkeypatch):
    """Calls hang on an event loop in a daemon thread, more of them than there are slots; close comes from the main
    thread."""
    with ApiServer(default=hangs) as server:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        client = client_of(server, max_concurrency=4)
        futures = [asyncio.run_coroutine_threadsafe(complete(client, f"question {i}"), loop) for i in range(8)]
        assert until(lambda: len(server.requests) == 4)
        start = time.monotonic()
        monkeypatch.setattr("rewards.api.client.CLOSE_S", 2.0 * pace)
        client.close()
        assert [future.result(PATIENCE_S) for future in futures] == [ChatReply(None, "the client was closed")] * 8
        assert time.monotonic() - start < 0.5 * pace  # waiting for the loop in vain would take 2 s
        assert asyncio.run_coroutine_threadsafe(complete(client, "later"), loop).result(PATIENCE_S).text is None
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        client.close()  # twice is fine, and so is a stopped loop


def test_a_caller_that_is_cancelled_leaves_the_others_alone():
    may_answer = threading.Event()

    async def waits(server, request, writer):
        while not may_answer.is_set():
            await asyncio.sleep(0.01)
        await says("A")(server, request, writer)

    with ApiServer(default=waits) as server:
        client = client_of(server)

        async def run():
            first, second = (asyncio.create_task(complete(client, "same")) for _ in range(2))
            await asyncio.sleep(0.05)
            first.cancel()
            may_answer.set()
            reply = await second
            return first.cancelled(), reply

        assert client.run_sync(run()) == (True, ChatReply("A"))
