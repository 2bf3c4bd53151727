"""What the API client does for calm, speed and money: retries, limits, order, cache, costs."""

import time

import pytest
from api_server import ApiServer, fails, says
from asking import PATIENCE_S, ask, check, client_of, complete
from making import refused

from grpo.base.errors import SERVICE
from rewards.api.client import ModelService, cache_key, request_of
from rewards.api.reply import ChatReply, retry_after_s


def test_retry_after_is_obeyed_within_the_deadline():
    with ApiServer(fails(429, retry_after="0.3")) as server:
        start = time.monotonic()
        assert ask(client_of(server), "question") == [ChatReply("A")]
        assert time.monotonic() - start >= 0.3
    with ApiServer(fails(503, retry_after="6000")) as server:
        start = time.monotonic()
        (reply,) = ask(client_of(server), "question")
        assert "it asks to wait 6000 s" in reply.reason and time.monotonic() - start < PATIENCE_S
        assert "api_max_concurrency" in reply.reason  # what helps


def test_retry_after_is_read_in_all_its_forms():
    assert retry_after_s({"retry-after": "7"}) == 7
    for odd in ("-4", "nan", "inf", "soon", "", "9e999", "99999999999999999999:", "Wed, 99 Foo"):
        assert retry_after_s({"retry-after": odd}) == 0


def test_backoff_has_full_jitter_and_doubles_up_to_its_limit(monkeypatch):
    longest = []
    monkeypatch.setattr("rewards.api.client.random.uniform", lambda low, high: longest.append((low, high)) or 0.0)
    for name, value in {"BACKOFF_S": 0.5, "MAX_BACKOFF_S": 8.0, "PREFLIGHT_TRIES": 8}.items():
        monkeypatch.setattr(f"rewards.api.client.{name}", value)
    with ApiServer(default=fails(500)) as server:
        refused(lambda: check(client_of(server)))
    assert longest == [(0, min(0.5 * 2**number, 8.0)) for number in range(8)]


def test_no_more_questions_are_under_way_than_allowed():
    running = []

    async def takes_three(server, request, writer):
        running.append(request)
        await (says("A", after_s=0.02) if len(running) <= 3 else fails(400))(server, request, writer)
        running.remove(request)

    with ApiServer(default=takes_three) as server:
        client = client_of(server, max_concurrency=3)
        assert ask(client, *[f"question {i}" for i in range(12)]) == [ChatReply("A")] * 12


def ask_dead_client(server, is_fatal, read=str):
    client = client_of(server, dead_after=5, is_fatal=is_fatal)

    async def run():
        return [await complete(client, f"question {i}", read=read) for i in range(8)]

    return client.run_sync(run())


DEAD = {
    "down": (fails(400), str, "400"),
    "empty": (says(""), str, "no text"),
    "useless": (says("Sure!"), {"A": "a grade"}.get, "Sure!"),
}


@pytest.mark.parametrize("name", DEAD)
def test_a_service_without_a_usable_reply_ends_the_run_at_once_with_the_reason(name):
    behaviour, read, word = DEAD[name]
    with ApiServer(default=behaviour) as server:
        refused(lambda: ask_dead_client(server, True, read), word, "judge", "5 questions in a row", exit_code=SERVICE)


def test_a_dead_service_is_only_announced_where_the_run_shall_go_on(caplog):
    with ApiServer(default=fails(400)) as server:
        replies = ask_dead_client(server, False)
    assert [reply.text for reply in replies] == [None] * 8
    (record,) = caplog.records
    assert "5 questions in a row" in record.getMessage() and "400" in record.getMessage()


def test_one_usable_reply_in_between_is_a_sign_of_life():
    with ApiServer(*[fails(400)] * 4, says("A"), default=fails(400)) as server:
        replies = ask_dead_client(server, True)
    assert [reply.text for reply in replies] == [None] * 4 + ["A"] + [None] * 3


def test_equal_questions_under_way_are_asked_once():
    with ApiServer(default=says("A", after_s=0.1)) as server:
        client = client_of(server)
        assert ask(client, *["same"] * 8) == [ChatReply("A")] * 8
        assert len(server.requests) == 1 and client.counts["cache_hits"] == 7


def test_the_cache_key_holds_model_parameters_prompt_version_and_text_but_not_the_nonce():
    """The first key was written down once: replies that are kept already are found by every later version."""

    def key(model="m", tokens=4, version="1", text="hello", nonce=""):
        return cache_key(version, request_of(model, [{"role": "user", "content": text}], tokens), nonce)

    assert key() == "9fd5d22478dee00acaf66c7c658bdf34d1956523d20a1980ca5144c9b5de9b11"
    assert len({key(), key(model="n"), key(tokens=5), key(version="2"), key(text="hullo")}) == 5
    assert key(text="<abc>hello</abc>", nonce="abc") == key(text="<xyz>hello</xyz>", nonce="xyz")


def test_counts_are_metrics():
    with ApiServer(fails(500)) as server:
        client = client_of(server)
        ask(client, "one", "two", "two")
        assert ModelService(client, 8).counts() == {
            "judge/calls": (3, 0),
            "judge/retries": (1, 0),
            "judge/failures": (1, 0),
            "judge/unscorable": (0, 0),
            "judge/cache_hits": (1, 0),
            "judge/prompt_tokens": (20, 0),
            "judge/completion_tokens": (4, 0),
        }
