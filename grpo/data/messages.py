"""Messages of a conversation, in the one form that chat templates take."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grpo.base.storage import Json
from grpo.data.files import shown

ROLES = ("system", "user", "assistant", "tool")  # any other text might spell a chat template's markup
ALIASES = {  # in ShareGPT, older calls, newer models of OpenAI
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "function": "tool",
    "developer": "system",
}
PARTS = {"reasoning_content", "tool_calls", "tool"}  # columns of a message, and a role: see `parts`
CONVERSATION_FIELDS = ("conversations", "messages")  # columns of messages that may end with an answer
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # what data call the first of these
LABELS = ("name", "tool_call_id")  # of a message; nothing is lost if a template does not write them
SWITCHES = ("weight", "train", "loss")  # of a message; 0 or false: it is not trained
# {"role": one of ROLES, "content": text}; where the data has them also PARTS, LABELS, and "weight": 0
Message = Json
_EATEN = re.compile(  # what \frac, \theta, \nu, \rho in JSON are, where the backslash is not written twice
    "[\0-\x08\x0b\x0c\x0e-\x1f]|\t(heta|ext|imes|frac|au|ilde|riangle)\\b|\n(u|eq|abla|ot|otin)\\b"
    "|\r(ho|ight|angle|m|ceil|floor)\\b"
)
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold half of a character, which no tokenizer accepts


def is_text(value: Any) -> bool:
    """Return whether a value is text that can be encoded."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def is_damaged(value: Any) -> bool:
    r"""Return whether a text, or one of a list, holds control characters, or what is left of \\frac in JSON."""
    if isinstance(value, list):
        return any(map(is_damaged, value))
    return isinstance(value, str) and bool(_EATEN.search(value))


def filled(value: Any) -> Any:
    """Return a value without the nulls in its objects: those of a Parquet column all have the keys of each."""
    match value:
        case dict():
            return {name: filled(item) for name, item in value.items() if item is not None}
        case list():
            return list(map(filled, value))
    return value


def with_system(messages: Sequence[Message], system_prompt: str | None) -> list[Message]:
    """Put a system prompt before a conversation that has none of its own."""
    if not system_prompt or (messages and messages[0]["role"] == "system"):
        return list(messages)
    return [{"role": "system", "content": system_prompt}, *messages]


def read_messages(turns: Any, name: str) -> list[Message]:
    """Return the messages in the column `name`. ValueError: what is wrong."""
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"its {name} is {shown(turns)}, and not a list of messages")
    return list(map(read_message, turns))


def read_message(turn: Any) -> Message:
    """Return the message {"role", "content"} or, as in ShareGPT, {"from", "value"}. ValueError: what is wrong."""
    if not isinstance(turn, dict):
        raise ValueError(f"a message is {shown(turn)}, and not an object with role and content")
    turn = filled(turn)
    role = turn.get("from") or turn.get("role")
    role = ALIASES.get(str(role), role)
    content = turn.get("value", turn.get("content"))
    calls = turn.get("tool_calls") or turn.get("function_call")
    if role == "function_call":  # in LLaMA-Factory
        role = "assistant"
        calls = content
        content = ""
    if role not in ROLES:
        raise ValueError(f"the role of a message is {shown(role)}, not one of {', '.join(ROLES)}")
    if isinstance(content, list):
        content = _joined(content)
    more: Message = {}
    if thoughts := next(filter(None, map(turn.get, THOUGHTS)), None):
        if not is_text(thoughts):
            raise ValueError(f"the thoughts of a message are no text: {shown(thoughts)}")
        more = {"reasoning_content": thoughts}
    if calls:
        more["tool_calls"] = read_calls(calls)
    if more and content is None:
        content = ""
    if not is_text(content):
        raise ValueError(f"a message of the {role} holds no text: {shown(content)}")
    more |= {name: turn[name] for name in LABELS if is_text(turn.get(name))}
    if turn.get("weight") not in (None, 0, 1):
        raise ValueError(f"the weight of a message is {shown(turn['weight'])}, and neither 0 nor 1")
    if 0 in map(turn.get, SWITCHES):
        more["weight"] = 0
    return {"role": role, "content": content, **more}


def read_calls(calls: Any) -> list[Json]:
    """Return the calls of tools in a message, in the form of chat templates. ValueError: what is wrong.

    They are [{"type": "function", "function": {"name", "arguments": {…}}}, …]; data may hold the functions alone, one
    instead of a list, and JSON instead of objects.
    """
    read = []
    for call in _listed(calls):
        function = call.get("function") or call if isinstance(call, dict) else None
        if not isinstance(function, dict) or not is_text(function.get("name")):
            raise ValueError(f"its tool_calls are {shown(calls)}, and not calls with name and arguments")
        arguments = _from_json(function.get("arguments")) or {}
        known = {"id": call["id"]} if is_text(call.get("id")) else {}
        function = {"name": function["name"], "arguments": arguments}
        read.append({**known, "type": "function", "function": function})
    if not is_text(json.dumps(read, ensure_ascii=False)):
        raise ValueError(f"its tool_calls hold no text: {shown(calls)}")
    return read


def read_tools(column: Any) -> list[Json]:
    """Return the descriptions of tools in the column `tools` of a row, objects or JSON; [] if it holds none."""
    tools = list(map(_from_json, _listed(filled(column))))
    are_described = all(isinstance(tool, dict) and {"function", "name"} & tool.keys() for tool in tools)
    return tools if are_described else []


def is_answer(message: Message) -> bool:
    """Return whether a message is the assistant's and says something."""
    return message["role"] == "assistant" and bool(message["content"].strip() or parts(message))


def parts(message: Message) -> set[str]:
    """Return what a message holds that not every chat template writes; `tool`: all that it holds."""
    return PARTS & {*message, message["role"]}


def _listed(value: Any) -> list[Any]:
    """Return the list that a value is, or spells in JSON; any other value as the only one of a list."""
    value = _from_json(value)
    return value if isinstance(value, list) else [value]


def _from_json(value: Any) -> Any:
    """Return the object or list that a text spells in JSON; any other value as it is."""
    found = None
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(value)
    return found if isinstance(found, dict | list) else value


def _joined(parts: list[Any]) -> Any:
    """Return the text of a content in parts, [{"type": "text", "text": …}, …]; the parts, if they are not all text."""
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not is_text(part.get("text")):
            return parts
        texts.append(part["text"])
    return "".join(texts) if parts else parts
