"""Messages of a conversation, in the one form that chat templates take."""

import re
from collections.abc import Sequence
from typing import Any

from grpo.data.files import shown

ROLES = ("system", "user", "assistant", "tool")  # any other text might spell a chat template's markup
ALIASES = {"human": "user", "gpt": "assistant"}  # in ShareGPT
Message = dict[str, str]  # {"role": one of ROLES, "content": text}
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold half of a character, which no tokenizer accepts


def is_text(value: Any) -> bool:
    """Return whether a value is text that can be encoded."""
    return isinstance(value, str) and not _SURROGATE.search(value)


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
    role = turn.get("from") or turn.get("role")
    role = ALIASES.get(str(role), role)
    content = turn.get("value", turn.get("content"))
    if role not in ROLES:
        raise ValueError(f"the role of a message is {shown(role)}, not one of {', '.join(ROLES)}")
    if isinstance(content, list):
        content = _joined(content)
    if not is_text(content):
        raise ValueError(f"a message of the {role} holds no text: {shown(content)}")
    return {"role": role, "content": content}


def _joined(parts: list[Any]) -> Any:
    """Return the text of a content in parts, [{"type": "text", "text": …}, …]; the parts, if they are not all text."""
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not is_text(part.get("text")):
            return parts
        texts.append(part["text"])
    return "".join(texts) if parts else parts
