"""One SQLite file, which a knowledge base is: write it so that it appears complete, check it, and read it.

Behind the pages of a finished file stand digests. SQLite reads as many pages as its header counts, so any program can
read the file:

    page 1 ... page P | SHA-256 of the first MB | SHA-256 of all pages | MARK

A write through SQLite changes the first MB: its counter of changes is there. KnowRL's and FActScore's files have no
digests, and any file with a table documents(title, text) is read like theirs: SQLite can tell of them whether a page is
broken, and nobody whether a text was changed.
"""

import hashlib
import math
import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import sqlalchemy as sa

from grpo.base.errors import PREFLIGHT, STORAGE, UserError, explained
from grpo.base.forks import SQLITE
from grpo.base.storage import failpoint, flush_to_disk
from knowledge.store.tokens import TOKENS_VERSION

FORMAT_VERSION = 6
MARK = b"knowledge, sealed"
DIGEST_BYTES, SAMPLE_BYTES = 32, 1 << 20
MAX_CHECKED_BYTES = 4 << 30  # of a file that is opened: about four seconds; `knowledge.verify` checks any size
BUSY_TIMEOUT_S = 5.0
NUM_CONNECTIONS = 8  # that stay open between two SELECTs; there are as many as threads that search at once
CACHE_KIB = 16 << 10  # SQLite's page cache of each connection; the system's file cache does the rest
ALL_DOCUMENTS = "SELECT title, text FROM documents"
META = "SELECT key, json_extract(value, '$') FROM knowledge_meta"
COLUMNS = """
    SELECT tables.name, group_concat(columns.name, ', ') FROM sqlite_master AS tables
    LEFT JOIN pragma_table_info(tables.name) AS columns WHERE tables.type IN ('table', 'view')
    GROUP BY tables.name ORDER BY tables.name"""
FETCH_IT = "fetch or build it again"


class KnowledgeBusy(UserError):
    """The database stayed locked for the complete waiting time.

    That look-up cannot be scored; the next one may succeed.
    """


def bad_file(
    path: Path, found: str, wanted: str = "an SQLite file with a table documents(title, text)", fix: str = ""
) -> UserError:
    """Describe a file that is not a usable knowledge base; exit code 3."""
    fix = fix or f"build it: python -m knowledge.build SOURCE.jsonl {path}"
    return UserError(f"{path}: {found}", f"wanted {wanted}", fix, PREFLIGHT)


# --- write -----------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_database(out: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to an empty database that becomes `out` when the block succeeds, and vanishes when it fails.

    Until then an older `out` stays unchanged. A build that is killed leaves a folder OUT.unfinished-… behind. UserError
    (exit 6): no room, no permission, or the disk fails.
    """
    fix = (
        "free some space, or name an output on another disk; a build needs up to 5 times its text in the folder of the "
        "output while it runs, 2 to 2.5 times afterwards"
    )
    with (
        explained((OSError, sqlite3.OperationalError), f"could not write {out}", fix, STORAGE),
        TemporaryDirectory(prefix=f"{out.name}.unfinished-", dir=out.parent) as folder,
    ):
        work = Path(folder, "work")
        compacted = Path(folder, "compacted")
        with closing(sqlite3.connect(work, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
            failpoint("build-filled")
            connection.execute("VACUUM INTO ?", (str(compacted),))
        _seal(compacted)
        flush_to_disk(compacted)
        failpoint("build-compacted")
        os.replace(compacted, out)
        failpoint("build-renamed")
        flush_to_disk(out.absolute().parent)


def _seal(path: Path) -> None:
    """Append the digests to a finished file."""
    with open(path, "r+b") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        digests = [_digest(file, length) for length in _digested(num_bytes)]
        file.seek(num_bytes)
        file.write(b"".join([*digests, MARK]))


def _digested(num_bytes: int) -> tuple[int, int]:
    """Return how many bytes each digest of a file with so many bytes is of."""
    return min(num_bytes, SAMPLE_BYTES), num_bytes


def _digest(file: BinaryIO, num_bytes: int) -> bytes:
    """Return the SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    file.seek(0)
    for start in range(0, num_bytes, SAMPLE_BYTES):
        digest.update(file.read(min(SAMPLE_BYTES, num_bytes - start)))
    return digest.digest()


# --- check -----------------------------------------------------------------------------------------------------------


