"""Read questions from a file, and hand them out in an order that a resumed run continues."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.data.benchmarks import Benchmark, find_benchmark, read_benchmark
from grpo.errors import PREFLIGHT, UserError

QUESTION_FIELDS = ("question", "problem", "prompt")
ANSWER_FIELDS = ("answer", "answers", "ground_truth", "best_answer", "solution")
TITLE_FIELDS = ("title",)
PARQUET = b"PAR1"  # the first bytes of such a file
MAX_SHOWN = 80  # characters of a wrong value in a message


Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of a data set: the question, and all columns, with the answer as `answer` and the title as `title`."""

    index: int
    question: str
    columns: dict[str, Any]


# --- files to records ----------------------------------------------------------------------------------------------


def read_records(path: Path) -> list[Record]:
    """Return the objects of a JSON array, JSONL, CSV or Parquet file. The content decides which of them it is.

    Exit 3 names file and line of what cannot be read.
    """
    records = _read_parquet(path) if _is_parquet(path) else _read_text(path)
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(
                f"{path}: row {number} is not an object",
                f"it is {_shown(record)}",
                'each row must be {"question": …}',
                PREFLIGHT,
            )
    if not records:
        raise UserError(
            f"{path} holds no rows", "it is empty, or only a header", "give a JSON array, JSONL or CSV file", PREFLIGHT
        )
    return records


def _read_text(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text", str(error), "convert it to UTF-8", PREFLIGHT) from None
    except OSError as error:
        raise UserError(f"cannot read {path}", str(error), "check the path", PREFLIGHT) from None
    first = text.lstrip()[:1]
    if first == "[":
        return _parse(text, path, 1)
    if first == "{":
        return _read_objects(text, path)
    return _read_table(text, path)


def _is_parquet(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(PARQUET)) == PARQUET
    except OSError:
        return False  # reading it as text says what is wrong


def _read_parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError:
        fix = "pip install 'grpo[parquet]', or convert it to JSONL"
        raise UserError(f"{path} is a Parquet file", "reading it needs pyarrow", fix, PREFLIGHT) from None
    try:
        return read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise UserError(f"{path} is not valid Parquet", str(error), "download it again", PREFLIGHT) from None


def _read_objects(text: str, path: Path) -> list[Any]:
    """Read one object, which may have several lines, or one object per line."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    lines = text.split("\n")  # and not splitlines, because U+2028 does not end a line of JSON
    return [_parse(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]


def _read_table(text: str, path: Path) -> list[Record]:
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
    """Parse JSON that begins at `line` of the file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # a plain ValueError: a number of thousands of digits
        where = line + getattr(error, "lineno", 1) - 1
        raise UserError(
            f"{path}:{where} is not valid JSON", str(error), "correct or remove that line", PREFLIGHT
        ) from None


def _shown(value: Any) -> str:
    return json.dumps(value)[:MAX_SHOWN]


# --- records to rows -----------------------------------------------------------------------------------------------


def read_rows(
    path: Path,
    question_field: str | None = None,
    answer_field: str | None = None,
    title_field: str | None = None,
    max_samples: int = 0,
    seed: int = 0,
) -> list[Row]:
    """Read a file and find the question, the answer and the title of each row.

    A known benchmark's file is read as benchmarks.py says, unless a field is named for the question or the answer.
    seed: decides the order of given choices. Exit 3 names the row of a missing or wrong field, and the key to set.
    """
    records = read_records(path)[: max_samples or None]
    benchmark = None if question_field or answer_field else find_benchmark(records)
    if benchmark:
        records = _read_benchmark(path, benchmark, records, seed)
    names = {
        "question": _find_field(records, question_field, QUESTION_FIELDS),
        "answer": _find_field(records, answer_field, ANSWER_FIELDS),
        "title": _find_field(records, title_field, TITLE_FIELDS),
    }
    columns = f"columns: {', '.join(records[0])}"
    if names["question"] is None:
        raise UserError(f"{path}: no column holds the question", columns, "set question_field", PREFLIGHT)
    for wanted, chosen in (("answer", answer_field), ("title", title_field)):
        if chosen and names[wanted] is None:
            raise UserError(f"{path}: there is no column {chosen}", columns, f"correct {wanted}_field", PREFLIGHT)
    return [_make_row(path, index, record, names) for index, record in enumerate(records)]


def _read_benchmark(path: Path, benchmark: Benchmark, records: list[Record], seed: int) -> list[Record]:
    rows = []
    for index, record in enumerate(records):
        try:
            rows.append(read_benchmark(benchmark, record, f"{seed}/{index}"))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: row {index + 1} is not one of {benchmark.name}",
                f"the rows before it are; {type(error).__name__}: {error}",
                "correct or remove the row, or set question_field and answer_field",
                PREFLIGHT,
            ) from None
    return rows


def _find_field(records: list[dict[str, Any]], chosen: str | None, candidates: tuple[str, ...]) -> str | None:
    """Return the chosen column, or else the first candidate that any row has; None if no row has it."""
    for name in (chosen,) if chosen else candidates:
        if any(name in record for record in records):
            return name
    return None


def _make_row(path: Path, index: int, record: dict[str, Any], names: dict[str, str | None]) -> Row:
    question = record.get(names["question"])
    if not isinstance(question, str) or not question.strip():
        raise UserError(
            f"{path}: row {index + 1} has no question",
            f"its {names['question']} is {_shown(question)}",
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
    return Row(index, question.strip(), columns)


def _is_text(text: str) -> bool:
    """Whether UTF-8 can encode the text. JSON can hold half of a character, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- their content and order ---------------------------------------------------------------------------------------


def fingerprint(rows: list[Row]) -> str:
    """Return a hash of a data set's content. A resumed run must have the same."""
    return digest([row.question, row.columns] for row in rows)


def digest(values: Iterable[Any]) -> str:
    """Return a hash of some values and their order."""
    content = hashlib.sha256()
    for value in values:
        content.update(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return content.hexdigest()


@dataclass
class Order:
    """The order of the rows: one permutation per epoch, which depends only on the seed.

    `position` counts the rows taken since the start, over all epochs and ranks. A checkpoint needs nothing else.
    """

    num_rows: int
    seed: int
    shuffle: bool
    position: int = 0

    def take(self, count: int) -> list[int]:
        """Return the next `count` row indices."""
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
