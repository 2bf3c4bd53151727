"""Servers as they really answer: each failure is a sentence that names its cause, and none becomes a text."""

import json

import pytest
from api_server import ApiServer, chat, says, sends
from asking import FAST, KEY_NAME, ask, check, client_of

from grpo.base.errors import UserError
from rewards.api.client import ApiClient, request_of
from rewards.api.endpoint import Endpoint, read_endpoint
from rewards.api.reply import CUT, ChatReply, Permanent, Trouble, read_body, read_status


def error(message, **more):
    return {"error": {"message": message, **more}}


STATUSES = {  # server and case -> (status, body, what it means, words of the sentence)
    "OpenAI, no such model": (404, error("The model `x` does not exist", code="model_not_found"), Permanent, "`x`"),
    "OpenAI, wrong key": (401, error("Incorrect API key provided", code="invalid_api_key"), Permanent, "Incorrect"),
    "Azure, filtered prompt": (
        400,
        error("The response was filtered due to Azure's content policy", code="content_filter"),
        ChatReply,
        "filtered",
    ),
    "DeepSeek, no credit": (402, error("Insufficient Balance", code="invalid_request_error"), Permanent, "Balance"),
    "vLLM, too long": (
        400,
        {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400},
        ChatReply,
        "maximum context length",
    ),
    "Ollama, no such model": (404, {"error": "model 'x' not found"}, Permanent, "model 'x' not found"),
    "LiteLLM, budget": (400, error("Budget has been exceeded!", type="budget_exceeded"), Permanent, "Budget"),
    "Gemini, wrong key": (400, [error("API key not valid.", code=400)], ChatReply, "API key not valid"),
    "no body": (503, None, Trouble, "it answered 503"),
}
BODIES = {  # with status 200
    "OpenRouter, no key": (error("No auth credentials found", code=401), Permanent, "No auth"),
    "OpenRouter, mid-reply": (chat("A", "error"), Trouble, "not complete: error"),
    "a gateway": ({"code": 1001, "msg": "invalid token"}, Trouble, "invalid token"),
    "Gemini, a filter": (chat("A", "SAFETY"), Trouble, "not complete: SAFETY"),
    "OpenAI, cut": (chat("Gra", "length"), Trouble, CUT),
    "vLLM, thoughts alone": (chat(None, reasoning_content="The grade is A."), Trouble, "no text"),
    "OpenAI, refusal": (chat(None, refusal="I cannot grade this."), Trouble, "no text"),
}
TEXTS = {  # with status 200: the text of the reply is A
    "parts": chat([{"type": "text", "text": "A"}]),
    "thoughts in a part": chat([{"type": "thinking", "thinking": "B"}, {"type": "text", "text": "A"}]),
    "thoughts in a field": chat("A", reasoning_content="B"),
    "thoughts in the text": chat("<think>B</think>A"),
    "Gemini, end": chat("A", "STOP"),
    "no reason": chat("A", None),
}


@pytest.mark.parametrize("name", STATUSES)
def test_what_a_status_means(name):
    status, body, kind, words = STATUSES[name]
    outcome = read_status(status, {}, body)
    assert isinstance(outcome, kind) and words in outcome.reason and getattr(outcome, "text", None) is None


@pytest.mark.parametrize("name", BODIES)
def test_what_a_body_means_that_holds_no_reply(name):
    body, kind, words = BODIES[name]
    outcome, _ = read_body(json.dumps(body).encode())
    assert isinstance(outcome, kind) and words in outcome.reason


@pytest.mark.parametrize("name", TEXTS)
def test_bodies_that_hold_a_reply(name):
    assert read_body(b"\n\n" + json.dumps(TEXTS[name]).encode())[0] == ChatReply("A")  # DeepSeek keeps alive by \n


@pytest.mark.parametrize(
    "body, words",
    [
        (b"<!DOCTYPE html><title>Sign in</title>", "Sign in"),
        *((body, "no JSON object") for body in (b"", b"[1]", b"\xff\xfe\x00", b"[" * 100_000, b'{"choices": [')),
        (b'{"choices": [7]}', "no choices"),
        (b'{"choices": {"0": 1}, "usage": [1]}', "no choices"),
    ],
)
def test_bodies_that_hold_no_reply(body, words):
    outcome, _ = read_body(body)
    assert isinstance(outcome, Trouble) and words in outcome.reason


@pytest.mark.parametrize("model", ["o4-mini", "gpt-5-mini", "openai/o3", "gpt-4o-mini", "o1x", "Qwen/gpt-4"])
def test_openais_reasoning_models_are_asked_in_their_own_parameters(model):
    request = request_of(model, [{"role": "user", "content": "\ud800"}], 7)
    own = {"max_completion_tokens": 7} if model in ("o4-mini", "gpt-5-mini", "openai/o3", "o1x") else None
    assert request == {"model": model, "messages": [{"role": "user", "content": "?"}]} | (
        own or {"max_tokens": 7, "temperature": 0.0}
    )


def test_so_is_a_model_under_another_name_that_asks_for_them():
    refusal = sends(json.dumps(error("Use 'max_completion_tokens' instead.")).encode(), 400)
    with ApiServer(refusal, says("A"), default=says("A")) as server:
        client = client_of(server)
        assert ask(client, "one", "two")[1] == ChatReply("A")
        assert ["temperature" in request.body for request in server.requests][-1] is False
    with ApiServer(default=sends(b'{"error": "no such tool"}', 400)) as server, pytest.raises(UserError) as caught:
        check(client_of(server))
    assert "judge_model" in caught.value.fix and "no such tool" in caught.value.why


@pytest.mark.parametrize("path", ["", "/", "/chat/completions", "/chat/completions/"])
def test_a_base_url_may_hold_the_path_of_the_requests(path):
    with ApiServer() as server:
        options = {"judge_base_url": server.url + path, "judge_api_key_env": KEY_NAME, "judge_model": "m"}
        options["api_plain_http"] = False
        assert ask(ApiClient(read_endpoint("judge", options), FAST), "question") == [ChatReply("A")]
        assert server.requests[0].path == "/v1/chat/completions"


def test_azures_url_of_a_deployment_is_refused_with_the_url_that_works():
    url = "https://x.openai.azure.com/openai/deployments/y?api-version=2024-10-21"
    with pytest.raises(UserError, match="judge_base_url") as caught:
        Endpoint("judge", url, KEY_NAME, "y")
    assert "openai.azure.com/openai/v1" in caught.value.fix
