"""Write a database that appears complete or not at all, whatever happens to the process that writes it.

The work file OUT.building is filled, compacted into OUT.compacted, sealed, flushed to the disk and renamed to OUT.
Until then an older OUT stays unchanged. A lock on the work file ends with its process; so the next build can take over
a work file that a killed process left behind.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from grpo.base.errors import BUSY, UserError
from grpo.base.storage import failpoint, flush_to_disk, is_at, try_to_lock
from knowledge.errors import no_room
from knowledge.store.database import file_uri
from knowledge.store.seal import seal

STORAGE_ERRORS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


@contextmanager
def atomic_database(out: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to an empty database that becomes `out` when the block succeeds, and vanishes when it fails.

    UserError: another process writes it (exit 7); no room, no permission, or the disk fails (exit 6).
    """
    work, compacted = Path(f"{out}.building"), Path(f"{out}.compacted")
    with _explained(out), _locked(work, out):
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
            seal(compacted)
            flush_to_disk(compacted)
            failpoint("build-compacted")
            os.replace(compacted, out)
            failpoint("build-renamed")
            flush_to_disk(out.absolute().parent)
        finally:
            compacted.unlink(missing_ok=True)


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    """Raise what the disk refuses as UserError (exit 6)."""
    try:
        yield
    except OSError as error:
        raise no_room(out, error) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in STORAGE_ERRORS:
            raise no_room(out, error) from error
        raise


@contextmanager
def _locked(work: Path, out: Path) -> Iterator[None]:
    """Hold the lock of the work file, which is made for this and removed at the end."""
    while True:
        descriptor = os.open(work, os.O_RDWR | os.O_CREAT, 0o644)
        if not try_to_lock(descriptor):
            os.close(descriptor)
            what, why = f"{out} is being built by another process", f"it holds the lock of {work}"
            raise UserError(what, why, "wait for it, or name another output", BUSY)
        if is_at(descriptor, work):
            break
        os.close(descriptor)  # its holder finished and removed it meanwhile: try again with a new one
    try:
        yield
    finally:
        try:
            work.unlink(missing_ok=True)  # while it is locked: nobody else uses the file of this name
            os.close(descriptor)
        except PermissionError:  # Windows removes no open file; if the next build has opened it already, it stays
            os.close(descriptor)
            with suppress(OSError):
                work.unlink()
