"""Read questions from a file, and hand them out in an order that a resumed run continues."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.base.storage import Json
from grpo.base.text import did_you_mean, is_blank
from grpo.data.files import BadRows, join_errors, noting, read_records, row_error, shown
from grpo.data.messages import CONVERSATION_FIELDS, Message, is_text, read_messages, with_system

if TYPE_CHECKING:
    from rewards.registry import Reward

FIELDS = {  # what is read of a row -> the usual names of its column
    "question": ("question", "problem", "prompt", *CONVERSATION_FIELDS),
    "answer": "answer answers ground_truth final_answer expected_answer best_answer solution".split(),
    "title": ["title"],
}
USERS_TURN = "conversation that ends with the user's message"


@dataclass(frozen=True)
class Row:
    """A row of a data set: the question, and all columns, with the answer as `answer` and the title as `title`.

    before: the messages before the question, if the row holds a conversation.
    """

    index: int
    question: str
    columns: Json
    before: tuple[Message, ...] | None = None

    def messages(self, template: str, system_prompt: str | None) -> list[Message]:
        """Return the messages that ask the question. template: of the last one, with {question} in it."""
        question = {"role": "user", "content": template.replace("{question}", self.question)}
        return with_system([*(self.before or ()), question], system_prompt)


def read_rows(
    path: Path,
    question_field: str | None = None,
    answer_field: str | None = None,
    title_field: str | None = None,
    seed: int = 0,
    records: list[Json] | None = None,
    bad: BadRows | None = None,
) -> list[Row]:
    """Read a file and find the question, the answer and the title of each row. records: of the file, if it was read.

    A known benchmark's file is read as benchmarks.py says, unless question_field or answer_field is given. seed:
    decides the order of choices. UserError (exit 3) names a missing column, and the key to set. bad: gets the rows
    that cannot be used; without it, they are an error.
    """
    errors: BadRows = {} if bad is None else bad
    records = records or read_records(path, errors)
    if not question_field and any(isinstance(record.get("prompt"), list) for record in records):
        question_field = "prompt"  # TRL's conversations; other columns may hold the question as well
    if not (question_field or answer_field):
        records = _as_benchmark(path, records, seed, errors)
    if errors and not any(records):
        raise join_errors(errors)
    filled = {name for record in records for name, value in record.items() if value is not None}
    names: dict[str, str] = {}
    for wanted, chosen in zip(FIELDS, (question_field, answer_field, title_field), strict=True):
        candidates = [chosen] if chosen else FIELDS[wanted]
        if found := [name for name in candidates if name in filled]:
            names[wanted] = found[0]
        elif chosen or wanted == "question":
            what = f"{path}: there is no column {chosen or 'for the question'}"
            columns = list(records[0])
            raise UserError(
                what,
                f"columns: {', '.join(columns)}",
                f"set {wanted}_field to one of them{did_you_mean(chosen or wanted, columns)}",
                PREFLIGHT,
            )
    rows = []
    for index, record in enumerate(records):
        with noting(errors, index + 1):
            rows.append(_make_row(path, index, record, names))
    if errors and (bad is None or not rows):
        raise join_errors(errors)
    return rows


def _as_benchmark(path: Path, records: list[Json], seed: int, bad: BadRows) -> list[Json]:
    """Return the records of a known benchmark as it reads them; others stay as they are."""
    from grpo.data.benchmarks import find_benchmark  # for files whose columns no key names

    benchmark = find_benchmark(records, path.name)
    if not benchmark:
        return records
    rows: list[Json] = [{} for _ in records]
    kinds = (KeyError, ValueError, TypeError, AttributeError)
    fix = "correct or remove the row, or set question_field and answer_field"
    for index, record in enumerate(records):
        what = f"{path}: row {index + 1} is not one of {benchmark.name}, as others are"
        with noting(bad, index + 1), explained(kinds, what, fix):
            rows[index] = benchmark.read_row(record, f"{seed}/{index}")
    return rows


def _make_row(path: Path, index: int, record: Json, names: dict[str, str]) -> Row:
    question: Any = record.get(names["question"])
    before: list[Message] | None = None
    answer = None
    if isinstance(question, list):
        try:
            *before, question, answer = split_conversation(question, names["question"])
        except ValueError as error:
            raise row_error(path, index + 1, f"holds no {USERS_TURN}", str(error)) from None
    if not is_text(question) or is_blank(question):
        raise row_error(
            path,
            index + 1,
            "has no question",
            f"its {names['question']} is {shown(question)}",
            "correct the row, or set question_field",
        )
    columns = record | {wanted: record.get(name) for wanted, name in names.items()} | {"question": question}
    if answer is not None and columns.get("answer") is None:
        columns["answer"] = answer
    return Row(index, question.strip(), columns, None if before is None else tuple(before))


def split_conversation(turns: list[Any], name: str) -> list[Any]:
    """Return the messages before the question, the question, and the answer after it. ValueError: what is wrong.

    The answer is None if the policy gives it; only a conversation of CONVERSATION_FIELDS may hold it.
    """
    messages = read_messages(turns, name)
    answer = None
    if name in CONVERSATION_FIELDS and messages[-1]["role"] == "assistant":
        answer = messages.pop()["content"]
    if not messages or messages[-1]["role"] != "user":
        raise ValueError(f"it ends with {shown(messages[-1:])}, and the policy answers the user")
    return [*messages[:-1], messages[-1]["content"], answer]


def comparing(rewards: Sequence["Reward"]) -> list[str]:
    """Return the names of the built-in rewards that compare a completion with the answer of its row."""
    return [reward.name for reward in rewards if reward.function is None and "answer" in reward.needs]


def check_answer(rewards: Sequence[str], answer: Any, path: Path, number: int) -> None:
    """Raise UserError (exit 3) if the answer of a row is no value or list of them: SQuAD's is an object.

    rewards: those that compare with it.
    """
    parts = answer if isinstance(answer, list) else [answer]
    if rewards and any(isinstance(part, list | dict) for part in parts):
        raise row_error(
            path,
            number,
            f"has an answer that the reward {rewards[0]} cannot compare with",
            f"it is {shown(answer)}",
            "make it a text, a number or a list of them; or set answer_field to a column that is",
        )


def fingerprint(rows: list[Row]) -> str:
    """Return a hash of a data set's content. A resumed run must have the same."""
    return digest([row.question, row.columns] for row in rows)


def digest(values: Iterable[Any]) -> str:
    """Return a hash of some values and their order."""
    content = hashlib.sha256()
    for value in values:
        content.update(json.dumps(value, sort_keys=True, default=str).encode())
    return content.hexdigest()
