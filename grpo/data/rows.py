"""Questions: rows of a JSON array, JSONL or CSV file, their fields, and an order that a resumed run can continue."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.errors import PREFLIGHT, UserError

QUESTION_FIELDS = ("question", "problem", "prompt")
ANSWER_FIELDS = ("answer", "answers", "ground_truth", "best_answer", "solution")
TITLE_FIELDS = ("title",)


@dataclass(frozen=True)
class Row:
    """A line of a data set: `question`, and all its columns, among them `answer` and `title` under these names."""

    index: int
    question: str
    columns: dict[str, Any]


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON array, JSONL or CSV file; which of them is decided by content. Exit 3 names file and
    line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text", str(error), "convert it to UTF-8", PREFLIGHT) from None
    except OSError as error:
        raise UserError(f"cannot read {path}", str(error), "check the path", PREFLIGHT) from None
    start = text.lstrip()[:1]
    if start == "[":
        records = _parse(text, path, 1)
    elif start == "{":
        # one object over several lines, or one per line; U+2028 ends no line of JSON
        records = _one_object(text) or [
            _parse(line, path, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()
        ]
    else:
        records = _read_table(text, path)
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(
                f"{path}: row {number} is not an object",
                f"it is {json.dumps(record)[:80]}",
                'each row must be {"question": …}',
                PREFLIGHT,
            )
    if not records:
        raise UserError(f"{path} holds no rows", "", "give a JSON array, JSONL or CSV file of questions", PREFLIGHT)
    return records


def _read_table(text: str, path: Path) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        records = list(reader)
    except csv.Error as error:
        raise UserError(
            f"{path}:{reader.line_num} is not valid CSV", str(error), "correct or remove that line", PREFLIGHT
        ) from None
    for number, record in enumerate(records, 1):
        if None in record:
            raise UserError(
                f"{path}: row {number} has more fields than the header",
                f"the header is {', '.join(reader.fieldnames)}"[:200],
                "put quotes around fields that hold a comma",
                PREFLIGHT,
            )
    return records


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # a plain ValueError: a number of thousands of digits
        where = line + getattr(error, "lineno", 1) - 1
        raise UserError(
            f"{path}:{where} is not valid JSON", str(error), "correct or remove that line", PREFLIGHT
        ) from None


def _one_object(text: str) -> list[Any]:
    """The only object of a file, which may go over several lines; nothing if there are more."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


def read_rows(
    path: Path,
    question_field: str | None = None,
    answer_field: str | None = None,
    title_field: str | None = None,
    max_samples: int = 0,
) -> list[Row]:
    """Rows with their fields found. A missing or mistyped field is an error (exit 3) that names the row and the key to
    set."""
    records = read_records(path)[: max_samples or None]
    names = {
        "question": _field(records, question_field, QUESTION_FIELDS),
        "answer": _field(records, answer_field, ANSWER_FIELDS),
        "title": _field(records, title_field, TITLE_FIELDS),
    }
    if names["question"] is None:
        raise UserError(
            f"{path}: no column holds the question",
            f"columns: {', '.join(records[0])}",
            "set question_field",
            PREFLIGHT,
        )
    for wanted, chosen in (("answer", answer_field), ("title", title_field)):
        if chosen and names[wanted] is None:
            raise UserError(
                f"{path}: there is no column {chosen}",
                f"columns: {', '.join(records[0])}",
                f"correct {wanted}_field",
                PREFLIGHT,
            )
    rows = []
    for index, record in enumerate(records):
        question = record.get(names["question"])
        if not isinstance(question, str) or not question.strip():
            raise UserError(
                f"{path}: row {index + 1} has no question",
                f"its {names['question']} is {json.dumps(question)[:80]}",
                "correct the row, or set question_field",
                PREFLIGHT,
            )
        if not _is_text(question):
            raise UserError(
                f"{path}: row {index + 1} holds half a character",
                f"its {names['question']} has a lone surrogate",
                "correct or remove the row",
                PREFLIGHT,
            )
        columns = dict(record)
        for wanted, name in names.items():
            if name is not None:
                columns[wanted] = record.get(name)
        rows.append(Row(index, question.strip(), columns))
    return rows


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: JSON can write half of a character, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _field(records: list[dict[str, Any]], chosen: str | None, candidates: tuple[str, ...]) -> str | None:
    """The column to use: the chosen one, else the first candidate that any row has."""
    return next(
        (name for name in ((chosen,) if chosen else candidates) if any(name in record for record in records)), None
    )


def fingerprint(rows: list[Row]) -> str:
    """A hash of a data set's content: a resumed run must see the same."""
    return digest([row.question, row.columns] for row in rows)


def digest(values: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for value in values:
        found.update(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


@dataclass
class Order:
    """Which rows come next: a permutation per epoch, a function of the seed alone. `position` counts rows handed out
    since the start, over all epochs and ranks, and is all that a checkpoint needs."""

    num_rows: int
    seed: int
    shuffle: bool
    position: int = 0

    def take(self, count: int) -> list[int]:
        """The next `count` row indices."""
        taken = []
        while len(taken) < count:
            epoch, offset = divmod(self.position, self.num_rows)
            batch = self._epoch(epoch)[offset : offset + count - len(taken)]
            taken += batch
            self.position += len(batch)
        return taken

    def _epoch(self, epoch: int) -> list[int]:
        order = list(range(self.num_rows))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order
