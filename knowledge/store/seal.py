"""Seal a finished database with a digest of its bytes, and check it when it is opened: one changed bit breaks it.

The digest of 8 bytes stands in the two fields of SQLite's header that are left to applications (user_version and
application_id); they count as zeros in it. To check a file means to read it once, about a second per GB. Files that are
not ours have no seal: there SQLite checks the structure of its pages, and the content is taken as it is.
"""

import hashlib
import os
from pathlib import Path

from knowledge.errors import bad_file
from knowledge.store.database import ReadOnlyDatabase

FIELDS = (slice(60, 64), slice(68, 72))  # of the header
HEADER_BYTES, CHUNK_BYTES = 100, 1 << 20
NO_SEAL = bytes(8)
MAX_QUICK_CHECK_BYTES = 4 << 30  # SQLite takes minutes for more; `knowledge.verify` takes them


def seal(path: Path) -> None:
    """Write the digest of a finished file into its header."""
    digest = _digest(path)
    with open(path, "r+b") as file:
        for place, field in enumerate(FIELDS):
            file.seek(field.start)
            file.write(digest[4 * place : 4 * place + 4])


def read_seal(path: Path) -> bytes:
    """Return the digest in a file's header; NO_SEAL for a file without one."""
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
    return b"".join(header[field] for field in FIELDS)


def has_broken_seal(path: Path) -> bool:
    """Tell whether a sealed file has changed since."""
    return read_seal(path) not in (NO_SEAL, _digest(path))


def check_content(database: ReadOnlyDatabase) -> None:
    """Raise UserError (exit 3) if the file has changed since it was built, or else if its structure is damaged."""
    path, fix = database.path, f"fetch or build it again; python -m knowledge.verify {database.path} tells more"
    if read_seal(path) != NO_SEAL:
        if has_broken_seal(path):
            raise bad_file(path, "its content has changed since it was built", "the file as it was built", fix)
    elif os.path.getsize(path) <= MAX_QUICK_CHECK_BYTES:
        ((found,),) = database.rows("PRAGMA quick_check(1)")
        if found != "ok":
            raise bad_file(path, f"damaged: {found}", "a sound SQLite file", fix)


def _digest(path: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        header = bytearray(file.read(HEADER_BYTES))
        for field in FIELDS:
            header[field] = bytes(4)
        digest.update(header)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
