"""Servers as they really answer: each failure is a sentence that names its cause, and none becomes a text."""

import json

import pytest
from api_server import ApiServer, chat, fails, says, sends
from asking import FAST, KEY_NAME, ask, check, client_of, complete
from cells import rows
from making import refused

from rewards.api.client import ApiClient, request_of
from rewards.api.endpoint import Endpoint, read_endpoint
from rewards.api.reply import ChatReply, Permanent, Trouble, read_body, read_status

KINDS = {kind.__name__: kind for kind in (ChatReply, Permanent, Trouble)}
STATUSES = rows("""
    404 | {"error": {"message": "The model `x` does not exist", "code": "model_not_found"}} | Permanent | `x`
    401 | {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}} | Permanent | Incorrect
    429 | {"error": {"message": "You exceeded your quota", "type": "insufficient_quota"}} | Permanent | quota
    429 | {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}} | Trouble | 429
    400 | {"error": {"message": "filtered due to Azure's policy", "code": "content_filter"}} | ChatReply | filtered
    402 | {"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}} | Permanent | Balance
    400 | {"object": "error", "message": "This model's maximum context length is 4096"} | ChatReply | maximum context
    404 | {"object": "error", "message": "The model `x` does not exist."} | Permanent | `x`
    422 | {"detail": [{"loc": ["body"], "msg": "Extra inputs are not permitted"}]} | ChatReply | not permitted
    404 | {"error": "model 'x' not found"} | Permanent | model 'x' not found
    403 | {"error": {"message": "Country not supported"}} | Permanent | not supported
    503 | {"error": {"message": "Loading model", "type": "unavailable_error"}} | Trouble | 503: Loading model
    400 | {"error": {"message": "Budget has been exceeded!", "type": "budget_exceeded"}} | Permanent | Budget
    400 | [{"error": {"message": "API key not valid.", "code": 400}}] | ChatReply | API key not valid
    502 | "<html><h1>502 Bad Gateway</h1></html>" | Trouble | it answered 502: <html><h1>502 Bad Gateway
    503 | null | Trouble | it answered 503 ¦ 405 | "Method Not Allowed" | Permanent | 405
    404 | "<html><h1>404 Not Found</h1></html>" | Permanent | Not Found
    200 | {"error": {"message": "Provider returned error", "code": 429}} | Trouble | 429
    200 | {"error": {"message": "No auth credentials found", "code": 401}} | Permanent | No auth
    200 | {"code": 1001, "msg": "invalid token"} | Trouble | invalid token
    200 | {"error": "model is loading"} | Trouble | model is loading
    """)  # as OpenAI, Azure, DeepSeek, vLLM, Ollama, llama.cpp, LiteLLM, Gemini, nginx and OpenRouter answer
REPLIES = rows("""
    {"content": "A"} | error | not complete: error ¦ {"content": "A"} | insufficient_system_resource | not complete
    {"content": "A"} | content_filter | not complete ¦ {"content": "A"} | SAFETY | not complete: SAFETY
    {"content": "Gra"} | length | cut at max_tokens ¦ {"content": "Gra"} | MAX_TOKENS | cut at max_tokens
    {"content": "Gra"} | abort | not complete: abort
    {"content": null, "reasoning_content": "The grade is A."} | stop | no text
    {"content": "", "reasoning_content": "A"} | stop | no text
    {"content": [{"type": "image_url", "image_url": "x"}]} | stop | no text
    {"content": null, "refusal": "I cannot grade this."} | stop | no text
    {"content": [{"type": "text", "text": "A"}]} | stop | A ¦ {"content": "A", "reasoning_content": "B"} | stop | A
    {"content": [{"type": "thinking", "thinking": "B"}, {"type": "text", "text": "A"}]} | stop | A
    {"content": "<think>B</think>A"} | stop | A ¦ {"content": "A"} | end_turn | A ¦ {"content": "A"} | STOP | A
    {"content": "A"} | eos_token | A ¦ {"content": "A"} | | A
    """)  # a message, why it ended, and its text or what is wrong


@pytest.mark.parametrize("status, text, kind, words", STATUSES)
def test_what_an_answer_means(status, text, kind, words):
    body = json.loads(text)
    outcome = read_body(text.encode())[0] if status == "200" else read_status(int(status), {}, body)
    assert isinstance(outcome, KINDS[kind]) and words in outcome.reason and getattr(outcome, "text", None) is None


@pytest.mark.parametrize("message, ended, said", REPLIES)
def test_which_replies_are_texts(message, ended, said):
    body = chat(finish_reason=ended or None, **json.loads(message))
    outcome, _ = read_body(b"\n\n" + json.dumps(body).encode())  # DeepSeek keeps alive by \n
    assert outcome == ChatReply("A") if said == "A" else isinstance(outcome, Trouble) and said in outcome.reason


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff\xfe\x00", b"[" * 100_000, b'{"choices": [', b"<title>Hi</title>"])
def test_what_is_no_json_object_holds_no_reply(body):
    assert "no JSON object" in read_body(body)[0].reason
    assert "no choices" in read_body(b'{"choices": {"0": 1}, "usage": [1]}')[0].reason


@pytest.mark.parametrize("model", ["o4-mini", "gpt-5-mini", "openai/o3", "gpt-4o-mini", "o1x", "Qwen/gpt-4"])
def test_openais_reasoning_models_are_asked_in_their_own_parameters(model):
    request = request_of(model, [{"role": "user", "content": "\ud800"}], 7)
    own = {"max_completion_tokens": 7} if model in ("o4-mini", "gpt-5-mini", "openai/o3", "o1x") else None
    assert request == {"model": model, "messages": [{"role": "user", "content": "?"}]} | (
        own or {"max_tokens": 7, "temperature": 0.0}
    )


def test_so_is_a_model_under_another_name_that_asks_for_them():
    refusal = fails(400, message="Use 'max_completion_tokens' instead.")
    with ApiServer(refusal, says("A"), default=says("A")) as server:
        client = client_of(server)
        assert [client.run_sync(complete(client, text)) for text in ("one", "two")] == [ChatReply("A")] * 2
        assert ["temperature" in request.body for request in server.requests] == [True, False, False]
    with ApiServer(default=sends(b'{"error": "no such tool"}', 400)) as server:
        refused(lambda: check(client_of(server)), "judge_model", "no such tool")


@pytest.mark.parametrize("path", ["", "/", "/chat/completions", "/chat/completions/"])
def test_a_base_url_may_hold_the_path_of_the_requests(path):
    with ApiServer() as server:
        options = {"judge_base_url": server.url + path, "judge_api_key_env": KEY_NAME, "judge_model": "m"}
        options["api_plain_http"] = False
        assert ask(ApiClient(read_endpoint("judge", options), FAST), "question") == [ChatReply("A")]
        assert server.requests[0].path == "/v1/chat/completions"


def test_azures_url_of_a_deployment_is_refused_with_the_url_that_works():
    url = "https://x.openai.azure.com/openai/deployments/y?api-version=2024-10-21"
    words = "judge_base_url", "openai.azure.com/openai/v1"
    refused(lambda: Endpoint("judge", url, KEY_NAME, "y"), *words, exit_code=2)
