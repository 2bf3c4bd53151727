"""Stage 1's data: conversations in the format ShareGPT, Alpaca or `messages`, made into examples."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.schema import Completion, Group, Prompt
from grpo.data.files import Record
from grpo.data.prompts import ChatEncoder, Message

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def read_messages(record: Record) -> list[Message]:
    """Return the messages of one record. ValueError says what is wrong with it.

    ShareGPT: {"conversations": [{"from": "human" | "gpt" | "system", "value": text}], "system"?}
    messages: {"messages": [{"role": …, "content": text}]}
    TRL:      {"prompt": text or messages, "completion": text or messages}
    Alpaca:   {"instruction": text, "input"?: text, "output": text, "system"?: text, "history"?: [[asked, answered], …]}
    """
    if "conversations" in record or "messages" in record:
        turns = record.get("conversations") or record.get("messages")
        messages = [_read_turn(turn) for turn in turns]
    elif "instruction" in record:
        messages = _read_alpaca(record)
    elif "prompt" in record and "completion" in record:
        messages = [*_read_part(record["prompt"], "user"), *_read_part(record["completion"], "assistant")]
    else:
        wanted = "conversations, messages, instruction, or prompt and completion"
        raise ValueError(f"it has no {wanted}; its columns are {', '.join(record)}")
    if record.get("system"):
        messages = [{"role": "system", "content": record["system"]}, *messages]
    for number, message in enumerate(messages, 1):
        if not message["role"] or not isinstance(message["content"], str):
            raise ValueError(f"message {number} has no known role or no text")
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise ValueError("there is no answer in it")
    return messages


def _read_part(part: str | list[Record], role: str) -> list[Message]:
    """Read a prompt or a completion: a text, or messages."""
    return [{"role": role, "content": part}] if isinstance(part, str) else [_read_turn(turn) for turn in part]


def _read_turn(turn: Record) -> Message:
    role = turn.get("from") or turn.get("role")
    return {"role": ROLES.get(role, ""), "content": turn.get("value", turn.get("content"))}


def _read_alpaca(record: Record) -> list[Message]:
    question = "\n".join(filter(None, (record["instruction"], record.get("input"))))
    pairs = [*(record.get("history") or []), [question, record.get("output")]]
    messages = []
    for asked, answered in pairs:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answered})
    return messages


def read_conversations(records: Iterable[Record], path: Path) -> Iterator[list[Message]]:
    """Yield the messages of each row. UserError (exit 3) names the first row that is not a conversation."""
    for number, record in enumerate(records, 1):
        try:
            yield read_messages(record)
        except (ValueError, TypeError, AttributeError) as error:
            what, fix = f"{path}: row {number} is not a conversation", "correct or remove that row"
            raise UserError(what, str(error), fix, PREFLIGHT) from None


def make_examples(
    records: Sequence[Record], path: Path, encoder: ChatEncoder, system_prompt: str | None, max_length: int
) -> tuple[list[Group], int, int]:
    """Return the examples, the number cut at max_length, and the number left out because their prompts are longer.

    Every answer of a conversation is one example, a group of one: its prompt is everything before it, rendered as in
    generation, and the loss is on the answer and its end token.
    """
    examples, num_cut, num_left_out = [], 0, 0
    for index, messages in enumerate(read_conversations(records, path)):
        if system_prompt and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system_prompt}, *messages]
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number == 0:
                continue
            before = messages[:number]
            if sum(len(earlier["content"]) for earlier in before) > encoder.max_chars(max_length):
                num_left_out += 1
                continue
            text, prompt_ids = encoder.prompt(before)
            room = max_length - len(prompt_ids)
            if room <= 0:
                num_left_out += 1
                continue
            answer_ids = encoder.answer(message["content"][: encoder.max_chars(room + 1)])  # more would be cut
            is_cut = room < len(answer_ids)
            num_cut += is_cut
            completion = Completion.given(answer_ids[:room], "length" if is_cut else "stop", message["content"])
            examples.append(Group(Prompt(index, text, tuple(prompt_ids), {}), [completion]))
    if not examples:
        raise UserError(
            f"{path} holds no usable example",
            f"{num_left_out} are longer than max_length = {max_length}",
            "raise max_length",
            PREFLIGHT,
        )
    return examples, num_cut, num_left_out
