"""Tell knowledge bases apart without reading all of them: a run keeps the identity of the one that it uses."""

import hashlib
from contextlib import closing
from pathlib import Path

from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.recognise import check_header, recognise

SAMPLE_BYTES = 1 << 20


def identity(path: str | Path) -> str:
    """Return a short text that differs between knowledge bases of different content, wherever the file is.

    Our build writes a digest of all titles and passages into the file; any other file is known by its `fingerprint`.
    UserError (exit 3) if the file is no knowledge base.
    """
    path = Path(path)
    check_header(path)
    with closing(ReadOnlyDatabase(path)) as database:
        content = recognise(database).meta.get("content")
    return f"content {content}" if content else f"file {fingerprint(path)}"


def fingerprint(path: Path) -> str:
    """Return a digest of a file's length, first and last MB. SQLite's counter of changes is in the first."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        digest = hashlib.sha256(f"{size}".encode() + file.read(SAMPLE_BYTES))
        file.seek(max(0, size - SAMPLE_BYTES))
        digest.update(file.read())
    return digest.hexdigest()
