"""Write a database that appears complete or not at all, whatever happens to the process that writes it.

The work file OUT.building is filled, compacted into OUT.compacted, flushed to the disk and renamed to OUT.
Until then an older OUT stays unchanged. A lock on the work file ends with its process; so the next build can take over
a work file that a killed process left behind.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy

from grpo.base.errors import BUSY, UserError
from grpo.base.storage import failpoint, flush_to_disk, try_to_lock
from knowledge.errors import no_room
from knowledge.store.database import file_uri

NEEDS = "a build needs up to 5 times its text in the folder of the output while it runs, 2 to 2.5 times afterwards"
STORAGE_ERRORS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


@contextmanager
def build_lock(out: Path) -> Iterator[None]:
    """Allow one build of `out` at a time. The lock leaves nothing behind.

    UserError: another process builds it (exit 7), the lock cannot be created (exit 6).
    """
    work = work_file(out)
    descriptor = _lock(work, out)
    try:
        yield
    finally:
        _remove(work, descriptor)


def _lock(work: Path, out: Path) -> int:
    """Return a descriptor of the locked work file."""
    while True:
        try:
            descriptor = os.open(work, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise no_room(out, NEEDS, error) from error
        if not try_to_lock(descriptor):
            os.close(descriptor)
            what, why = f"{out} is being built by another process", f"it holds the lock of {work}"
            raise UserError(what, why, "wait for it, or name another output", BUSY)
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == os.stat(work).st_ino:
                return descriptor
        os.close(descriptor)  # its holder finished and removed it meanwhile: try again with a new one


def _remove(work: Path, descriptor: int) -> None:
    """Remove the work file while it is locked: nobody else uses the file of this name."""
    try:
        work.unlink(missing_ok=True)
        os.close(descriptor)
    except PermissionError:  # Windows removes no open file; if the next build has opened it already, it stays
        os.close(descriptor)
        with suppress(OSError):
            work.unlink()


@contextmanager
def atomic_database(out: Path) -> Iterator[sqlalchemy.Connection]:
    """Give a connection to an empty database that becomes `out` when the block succeeds; hold build_lock for this.

    When the block fails, the database vanishes. UserError (exit 6): no room, no permission, or the disk fails.
    """
    work, compacted = work_file(out), Path(f"{out}.compacted")
    engine = sqlalchemy.create_engine(
        "sqlite://", creator=lambda: _connect(work), poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT"
    )
    try:
        compacted.unlink(missing_ok=True)
        os.truncate(work, 0)
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=OFF")
            connection.exec_driver_sql("PRAGMA synchronous=OFF")
            connection.exec_driver_sql("BEGIN")
            yield connection
            connection.exec_driver_sql("COMMIT")
            failpoint("build-filled")
            connection.exec_driver_sql("VACUUM INTO ?", (str(compacted),))
        flush_to_disk(compacted)
        failpoint("build-compacted")
        os.replace(compacted, out)
        failpoint("build-renamed")
        flush_to_disk(out.absolute().parent)
    except OSError as error:
        raise no_room(out, NEEDS, error) from error
    except sqlalchemy.exc.DatabaseError as error:
        if error.orig.sqlite_errorcode & 0xFF in STORAGE_ERRORS:
            raise no_room(out, NEEDS, error.orig) from error
        raise
    finally:
        compacted.unlink(missing_ok=True)


def work_file(out: Path) -> Path:
    """Return the file that a build of `out` fills first."""
    return Path(f"{out}.building")


def _connect(work: Path) -> sqlite3.Connection:
    return sqlite3.connect(file_uri(work, "rw"), uri=True, check_same_thread=False)
