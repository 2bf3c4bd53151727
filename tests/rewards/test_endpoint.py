"""Where an endpoint may be, where its settings come from, and that no key gets out."""

import functools
import json
import os
from dataclasses import asdict

import pytest
from api_server import ApiServer, fails, says, sends
from asking import FACTS_KEY_NAME, KEY, KEY_NAME, ask, at_any_pace, client_of
from cells import cells
from making import refused

from grpo.base.errors import CONFIG, PREFLIGHT, SERVICE
from grpo.config.options import TrainConfig
from rewards.api.client import client_for
from rewards.api.endpoint import Endpoint, check_url, read_endpoint, read_key
from rewards.api.reply import ChatReply

OPTIONS = asdict(TrainConfig())


@pytest.fixture(autouse=True)
def environment(monkeypatch, keys):
    """No settings but the keys."""
    of_openai = {name for name in os.environ if name.startswith("OPENAI_")} - {KEY_NAME, FACTS_KEY_NAME}
    for name in (*of_openai, "FACTSCORE_MODEL", "LLM_EVAL_MODEL", "REWARD_MODEL_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_without_its_own_key_the_client_refuses_and_never_takes_openai_api_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY_JUDGE")
    monkeypatch.setenv("OPENAI_API_KEY", "somebody-elses-key")
    with ApiServer() as server:
        refused(lambda: client_of(server), "OPENAI_API_KEY_JUDGE", exit_code=PREFLIGHT)
    assert not server.requests


def test_only_the_endpoints_own_key_is_sent(monkeypatch):
    for name, value in {
        "OPENAI_API_KEY": "canary-a",
        "OPENAI_ADMIN_KEY": "canary-b",
        "OPENAI_CUSTOM_HEADERS": "Authorization: canary-c",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    }.items():
        monkeypatch.setenv(name, value)
    with ApiServer() as server:
        assert ask(client_of(server), "question") == [ChatReply("A")]
        headers = server.requests[0].headers
    assert headers.pop("authorization") == f"Bearer {KEY}" and "canary" not in str(headers)


