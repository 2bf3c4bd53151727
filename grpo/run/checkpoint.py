"""Checkpoints that are complete or absent, and from which a run continues bit for bit.

A checkpoint is written into a folder of another name, and each file is flushed to the disk. `manifest.json`, with the
size and sha256 of every file, comes last; then the folder is renamed. A folder that does not match its manifest is not
a checkpoint. Files are safetensors and JSON; nothing is pickled.
"""

import hashlib
import json
import math
import os
import random
import re
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo.base.errors import STORAGE, UserError, explained, is_storage_error, reason
from grpo.base.storage import Json, failpoint, flush_to_disk, read_json, read_mapping

FORMAT = 4
STATE_FILE, COUNTERS_FILE, MANIFEST_FILE = "state.safetensors", "trainer_state.json", "manifest.json"
BEST_FILE = "best.json"  # in best/: which policy that is
PREFIX = "optimizer."  # of the tensors' names in STATE_FILE
_NAME = re.compile(r"checkpoint-(\d+)")
_READ_ERRORS = (  # of damaged or foreign files
    OSError,
    ValueError,
    SafetensorError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    RuntimeError,
    OverflowError,
)


class CheckpointWriter:
    """Writes a checkpoint into a temporary folder and moves it into place: `with CheckpointWriter(...) as folder:`.

    If the disk is full, it removes the temporary folder, keeps older checkpoints, and raises UserError (exit 6).
    about: further entries of the manifest. needed_bytes: an estimate of the size, for the error message.
    """

    def __init__(self, run_dir: Path, step: int, about: Json | None = None, needed_bytes: int = 0):
        self.target = run_dir / f"checkpoint-{step}"
        self.folder = run_dir / f"checkpoint-{step}.tmp-{os.getpid()}"
        self.about = {"format": FORMAT, "step": step, **(about or {})}
        self.needed_bytes = needed_bytes

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
        if error is None:
            return
        written = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        shutil.rmtree(self.folder, ignore_errors=True)
        failed_in_commit = kind is None
        if is_storage_error(error) or failed_in_commit:
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
        """Write the manifest and rename the folder."""
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
        if self.target.exists():
            shutil.rmtree(self.target)  # damaged, or the run was resumed from an earlier one: see Run.save_checkpoint
        os.replace(self.folder, self.target)
        failpoint("save-renamed")
        flush_to_disk(self.target.parent)


def problem_with(folder: Path) -> str:
    """Return why a folder is not a valid checkpoint, with the name of the file; "" if it is valid."""
    try:
        manifest = read_json(folder / MANIFEST_FILE)
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this program reads {FORMAT}"
        for name in (STATE_FILE, COUNTERS_FILE):
            if name not in manifest["files"]:
                return f"{MANIFEST_FILE} does not list {name}"
        for name, entry in manifest["files"].items():
            problem = _problem_with_file(folder, name, entry)
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


def checkpoints(run_dir: Path) -> list[Path]:
    """Return the folders that are named like checkpoints, newest first. They need not be valid."""
    found = [path for path in run_dir.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(_NAME.fullmatch(folder.name)[1])


def models(run_dir: Path) -> dict[Path, float]:
    """Return the folders of a run that hold a model, and the step of that model: infinity if it is not known.

    They are the checkpoints, best/, and final/, which has the step of the newest checkpoint.
    """
    steps: dict[Path, float] = {folder: step_of(folder) for folder in checkpoints(run_dir)}
    steps[run_dir / "final"] = max(steps.values(), default=math.inf)
    step = read_mapping(run_dir / "best" / BEST_FILE).get("step")
    steps[run_dir / "best"] = step if isinstance(step, int) else math.inf
    return {folder: step for folder, step in steps.items() if folder.is_dir()}


def find_checkpoint(run_dir: Path, wanted: bool | str) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from, and notices.

    wanted: True for the newest valid checkpoint (None if there is none); or the path of one, which must be valid
    (else exit 6).
    """
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


def remove_temporary(run_dir: Path) -> None:
    """Remove what a killed run had begun to write."""
    for folder in run_dir.glob("checkpoint-*.tmp-*"):
        shutil.rmtree(folder, ignore_errors=True)


def remove_old(run_dir: Path, keep: int, newest: int | None = None) -> None:
    """Remove old checkpoints and old folders set aside: the last `keep` of each kind stay (0: all).

    newest: the step of the checkpoint just written. Checkpoints of later steps must be damaged, since the run was not
    resumed from them; they are kept and not counted.
    """
    if not keep:
        return
    found = [folder for folder in checkpoints(run_dir) if newest is None or step_of(folder) <= newest]
    for folder in found[keep:]:
        (folder / MANIFEST_FILE).unlink(missing_ok=True)  # first, so that a kill leaves no valid-looking half
        failpoint("save-retiring")
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("checkpoint-*", "final", "best"):
        aside = sorted(run_dir.glob(f"{name}.aside-*"), key=os.path.getmtime, reverse=True)
        for folder in aside[keep:]:
            shutil.rmtree(folder, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Rename a folder, so that it is kept but no longer belongs to the run; return its new path."""
    for number in count(1):
        target = folder.with_name(f"{folder.name}.aside-{number}")
        if not target.exists():
            return folder.rename(target)


def random_state() -> Json:
    """Return the state of every random generator of this process, as JSON."""
    kind, words, position, has_gauss, gauss = np.random.get_state()
    version, internal, next_gauss = random.getstate()
    uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "python": [version, list(internal), next_gauss],
        "numpy": [kind, words.tolist(), position, has_gauss, gauss],
        "torch": _to_hex(torch.get_rng_state()),
        "cuda": _to_hex(torch.cuda.get_rng_state()) if uses_cuda else None,
    }


def restore_random_state(state: Json) -> None:
    """Set every random generator of this process to a state from `random_state`."""
    version, internal, next_gauss = state["python"]
    random.setstate((version, tuple(internal), next_gauss))
    kind, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(_from_hex(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_hex(state["cuda"]))


def _to_hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def write_state(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    counters: Json,
    random_states: Sequence[Json] = (),
) -> None:
    """Write optimizer tensors, counters and the random state of every rank (by default that of this process)."""
    tensors = {f"{PREFIX}{name}": value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / STATE_FILE)
    failpoint("save-tensors")
    text = json.dumps({**counters, "rng": list(random_states) or [random_state()]})
    (folder / COUNTERS_FILE).write_text(text + "\n", encoding="utf-8")


def read_state(folder: Path, rank: int = 0) -> tuple[dict[str, torch.Tensor], Json]:
    """Return the tensors and counters of a checkpoint, and restore the random generators of this rank."""
    with explained(_READ_ERRORS, f"the checkpoint {folder} cannot be read", "use an older one", STORAGE):
        tensors = load_file(folder / STATE_FILE)
        counters = read_json(folder / COUNTERS_FILE)
        restore_random_state(counters.pop("rng")[rank])
    return {name.removeprefix(PREFIX): value for name, value in tensors.items()}, counters


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
