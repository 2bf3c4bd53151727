"""Stage 1's data: conversations in the format ShareGPT, Alpaca or `messages`, made into examples."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grpo.algorithm.schema import Call, Completion, Group, Prompt
from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.storage import Json
from grpo.data.count import DAMAGED, WITH_MEDIA, RowCount, has_media
from grpo.data.files import row_error, shown
from grpo.data.messages import (
    CONVERSATION_FIELDS,
    Message,
    is_answer,
    is_damaged,
    is_text,
    parts,
    read_messages,
    read_tools,
    with_system,
)
from grpo.data.prompts import ChatEncoder
from grpo.tools.tags import TagProtocol


def read_conversation(record: Json) -> tuple[list[Message], list[Message]]:
    """Return the messages of a record: those that are only given, and those whose answers are trained.

    ValueError says what is wrong with it. The first message of a conversation answers nothing, so it is given.

    ShareGPT: {"conversations": [{"from": "human" | "gpt" | "system", "value": text}], "system"?}
    messages: {"messages": [{"role": …, "content": text}]}
    TRL:      {"prompt": text or messages, "completion": text or messages}
    Alpaca:   {"instruction": text, "input"?: text, "output": text, "system"?: text, "history"?: [[asked, answered], …]}
    """
    record = {name: value for name, value in record.items() if value is not None}
    names = [name for name in CONVERSATION_FIELDS if name in record]
    given: list[Message] = []
    if names:
        name = next(filter(record.get, names), names[0])
        trained = read_messages(record[name], name)
    elif "instruction" in record:
        trained = _read_alpaca(record)
    elif "prompt" in record and "completion" in record:
        given = _read_part(record, "prompt", "user")
        trained = _read_part(record, "completion", "assistant")
    else:
        wanted = "conversations, messages, instruction, or prompt and completion"
        raise ValueError(f"it has no {wanted}; it has {', '.join(record) or 'nothing'}")
    if not given:
        given = trained[:1]
        trained = trained[1:]
    if record.get("system") and given[0]["role"] != "system":  # as in LLaMA-Factory, its own one goes before the column
        given = [*_read_part(record, "system", "system"), *given]
    if not any(map(is_answer, trained)):
        raise ValueError("there is no answer in it")
    return given, trained


def is_trained(message: Message) -> bool:
    return is_answer(message) and "weight" not in message


def _read_part(record: Json, name: str, role: str) -> list[Message]:
    """Return the messages in a column, which may hold the text of a single one."""
    value = record[name]
    return read_messages(value if isinstance(value, list) else [{"role": role, "content": value}], name)


def _read_alpaca(record: Json) -> list[Message]:
    """Return the messages of a record of Alpaca, those of its history first."""
    asked = [part for part in (record["instruction"], record.get("input")) if part is not None]
    history = record.get("history") or []
    if not asked or not all(map(is_text, asked)):
        raise ValueError(f"its instruction and input hold no text: {shown(asked)}")
    if not isinstance(history, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in history):
        raise ValueError(f"its history is {shown(history)}, and not a list of pairs [asked, answered]")
    turns = []
    for question, answer in [*history, ["\n".join(filter(None, asked)), record.get("output")]]:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return read_messages(turns, "history")


# the number of the row, from 0; its messages, see read_conversation; descriptions of tools
Conversation = tuple[int, list[Message], list[Message], list[Json]]


def read_conversations(records: Iterable[Json], path: Path, count: RowCount) -> Iterator[Conversation]:
    """Yield the conversation of each row to train on. At the end, UserError (exit 3) if rows are bad (see RowCount).

    Rows that are marked as bad, as KTO's are by `label: false`, are counted and left out; so are rows with images, and
    those whose answers all have the weight 0.
    """
    damaged = []
    for index, record in enumerate(records):
        count.rows += 1
        if str(record.get("label")).lower() == "false":
            count.left_out["marked as bad (label: false)"] += 1
        elif has_media(record):
            count.left_out[WITH_MEDIA] += 1
        else:
            try:
                given, trained = read_conversation(record)
            except ValueError as error:
                count.bad.setdefault(index + 1, row_error(path, index + 1, "is not a conversation", str(error)))
                continue
            if is_damaged([message["content"] for message in (*given, *trained)]):
                damaged.append(f"row {index + 1}")
            if any(map(is_trained, trained)):
                yield index, given, trained, read_tools(record.get("tools"))
            else:
                count.left_out["with no answer of another weight than 0"] += 1
    count.note(DAMAGED, damaged)
    count.leave_out_bad()


def make_examples(
    records: Sequence[Json],
    path: Path,
    encoder: ChatEncoder,
    system_prompt: str | None,
    max_length: int,
    count: RowCount,
    protocol: TagProtocol | None = None,
) -> list[Group]:
    """Return the examples, each with its prompt of at most max_length tokens. count: gets what is left out or cut.

    protocol: of the tools whose results in the answers are given and not trained.

    Every answer of a conversation, or of a completion, is one example, a group of one: its prompt is everything before
    it, rendered as in generation, and the loss is on the answer and its end token.
    """
    examples = []
    too_long = f"answers left out, with prompts of more than {max_length} tokens"
    for index, given, trained, tools in read_conversations(records, path, count):
        if reason := encoder.cannot_write([*given, *trained], tools):
            count.left_out[reason] += 1
            continue
        for number, message in enumerate(trained):
            if not is_trained(message):
                continue
            before = with_system([*given, *trained[:number]], system_prompt)
            room = 0
            if encoder.may_fit(before, max_length):
                text, prompt_ids = encoder.prompt(before, tools)
                room = max_length - len(prompt_ids)
            if room <= 0:
                count.notes[too_long] += 1
                continue
            calls: list[Call] = []
            if parts(message):
                answer_ids = encoder.turn(before, message, tools)
            else:
                answer = message["content"][: encoder.max_chars(room + 1)]  # more would be cut
                if protocol:
                    answer_ids, calls = protocol.written(answer, text)
                else:
                    answer_ids = encoder.answer(answer, text)
            if not answer_ids:
                count.notes["answers left out, which the chat template does not write after its own header"] += 1
                continue
            is_cut = room < len(answer_ids)
            count.notes[f"answers cut at {max_length} tokens"] += is_cut
            ids = answer_ids[:room]  # of what the template, the tools and the length leave of the answer
            completion = Completion.given(ids, "length" if is_cut else "stop", encoder.decode(ids))
            completion.calls = [replace(call, end=min(call.end, room)) for call in calls if call.start < room]
            examples.append(Group(Prompt(index, text, tuple(prompt_ids), {}), [completion]))
    if not examples:
        fix = "raise max_length, as far as the model has positions" if count.notes[too_long] else "use other data"
        raise UserError(f"{path} holds no usable example", str(count), fix, PREFLIGHT)
    return examples
