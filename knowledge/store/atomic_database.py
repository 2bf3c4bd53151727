"""Write a database that appears complete or not at all, whatever happens to the process that writes it.

The work file OUT.building is filled, compacted into OUT.compacted, flushed to the disk and renamed to OUT.
Until then an older OUT stays unchanged. A lock on the work file ends with its process; so the next build can take over
a work file that a killed process left behind.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

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
def atomic_database(out: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to an empty database that becomes `out` when the block succeeds; hold build_lock for this.

    When the block fails, the database vanishes. UserError (exit 6): no room, no permission, or the disk fails.
    """
    work, compacted = work_file(out), Path(f"{out}.compacted")
    try:
        compacted.unlink(missing_ok=True)
        os.truncate(work, 0)
        with closing(sqlite3.connect(file_uri(work, "rw"), uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
            failpoint("build-filled")
            connection.execute("VACUUM INTO ?", (str(compacted),))
        flush_to_disk(compacted)
        failpoint("build-compacted")
        os.replace(compacted, out)
        failpoint("build-renamed")
        flush_to_disk(out.absolute().parent)
    except OSError as error:
        raise no_room(out, NEEDS, error) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in STORAGE_ERRORS:
            raise no_room(out, NEEDS, error) from error
        raise
    finally:
        compacted.unlink(missing_ok=True)


def work_file(out: Path) -> Path:
    """Return the file that a build of `out` fills first."""
    return Path(f"{out}.building")
