"""Write files so that a kill or a full disk leaves the old one or the new one, never half of it; read and lock files.

FAILPOINT=name:n in the environment kills the process, as kill -9 does, when it passes `failpoint(name)` for the n-th
time. Tests use it to prove what survives.
"""

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from grpo.base.errors import redact

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None

Json = dict[str, Any]  # an object, as JSON or YAML holds it
LOCKED_BYTE = (1 << 30) + 1024  # Windows also blocks reads of a locked byte; SQLite keeps no data at this one

_left: dict[str, int] = {}  # name -> passes until the end


def failpoint(name: str) -> None:
    """Kill this process if FAILPOINT names this place; otherwise do nothing."""
    wanted, _, number = os.environ.get("FAILPOINT", "").partition(":")
    if name == wanted:
        _left[name] = _left.get(name, int(number or 1)) - 1
        if _left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path` by `text`. Characters that UTF-8 cannot encode are escaped, as in JSON."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        failpoint(f"write-{path.name}")
        os.replace(temporary, path)
    except BaseException:  # also a second Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Replace the file at `path` by a value as JSON."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def save_tensors(tensors: dict[str, Any], path: Path) -> None:
    """Write a safetensors file with the mode that any new file gets; safetensors would make it private."""
    from safetensors.torch import save_file  # it brings torch

    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, {"format": "pt"})
    path.chmod(mode)


def read_json(path: Path) -> Any:
    """Return the value that a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8-sig"))


def write_lines(path: Path, records: Iterable[Any], for_people: bool = False) -> None:
    """Replace the file at `path` by one line of JSON per record. Create its folder if needed.

    for_people: no program reads it as data, so that secrets are taken out.
    """
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, redact(lines) if for_people else lines)


class PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases: nine lines of nested ones can stand for a billion values."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not used here")
        return super().compose_node(parent, index)


def read_mapping(path: Path) -> Json:
    """Return the mapping that a JSON or YAML file holds; {} if it is missing or damaged, or holds something else."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        content = PlainLoader(text).get_single_data() if path.suffix == ".yaml" else json.loads(text)
    except Exception:  # constructors of YAML raise errors of every kind
        return {}
    return content if isinstance(content, dict) else {}


def flush_to_disk(path: Path) -> None:
    """Wait until the file or folder at `path` is on the disk. Windows flushes no folders."""
    if path.is_dir() and fcntl is None:
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_to_lock(descriptor: int) -> bool:
    """Lock an open file; return False at once if another process holds it. The lock ends with the process."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
