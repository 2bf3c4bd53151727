"""The output directory: it belongs to one run at a time, and records the state of that run.

A run that is to be overwritten stays where it is until its successor has been checked completely. Then it lies in
old-run/ until the successor has a checkpoint. If the successor fails before its first step, the old run comes back.
"""

import os
import re
import shutil
import socket
import uuid
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from grpo.base.errors import BUSY, CONFIG, STORAGE, UserError, explained
from grpo.base.folders import UNFINISHED
from grpo.base.storage import failpoint, is_at, read_mapping, try_to_lock, write_json
from grpo.run.checkpoint import recover
from grpo.run.diagnosis.record import CONFIG_FILE, METRICS_FILE, STATE_FILE
from grpo.run.messages import now, tell, tolerated

OLD_RUN = "old-run"  # holds a run that is overwritten, until its successor has a checkpoint
OWN_FILES = (CONFIG_FILE, METRICS_FILE, "loss.png", "evaluation.json", "report.html")
OWN_FOLDERS = ("tb", "completions", "evaluation", "final", "best", "world", "cold_start")
BEFORE_FIRST_STEP = {CONFIG_FILE, METRICS_FILE, "debug.log", "evaluation", "evaluation.json", "tb", "world"}
_open_dirs: "weakref.WeakSet[RunDir]" = weakref.WeakSet()


def holds_a_run(path: Path) -> bool:
    """Return whether a directory holds a run. A run that ended before its first step does not count: it is replaced."""
    return path.is_dir() and _has_begun(path, path.iterdir())


def _has_begun(path: Path, entries: Iterable[Path]) -> bool:
    """Return whether some entries of a directory are more than a run has before its first step."""
    names = {entry.name for entry in entries if not entry.name.startswith((".lock", "run_state."))}
    return bool(names - BEFORE_FIRST_STEP) or (METRICS_FILE in names and (path / METRICS_FILE).stat().st_size > 0)


def own_entries(path: Path) -> list[Path]:
    """Return what a run has written into its directory, and nothing else."""

    def is_own(entry: Path) -> bool:
        if _is_folder_name(entry.name):
            return entry.is_dir() and not entry.is_symlink()
        return entry.name in OWN_FILES or entry.name.startswith("run_state.")

    return [entry for entry in path.iterdir() if is_own(entry)]


def _is_folder_name(name: str) -> bool:
    """Return whether a run gives one of its folders this name."""
    name = name.removesuffix(UNFINISHED)
    return name in OWN_FOLDERS or name.startswith("checkpoint-")


def is_of_a_run(path: Path) -> bool:
    """Return whether a run in the parent directory writes a folder of this name, now or later."""
    path = path.absolute()
    holds_run = any((path.parent / file).exists() for file in (CONFIG_FILE, STATE_FILE))
    return holds_run and _is_folder_name(path.name)


def refuse_a_run(path: Path) -> None:
    """Raise UserError (exit 2) for a directory that holds a run."""
    if holds_a_run(path):
        names = sorted(entry.name for entry in path.iterdir() if entry.name != ".lock")
        raise UserError(
            f"the output directory {path} is not empty",
            f"it holds {', '.join(names[:6])}",
            "resume_from_checkpoint=true continues that run, overwrite_output_dir=true starts anew, "
            "or set another output_dir",
            CONFIG,
        )


def is_in_use(path: Path) -> bool:
    """Return whether another process holds a directory."""
    try:
        with open(path / ".lock", "r+") as lock:
            return not try_to_lock(lock.fileno())
    except OSError:
        return False


def may_be_restarted() -> bool:
    """Return whether torchrun would start this process again if it failed."""
    limit, count = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return limit.isdecimal() and count.isdecimal() and int(limit) > int(count)


