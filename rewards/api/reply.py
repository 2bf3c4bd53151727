"""Read what a chat endpoint answers: a text, unscorable for a reason, worth another try, or a failure that stays.

Bodies are read here and not by the SDK, which takes HTML for a reply and crashes on a missing field. No body makes this
file raise, and nothing that an endpoint says is ever taken for a number.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo.base.errors import redact
from grpo.base.storage import Json
from grpo.base.text import encodable
from knowledge.facts.replies import without_thoughts
from knowledge.text import printable

CUT = "the reply was cut at max_tokens"
MAX_EXCERPT_CHARS = 200
MAX_USAGE = 1 << 31  # tokens; an endpoint that reports more is not believed
BUSY = {408, 409, 425, 429, 503, 529}  # it asks us to slow down
BUSY_HELP = "; lower api_max_concurrency, or raise api_deadline_s"
REFUSED = {
    401: "check the key",
    402: "add credit, or use another key",
    403: "check what the key is allowed to do",
    404: "check the base_url (does it end in /v1?) and the model's name",
    405: "check the base_url (does it end in /v1?)",
}
QUOTA_CODES = {"insufficient_quota", "402", "billing_hard_limit_reached", "budget_exceeded"}
_IS_CUT = re.compile(r"length|max", re.IGNORECASE)  # these say why a reply ended, in the words of many servers
_IS_COMPLETE = re.compile(r"stop|eos|end|complete|finish|call", re.IGNORECASE)
_PART_OF_A_KEY = re.compile(r"\b(sk|pk)-[\w*.-]{4,}")  # some services quote it


@dataclass(frozen=True)
class ChatReply:
    """What came back for one question: a text; or None (unscorable), and why.

    cut: what there is of a reply that did not come to its end.
    """

    text: str | None
    reason: str = ""
    cut: str = ""


@dataclass(frozen=True)
class Trouble:
    """A request that failed and may be tried again.

    is_reply: the model replied, but nothing that can be used. wait_s: how long the endpoint asked us to wait. cut: see
    ChatReply.
    """

    reason: str
    is_reply: bool = False
    wait_s: float = 0.0
    cut: str = ""


@dataclass(frozen=True)
class Permanent:
    """A failure that concerns every request, and that only the user can repair."""

    reason: str
    fix: str


Response = ChatReply | Trouble | Permanent
Usage = tuple[int, int]  # the tokens of prompt and completion that the endpoint says it charged for


def read_body(body: bytes) -> tuple[Response, Usage]:
    """Read a body that came with status 200."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return Trouble(f"the body is no JSON object: {excerpt(body.decode(errors='replace'))}"), (0, 0)
    prompt_tokens, completion_tokens = (_within(data, "usage", f"{kind}_tokens") for kind in ("prompt", "completion"))
    return _read_data(data), (_count(prompt_tokens), _count(completion_tokens))


def _read_data(data: Json) -> Response:
    if data.get("error"):
        code = str(_within(data, "error", "code"))
        is_status = re.fullmatch("[45][0-9][0-9]", code)  # a gateway's, inside a body with status 200
        return read_status(int(code) if is_status else 200, {}, data)
    message = _within(data, "choices", 0, "message")
    if not isinstance(message, dict):
        return Trouble(f"the body has no choices: {excerpt(data)}")
    text = without_thoughts(encodable(_text(message.get("content"))))
    ended = str(_within(data, "choices", 0, "finish_reason") or "stop")  # some servers do not say
    if _IS_CUT.search(ended):
        return Trouble(CUT, is_reply=True, cut=text)
    if not _IS_COMPLETE.search(ended):
        return Trouble(f"the reply is not complete: {excerpt(ended)}", is_reply=True, cut=text)
    return ChatReply(text) if text else Trouble("the reply holds no text", is_reply=True)


def _within(data: Any, *path: str | int) -> Any:
    """Return what stands in a JSON value under these keys and positions; None if that is not there."""
    try:
        for key in path:
            data = data[key]
    except (TypeError, KeyError, IndexError):
        return None
    return data


def _text(content: object) -> str:
    """Return a content's text, which some endpoints send in parts; "" if it has none. Thoughts are other parts."""
    if isinstance(content, list):
        return "".join(_text(part) for part in content)
    if isinstance(content, dict) and content.get("type", "text") in ("text", "output_text"):
        content = content.get("text")
    return content if isinstance(content, str) else ""


def read_status(status: int, headers: Mapping[str, str], body: object) -> Response:
    """Read any other status, and 200 with an error. body: the decoded JSON, or whatever came instead."""
    reason = f"it answered {status}: {excerpt(body)}" if body else f"it answered {status}"
    error = _within(body, "error") or body
    if QUOTA_CODES & {str(_within(error, "code")), str(_within(error, "type"))}:  # waiting does not repair it
        return Permanent(f"quota: {reason}", "add credit, or use another key")
    if 300 <= status < 400:
        return Permanent(
            f"it answered with a redirect ({status}) to {excerpt(headers.get('location', 'nowhere'))}",
            "set its base_url to where the service is: a redirect is not followed, since it would get the prompts",
        )
    if status in REFUSED:
        return Permanent(reason, REFUSED[status])
    if 400 <= status < 500 and status not in BUSY:
        return ChatReply(None, reason)
    wait_s = retry_after_s(headers)
    if wait_s:
        reason += f" (it asks to wait {wait_s:g} s)"
    return Trouble(reason + BUSY_HELP * (status in BUSY), wait_s=wait_s)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds that Retry-After asks for; 0 without a number."""
    try:
        seconds = float(headers.get("retry-after", 0))
    except ValueError:
        return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def excerpt(value: object) -> str:
    """Return the beginning of an untrusted value: printable, on one line, and without a secret or half of one."""
    value = _within(value, "error") or value
    value = _within(value, "message") or value
    text = _PART_OF_A_KEY.sub("[key]", redact(str(value))[: 10 * MAX_EXCERPT_CHARS])
    return " ".join(printable(text).split())[:MAX_EXCERPT_CHARS]


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MAX_USAGE else 0
