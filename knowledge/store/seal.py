"""Check a database when it is opened, byte for byte: one changed bit is found.

Our own files carry a digest of 8 bytes in the two fields of SQLite's header that are left to applications (user_version
and application_id); they count as zeros in it. A file that is not ours gets its digest when it is first opened or
verified, after SQLite has found its structure sound, in a file NAME.checksum next to it, or in the user's cache folder
if nothing can be written there. To check a file means to read it once, about a second per GB.
"""

import hashlib
import json
import logging
import os
from pathlib import Path

from grpo.base.storage import write_atomically
from knowledge.errors import bad_file
from knowledge.store.database import ReadOnlyDatabase

FIELDS = (slice(60, 64), slice(68, 72))  # of the header
HEADER_BYTES, CHUNK_BYTES = 100, 1 << 20
NO_SEAL = bytes(8)
MAX_CHECKED_BYTES = 4 << 30  # SQLite takes minutes for more; `knowledge.verify` takes them
COUNTERS = (slice(24, 28), slice(92, 96))  # SQLite raises them with each change that it makes
_log = logging.getLogger("knowledge")


def seal(path: Path) -> None:
    """Write the digest of a finished file into its header."""
    digest = _digest(path)
    with open(path, "r+b") as file:
        for place, field in enumerate(FIELDS):
            file.seek(field.start)
            file.write(digest[4 * place : 4 * place + 4])


def read_seal(path: Path) -> bytes:
    """Return the digest in a file's header; NO_SEAL for a file without one."""
    header = _header(path)
    return b"".join(header[field] for field in FIELDS)


def has_broken_seal(path: Path) -> bool:
    """Tell whether a sealed file has changed since."""
    return read_seal(path) not in (NO_SEAL, _digest(path))


def check_content(database: ReadOnlyDatabase, is_ours: bool = True) -> None:
    """Raise UserError (exit 3) if the file has changed since it was built, or first opened, or if it is damaged."""
    path, fix = database.path, f"fetch or build it again; python -m knowledge.verify {database.path} tells more"
    if is_ours and read_seal(path) != NO_SEAL:
        if has_broken_seal(path):
            raise bad_file(path, "its content has changed since it was built", "the file as it was built", fix)
    elif not matches_checksum(path):
        if os.path.getsize(path) <= MAX_CHECKED_BYTES:
            ((found,),) = database.rows("PRAGMA integrity_check(1)")
            if found != "ok":
                raise bad_file(path, f"damaged: {found}", "a sound SQLite file", fix)
        keep_checksum(path)


def matches_checksum(path: Path) -> bool:
    """Tell whether a file that is not ours is unchanged since its checksum was kept; False if no checksum counts.

    One of another length, or that SQLite has changed since, does not count. UserError (exit 3) if the file has changed
    in any other way.
    """
    kept = _read_checksum(path)
    if kept is None:
        return False
    if kept.get("version") != _version(path):
        _log.warning("%s has changed since it was last opened; it is checked anew", path)
        return False
    if kept.get("digest") != _digest(path).hex():
        note = sidecar(path, "checksum")
        raise bad_file(
            path,
            f"its bytes have changed since {note} was written, and not by SQLite",
            "the file as it was when it was first opened",
            f"fetch it again; if it was replaced on purpose, delete {note}",
        )
    return True


def keep_checksum(path: Path) -> None:
    """Write the checksum of a file that is not ours; warn if that is not possible."""
    note = sidecar(path, "checksum")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps({"version": _version(path), "digest": _digest(path).hex()}))
    except OSError as error:
        if not note.exists():  # else another process has written it
            _log.warning("later damage to %s will not be noticed: %s cannot be written: %s", path, note, error)


def sidecar(path: Path, ending: str) -> Path:
    """Return where a file that belongs to this database is, or would be written: NAME.ending."""
    here = Path(f"{path}.{ending}")
    if here.exists() or os.access(path.absolute().parent, os.W_OK):
        return here
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return cache / "grpo-knowledge" / f"{path.name}-{place[:16]}.{ending}"


def _read_checksum(path: Path) -> dict | None:
    try:
        kept = json.loads(sidecar(path, "checksum").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("the checksum of %s cannot be read, and it is checked anew: %s", path, error)
        return None
    return kept if isinstance(kept, dict) else None


def _version(path: Path) -> str:
    """Tell the versions of a file apart that SQLite has written."""
    header = _header(path)
    counters = b"".join(header[field] for field in COUNTERS)
    return f"{os.path.getsize(path)} {counters.hex()}"


def _header(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEADER_BYTES)


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
