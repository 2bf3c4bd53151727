"""Checkpoints that are whole or absent, and bit-exact to continue from.

A checkpoint is written into a folder of another name, each file flushed to disk; `manifest.json`, with the size and sha256
of every file, comes last; then one rename. A folder without a manifest that fits it is no checkpoint. Only safetensors
and JSON, nothing pickled.
"""

import errno
import hashlib
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo.errors import STORAGE, UserError

FORMAT = 1
STATE_FILE, COUNTERS_FILE, MANIFEST_FILE = "state.safetensors", "trainer_state.json", "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")


class CheckpointWriter:
    """Writes checkpoint-N aside and moves it into place; use as a context manager and fill `folder`.

    A full disk removes the temporary folder, leaves older checkpoints alone and ends in exit code 6.
    """

    def __init__(self, run_dir: Path, step: int):
        self.target = run_dir / f"checkpoint-{step}"
        self.folder = run_dir / f"checkpoint-{step}.tmp-{os.getpid()}"
        self.step = step

    def __enter__(self) -> Path:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self.folder

    def __exit__(self, kind, error, traceback) -> None:
        try:
            if error is None:
                self._commit()
        except OSError as failure:
            error = failure
        if error is not None:
            written = sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file()) if self.folder.exists() else 0
            shutil.rmtree(self.folder, ignore_errors=True)
            if is_storage_error(error):
                free = shutil.disk_usage(self.target.parent).free
                raise UserError(f"cannot write {self.target}", f"{error} (written {written / 1e9:.2f} GB, free {free / 1e9:.2f} GB)",
                                "free some space and resume with resume_from_checkpoint=true; older checkpoints are intact", STORAGE) from error

    def _commit(self) -> None:
        files = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                _sync(path)
                files[str(path.relative_to(self.folder))] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = self.folder / MANIFEST_FILE
        manifest.write_text(json.dumps({"format": FORMAT, "step": self.step, "files": files}, indent=2) + "\n", encoding="utf-8")
        _sync(manifest)
        _sync(self.folder)
        if self.target.exists():
            shutil.rmtree(self.target)
        os.replace(self.folder, self.target)
        _sync(self.target.parent)


def problem_with(folder: Path) -> str:
    """Why a folder is no valid checkpoint, naming the file; "" if it is one."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        files = {Path(name).name if ".." in name else name: entry for name, entry in manifest["files"].items()}
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this program reads {FORMAT}"
        for name, entry in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
            if sha256(path) != entry["sha256"]:
                return f"{name} has another sha256 than the manifest says"
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST_FILE} cannot be read: {type(error).__name__}: {error}"
    return ""


def checkpoints(run_dir: Path) -> list[Path]:
    """Folders named like checkpoints, newest first; not necessarily valid."""
    found = [(int(match[1]), path) for path in run_dir.glob("checkpoint-*") if path.is_dir() and (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def find_checkpoint(run_dir: Path, wanted: bool | str) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, and notices. True: the newest valid one, or None if there is none. A path: that one, or
    exit 6; an explicit path never falls back."""
    if isinstance(wanted, str):
        problem = problem_with(Path(wanted))
        if problem:
            raise UserError(f"{wanted} is not a valid checkpoint", problem, "name another one, or use resume_from_checkpoint=true", STORAGE)
        return Path(wanted), []
    notices = []
    for folder in checkpoints(run_dir):
        problem = problem_with(folder)
        if not problem:
            return folder, notices
        notices.append(f"{folder.name} is not used: {problem}")
    return None, [*notices, f"no valid checkpoint in {run_dir}: starting from step 0"]


def clean(run_dir: Path, keep: int) -> None:
    """Removes left-over temporary folders, and all but the newest `keep` checkpoints (0: keeps all)."""
    for folder in run_dir.glob("checkpoint-*.tmp-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in checkpoints(run_dir)[keep:] if keep else []:
        shutil.rmtree(folder, ignore_errors=True)


def write_state(folder: Path, tensors: dict[str, torch.Tensor], counters: dict[str, Any]) -> None:
    """Optimizer tensors, counters and the state of every random generator of this process."""
    kind, words, position, has_gauss, gauss = np.random.get_state()
    version, internal, next_gauss = random.getstate()
    tensors = {f"optimizer.{name}": value.detach().cpu().contiguous() for name, value in tensors.items()}
    tensors["rng.torch"] = torch.get_rng_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, folder / STATE_FILE)
    rng = {"python": [version, list(internal), next_gauss], "numpy": [kind, words.tolist(), position, has_gauss, gauss]}
    (folder / COUNTERS_FILE).write_text(json.dumps({**counters, "rng": rng}) + "\n", encoding="utf-8")


def read_state(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `write_state` wrote; the random generators are set back."""
    try:
        tensors = load_file(folder / STATE_FILE)
        counters = json.loads((folder / COUNTERS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the checkpoint {folder} cannot be read", f"{type(error).__name__}: {error}", "use an older one", STORAGE) from None
    torch.set_rng_state(tensors.pop("rng.torch"))
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors.pop("rng.cuda"))
    rng = counters.pop("rng")
    version, internal, next_gauss = rng["python"]
    random.setstate((version, tuple(internal), next_gauss))
    kind, words, position, has_gauss, gauss = rng["numpy"]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), position, has_gauss, gauss))
    return {name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")}, counters


def is_storage_error(error: BaseException) -> bool:
    """A full or failing disk: it comes as OSError, and from safetensors as its own error or a RuntimeError."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    if isinstance(error, OSError):
        return error.errno in full
    text = str(error).lower()
    return isinstance(error, (SafetensorError, RuntimeError)) and any(word in text for word in ("no space", "os error", "file too large", "i/o error"))


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
