"""Checkpoints that are whole or absent, and bit-exact to continue from.

A checkpoint is written into a folder of another name, each file flushed to disk; `manifest.json`, with the size and
sha256 of every file, comes last; then one rename. A folder without a manifest that fits it is no checkpoint. Only
safetensors and JSON, nothing pickled.
"""

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo.errors import STORAGE, UserError, is_storage_error
from grpo.storage import failpoint, flush_to_disk

FORMAT = 2
STATE_FILE, COUNTERS_FILE, MANIFEST_FILE = "state.safetensors", "trainer_state.json", "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")


class CheckpointWriter:
    """Writes checkpoint-N aside and moves it into place; use as a context manager and fill `folder`.

    A full disk removes the temporary folder, leaves older checkpoints alone and ends in exit code 6.
    about: further entries of the manifest. needed_bytes: an estimate of the size, for that message.
    """

    def __init__(self, run_dir: Path, step: int, about: dict[str, Any] | None = None, needed_bytes: int = 0):
        self.target = run_dir / f"checkpoint-{step}"
        self.folder = run_dir / f"checkpoint-{step}.tmp-{os.getpid()}"
        self.about, self.needed_bytes = {"format": FORMAT, "step": step, **(about or {})}, needed_bytes

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
                self._commit()
        except OSError as failure:
            error = failure
        if error is not None:
            written = (
                sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file()) if self.folder.exists() else 0
            )
            shutil.rmtree(self.folder, ignore_errors=True)
            if is_storage_error(error) or (isinstance(error, OSError) and kind is None):
                raise self._explain(error, written) from error

    def _explain(self, error: BaseException, written: int) -> UserError:
        free = shutil.disk_usage(self.target.parent).free
        size = f"needs {max(self.needed_bytes, written) / 1e9:.2g} GB, {free / 1e9:.2g} GB free"
        return UserError(
            f"cannot write {self.target}: {size}",
            str(error),
            "free some space and resume with resume_from_checkpoint=true; older checkpoints are intact",
            STORAGE,
        )

    def _commit(self) -> None:
        failpoint("save-written")
        files = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                flush_to_disk(path)
                files[str(path.relative_to(self.folder))] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = self.folder / MANIFEST_FILE
        manifest.write_text(json.dumps({**self.about, "files": files}, indent=2) + "\n", encoding="utf-8")
        flush_to_disk(manifest)
        flush_to_disk(self.folder)
        failpoint("save-complete")
        if self.target.exists():
            shutil.rmtree(self.target)  # damaged, or of a branch that the run has left: see Run.save_checkpoint
        os.replace(self.folder, self.target)
        failpoint("save-renamed")
        flush_to_disk(self.target.parent)


def problem_with(folder: Path) -> str:
    """Why a folder is no valid checkpoint, naming the file; "" if it is one."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this program reads {FORMAT}"
        for name in (STATE_FILE, COUNTERS_FILE):
            if name not in manifest["files"]:
                return f"{MANIFEST_FILE} does not list {name}"
        for name, entry in manifest["files"].items():
            path = folder / name
            if name != Path(name).name or path.is_symlink():
                return f"{name} is not a plain file of this folder"
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
            if sha256(path) != entry["sha256"]:
                return f"{name} has another sha256 than the manifest says"
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST_FILE} cannot be read: {type(error).__name__}: {error}"
    return ""


def checkpoints(run_dir: Path) -> list[Path]:
    """Folders named like checkpoints, newest first; not necessarily valid."""
    found = [
        (int(match[1]), path)
        for path in run_dir.glob("checkpoint-*")
        if path.is_dir() and (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def find_checkpoint(run_dir: Path, wanted: bool | str) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, and notices. True: the newest valid one, or None if there is none. A path: that
    one, or exit 6; an explicit path never falls back."""
    if isinstance(wanted, str):
        problem = problem_with(Path(wanted))
        if problem:
            raise UserError(
                f"{wanted} is not a valid checkpoint",
                problem,
                "name another one, or use resume_from_checkpoint=true",
                STORAGE,
            )
        return Path(wanted), []
    notices = []
    for folder in checkpoints(run_dir):
        problem = problem_with(folder)
        if not problem:
            return folder, notices
        notices.append(f"{folder.name} is not used: {problem}")
    return None, [*notices, f"no valid checkpoint in {run_dir}: starting from step 0"]


def clean(run_dir: Path, keep: int, newest: int | None = None) -> None:
    """Removes left-over temporary folders, and of the checkpoints up to step `newest` all but the last `keep` (0: keeps
    all).

    newest: the one just written, which is valid. Later ones were not resumed from, being damaged; they do not count."""
    for folder in run_dir.glob("checkpoint-*.tmp-*"):
        shutil.rmtree(folder, ignore_errors=True)
    found = [path for path in checkpoints(run_dir) if newest is None or int(_NAME.fullmatch(path.name)[1]) <= newest]
    for folder in found[keep:] if keep else []:
        (folder / MANIFEST_FILE).unlink(missing_ok=True)  # first, so that no half of it looks whole
        failpoint("save-retiring")
        shutil.rmtree(folder, ignore_errors=True)


def random_state() -> dict[str, Any]:
    """The state of every random generator of this process, as JSON."""
    kind, words, position, has_gauss, gauss = np.random.get_state()
    version, internal, next_gauss = random.getstate()
    cuda = (
        torch.cuda.get_rng_state().numpy().tobytes().hex()
        if torch.cuda.is_available() and torch.cuda.is_initialized()
        else None
    )
    return {
        "python": [version, list(internal), next_gauss],
        "numpy": [kind, words.tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": cuda,
    }


def restore_random_state(state: dict[str, Any]) -> None:
    version, internal, next_gauss = state["python"]
    random.setstate((version, tuple(internal), next_gauss))
    kind, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(_byte_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_byte_tensor(state["cuda"]))


def write_state(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    counters: dict[str, Any],
    random_states: Sequence[dict[str, Any]] = (),
) -> None:
    """Optimizer tensors, counters and the random generators of every rank (by default: of this process)."""
    tensors = {f"optimizer.{name}": value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / STATE_FILE)
    failpoint("save-tensors")
    text = json.dumps({**counters, "rng": list(random_states) or [random_state()]})
    (folder / COUNTERS_FILE).write_text(text + "\n", encoding="utf-8")


def read_state(folder: Path, rank: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `write_state` wrote; this rank's random generators are set back."""
    try:
        tensors = load_file(folder / STATE_FILE)
        counters = json.loads((folder / COUNTERS_FILE).read_text(encoding="utf-8"))
        restore_random_state(counters.pop("rng")[rank])
    except (
        OSError,
        ValueError,
        SafetensorError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise UserError(
            f"the checkpoint {folder} cannot be read", f"{type(error).__name__}: {error}", "use an older one", STORAGE
        ) from None
    return {
        name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
    }, counters


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _byte_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
