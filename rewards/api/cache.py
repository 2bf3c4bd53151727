"""Replies on disk, so that no question is paid for twice: one SQLite file, successes only, shared by threads and
processes."""

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo.errors import PREFLIGHT, UserError
from grpo.storage import failpoint

BUSY_TIMEOUT_S = 5.0
_log = logging.getLogger("rewards")


def cache_key(
    model: str, parameters: Mapping[str, float], prompt_version: str, messages: Sequence[Mapping[str, str]], nonce: str
) -> str:
    """sha256 of all that a reply depends on. The nonce, a random word in the messages, is left out."""
    texts = [
        [message["role"], message["content"].replace(nonce, "") if nonce else message["content"]]
        for message in messages
    ]
    whole = json.dumps([model, sorted(parameters.items()), prompt_version, texts])
    return hashlib.sha256(whole.encode()).hexdigest()


class ReplyCache:
    """Texts by key. Raises UserError (exit 3) if the file cannot be opened; a failure later on is logged once and costs
    only money."""

    def __init__(self, path: str | Path):
        self.path, self._lock, self._works = Path(path), threading.Lock(), True
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
            self._connection.execute("SELECT key, text FROM replies LIMIT 1")
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"api_cache: cannot use {self.path}",
                str(error),
                "name a new file, or one that an earlier run made",
                PREFLIGHT,
            ) from None

    def get(self, key: str) -> str | None:
        rows = self._run("SELECT text FROM replies WHERE key = ?", key)
        return rows[0][0] if rows else None

    def put(self, key: str, text: str) -> None:
        failpoint("cache-write")
        self._run("INSERT OR REPLACE INTO replies VALUES (?, ?)", key, text)
        failpoint("cache-written")

    def close(self) -> None:
        with self._lock:
            self._works = False
            self._connection.close()

    def _run(self, sql: str, *values: str) -> list[tuple]:
        with self._lock:
            if not self._works:
                return []
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                if "locked" not in str(error):  # a busy moment passes; a full disk or a damaged file does not
                    self._works = False
                _log.warning(
                    "the cache %s failed and %s: %s", self.path, "goes on" if self._works else "is switched off", error
                )
                return []
