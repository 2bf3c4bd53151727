"""Stage 1's data: conversations in the format ShareGPT, Alpaca or `messages`, made into examples."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.schema import Completion, Group, Prompt
from grpo.data.count import WITH_MEDIA, RowCount, has_media
from grpo.data.files import Record, row_error, shown
from grpo.data.prompts import ChatEncoder, Message
from grpo.data.rows import ROLES

ALIASES = {"human": "user", "gpt": "assistant"}  # of roles, in ShareGPT


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
        if message["role"] not in ROLES:
            raise ValueError(f"the role of message {number} is {shown(message['role'])}, not one of {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            raise ValueError(f"message {number} has no text; its content is {shown(message['content'])}")
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise ValueError("there is no answer in it")
    return messages


def num_trained(record: Record, messages: Sequence[Message]) -> int:
    """Return how many messages, the last ones of a record, may be answers to train on.

    The first message of a conversation answers nothing. Of TRL's prompt and completion, only the completion is trained.
    """
    if record.keys().isdisjoint(("conversations", "messages", "instruction")):
        return len(_read_part(record["completion"], "assistant"))
    return len(messages) - 1


def _read_part(part: str | list[Record], role: str) -> list[Message]:
    """Read a prompt or a completion: a text, or messages."""
    return [{"role": role, "content": part}] if isinstance(part, str) else [_read_turn(turn) for turn in part]


def _read_turn(turn: Record) -> Message:
    role = turn.get("from") or turn.get("role")
    return {"role": ALIASES.get(str(role), role), "content": turn.get("value", turn.get("content"))}


def _read_alpaca(record: Record) -> list[Message]:
    question = "\n".join(filter(None, (record["instruction"], record.get("input"))))
    pairs = [*(record.get("history") or []), [question, record.get("output")]]
    messages = []
    for asked, answered in pairs:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answered})
    return messages


def read_conversations(records: Iterable[Record], path: Path, count: RowCount) -> Iterator[tuple[int, list[Message]]]:
    """Yield the index and the messages of each row to train on. UserError (exit 3) names a row that has none.

    Rows that are marked as bad, as KTO's are by `label: false`, are counted and left out; so are rows with images.
    """
    for index, record in enumerate(records):
        count.rows += 1
        if str(record.get("label")).lower() == "false":
            count.left_out["marked as bad (label: false)"] += 1
        elif has_media(record):
            count.left_out[WITH_MEDIA] += 1
        else:
            try:
                messages = read_messages(record)
            except (ValueError, TypeError, AttributeError) as error:
                raise row_error(path, index + 1, "is not a conversation", str(error)) from None
            yield index, messages


def make_examples(
    records: Sequence[Record],
    path: Path,
    encoder: ChatEncoder,
    system_prompt: str | None,
    max_length: int,
    count: RowCount,
) -> list[Group]:
    """Return the examples, each with its prompt of at most max_length tokens. count: gets what is left out or cut.

    Every answer of a conversation, or of a completion, is one example, a group of one: its prompt is everything before
    it, rendered as in generation, and the loss is on the answer and its end token.
    """
    examples = []
    too_long = f"answers left out, with prompts of more than {max_length} tokens"
    for index, messages in read_conversations(records, path, count):
        num_answers = num_trained(records[index], messages)
        if system_prompt and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system_prompt}, *messages]
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number < len(messages) - num_answers:
                continue
            before = messages[:number]
            if sum(len(earlier["content"]) for earlier in before) > encoder.max_chars(max_length):
                count.notes[too_long] += 1
                continue
            text, prompt_ids = encoder.prompt(before)
            room = max_length - len(prompt_ids)
            if room <= 0:
                count.notes[too_long] += 1
                continue
            answer_ids = encoder.answer(message["content"][: encoder.max_chars(room + 1)])  # more would be cut
            is_cut = room < len(answer_ids)
            count.notes[f"answers cut at {max_length} tokens"] += is_cut
            completion = Completion.given(answer_ids[:room], "length" if is_cut else "stop", message["content"])
            examples.append(Group(Prompt(index, text, tuple(prompt_ids), {}), [completion]))
    if not examples:
        fix = "raise max_length" if count.notes[too_long] else "use other data"
        raise UserError(f"{path} holds no usable example", str(count), fix, PREFLIGHT)
    return examples
