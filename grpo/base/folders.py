"""Folders that appear completely or not at all, and that show later whether they are still what was written.

A folder is written under the name NAME.unfinished, and each file is flushed to the disk. `manifest.json`, with the size
and sha256 of every file, comes last. Then the folder takes the place of NAME. A process that is killed before it wrote
the manifest leaves the old NAME; one that is killed later leaves a complete NAME.unfinished, which `recover` finds.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

from grpo.base.errors import STORAGE, UserError, is_storage_error, reason
from grpo.base.storage import Json, failpoint, flush_to_disk, read_json, read_mapping

MANIFEST_FILE = "manifest.json"
UNFINISHED = ".unfinished"


@contextmanager
def write_folder(
    target: Path, about: Json | None = None, needed_bytes: int = 0, fix: str = "free some space, and try again"
) -> Iterator[Path]:
    """Write a folder, in place of the one of this name if there is one: `with write_folder(...) as folder:`.

    If the disk is full, what was written is removed, the old folder stays, and UserError (exit 6) is raised.
    about: further entries of the manifest. needed_bytes: an estimate of the size. fix: both are for the error message.
    """
    target = target.absolute()
    folder = target.with_name(target.name + UNFINISHED)
    is_content = False  # whether the caller is writing the files
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        failpoint("save-begun")
        is_content = True
        yield folder
        is_content = False
        _write_manifest(folder, about or {})
        _put_in_place(folder)
    except BaseException as error:
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if problem_with(folder):  # else the old folder may be gone already, and this one is complete
            shutil.rmtree(folder, ignore_errors=True)
        if is_storage_error(error) or (isinstance(error, OSError) and not is_content):
            free = shutil.disk_usage(next(path for path in target.parents if path.exists())).free
            size = f"needs {max(needed_bytes, written) / 1e9:.2g} GB, {free / 1e9:.2g} GB free"
            raise UserError(f"cannot write {target}: {size}", str(error), fix, STORAGE) from error
        raise


def _write_manifest(folder: Path, about: Json) -> None:
    """Flush the files of a folder to the disk, and write their sizes and hashes."""
    failpoint("save-written")
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            flush_to_disk(path)
            files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    manifest = folder / MANIFEST_FILE
    manifest.write_text(json.dumps({**about, "files": files}, indent=2) + "\n", encoding="utf-8")
    flush_to_disk(manifest)
    flush_to_disk(folder)
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


def problem_with(folder: Path, ignored: str = "") -> str:
    """Return how the files of a folder differ from its manifest; "" if they do not. ignored: a pattern of names."""
    try:
        for name, entry in read_json(folder / MANIFEST_FILE)["files"].items():
            problem = "" if fnmatch(name, ignored) else _problem_with_file(folder, name, entry)
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
    if Path(name).is_absolute() or name != str(Path(name)) or path.resolve() != folder.resolve() / name:
        return f"{name} is not a plain file of this folder"
    if not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"{name} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
    if sha256(path) != entry["sha256"]:
        return f"{name} has another sha256 than the manifest says"
    return ""


def check_unchanged(folder: Path, ignored: str = "") -> None:
    """Raise UserError (exit 6) if a folder with a manifest is no longer what was written. ignored: as above.

    If it is checked again, its files are read again only if the size or time of one has changed.
    """
    is_of_another_program = "files" not in (read_mapping(folder / MANIFEST_FILE) or ["files"])
    if not (folder / MANIFEST_FILE).exists() or is_of_another_program:
        return
    found = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    stamps = tuple((str(path), state.st_size, state.st_mtime_ns) for path, state in found)
    if problem := _known_problem(folder, ignored, stamps):
        raise UserError(
            f"{folder} is damaged, or was changed",
            problem,
            f"use an intact copy; if you have changed it yourself, remove {folder / MANIFEST_FILE} to accept that",
            STORAGE,
        )


@lru_cache
def _known_problem(folder: Path, ignored: str, stamps: tuple) -> str:
    return problem_with(folder, ignored)


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path | None:
    """Return the folder of what is kept for later processes: GRPO_CACHE, else ~/.cache/grpo; None without a home."""
    if named := os.environ.get("GRPO_CACHE"):
        return Path(named).resolve()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo"
    except RuntimeError:
        return None