def check_file(database: "ReadOnlyDatabase", max_bytes: float = MAX_CHECKED_BYTES) -> dict[str, object]:
    """Return what `index_meta` does, once the file was checked.

    max_bytes: of a larger file only the first MB is checked. UserError (exit 3) if it is truncated or damaged, or one
    of ours that was changed after it was built.
    """
    meta = index_meta(database)
    if meta:
        check_seal(database.path, max_bytes)
    if not meta or max_bytes == math.inf:
        check_pages(database, max_bytes)
    return meta


def check_seal(path: Path, max_bytes: float = MAX_CHECKED_BYTES) -> None:
    """Raise UserError (exit 3) if a file is not as it was sealed. max_bytes: as in check_file."""
    fix = (
        "copy it again from where it was built, or build it again; if you changed its texts on purpose: "
        f"python -m knowledge.build {path} OUT.db, and use OUT.db"
    )
    wanted = "a file that is still as its build wrote it, copied byte by byte"
    num_bytes = path.stat().st_size - 2 * DIGEST_BYTES - len(MARK)
    with open(path, "rb") as file:
        file.seek(max(0, num_bytes))
        end = file.read()
        if end[2 * DIGEST_BYTES :] != MARK:
            raise bad_file(path, "malformed: its end is missing, or was overwritten", wanted, fix)
        digests = end[:DIGEST_BYTES], end[DIGEST_BYTES : 2 * DIGEST_BYTES]
        for length, digest in zip(_digested(num_bytes), digests, strict=True):
            if length <= max_bytes and _digest(file, length) != digest:
                raise bad_file(path, "changed after it was built", wanted, fix)


