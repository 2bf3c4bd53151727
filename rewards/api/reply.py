"""What a chat endpoint's answer means: a text, unscorable for a reason, worth another try, or a failure that no try
will mend.

Bodies are read here and not by the SDK, which takes HTML for a reply and a missing field for a crash. Nothing here
raises on any body, and nothing an endpoint says is ever taken for a number.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

CUT = "the reply was cut at max_tokens"
MAX_EXCERPT = 200
RETRIED = {408, 409, 425, 429}  # and all from 500 on
REFUSED = {
    401: "check the key",
    403: "check what the key is allowed to do",
    404: "check the base_url (does it end in /v1?) and the model's name",
}


@dataclass(frozen=True)
class Reply:
    """What came back for one item: a text, or None (unscorable) and why."""

    text: str | None
    reason: str = ""


@dataclass(frozen=True)
class Trouble:
    """A request that failed but may be tried again. wait_s: what the server asked for. outage: the server itself seems
    ill."""

    reason: str
    wait_s: float = 0.0
    outage: bool = True


@dataclass(frozen=True)
class Permanent:
    """A failure that concerns every request, and that only the user can mend."""

    why: str
    fix: str


@dataclass(frozen=True)
class Usage:
    """Tokens that the endpoint says it charged for."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


def read_body(body: bytes) -> tuple[Reply | Trouble | Permanent, Usage]:
    """The meaning of a body that came with status 200."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return Trouble("the body is HTML" if body.lstrip()[:1] == b"<" else "the body is no JSON"), Usage()
    if not isinstance(data, dict):
        return Trouble("the body is no JSON object"), Usage()
    if data.get("error"):
        return _permanent_code(data) or Trouble(f"status 200 with the error {excerpt(data['error'])}"), _usage(data)
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return Trouble("the body has no choices"), _usage(data)
    return _read_message(message, choice.get("finish_reason")), _usage(data)


def _read_message(message: Mapping[str, Any], finish_reason: Any) -> Reply:
    text = message.get("content")
    if finish_reason == "content_filter":
        return Reply(None, "the endpoint's content filter stopped the reply")
    if finish_reason == "length":
        return Reply(None, CUT)
    if message.get("refusal"):
        return Reply(None, f"the model refused: {excerpt(message['refusal'])}")
    if not isinstance(text, str) or not text.strip():
        return Reply(None, "the reply is empty" if text is None or isinstance(text, str) else "the reply is no text")
    return Reply(clean(text))


def read_status(status: int, headers: Mapping[str, str], body: Any) -> Reply | Trouble | Permanent:
    """The meaning of any other status. body: the decoded JSON, or whatever there was instead."""
    if found := _permanent_code(body):
        return found
    if 300 <= status < 400:
        return Permanent(
            f"it answered with a redirect ({status}) to {excerpt(headers.get('location', 'nowhere'))}",
            "set its base_url to where the service is: redirects are not followed, since they would take the prompts along",
        )
    if status in REFUSED:
        return Permanent(f"it answered {status}: {excerpt(body)}", REFUSED[status])
    if status in RETRIED or status >= 500:
        return Trouble(f"it answered {status}", retry_after_s(headers), outage=status >= 500)
    return Reply(None, f"it answered {status}: {excerpt(body)}")


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds asked for by Retry-After (seconds or a date) or retry-after-ms; 0 without a usable value."""
    try:
        if "retry-after-ms" in headers:
            seconds = float(headers["retry-after-ms"]) / 1000
        else:
            value = headers.get("retry-after", "0")
            seconds = (
                float(value) if re.match(r"\s*[\d.+-]", value) else (_date(value) - datetime.now(UTC)).total_seconds()
            )
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def excerpt(value: Any) -> str:
    """The beginning of an untrusted value, printable and on one line."""
    if isinstance(value, dict):
        inner = value.get("error", value)
        value = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join("".join(char if char.isprintable() else " " for char in str(value)[:MAX_EXCERPT]).split())


def clean(text: str) -> str:
    """A text that can be encoded: lone surrogates, which JSON can write and UTF-8 cannot, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _permanent_code(body: Any) -> Permanent | None:
    """Quota: the one 429 (or 402) that no waiting mends."""
    error = body.get("error", body) if isinstance(body, dict) else None
    codes = {str(error.get("code")), str(error.get("type"))} if isinstance(error, dict) else set()
    if codes & {"insufficient_quota", "402", "billing_hard_limit_reached"}:
        return Permanent(f"quota: {excerpt(body)}", "add credit, or use another key")
    return None


def _date(value: str) -> datetime:
    date = parsedate_to_datetime(value)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _usage(data: Mapping[str, Any]) -> Usage:
    usage = data.get("usage")
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else [0, 0]
    return Usage(*(count if isinstance(count, int) and 0 <= count < 1 << 31 else 0 for count in counts))