class RunDir:
    """An output directory that this process holds until it ends. It writes there from `begin` on.

    UserError if another process uses it (exit 7), or if it holds a run that is not to be resumed or overwritten
    (exit 2).
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool):
        self.path, self.is_held = Path(path), False
        self.warned: set[str] = set()
        is_new_lock = not (self.path / ".lock").exists()
        self._take_lock()
        _open_dirs.add(self)
        try:
            if resume:
                recover(self.path)
            elif overwrite:
                self._check_replaceable()
            else:
                refuse_a_run(self.path)
        except UserError:
            self.lock.close()
            if is_new_lock:
                (self.path / ".lock").unlink()  # a refused directory stays as it was
            raise
        self.replaces = overwrite and not resume and self.has_begun  # the run that is there, when this one begins
        earlier = read_mapping(self.path / STATE_FILE) if resume else {}
        is_id = re.fullmatch("[0-9a-f]{21}", str(earlier.get("id")))
        self.state = {
            "id": earlier["id"] if is_id else uuid.uuid4().hex[:21],  # for trackers; swanlab wants 21 characters
            "status": "running",
            "exit_code": None,
            "reason": "",
            "step": earlier.get("step", 0),
            "last_checkpoint": earlier.get("last_checkpoint"),
            "data": {},  # use of a data set -> how many of its rows are used
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": now(),
            "updated": now(),
        }
        self.update()

    def _take_lock(self) -> None:
        fix = "set output_dir to a folder that can be written"
        with explained(OSError, f"cannot use the output directory {self.path}", fix, STORAGE):
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.path / ".lock", "a+")
        if not try_to_lock(self.lock.fileno()):
            self.lock.seek(0)
            holder = self.lock.read().strip() or "another process"
            self.lock.close()
            raise UserError(
                f"the output directory {self.path} is in use",
                f"by {holder}",
                "wait for that run, stop it, or set another output_dir",
                BUSY,
            )
        self.lock.truncate(0)
        self.lock.write(f"pid {os.getpid()} on {socket.gethostname()}, started {now()}\n")
        self.lock.flush()
        self.is_held = True

    def keep_lock(self) -> None:
        """Take the lock again if somebody has deleted its file; UserError (exit 7) if another run has it by now."""
        if is_at(self.lock.fileno(), self.path / ".lock"):
            return
        tell(f"warning: {self.path / '.lock'} was deleted; without it two runs may share a directory")
        self.is_held = False
        self.lock.close()
        self._take_lock()

    def _check_replaceable(self) -> None:
        """Raise UserError (exit 2) for a directory that holds files with the names of a run's, and no run."""
        entries = own_entries(self.path)
        if entries and not any((self.path / file).exists() for file in (CONFIG_FILE, STATE_FILE)):
            raise UserError(
                f"the output directory {self.path} holds no run, and cannot be overwritten",
                f"it holds {', '.join(entry.name for entry in entries[:6])}, and a run uses the same names",
                "set another output_dir, or move them elsewhere",
                CONFIG,
            )

    @property
    def has_begun(self) -> bool:
        """Return whether the directory holds the work of a run: at least one step, or more than it starts with."""
        return _has_begun(self.path, own_entries(self.path))

    def begin(self) -> None:
        """Move the run that is overwritten, if there is one, to old-run/; record this one from now on."""
        if not self.replaces:
            return
        old = self.path / OLD_RUN
        for entry in own_entries(self.path):
            old.mkdir(exist_ok=True)
            if not (old / entry.name).exists():
                entry.rename(old / entry.name)
            else:  # old-run/ already holds the one of an earlier run that has not been replaced yet
                _remove(entry)
            failpoint("replace-moving")
        self.replaces = False
        self.update()

    def _put_back(self) -> None:
        """Put the run in old-run/ back in its place."""
        for entry in own_entries(self.path):
            _remove(entry)
        for entry in (self.path / OLD_RUN).iterdir():
            entry.rename(self.path / entry.name)
        (self.path / OLD_RUN).rmdir()

    def drop_old_run(self) -> None:
        """Remove the run in old-run/, now that its successor has a checkpoint."""
        shutil.rmtree(self.path / OLD_RUN, ignore_errors=True)

    def update(self, **changes) -> None:
        """Change run_state.json atomically; UserError (exit 7) if another run has the directory by now."""
        self.keep_lock()
        self.state.update(changes, updated=now())
        if self.replaces:
            return
        with tolerated(STATE_FILE, self.warned):
            write_json(self.path / STATE_FILE, self.state)

    def close(self, exit_code: int, reason: str) -> None:
        """Record how the run ended, unless another run has the directory by now, and let others use it."""
        status = "interrupted" if exit_code > 128 else "failed" if exit_code else "done"
        is_replacing = (self.path / OLD_RUN).is_dir()
        if self.is_held:
            with suppress(UserError, OSError):
                self.update(status=status, exit_code=exit_code, reason=reason)
                if is_replacing and exit_code and not self.has_begun and not may_be_restarted():
                    self._put_back()
        if (self.path / OLD_RUN).is_dir():
            tell(f"note: the run that was to be overwritten is in {self.path / OLD_RUN}")
        elif self.replaces or is_replacing:
            tell(f"note: the run that was to be overwritten is in {self.path}, unchanged")
        self.lock.close()


def _remove(entry: Path) -> None:
    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _close_locks_in_child() -> None:
    """Close the locks in a forked child, such as a user's data loader, which may live longer than its parent."""
    for run_dir in list(_open_dirs):
        run_dir.lock.close()


if hasattr(os, "register_at_fork"):  # not on Windows, where processes cannot fork
    os.register_at_fork(after_in_child=_close_locks_in_child)
