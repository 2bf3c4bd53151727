"""Read an SQLite file by SQLAlchemy, safely with threads, and when somebody locks or replaces the file."""

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

from grpo.base.errors import PREFLIGHT, UserError, explained
from knowledge.errors import KnowledgeBusy, bad_file

BUSY_TIMEOUT_S = 5.0
NUM_CONNECTIONS = 8  # that stay open between two SELECTs; there are as many as threads that search at once
CACHE_KIB = 16 << 10  # SQLite's page cache of each connection; the system's file cache does the rest


def file_uri(path: Path, mode: str) -> str:
    """Return SQLite's URI of a file; mode: ro or rw, neither creates it."""
    return f"{path.absolute().as_uri()}?mode={mode}"


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
    if not is_wal:
        return file_uri(path, "ro")
    log = Path(f"{path.resolve()}-wal")
    if log.exists() and log.stat().st_size:
        raise bad_file(
            path,
            f"it is in SQLite's WAL mode, and part of its content is only in {log.name}",
            "a file that is complete by itself",
            f"end the processes that write to it, then: sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode=DELETE'",
        )
    return file_uri(path, "ro") + "&immutable=1"


class ReadOnlyDatabase:
    """Run SELECTs on a file. Values are bound: no statement holds user text.

    Raises KnowledgeBusy after `busy_timeout_s` of waiting for a lock, and UserError (exit 3) if the file is damaged, or
    was changed or replaced.
    """

    def __init__(self, path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S):
        self.path, self.busy_timeout_s = path, busy_timeout_s
        self._uri, self._opened = read_only_uri(path), os.stat(path)
        # by process: SQLite forbids a forked child to use the connections of its parent, and to close them
        self._engines: dict[int, sa.Engine] = {}

    def rows(self, sql: str, *values: object) -> list[tuple]:
        """Return all rows of a SELECT, its ? bound to the values."""
        with self._connected() as connection:
            return connection.execute(sql, values).fetchall()

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
            engine = self._engines.get(os.getpid()) or self._engines.setdefault(os.getpid(), self._make_engine())
            with closing(engine.raw_connection()) as pooled:
                yield pooled.dbapi_connection
        except (sqlite3.Error, sa.exc.DBAPIError) as error:
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
        connection = sqlite3.connect(self._uri, uri=True, timeout=self.busy_timeout_s, check_same_thread=False)
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

    def _explain(self, error: sqlite3.Error) -> UserError:
        """Return what to raise instead."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return KnowledgeBusy(str(self.path), self.busy_timeout_s)
        fix = ""
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            fix = (
                f"if it is a source: python -m knowledge.build {self.path} OUT.db; if a compressed database: gunzip it"
            )
        return bad_file(self.path, f"SQLite says: {error}", fix=fix)
