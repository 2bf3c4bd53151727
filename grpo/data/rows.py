"""Read questions from a file, and hand them out in an order that a resumed run continues."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.base.errors import PREFLIGHT, UserError, explained, reason
from grpo.base.text import did_you_mean, is_blank
from grpo.data.benchmarks import Benchmark, find_benchmark
from grpo.data.files import Record, read_records, row_error, shown
from grpo.data.messages import Message, is_text, read_messages

QUESTION_FIELDS = ("question", "problem", "prompt")
ANSWER_FIELDS = ("answer", "answers", "ground_truth", "final_answer", "expected_answer", "best_answer", "solution")
TITLE_FIELDS = ("title",)


@dataclass(frozen=True)
class Row:
    """A row of a data set: the question, and all columns, with the answer as `answer` and the title as `title`.

    before: the messages before the question, if the row holds a conversation.
    """

    index: int
    question: str
    columns: Record
    before: tuple[Message, ...] | None = None


def read_rows(
    path: Path,
    question_field: str | None = None,
    answer_field: str | None = None,
    title_field: str | None = None,
    seed: int = 0,
    records: list[Record] | None = None,
) -> list[Row]:
    """Read a file and find the question, the answer and the title of each row. records: of the file, if it was read.

    A known benchmark's file is read as benchmarks.py says, unless question_field or answer_field is given. seed:
    decides the order of choices. UserError (exit 3) names the row of a missing or wrong field, and the key to set.
    """
    fields = {  # what is read -> the column that is chosen for it, and its usual names
        "question": (question_field, QUESTION_FIELDS),
        "answer": (answer_field, ANSWER_FIELDS),
        "title": (title_field, TITLE_FIELDS),
    }
    records = records or read_records(path)
    if not question_field and any(isinstance(record.get("prompt"), list) for record in records):
        fields["question"] = ("prompt", ())  # TRL's conversations; other columns may hold the question as well
    benchmark = None if fields["question"][0] or answer_field else find_benchmark(records, path.name)
    if benchmark:
        records = _read_benchmark(path, benchmark, records, seed)
    names = {}
    for wanted, (chosen, usual) in fields.items():
        candidates = [chosen] if chosen else usual
        names[wanted] = next((name for name in candidates if any(name in record for record in records)), None)
        if names[wanted] is None and (chosen or wanted == "question"):
            what, columns = f"{path}: there is no column {chosen or 'for the question'}", list(records[0])
            fix = f"set {wanted}_field to one of them{did_you_mean(chosen or wanted, columns)}"
            raise UserError(what, f"columns: {', '.join(columns)}", fix, PREFLIGHT)
    return [_make_row(path, index, record, names) for index, record in enumerate(records)]


def _read_benchmark(path: Path, benchmark: Benchmark, records: list[Record], seed: int) -> list[Record]:
    rows = []
    for index, record in enumerate(records):
        try:
            rows.append(benchmark.read_row(record, f"{seed}/{index}"))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            what, why = f"is not one of {benchmark.name}", f"the rows before it are; {reason(error)}"
            fix = "correct or remove the row, or set question_field and answer_field"
            raise row_error(path, index + 1, what, why, fix) from None
    return rows


def _make_row(path: Path, index: int, record: Record, names: dict[str, str | None]) -> Row:
    question, before = record.get(names["question"]), None
    if isinstance(question, list):
        before, question = _read_conversation(path, index, question)
    if not is_text(question) or is_blank(question):
        why = f"its {names['question']} is {shown(question)}"
        raise row_error(path, index + 1, "has no question", why, "correct the row, or set question_field")
    columns = dict(record)
    for wanted, name in names.items():
        if name is not None:
            columns[wanted] = record.get(name)
    columns["question"] = question
    return Row(index, question.strip(), columns, before)


def _read_conversation(path: Path, index: int, turns: list[Any]) -> tuple[tuple[Message, ...], str]:
    """Return the messages before the last one, and the text of the last one, which the policy answers."""
    what = f"{path}: row {index + 1} holds no conversation that ends with the user's message"
    with explained(ValueError, what, "correct or remove the row"):
        messages = read_messages(turns, "prompt")
        if messages[-1]["role"] != "user":
            raise ValueError(f"it ends with {shown(messages[-1:])}, and the policy answers the user")
    return tuple(messages[:-1]), messages[-1]["content"]


def fingerprint(rows: list[Row]) -> str:
    """Return a hash of a data set's content. A resumed run must have the same."""
    return digest([row.question, row.columns] for row in rows)


def digest(values: Iterable[Any]) -> str:
    """Return a hash of some values and their order."""
    content = hashlib.sha256()
    for value in values:
        content.update(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return content.hexdigest()
