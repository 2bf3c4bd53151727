"""From files to records: JSON arrays, JSONL, tables, Parquet and Arrow, compressed or not, in one file or several."""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.base.storage import Json, read_json

BadRows = dict[int, UserError]  # what is wrong with the rows of a file, by their numbers, counted from 1

GZIP, PARQUET, ZIP = b"\x1f\x8b", b"PAR1", b"PK\x03\x04"  # the first bytes of such files
DELIMITERS = ",;\t|"  # of tables, the likeliest first
FLOATS = {"halffloat": np.float16, "float": np.float32, "double": float}  # Arrow's names of numbers
STATE_FILE = "state.json"  # of a folder written by the datasets library's save_to_disk
MAX_SHOWN = 80  # characters of a wrong value in a message
MAX_NAMED = 5  # bad rows in a message
csv.field_size_limit(2**31 - 1)  # characters; Python's own limit, 131,072, is shorter than long articles
_FIRST_PART = re.compile(r"(.*-)00000(-of-(\d{5})\..*)")
_BEGIN = re.compile(r"\s*(\[\s*(?:\]\Z)?)?")  # of JSON: that of an array, or an empty one


def read_records(path: Path, bad: BadRows | None = None) -> list[Json]:
    """Return the records of a data set: a JSON array, JSONL, a table, or Parquet, recognised by its content.

    Reads all files that `path` stands for (see files_of). UserError (exit 3) names the file and line of an error.
    bad: gets the rows that are no objects, which are then empty ones; without it, they are an error.
    """
    records = [record for file in files_of(path) for record in _read_file(file)]
    errors: BadRows = {} if bad is None else bad
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            why = f"it is {shown(record)}"
            fix = 'write {"question": …}'
            errors[number] = row_error(path, number, "is not an object", why, fix)
            records[number - 1] = {}
    if errors and (bad is None or len(errors) == len(records)):
        raise join_errors(errors)
    if not records:
        raise UserError(
            f"{path} holds no rows", "it is empty, or only a header", "give a JSON array, JSONL or CSV file", PREFLIGHT
        )
    return records


@contextmanager
def noting(bad: BadRows, number: int) -> Iterator[None]:
    """Put a UserError about a row into `bad`, instead of raising it, unless something is known to be wrong with it."""
    try:
        yield
    except UserError as error:
        bad.setdefault(number, error)


def join_errors(bad: BadRows, hint: str = "") -> UserError:
    """Return one error that counts the bad rows and names the first of them. hint: the end of what to do."""
    first, *others = (bad[number] for number in sorted(bad))
    if not others:
        return UserError(first.what, first.why, first.fix + hint, PREFLIGHT)
    named = [f"{error.what}: {error.why}" for error in (first, *others[: MAX_NAMED - 1])]
    named += ["…"] * (len(bad) > MAX_NAMED)
    return UserError(f"{len(bad)} rows are bad", "\n     ".join(named), first.fix + hint, PREFLIGHT)


def row_error(path: Path, number: int, what: str, why: str, fix: str = "correct or remove the row") -> UserError:
    """Return the error that a row of a data set is wrong. number: counted from 1."""
    return UserError(f"{path}: row {number} {what}", why, fix, PREFLIGHT)


def files_of(path: Path) -> list[Path]:
    """Return the files that a path stands for.

    A folder stands for the files that save_to_disk wrote there, and the first of several parts (-00000-of-00003) for
    all parts.
    """
    first = _FIRST_PART.fullmatch(path.name)
    if path.is_dir():
        with explained(
            (OSError, ValueError, KeyError, TypeError, AttributeError),
            f"{path} is not a data set that save_to_disk of the datasets library wrote",
            "give a file's path",
        ):
            state = read_json(path / STATE_FILE)
            found = [path / Path(entry["filename"]).name for entry in state["_data_files"]]
    elif first:
        found = [path.with_name(f"{first[1]}{number:05d}{first[2]}") for number in range(int(first[3]))]
    else:
        found = [path]
    missing = [file.name for file in found if not file.is_file()]
    if missing and path.exists():
        raise UserError(f"{path} is incomplete", f"{missing[0]} is missing", "download it again", PREFLIGHT)
    return found


def shown(value: Any) -> str:
    """Return a wrong value as JSON, shortened for a message."""
    return json.dumps(value, default=str)[:MAX_SHOWN]


def _read_file(path: Path) -> list[Any]:
    with explained((OSError, EOFError, zlib.error), f"cannot read {path}", "check the path, or download it again"):
        content = path.read_bytes()
        if content.startswith(GZIP):
            content = gzip.decompress(content)
    if content.startswith(PARQUET) or path.suffix == ".arrow":
        return _read_arrow(content, path)
    if content.startswith(ZIP):
        raise UserError(
            f"{path} is a ZIP archive",
            "as .zip and .xlsx are; .gz can be read",
            "unpack it; of a workbook of Excel, save the sheet as CSV",
            PREFLIGHT,
        )
    with explained(UnicodeDecodeError, f"{path} is not UTF-8 text", "convert it to UTF-8"):
        text = content.decode("utf-8-sig")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.lstrip().startswith(("[", "{")):
        return _read_json(text, path)
    return list(_read_table(text, path))


