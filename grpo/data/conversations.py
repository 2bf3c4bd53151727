"""Stage 1's data: ShareGPT, Alpaca or `messages` records to examples of (messages before, answer)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.data.prompts import ChatEncoder, Message
from grpo.errors import PREFLIGHT, UserError
from grpo.schema import Completion, Group, Prompt

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def read_messages(record: dict[str, Any]) -> list[Message]:
    """The messages of one record. ValueError says what is wrong with it.

    ShareGPT: {"conversations": [{"from": "human" | "gpt" | "system", "value": text}], "system"?}
    messages: {"messages": [{"role": …, "content": text}]}
    Alpaca:   {"instruction": text, "input"?: text, "output": text, "system"?: text, "history"?: [[question, answer], …]}
    """
    if "conversations" in record or "messages" in record:
        turns = record.get("conversations") or record.get("messages")
        messages = [
            {
                "role": ROLES.get(turn.get("from") or turn.get("role"), ""),
                "content": turn.get("value", turn.get("content")),
            }
            for turn in turns
        ]
    elif "instruction" in record:
        asked = "\n".join(filter(None, (record["instruction"], record.get("input"))))
        turns = [*(record.get("history") or []), [asked, record.get("output")]]
        messages = [
            {"role": role, "content": text}
            for pair in turns
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    else:
        raise ValueError(f"neither conversations, messages nor instruction among its columns: {', '.join(record)}")
    if record.get("system"):
        messages = [{"role": "system", "content": record["system"]}, *messages]
    for number, message in enumerate(messages, 1):
        if not message["role"] or not isinstance(message["content"], str):
            raise ValueError(f"message {number} has no known role or no text")
    if not any(m["role"] == "assistant" and m["content"].strip() for m in messages):
        raise ValueError("there is no answer in it")
    return messages


def make_examples(
    records: Sequence[dict[str, Any]], path: Path, encoder: ChatEncoder, system_prompt: str | None, max_length: int
) -> tuple[list[Group], int, int]:
    """Examples, how many were cut at max_length, how many were left out because the prompt alone is longer.

    Every answer of a conversation is one example, a group of one: its prompt is everything before it, rendered as at
    generation time, and the loss is on the answer and its end token.
    """
    examples, cut, left_out = [], 0, 0
    for index, record in enumerate(records):
        try:
            messages = read_messages(record)
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: row {index + 1} is no conversation", str(error), "correct or remove that row", PREFLIGHT
            ) from None
        if system_prompt and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system_prompt}, *messages]
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number == 0:
                continue
            text, prompt_ids = encoder.prompt(messages[:number])
            answer = encoder.answer(message["content"])
            room = max_length - len(prompt_ids)
            cut, left_out = cut + (0 < room < len(answer)), left_out + (room <= 0)
            if room > 0:
                completion = Completion(
                    answer[:room],
                    [0.0] * len(answer[:room]),
                    [float("-inf")] * len(answer[:room]),
                    "stop",
                    message["content"],
                )
                examples.append(Group(Prompt(index, text, tuple(prompt_ids), {}), [completion]))
    if not examples:
        raise UserError(
            f"{path} holds no usable example",
            f"{left_out} are longer than max_length = {max_length}",
            "raise max_length",
            PREFLIGHT,
        )
    return examples, cut, left_out
