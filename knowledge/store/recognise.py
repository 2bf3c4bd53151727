"""Is this file a knowledge base, and whose? Says what was found and what was wanted if it is none."""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from knowledge.errors import bad_file
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.index import FORMAT_VERSION, INDEX_TABLES, read_meta
from knowledge.store.tokens import TOKENS_VERSION

OURS, KNOWRL, FACTSCORE = "ours", "KnowRL's", "FActScore's"
MAGIC = b"SQLite format 3\0"
NUM_SAMPLES = 50  # documents looked at for FActScore's markers


@dataclass(frozen=True)
class Kind:
    """What a file is. meta: the index's own record, empty without an index; markers: <s> and </s> are in its texts."""

    owner: str
    meta: dict = field(default_factory=dict)

    @property
    def markers(self) -> bool:
        return self.owner == FACTSCORE


def has_fts5() -> bool:
    """Was this Python's SQLite built with full-text search?"""
    connection = sqlite3.connect(":memory:")
    try:
        return connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None
    finally:
        connection.close()


def require_fts5(path: Path) -> None:
    """UserError (exit 3) if full-text search is not built in."""
    if not has_fts5():
        raise bad_file(
            path,
            f"this Python's SQLite {sqlite3.sqlite_version} has no FTS5",
            "SQLite with FTS5, its full-text search",
            "use a Python whose SQLite has it: python.org's, conda's, and Debian's all do",
        )


def check_header(path: Path) -> None:
    """UserError (exit 3) unless the file is there, starts like SQLite's and is as long as its header says."""
    if not path.exists():
        raise bad_file(path, "no such file")
    if path.is_dir():
        raise bad_file(path, "a directory")
    with open(path, "rb") as file:
        header = file.read(100)
    size = path.stat().st_size
    if not size:
        raise bad_file(path, "an empty file")
    if not header.startswith(MAGIC[: len(header)]):
        raise bad_file(path, f"not an SQLite database: it starts with {header[:16]!r}", fix=_fix_for(path, header))
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    num_pages = int.from_bytes(header[28:32], "big")
    size_is_valid = header[24:28] == header[92:96]  # else an old SQLite wrote it and the size is not kept
    if len(header) < 100 or (size_is_valid and size < page_bytes * num_pages):
        raise bad_file(
            path,
            f"truncated: {size:,} bytes of {max(page_bytes * num_pages, 512):,}",
            "the whole file",
            "fetch or build it again",
        )


def _fix_for(path: Path, header: bytes) -> str:
    if header.startswith(b"\x1f\x8b"):
        return f"if it is a compressed database: gunzip it; if a source: python -m knowledge.build {path} OUT.db"
    if header.lstrip()[:1] in (b"{", b"["):
        return f"it looks like a source; build it: python -m knowledge.build {path} OUT.db"
    return ""


def recognise(database: ReadOnlyDatabase) -> Kind:
    """Whose file it is; UserError (exit 3) if nobody's, or if our index in it is of another version."""
    path = database.path
    columns = {
        name: {row[1] for row in database.rows("SELECT cid, name FROM pragma_table_info(?, 'main')", name)}
        for (name,) in database.rows("SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view')")
    }
    if not {"title", "text"} <= columns.get("documents", set()):
        found = (
            "; ".join(f"{name}({', '.join(sorted(names))})" for name, names in sorted(columns.items()))
            or "no table at all"
        )
        raise bad_file(path, f"it holds {found[:300]}")
    if not database.rows(
        "SELECT 1 FROM pragma_index_list('documents', 'main') AS l, pragma_index_info(l.name, 'main') AS i "
        "WHERE i.seqno = 0 AND i.name = 'title'"
    ):
        raise bad_file(
            path,
            "documents.title has no index: each look-up would read the whole file",
            "documents(title PRIMARY KEY, text)",
            "CREATE UNIQUE INDEX by_title ON documents(title), on a copy",
        )
    if "knowledge_meta" in columns:
        require_fts5(path)
        return Kind(OURS, check_index(database))
    samples = database.rows("SELECT substr(text, 1, 200) FROM documents LIMIT ?", NUM_SAMPLES)
    if not samples:
        raise bad_file(path, "the table documents is empty", "at least one document")
    return Kind(FACTSCORE if any(str(text).lstrip().startswith("<s>") for (text,) in samples) else KNOWRL)


def check_index(database: ReadOnlyDatabase) -> dict[str, object]:
    """The record of a file's full-text index; UserError (exit 3) if the index is of another version or incomplete."""
    tables = {name for (name,) in database.rows("SELECT name FROM main.sqlite_master")}
    missing = INDEX_TABLES.keys() - tables
    if missing:
        raise bad_file(database.path, f"its index has no table {', '.join(sorted(missing))}", "a whole index")
    meta = read_meta(database.rows("SELECT key, value FROM main.knowledge_meta"))
    versions = meta.get("format_version"), meta.get("tokens_version")
    if versions != (FORMAT_VERSION, TOKENS_VERSION):
        raise bad_file(
            database.path,
            f"its index has format and token version {versions}",
            f"versions {(FORMAT_VERSION, TOKENS_VERSION)}",
        )
    return meta