def test_no_proxy_of_the_environment_stands_between_this_machine_and_its_own_server(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ApiServer() as server, ApiServer(default=says("B")) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        assert ask(client_of(server), "question") == [ChatReply("A")]
        assert len(server.requests) == 1 and not proxy.requests


@at_any_pace
def test_a_key_that_the_server_repeats_does_not_reach_messages_logs_or_reasons(caplog, pace):
    caplog.set_level("DEBUG")
    echo = f"Incorrect API key provided: {KEY} (sk-ab12****wxyz)"
    with ApiServer(fails(401, message=echo)) as server:
        error = refused(lambda: ask(client_of(server), "question"), exit_code=SERVICE)
    with ApiServer(default=sends(json.dumps({"error": {"message": echo}}).encode())) as server:
        (reply,) = ask(client_of(server, deadline_s=0.5 * pace), "question")
    with ApiServer(default=fails(400, message=echo)) as server:
        (bad_request,) = ask(client_of(server), "question")
    for text in (str(error), reply.reason, bad_request.reason):
        assert "Incorrect API key" in text and KEY not in text and "wxyz" not in text
    assert KEY not in caplog.text and KEY not in repr(client_of(server).endpoint)


def test_a_literal_key_in_the_configuration_and_a_malformed_one_are_refused_and_not_repeated(monkeypatch):
    words = "judge_base_url", "judge_api_key_env", "no model"  # all that is wrong
    for name in ("sk-1234567890", "my key", ""):
        error = refused(lambda name=name: Endpoint("judge", "ftp://host", name, ""), *words, exit_code=CONFIG)
        assert not name or name not in str(error)
    for key in ("two words", "ключ"):
        monkeypatch.setenv(KEY_NAME, key)
        assert key not in str(refused(lambda: read_key("judge", KEY_NAME), exit_code=PREFLIGHT))


URLS = {  # allowed without api_plain_http, and with it
    (True, True): cells("""
    https://api.openai.com/v1 ¦ http://127.0.0.1:8000/v1 ¦ http://localhost/v1 ¦ http://[::1]:8000/v1
    https://10.0.0.5/v1
    """),
    (False, True): cells("""
    http://10.0.0.5:8000/v1 ¦ http://192.168.0.7/v1 ¦ http://172.16.3.4/v1 ¦ http://[::ffff:100.64.1.2]/v1
    http://172.20.0.2/v1 ¦ http://172.31.255.1/v1 ¦ http://[fd00::7]:8000/v1 ¦ http://127.1/v1
    """),
    (False, False): cells(
        """
    ftp://host/v1 ¦ file:///etc/passwd ¦ host/v1 ¦ https:// ¦ http://8.8.8.8/v1 ¦ http://172.32.0.1/v1
    https://user:pw@host/v1 ¦ https://@host/v1 ¦ http://user:pw@10.0.0.5/v1 ¦ https://host/v1?key=1 ¦ https://host/v1#x
    http://[::ffff:8.8.8.8]/v1 ¦ https://host:99999/v1 ¦ https://[bad/v1
    """,
        "",
    ),
}


@pytest.mark.parametrize(("url", "allowed"), [(url, allowed) for allowed, urls in URLS.items() for url in urls])
def test_which_urls_are_allowed_and_which_need_the_key_that_the_message_names(url, allowed):
    for plain_http, is_allowed in zip((False, True), allowed, strict=True):
        if is_allowed:
            check_url("judge_base_url", url, plain_http)
            continue
        check = functools.partial(check_url, "judge_base_url", url, plain_http)
        refused(check, "judge_base_url is no", "api_plain_http=true" * any(allowed), exit_code=CONFIG)


def names(monkeypatch, **addresses):
    """Makes host names stand for these addresses, and all others for none."""

    def getaddrinfo(host, *arguments, **more):
        if host not in addresses:
            raise OSError("name unknown")
        return [(2, 1, 6, "", (address, 0)) for address in addresses[host]]

    monkeypatch.setattr("rewards.api.endpoint.socket.getaddrinfo", getaddrinfo)


def test_the_key_allows_a_name_that_stands_for_private_addresses_alone(monkeypatch, caplog):
    names(monkeypatch, gpu2=["192.168.0.7", "fd00::7"], mixed=["10.0.0.5", "93.184.216.34"], far=["93.184.216.34"])
    check_url("judge_base_url", "http://gpu2:8000/v1", plain_http=True)
    assert "travel unencrypted" in caplog.text and "gpu2" in caplog.text  # never silently
    refused(lambda: check_url("judge_base_url", "http://gpu2:8000/v1"), "not allowed", exit_code=CONFIG)
    for host in ("mixed", "far", "unknown", "10.0.0.5.far", "localhost.far", "127.0.0.1.far"):
        check = functools.partial(check_url, "judge_base_url", f"http://{host}/v1", plain_http=True)
        refused(check, "not allowed", exit_code=CONFIG)


def test_an_endpoint_is_what_the_configuration_says(tmp_path):
    refused(lambda: read_endpoint("judge", OPTIONS), "judge_model", exit_code=CONFIG)
    ours = read_endpoint("judge", OPTIONS | {"judge_base_url": "https://ours.example/v1", "judge_model": "ours"})
    assert (ours.base_url, ours.model) == ("https://ours.example/v1", "ours")
    assert ours.api_key_env == OPTIONS["judge_api_key_env"]
    local = OPTIONS | {"judge_model": "m", "judge_base_url": "http://10.0.0.5/v1", "api_plain_http": True}
    assert read_endpoint("judge", local).base_url == "http://10.0.0.5/v1"
    options = OPTIONS | {"judge_model": "m", "api_cache": str(tmp_path / "c"), "api_max_concurrency": 7}
    client = client_for("judge", options)
    assert client.limits.max_concurrency == 7 and client.cache is not None
