"""Folders that appear completely or not at all, and that show later whether they are still what was written.

A folder is written under the name NAME.unfinished, and each file is flushed to the disk. `manifest.json`, with the size
and sha256 of every file, comes last. Then the folder takes the place of NAME. A process that is killed before it wrote
the manifest leaves the old NAME; one that is killed later leaves a complete NAME.unfinished, which `recover` finds.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from grpo.base.errors import STORAGE, UserError, is_storage_error, reason
from grpo.base.storage import Json, failpoint, flush_to_disk, read_json

MANIFEST_FILE = "manifest.json"
UNFINISHED = ".unfinished"


class FolderWriter:
    """Writes a folder, in place of the one of this name if there is one: `with FolderWriter(...) as folder:`.

    If the disk is full, it removes what it has written, keeps the old folder, and raises UserError (exit 6).
    about: further entries of the manifest. needed_bytes: an estimate of the size. fix: both are for the error message.
    """

    def __init__(
        self,
        target: Path,
        about: Json | None = None,
        needed_bytes: int = 0,
        fix: str = "free some space, and try again",
    ):
        self.target = target.absolute()
        self.folder = self.target.with_name(self.target.name + UNFINISHED)
        self.about, self.needed_bytes, self.fix = about or {}, needed_bytes, fix

    def __enter__(self) -> Path:
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise self._explain(error, 0) from error
        failpoint("save-begun")
        return self.folder

    def __exit__(self, kind, error, traceback) -> None:
        try:
            if error is None:
                self._write_manifest()
                _put_in_place(self.folder)
        except OSError as failure:
            error = failure
        if error is None:
            return
        written = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        if problem_with(self.folder):  # else the old folder may be gone already, and this one is complete
            shutil.rmtree(self.folder, ignore_errors=True)
        failed_at_the_end = kind is None
        if is_storage_error(error) or failed_at_the_end:
            raise self._explain(error, written) from error

    def _explain(self, error: BaseException, written: int) -> UserError:
        free = shutil.disk_usage(next(path for path in self.target.parents if path.exists())).free
        size = f"needs {max(self.needed_bytes, written) / 1e9:.2g} GB, {free / 1e9:.2g} GB free"
        return UserError(f"cannot write {self.target}: {size}", str(error), self.fix, STORAGE)

    def _write_manifest(self) -> None:
        failpoint("save-written")
        files = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                flush_to_disk(path)
                name = str(path.relative_to(self.folder))
                files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = self.folder / MANIFEST_FILE
        manifest.write_text(json.dumps({**self.about, "files": files}, indent=2) + "\n", encoding="utf-8")
        flush_to_disk(manifest)
        flush_to_disk(self.folder)
        failpoint("save-complete")


def _put_in_place(folder: Path) -> None:
    """Rename NAME.unfinished, which is complete, to NAME; remove what had that name."""
    target = folder.with_name(folder.name.removesuffix(UNFINISHED))
    remove(target)
    failpoint("save-replacing")
    os.replace(folder, target)
    failpoint("save-renamed")
    flush_to_disk(target.parent)


def recover(folder: Path) -> None:
    """Finish NAME.unfinished of a killed process if it is complete; else remove it."""
    if problem_with(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(OSError):  # such as a file of its name; it stays as it is
        _put_in_place(folder)


def remove(folder: Path) -> None:
    """Remove a folder. Its manifest goes first, so that a kill leaves nothing that looks complete."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    failpoint("save-retiring")
    shutil.rmtree(folder, ignore_errors=True)


def problem_with(folder: Path, pattern: str = "*") -> str:
    """Return how the files of a folder whose names fit `pattern` differ from its manifest; "" if they do not."""
    try:
        for name, entry in read_json(folder / MANIFEST_FILE)["files"].items():
            problem = _problem_with_file(folder, name, entry) if fnmatch(name, pattern) else ""
            if problem:
                return problem
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST_FILE} cannot be read: {reason(error)}"
    return ""


def _problem_with_file(folder: Path, name: str, entry: Json) -> str:
    """Return how a file differs from its entry in the manifest; "" if it does not."""
    path = folder / name
    if name != Path(name).name or path.is_symlink():
        return f"{name} is not a plain file of this folder"
    if not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"{name} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
    if sha256(path) != entry["sha256"]:
        return f"{name} has another sha256 than the manifest says"
    return ""


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
