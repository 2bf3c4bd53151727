"""From files to records: JSON arrays, JSONL, tables, Parquet and Arrow, compressed or not, in one file or several."""

import csv
import gzip
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

from grpo.base.errors import PREFLIGHT, UserError, explained, reason
from grpo.base.storage import read_json

Record = dict[str, Any]

GZIP, PARQUET = b"\x1f\x8b", b"PAR1"  # the first bytes of such files
DELIMITERS = ",;\t|"  # of tables, the likeliest first
STATE_FILE = "state.json"  # of a folder written by the datasets library's save_to_disk
MAX_SHOWN = 80  # characters of a wrong value in a message
_SHARD = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\..*)")


def read_records(path: Path) -> list[Record]:
    """Return the records of a data set: a JSON array, JSONL, a table, or Parquet, recognised by its content.

    Reads all files that `path` stands for (see files_of). UserError (exit 3) names the file and line of an error.
    """
    records = [record for file in files_of(path) for record in _read_file(file)]
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(
                f"{path}: row {number} is not an object",
                f"it is {shown(record)}",
                'each row must be {"question": …}',
                PREFLIGHT,
            )
    if not records:
        raise UserError(
            f"{path} holds no rows", "it is empty, or only a header", "give a JSON array, JSONL or CSV file", PREFLIGHT
        )
    return records


def files_of(path: Path) -> list[Path]:
    """Return the files that a path stands for.

    A folder stands for the files that save_to_disk wrote there, and the first of several parts (-00000-of-00003) for
    all parts.
    """
    part = _SHARD.fullmatch(path.name)
    if path.is_dir():
        found = _files_of_folder(path)
    elif part and int(part[2]) == 0:
        found = [path.with_name(f"{part[1]}{number:05d}{part[3]}{part[4]}{part[5]}") for number in range(int(part[4]))]
    else:
        found = [path]
    missing = [file.name for file in found if not file.is_file()]
    if missing and path.exists():
        raise UserError(f"{path} is incomplete", f"{missing[0]} is missing", "download it again", PREFLIGHT)
    return found


def _files_of_folder(folder: Path) -> list[Path]:
    try:
        state = read_json(folder / STATE_FILE)
        return [folder / Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder} is not a data set",
            f"a folder must be one that save_to_disk of the datasets library wrote ({reason(error)})",
            "give the path of a file",
            PREFLIGHT,
        ) from None


def shown(value: Any) -> str:
    """Return a wrong value as JSON, shortened for a message."""
    return json.dumps(value, default=str)[:MAX_SHOWN]


# --- one file -----------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> list[Any]:
    with explained((OSError, EOFError, zlib.error), f"cannot read {path}", "check the path, or download it again"):
        content = path.read_bytes()
        if content.startswith(GZIP):
            content = gzip.decompress(content)
    if content.startswith(PARQUET) or path.suffix == ".arrow":
        return _read_arrow(content, path)
    with explained(UnicodeDecodeError, f"{path} is not UTF-8 text", "convert it to UTF-8"):
        text = content.decode("utf-8-sig")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    first = text.lstrip()[:1]
    if first == "[":
        return _parse(text, path, 1)
    if first == "{":
        return _read_objects(text, path)
    return _read_table(text, path)


def _read_arrow(content: bytes, path: Path) -> list[Record]:
    """Read Parquet, or the stream of Arrow batches that save_to_disk writes."""
    kind = "Parquet" if content.startswith(PARQUET) else "Arrow"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        fix = "pip install 'grpo[parquet]', or convert it to JSONL"
        raise UserError(
            f"{path} is a{'n' * (kind == 'Arrow')} {kind} file", "reading it needs pyarrow", fix, PREFLIGHT
        ) from None
    with explained((pyarrow.ArrowException, OSError), f"{path} is not valid {kind}", "download it again"):
        buffer = pyarrow.BufferReader(content)
        table = parquet.read_table(buffer) if kind == "Parquet" else pyarrow.ipc.open_stream(buffer).read_all()
        return table.to_pylist()


def _read_objects(text: str, path: Path) -> list[Any]:
    """Read one object, which may have several lines, or one object per line."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    lines = text.split("\n")  # and not splitlines, because U+2028 does not end a line of JSON
    return [_parse(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]


def _read_table(text: str, path: Path) -> list[Record]:
    header = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
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
                f"put quotes around fields that hold {delimiter!r}",
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
