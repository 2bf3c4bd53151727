"""Keep the replies of language models, so that no question is paid for twice, also by other processes and later runs.

cache = ReplyCache("judge.db")
cache.put("a key", "a reply")
cache.get("a key")          ->  "a reply"
"""

import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

from grpo.base.errors import PREFLIGHT, STORAGE, UserError, is_storage_error
from grpo.base.storage import failpoint

BUSY_TIMEOUT_S = 5.0
_log = logging.getLogger("grpo")


class ReplyCache:
    """Replies under the keys of their questions: a table of an SQLite file, whose rows are complete or absent.

    The constructor raises UserError if the file is not such a cache (exit 3) or the disk is full (exit 6). Later
    trouble (a locked file, a full disk) is logged once, and costs only what the cache would have saved: `get` finds
    nothing and `put` keeps nothing.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock = threading.Lock()
        self._is_silent = False  # whether trouble was logged, or the cache is closed
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")  # readers never wait for a writer
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
            )
            self._connection.execute("SELECT key, text FROM replies LIMIT 1")  # fails for another table
        except (OSError, sqlite3.Error) as error:
            fix, exit_code = "name a new file, or delete this one, and it is made anew", PREFLIGHT
            if is_storage_error(error):
                fix, exit_code = "free some space, or name a file on another disk", STORAGE
            raise UserError(f"cannot use the reply cache {path}", str(error), fix, exit_code) from error

    def get(self, key: str) -> str | None:
        """Find the reply that was kept under a key."""
        found = self._run("SELECT text FROM replies WHERE key = ?", key)
        return found[0] if found else None

    def put(self, key: str, reply: str) -> None:
        """Keep a reply."""
        failpoint("cache-write")
        self._run("INSERT OR REPLACE INTO replies VALUES (?, ?)", key, reply)
        failpoint("cache-written")

    def close(self) -> None:
        """Close the file. A closed cache finds nothing and keeps nothing."""
        with self._lock:
            self._is_silent = True
            self._connection.close()

    def _run(self, statement: str, *values: str) -> tuple[Any, ...] | None:
        """Return the first row of a statement's result; None if there is none, or if the file gives trouble."""
        with self._lock:
            try:
                return self._connection.execute(statement, values).fetchone()
            except sqlite3.Error as error:
                if not self._is_silent:
                    self._is_silent = True
                    _log.warning(
                        "the reply cache %s gives trouble, and is not used where it does: %s", self.path, error
                    )
                return None
