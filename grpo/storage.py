"""Write files so that a kill or a full disk leaves the old file or the new one, never half of one.

FAILPOINT=name:n in the environment kills the process, as kill -9 does, when it passes `failpoint(name)` for the n-th
time: so tests can prove what survives.
"""

import os
import signal
from pathlib import Path

_left: dict[str, int] = {}  # name -> passes until the end


def failpoint(name: str) -> None:
    """Die here if FAILPOINT names this place; otherwise do nothing but look at the environment."""
    wanted, _, number = os.environ.get("FAILPOINT", "").partition(":")
    if name == wanted:
        _left[name] = _left.get(name, int(number or 1)) - 1
        if _left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path` by `text`. What UTF-8 cannot hold becomes its escape, as in JSON."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        failpoint(f"write-{path.name}")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def flush_to_disk(path: Path) -> None:
    """Wait until the file or folder at `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
