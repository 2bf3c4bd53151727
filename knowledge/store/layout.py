"""Tell what kind of file a knowledge base is, whether it is complete, and what tells it from another.

Ours have a full-text index beside the documents, and are sealed (seal.py). KnowRL's and FActScore's have neither, and
any file with a table documents(title, text) is read like theirs: SQLite can tell of them whether a page is broken, and
nobody whether a text was changed.
"""

import hashlib
from contextlib import closing
from pathlib import Path

from knowledge.errors import bad_file
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.fulltext import FORMAT_VERSION
from knowledge.store.seal import check_seal
from knowledge.store.tables import ANY_DOCUMENT, RECORD
from knowledge.store.tokens import TOKENS_VERSION

MAX_CHECKED_BYTES = 4 << 30  # of a file without a seal: SQLite would take minutes; `knowledge.verify` checks any size
SAMPLE_BYTES = 1 << 20
FETCH_IT = "fetch or build it again"
COLUMNS = """
    SELECT tables.name, columns.name FROM sqlite_master AS tables
    LEFT JOIN pragma_table_info(tables.name) AS columns WHERE tables.type IN ('table', 'view')"""


def check_file(database: ReadOnlyDatabase) -> dict[str, object]:
    """Return the record of a file's full-text index, as `index_record`, once the file was checked in a few seconds.

    UserError (exit 3) if it is truncated or damaged, or one of ours that was changed after it was built.
    """
    record = index_record(database)
    if record:
        check_seal(database.path)
    else:
        check_pages(database)
    return record


def check_pages(database: ReadOnlyDatabase, check: str = "quick_check", max_bytes: float = MAX_CHECKED_BYTES) -> None:
    """Raise UserError (exit 3) if a file is truncated, or SQLite's check finds it damaged; larger ones it skips."""
    path = database.path
    num_bytes = path.stat().st_size
    ((wanted_bytes,),) = database.rows("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    if num_bytes < wanted_bytes:
        raise bad_file(path, f"truncated: {num_bytes:,} bytes of {wanted_bytes:,}", "the complete file", FETCH_IT)
    if num_bytes <= max_bytes:
        found = [text for (text,) in database.rows(f"PRAGMA {check}(20)")]
        if found != ["ok"]:
            raise bad_file(path, f"damaged: {'; '.join(found)}", "a sound SQLite file", FETCH_IT)


def has_index(database: ReadOnlyDatabase) -> bool:
    """Return whether there is a full-text index beside the documents; UserError (exit 3) if there are no documents."""
    path = database.path
    columns: dict[str, list[str]] = {}
    for table, column in database.rows(COLUMNS):
        columns.setdefault(table, []).append(column)
    if not {"title", "text"}.issubset(columns.get("documents", ())):
        tables = [f"{name}({', '.join(sorted(names))})" for name, names in sorted(columns.items())]
        raise bad_file(path, f"it holds {('; '.join(tables) or 'no table at all')[:300]}")
    is_there = "knowledge_meta" in columns
    if not is_there and not database.rows(ANY_DOCUMENT):
        raise bad_file(path, "the table documents is empty", "at least one document")
    return is_there


def index_record(database: ReadOnlyDatabase) -> dict[str, object]:
    """Return the record of the full-text index; {} in a file without one.

    UserError (exit 3) if the file has no documents, or if its index is of another version.
    """
    path = database.path
    if not has_index(database):
        return {}
    record = dict(database.rows(RECORD))
    versions = record.get("format_version"), record.get("tokens_version")
    if versions != (FORMAT_VERSION, TOKENS_VERSION):
        raise bad_file(
            path,
            f"its index has format and token version {versions}",
            f"versions {(FORMAT_VERSION, TOKENS_VERSION)}, as this version of the program builds them",
            f"build it anew: python -m knowledge.build SOURCE.jsonl {path}; or from its own texts: "
            f"python -m knowledge.build {path} OUT.db",
        )
    return record


def identity(path: str | Path) -> str:
    """Return a short text that differs between knowledge bases of different content, wherever the file is.

    Our build writes a digest of all titles and passages into the file; any other file is known by its `fingerprint`.
    UserError (exit 3) if the file is no knowledge base.
    """
    with closing(ReadOnlyDatabase(Path(path))) as database:
        content = index_record(database).get("content")
    return f"content {content}" if content else f"file {fingerprint(Path(path))}"


def fingerprint(path: Path) -> str:
    """Return a digest of a file's length, first and last MB. SQLite's counter of changes is in the first."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        digest = hashlib.sha256(f"{size}".encode() + file.read(SAMPLE_BYTES))
        file.seek(max(0, size - SAMPLE_BYTES))
        digest.update(file.read())
    return digest.hexdigest()
