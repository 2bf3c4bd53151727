"""Recognise whose knowledge base a file is, or say what was found and what was wanted."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from knowledge.errors import bad_file
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.index import FORMAT_VERSION
from knowledge.store.tokens import TOKENS_VERSION

OURS, KNOWRL, FACTSCORE = "ours", "KnowRL's", "FActScore's"
MAGIC = b"SQLite format 3\0"
MAX_CHECKED_BYTES = 4 << 30  # checking more takes minutes; `knowledge.verify` checks any size
NUM_SAMPLES = 50  # documents that are searched for FActScore's markers

COLUMNS = """
    SELECT tables.name, columns.name FROM sqlite_master AS tables
    LEFT JOIN pragma_table_info(tables.name) AS columns WHERE tables.type IN ('table', 'view')"""


@dataclass(frozen=True)
class Kind:
    """Whose file it is; `meta` is the index's own record, empty without an index."""

    owner: str
    meta: dict = field(default_factory=dict)

    @property
    def markers(self) -> bool:
        """Tell whether <s> and </s> are in the texts."""
        return self.owner == FACTSCORE


def has_fts5() -> bool:
    """Tell whether this Python's SQLite was built with full-text search."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def require_fts5(path: Path) -> None:
    """Raise UserError (exit 3) if full-text search is not built in."""
    if not has_fts5():
        raise bad_file(
            path,
            f"this Python's SQLite {sqlite3.sqlite_version} has no FTS5",
            "SQLite with FTS5, its full-text search",
            "use a Python whose SQLite has it: python.org's, conda's, and Debian's all do",
        )


def check_header(path: Path) -> None:
    """Raise UserError (exit 3) unless the file starts like SQLite's and is as long as its header says."""
    if not path.exists():
        raise bad_file(path, "no such file")
    if path.is_dir():
        raise bad_file(path, "a directory")
    with open(path, "rb") as file:
        header = file.read(100)
    num_bytes = path.stat().st_size
    if not num_bytes:
        raise bad_file(path, "an empty file")
    if not header.startswith(MAGIC[: len(header)]):
        raise bad_file(path, f"not an SQLite database: it starts with {header[:16]!r}", fix=_fix_for(path, header))
    page_bytes = int.from_bytes(header[16:18], "big")
    num_pages = int.from_bytes(header[28:32], "big")
    if page_bytes == 1:
        page_bytes = 65536
    wanted_bytes = max(1, page_bytes) * max(1, num_pages)
    is_size_kept = header[24:28] == header[92:96]  # old versions of SQLite do not keep it
    if len(header) < 100 or (is_size_kept and num_bytes < wanted_bytes):
        found = f"truncated: {num_bytes:,} bytes of {wanted_bytes:,}"
        raise bad_file(path, found, "the complete file", "fetch or build it again")


def _fix_for(path: Path, header: bytes) -> str:
    if header.startswith(b"\x1f\x8b"):
        return f"if it is a compressed database: gunzip it; if a source: python -m knowledge.build {path} OUT.db"
    if header.lstrip().startswith((b"{", b"[")):
        return f"it looks like a source; build it: python -m knowledge.build {path} OUT.db"
    return ""


def recognise(database: ReadOnlyDatabase) -> Kind:
    """Return whose file it is; UserError (exit 3) if nobody's, or if our index in it is of another version."""
    path = database.path
    columns: dict[str, list[str]] = {}
    for table, column in database.rows(COLUMNS):
        columns.setdefault(table, []).append(column)
    if not {"title", "text"}.issubset(columns.get("documents", ())):
        tables = [f"{name}({', '.join(sorted(names))})" for name, names in sorted(columns.items())]
        raise bad_file(path, f"it holds {('; '.join(tables) or 'no table at all')[:300]}")
    if "knowledge_meta" in columns:
        require_fts5(path)
        return Kind(OURS, _index_record(database))
    samples = database.rows("SELECT substr(text, 1, 200) FROM documents LIMIT ?", NUM_SAMPLES)
    if not samples:
        raise bad_file(path, "the table documents is empty", "at least one document")
    has_markers = any(str(text).lstrip().startswith("<s>") for (text,) in samples)
    return Kind(FACTSCORE if has_markers else KNOWRL)


def check_pages(database: ReadOnlyDatabase) -> None:
    """Raise UserError (exit 3) if SQLite finds a page damaged. A file above MAX_CHECKED_BYTES is not checked."""
    path = database.path
    if path.stat().st_size <= MAX_CHECKED_BYTES:
        ((found,),) = database.rows("PRAGMA quick_check(1)")
        if found != "ok":
            fix = f"fetch or build it again; python -m knowledge.verify {path} tells more"
            raise bad_file(path, f"damaged: {found}", "a sound SQLite file", fix)


def _index_record(database: ReadOnlyDatabase) -> dict[str, object]:
    """Return the record of a file's full-text index; UserError (exit 3) if it is of another version."""
    try:
        rows = database.rows("SELECT key, value FROM knowledge_meta")
        meta = {key: json.loads(value) for key, value in rows}
    except (TypeError, ValueError):  # no text, or not JSON
        raise bad_file(database.path, "damaged: the record of its index cannot be read", "a sound index") from None
    versions = meta.get("format_version"), meta.get("tokens_version")
    if versions != (FORMAT_VERSION, TOKENS_VERSION):
        raise bad_file(
            database.path,
            f"its index has format and token version {versions}",
            f"versions {(FORMAT_VERSION, TOKENS_VERSION)}, as this version of the program builds them",
            f"build it anew: python -m knowledge.build SOURCE.jsonl {database.path}",
        )
    return meta