def check_pages(database: "ReadOnlyDatabase", max_bytes: float) -> None:
    """Raise UserError (exit 3) if a file is truncated, or SQLite finds it damaged. A larger one it does not check."""
    path = database.path
    num_bytes = path.stat().st_size
    ((wanted_bytes,),) = database.rows("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    if num_bytes < wanted_bytes:
        raise bad_file(path, f"truncated: {num_bytes:,} bytes of {wanted_bytes:,}", "the complete file", FETCH_IT)
    if num_bytes <= max_bytes:
        check = "integrity_check" if max_bytes == math.inf else "quick_check"
        found = [text for (text,) in database.rows(f"PRAGMA {check}(20)")]
        if found != ["ok"]:
            raise bad_file(path, f"damaged: {'; '.join(found)}", "a sound SQLite file", FETCH_IT)


def has_index(database: "ReadOnlyDatabase") -> bool:
    """Return whether there is a full-text index beside the documents; UserError (exit 3) if there are no documents."""
    path = database.path
    columns = dict(database.rows(COLUMNS))
    if not {"title", "text"}.issubset(columns.get("documents", "").split(", ")):
        tables = [f"{name}({names})" for name, names in columns.items()]
        raise bad_file(path, f"it holds {('; '.join(tables) or 'no table at all')[:300]}")
    is_there = "knowledge_meta" in columns
    if not is_there and not database.rows("SELECT 1 FROM documents LIMIT 1"):
        raise bad_file(path, "the table documents is empty", "at least one document")
    return is_there


def index_meta(database: "ReadOnlyDatabase") -> dict[str, object]:
    """Return what knowledge_meta says of the full-text index; {} in a file without one.

    UserError (exit 3) if the file has no documents, or if its index is of another version.
    """
    path = database.path
    if not has_index(database):
        return {}
    meta = dict(database.rows(META))
    versions = meta.get("format_version"), meta.get("tokens_version")
    if versions != (FORMAT_VERSION, TOKENS_VERSION):
        raise bad_file(
            path,
            f"its index has format and token version {versions}",
            f"versions {(FORMAT_VERSION, TOKENS_VERSION)}, as this version of the program builds them",
            f"build it anew: python -m knowledge.build SOURCE.jsonl {path}; or from its own texts: "
            f"python -m knowledge.build {path} OUT.db",
        )
    return meta


def identity(path: str | Path) -> str:
    """Return a short text that differs between knowledge bases of different content, wherever the file is.

    Our build writes a digest of all titles and passages into the file; any other file is known by its `fingerprint`.
    UserError (exit 3) if the file is no knowledge base.
    """
    with closing(ReadOnlyDatabase(Path(path))) as database:
        content = index_meta(database).get("content")
    return f"content {content}" if content else f"file {fingerprint(Path(path))}"


def fingerprint(path: Path) -> str:
    """Return a digest of a file's length, first and last MB. SQLite's counter of changes is in the first."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        digest = hashlib.sha256(f"{size}".encode() + file.read(SAMPLE_BYTES))
        file.seek(max(0, size - SAMPLE_BYTES))
        digest.update(file.read())
    return digest.hexdigest()


# --- read ------------------------------------------------------------------------------------------------------------


def read_only_uri(path: Path) -> str:
    """Return SQLite's URI to read a file.

    A file in WAL mode, as KnowRL leaves its own, is read as immutable. Otherwise SQLite would create two files next
    to it, and fail where it cannot. UserError (exit 3) if there is no such file, or if part of the content is still in
    the -wal file.
    """
    fix = f"build it: python -m knowledge.build SOURCE.jsonl {path}; or check its permissions"
    if path.is_fifo():
        raise bad_file(path, "a pipe", fix="save it to a file, and name that")
    with explained(OSError, f"{path} cannot be read", fix), open(path, "rb") as file:
        is_wal = 2 in file.read(20)[18:]
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not is_wal:
        return uri
    log = Path(f"{path.resolve()}-wal")
    if log.exists() and log.stat().st_size:
        raise bad_file(
            path,
            f"it is in SQLite's WAL mode, and part of its content is only in {log.name}",
            "a file that is complete by itself",
            f"end the processes that write to it, then: sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode=DELETE'",
        )
    return f"{uri}&immutable=1"


class ReadOnlyDatabase:
    """Run SELECTs on a file. Values are bound: no statement holds user text.

    Raises KnowledgeBusy after BUSY_TIMEOUT_S of waiting for a lock, and UserError (exit 3) if the file is damaged, or
    was changed or replaced.
    """

    def __init__(self, path: Path):
        self.path = path
        self._uri = read_only_uri(path)
        self._opened = os.stat(path)
        # by process: SQLite forbids a forked child to use the connections of its parent, and to close them
        self._engines: dict[int, sa.Engine] = {}

    def rows(self, sql: str, *values: object) -> list[tuple]:
        """Return all rows of a SELECT, its ? bound to the values."""
        return list(self.stream(sql, *values))

    def stream(self, sql: str, *values: object) -> Iterator[tuple]:
        """Yield the rows of a SELECT one by one, in constant memory; a read lock is held until the last."""
        with self._connected() as connection:
            yield from connection.execute(sql, values)

    def close(self) -> None:
        """Close the connections of this process; a later SELECT opens a new one."""
        engine = self._engines.pop(os.getpid(), None)
        if engine:
            engine.dispose()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Give a connection of the pool, without SQLAlchemy's own around it, which would cost as much as a look-up."""
        self._check_unchanged()
        try:
            with SQLITE.inside():
                process = os.getpid()
                engine = self._engines.get(process) or self._engines.setdefault(process, self._make_engine())
                with closing(engine.raw_connection()) as pooled:
                    yield pooled.dbapi_connection
        except (sqlite3.Error, sa.exc.DBAPIError, UnicodeDecodeError) as error:
            raise self._explain(getattr(error, "orig", error)) from error

    def _make_engine(self) -> sa.Engine:
        return sa.create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=sa.QueuePool,
            pool_size=NUM_CONNECTIONS,
            max_overflow=-1,
            pool_reset_on_return=None,  # a SELECT leaves nothing to roll back
        )

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists() or os.stat(self.path).st_ino != self._opened.st_ino:
            raise self._mixed("replaced or removed")
        connection = sqlite3.connect(self._uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        return connection

    def _check_unchanged(self) -> None:
        """Raise UserError if the file was written to. If it was replaced, connections that are open read on."""
        opened = self._opened
        with suppress(FileNotFoundError):
            now = os.stat(self.path)
            is_same_file = now.st_ino == opened.st_ino
            if is_same_file and (now.st_size, now.st_mtime_ns) != (opened.st_size, opened.st_mtime_ns):
                raise self._mixed("changed")

    def _mixed(self, happened: str) -> UserError:
        return UserError(
            f"{self.path} was {happened} while it was open",
            "its old and new content must not be mixed",
            "open the knowledge base again",
            PREFLIGHT,
        )

    def _explain(self, error: Exception) -> UserError:
        """Return what to raise instead."""
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return KnowledgeBusy(
                f"{self.path} is locked",
                f"another process has held its write lock for {BUSY_TIMEOUT_S:g} s",
                "wait for that process or end it; nothing may write to a knowledge base in use",
                PREFLIGHT,
            )
        fix = ""
        if code == sqlite3.SQLITE_NOTADB:
            fix = (
                f"if it is a source: python -m knowledge.build {self.path} OUT.db; if a compressed database: gunzip it"
            )
        return bad_file(self.path, f"SQLite says: {error}", fix=fix)
