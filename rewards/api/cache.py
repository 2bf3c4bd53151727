"""Keep the replies of language models, so that no question is paid for twice, also by other processes and later runs.

cache = ReplyCache("judge.db")
cache.put("a key", "a reply")
cache.get("a key")          ->  "a reply"
"""

import logging
from pathlib import Path
from sqlite3 import Connection

import sqlalchemy as sa

from grpo.base.errors import PREFLIGHT, STORAGE, UserError, is_storage_error
from grpo.base.forks import SQLITE
from grpo.base.storage import failpoint

BUSY_TIMEOUT_S = 5.0
TABLE = sa.text("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID")
GET = sa.text("SELECT text FROM replies WHERE key = :key")
PUT = sa.text("INSERT OR REPLACE INTO replies VALUES (:key, :text)")
_log = logging.getLogger("grpo")


class ReplyCache:
    """Replies under the keys of their questions: a table of an SQLite file, whose rows are complete or absent.

    The constructor raises UserError if the file is not such a cache (exit 3) or the disk is full (exit 6). Later
    trouble (a locked file, a full disk) is logged once, and costs only what the cache would have saved: `get` finds
    nothing and `put` keeps nothing.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()  # a user's reward may change the directory
        self._is_closed = self._is_silent = False  # silent: trouble was logged
        self._engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(self.path)),
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
            poolclass=sa.QueuePool,
            isolation_level="AUTOCOMMIT",
        )
        sa.event.listens_for(self._engine, "connect")(_set_up)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._engine.connect() as connection:
                connection.execute(TABLE)
                connection.execute(GET, {"key": ""})  # fails for another table
        except (OSError, sa.exc.SQLAlchemyError) as error:
            self._engine.dispose()
            fix = "name a new file, or delete this one, and it is made anew"
            exit_code = PREFLIGHT
            if is_storage_error(error):
                fix = "free some space, or name a file on another disk"
                exit_code = STORAGE
            raise UserError(f"cannot use the reply cache {path}", _cause(error), fix, exit_code) from error

    def get(self, key: str) -> str | None:
        """Find the reply that was kept under a key."""
        return self._run(GET, key=key)

    def put(self, key: str, reply: str) -> None:
        """Keep a reply."""
        failpoint("cache-write")
        self._run(PUT, key=key, text=reply)
        failpoint("cache-written")

    def close(self) -> None:
        """Close the file. A closed cache finds nothing and keeps nothing."""
        self._is_closed = True
        self._engine.dispose()

    def _run(self, statement: sa.Executable, **values: str) -> str | None:
        """Return the first value of a statement's result; None if there is none, or if the file gives trouble."""
        if self._is_closed:
            return None
        try:
            with SQLITE.inside(), self._engine.connect() as connection:
                result = connection.execute(statement, values)
                return result.scalar() if result.returns_rows else None
        except sa.exc.SQLAlchemyError as error:
            if not self._is_silent:
                self._is_silent = True
                _log.warning(
                    "the reply cache %s gives trouble, and is not used where it does: %s", self.path, _cause(error)
                )
            return None


def _set_up(connection: Connection, record: object) -> None:
    """Prepare a new connection: readers never wait for a writer."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _cause(error: Exception) -> str:
    """Return what SQLite says, without the statement that SQLAlchemy adds."""
    return str(getattr(error, "orig", None) or error)