def _damaged(path: Path, line: int, kind: str, why: str, fix: str = "correct or remove that line") -> UserError:
    return UserError(f"{path}:{line} is not valid {kind}", why, fix, PREFLIGHT)


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise UserError (exit 3) if two columns have one name."""
    with explained(ValueError, f"{path}: two columns have the same name", "rename or remove one of them"):
        _unique([(name, None) for name in names])


def _read_table(text: str, path: Path) -> Iterator[Json]:
    """Yield the rows of a table, each of which has as many fields as the header."""
    delimiter = max(DELIMITERS, key=text.lstrip("\n").partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    first = 1  # line of the row that is being read
    try:
        for fields in lines:
            if not any(map(str.strip, fields[len(header) :])):  # as spreadsheets write columns that are empty
                fields = fields[: len(header)]
            if not header:
                while fields and fields[-1].strip() in ("", "sep="):  # Excel's first line is `sep=;`
                    fields.pop()
                header = fields
                _check_names(path, header)
            elif fields and len(fields) != len(header):
                why = f"the row has {len(fields)} fields, and the header {len(header)}: {', '.join(header)}"[:200]
                raise _damaged(
                    path, first, "CSV", why, f"put quotes around fields that hold {delimiter!r} or line breaks"
                )
            elif "\0" in "".join(fields):
                raise _damaged(path, first, "CSV", "the row holds a NUL character")
            elif fields:
                yield dict(zip(header, fields, strict=True))
            first = lines.line_num + 1
    except csv.Error as error:
        raise _damaged(
            path,
            first,
            "CSV",
            f"{error}; the row began here, and was read up to line {lines.line_num}",
            "close its quotes; a quote inside quotes is written twice",
        ) from None


def _read_json(text: str, path: Path) -> list[Any]:
    """Read a JSON array, whose elements are separated by commas, or objects, which are separated by new lines."""
    text = text.rstrip()
    decoder = json.JSONDecoder(object_pairs_hook=_unique)
    values = []
    begin = next(_BEGIN.finditer(text))
    between = re.compile(r"\s*,\s*|\s*\]\Z" if begin[1] else r"\s*\n\s*|\Z")
    place = begin.end()
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            values.append(value)
            gap = between.match(text, place)
            if not gap:
                raise json.JSONDecodeError("not one value after another", text, place)
            place = gap.end()
        if begin[1] and not text.endswith("]"):
            raise json.JSONDecodeError("the array does not end", text, place)
    except (ValueError, RecursionError) as error:  # a plain ValueError: a key twice, a number of thousands of digits
        line = text.count("\n", 0, getattr(error, "pos", place)) + 1
        raise _damaged(path, line, "JSON", str(error)) from None
    return values


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    """Make an object of its keys and values. ValueError if it has a key twice: only one value could be used."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _read_arrow(content: bytes, path: Path) -> list[Json]:
    """Read Parquet, or the stream of Arrow batches that save_to_disk writes."""
    kind = "Parquet" if content.startswith(PARQUET) else "Arrow"
    try:
        import pyarrow  # an extra
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"cannot read {path}",
            f"{kind} needs pyarrow",
            "pip install 'grpo[parquet]', or convert it to JSONL",
            PREFLIGHT,
        ) from None
    with explained((pyarrow.ArrowException, OSError), f"{path} is not valid {kind}", "download it again"):
        buffer = pyarrow.BufferReader(content)
        table = parquet.read_table(buffer) if kind == "Parquet" else pyarrow.ipc.open_stream(buffer).read_all()
    _check_names(path, table.column_names)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        with explained(
            (TypeError, ValueError, pyarrow.ArrowException),
            f"{path}: the column {name}, of type {column.type}, cannot be read as text",
            "remove the column, or convert it to text",
        ):
            kinds = set(re.findall(r"\b(?:halffloat|float|double)\b", str(column.type)))
            number = FLOATS[kinds.pop()] if len(kinds) == 1 else float
            columns.append(json_value(column.to_pylist(), number))
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def json_value(value: Any, number: type = float) -> Any:
    """Return a value as JSON would hold it. number: the type in which a number's shortest text is looked for.

    A float32 that was 0.1 is 0.1 again, and not 0.10000000149011612; 2020-01-02 stays that text. TypeError for an
    object that has neither a value in JSON nor a text of its own, such as a function.
    """
    match value:
        case None | bool():
            return value
        case Enum():
            return json_value(value.value, number)
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(str(number(value)))
        case np.floating():
            return float(str(value))
        case bytes():
            return value.decode()
        case Mapping():
            return {str(json_value(name)): json_value(item, number) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item, number) for item in value]
        case set() | frozenset():
            return sorted((json_value(item, number) for item in value), key=str)
        case Decimal():
            return f"{value:f}"
    if hasattr(value, "item") and hasattr(value, "ndim"):  # arrays and tensors
        return [json_value(item, number) for item in value] if value.ndim else json_value(value.item(), number)
    if type(value).__str__ is object.__str__:
        raise TypeError(f"{type(value).__name__} has no value in JSON")
    return str(value).removesuffix(" 00:00:00")  # dates, times, durations, UUIDs, paths
