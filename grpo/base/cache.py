"""Keep what was expensive to find out: one table of an SQLite file, shared by threads and processes.

cache = DiskCache("judge.db", "reply cache", "replies", {"text": "TEXT NOT NULL"})
cache.put({"a key": ("a text",)})
cache.get(["a key", "another key"])          ->  {"a key": ("a text",)}
"""

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo.base.errors import PREFLIGHT, STORAGE, UserError, is_storage_error
from grpo.base.storage import failpoint

BUSY_TIMEOUT_S = 5.0
_log = logging.getLogger("grpo")


class DiskCache:
    """Store rows under keys. Rows that are put together are kept together or not at all, also after kill -9.

    name: what messages call it. columns: name -> SQL type. The constructor raises UserError if the file is not such a
    cache (exit 3) or the disk is full (exit 6). Later trouble (a locked file, a full disk) is logged once, and costs
    only what the cache would have saved: `get` finds nothing and `put` keeps nothing.
    """

    def __init__(self, path: str | Path, name: str, table: str, columns: Mapping[str, str]):
        self.path, self.name = Path(path), name
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_warned = False
        names = ", ".join(columns)
        declared = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        self._select = f"SELECT key, {names} FROM {table} WHERE key IN (SELECT value FROM json_each(?))"
        self._insert = f"INSERT OR REPLACE INTO {table} VALUES (?{', ?' * len(columns)})"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")  # readers never wait for a writer
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, {declared}) WITHOUT ROWID"
            )
            self._connection.execute(f"SELECT key, {names} FROM {table} LIMIT 1")  # fails for another table
        except (OSError, sqlite3.Error) as error:
            fix, exit_code = "name a new file, or delete this one, and it is made anew", PREFLIGHT
            if is_storage_error(error):
                fix, exit_code = "free some space, or name a file on another disk", STORAGE
            raise UserError(f"cannot use the {name} {path}", str(error), fix, exit_code) from error

    def get(self, keys: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        """Find the rows of those keys that the cache holds."""
        wanted = json.dumps(list(keys))
        found = self._run(lambda: self._connection.execute(self._select, (wanted,)).fetchall())
        return {key: tuple(row) for key, *row in found or ()}

    def put(self, rows: Mapping[str, tuple[Any, ...]]) -> None:
        """Keep these rows, in one transaction."""

        def insert() -> None:
            with self._connection:  # commits, or rolls back on an error
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(self._insert, [(key, *row) for key, row in rows.items()])

        failpoint("cache-write")
        self._run(insert)
        failpoint("cache-written")

    def close(self) -> None:
        """Close the file. A closed cache finds nothing and keeps nothing."""
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def _run(self, action: Callable[[], Any]) -> Any:
        """Return the action's result; None if the cache is closed or the file gives trouble."""
        with self._lock:
            if self._is_closed:
                return None
            try:
                return action()
            except sqlite3.Error as error:
                if not self._is_warned:
                    self._is_warned = True
                    _log.warning(
                        "the %s %s gives trouble, and is not used where it does: %s", self.name, self.path, error
                    )
                return None
