"""Build the full-text index of a file that is not ours, in a second file, when it is first needed.

The index is written next to the database as NAME.search-index, or in the user's cache folder if nothing can be written
there. It holds a fingerprint of the database, and does not count for another or a changed database.
"""

import hashlib
import logging
import os
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from grpo.base.errors import UserError
from knowledge.store.atomic_database import atomic_database, build_lock
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.identity import fingerprint
from knowledge.store.index import IndexWriter
from knowledge.store.passages import split_stored
from knowledge.store.recognise import check_index

SEARCH_INDEX = "search-index"  # how the name of the file ends
SHOW_EVERY_S = 10.0
_log = logging.getLogger("knowledge")


def side_index_of(path: Path) -> Path:
    """Return where the side index of a database is, or would be written."""
    here = Path(f"{path}.{SEARCH_INDEX}")
    if here.exists() or os.access(path.absolute().parent, os.W_OK):
        return here
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return cache / "grpo-knowledge" / f"{path.name}-{place[:16]}.{SEARCH_INDEX}"


def read_side_index(path: Path, out: Path) -> dict[str, object] | None:
    """Return the record of the side index `out`; None unless it is of this version and of the database at `path`."""
    if not out.exists():
        return None
    try:
        with closing(ReadOnlyDatabase(out)) as database:
            meta = check_index(database)
    except UserError as error:
        _warn(f"the side index {out} cannot be used: {error.what}")
        return None
    if meta.get("fingerprint") != fingerprint(path):
        _warn(f"the side index {out} cannot be used: {path} has changed since it was built")
        return None
    return meta


@cache
def _warn(text: str) -> None:
    """Say it once, however often a file is opened."""
    _log.warning(text)


def build_side_index(path: Path, out: Path, markers: bool) -> None:
    """Index every document of the database at `path` into the file `out`, in constant memory, completely or not at all.

    If several processes ask at once, one builds and the others wait for it. UserError (exit 6) if there is no room.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(out, wait=True):
        if read_side_index(path, out):
            return
        start = shown = time.perf_counter()
        with closing(ReadOnlyDatabase(path)) as source, atomic_database(out) as connection:
            ((num_documents,),) = source.rows("SELECT count(*) FROM documents")
            _log.warning("%s has no full-text index: building %s from its %d documents, once", path, out, num_documents)
            writer = IndexWriter(connection)
            for title, text in source.stream("SELECT title, text FROM documents"):
                writer.add(str(title), split_stored(str(text or ""), markers))
                if time.perf_counter() - shown > SHOW_EVERY_S:
                    shown = time.perf_counter()
                    _log.warning("%s: %d of %d documents", out.name, writer.num_documents, num_documents)
            writer.finish(fingerprint=fingerprint(path))
        _log.warning("%s: %d passages in %.1f s", out, writer.num_passages, time.perf_counter() - start)
