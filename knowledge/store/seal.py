"""Seal a finished file, and tell later whether it is still what its build wrote, byte by byte.

The seal stands behind the pages of the SQLite file. SQLite reads as many pages as its header counts, so any program can
read the file:

    page 1 ... page P | SHA-256 of block 1 ... SHA-256 of block N | N | MARK

All blocks hold BLOCK_BYTES, but the last. A write through SQLite changes the first: its counter of changes is there.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from knowledge.errors import bad_file

BLOCK_BYTES = 16 << 20
MAX_BLOCKS = 256  # 4 GB, which take two seconds of a core
MARK = b"knowledge, sealed"
_DIGEST_BYTES, _NUMBER_BYTES = 32, 8
_NUM_THREADS = 8  # hashing releases Python's lock


def seal(path: Path) -> None:
    """Append the seal to a finished file."""
    num_blocks = _num_blocks(path.stat().st_size)
    digests = _digests(path, path.stat().st_size, range(num_blocks))
    with open(path, "ab") as file:
        file.write(b"".join(digests) + num_blocks.to_bytes(_NUMBER_BYTES, "big") + MARK)


def check_seal(path: Path, max_blocks: int | None = MAX_BLOCKS) -> None:
    """Raise UserError (exit 3) if a file is not as it was sealed.

    max_blocks: of a larger file, check so many, evenly spaced, the first and the last among them. None: check all.
    """
    fix = (
        "copy it again from where it was built, or build it again; if you changed its texts on purpose: "
        f"python -m knowledge.build {path} OUT.db, and use OUT.db"
    )
    wanted = "a file that is still as its build wrote it, copied byte by byte"
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, size - _NUMBER_BYTES - len(MARK)))
        end = file.read()
        num_blocks = int.from_bytes(end[:_NUMBER_BYTES], "big")
        num_bytes = size - len(end) - num_blocks * _DIGEST_BYTES
        if end[_NUMBER_BYTES:] != MARK or num_bytes < 0 or _num_blocks(num_bytes) != num_blocks:
            raise bad_file(path, "malformed: its end is missing, or was overwritten", wanted, fix)
        file.seek(num_bytes)
        sealed = file.read(num_blocks * _DIGEST_BYTES)
    numbers = range(num_blocks)
    if max_blocks and num_blocks > max_blocks:
        numbers = [(num_blocks - 1) * place // (max_blocks - 1) for place in range(max_blocks)]
    for number, digest in zip(numbers, _digests(path, num_bytes, numbers), strict=True):
        if digest != sealed[number * _DIGEST_BYTES :][:_DIGEST_BYTES]:
            found = f"changed after it was built, in block {number + 1} of {num_blocks}"
            raise bad_file(path, found, wanted, fix)


def _num_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES)


def _digests(path: Path, num_bytes: int, numbers: Iterable[int]) -> list[bytes]:
    """Return the digests of some blocks of the first `num_bytes` of a file."""

    def digest(number: int) -> bytes:
        start = number * BLOCK_BYTES
        with open(path, "rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(min(BLOCK_BYTES, num_bytes - start))).digest()

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(digest, numbers))
