"""The output directory: it belongs to one run at a time, and records the state of that run.

A run that is to be overwritten stays where it is until its successor has been checked completely. Then it lies in
old-run/ until the successor has made a step. Files that no run has written are never touched.
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
from grpo.base.storage import failpoint, read_mapping, try_to_lock, write_json
from grpo.run.checkpoint import recover
from grpo.run.diagnosis.record import CONFIG_FILE, METRICS_FILE, STATE_FILE, was_killed
from grpo.run.messages import now, tell, tolerated

OLD_RUN = "old-run"  # holds a run that is overwritten, until its successor has made a step
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
    """Return what a run writes into its directory, and nothing else."""

    def is_own(entry: Path) -> bool:
        name = entry.name.removesuffix(UNFINISHED)
        if name in OWN_FOLDERS or name.startswith("checkpoint-"):
            return entry.is_dir() and not entry.is_symlink()
        return entry.name in OWN_FILES or entry.name.startswith("run_state.")

    return [entry for entry in path.iterdir() if is_own(entry)]


def check_free(path: Path, overwrite: bool) -> None:
    """Raise UserError (exit 2) for a directory that holds a run, unless that is overwritten, or files of no run."""
    if not path.is_dir():
        return
    names = {entry.name for entry in path.iterdir()} - {".lock"}
    shown = ", ".join(sorted(names)[:6])
    if holds_a_run(path) and not overwrite:
        raise UserError(
            f"the output directory {path} is not empty",
            f"it holds {shown}",
            "resume_from_checkpoint=true continues that run, overwrite_output_dir=true starts anew, "
            "or set another output_dir",
            CONFIG,
        )
    ours = {entry.name for entry in own_entries(path)} | names & {OLD_RUN, "debug.log"}
    notes = {name for name in ours if name.startswith("run_state.rank")}  # of ranks whose rank 0 has not begun
    is_theirs = (path / OLD_RUN).is_dir() and not _id_of(path / OLD_RUN)
    has_no_id = not (_id_of(path) or _id_of(path / OLD_RUN))
    if (ours - notes and has_no_id) or (overwrite and is_theirs):
        raise UserError(
            f"the output directory {path} holds files that no run has written",
            f"it holds {shown}, and a run uses the same names",
            "set another output_dir, or move them elsewhere",
            CONFIG,
        )


def _id_of(path: Path) -> str:
    """Return the id of the run that a directory belongs to; "" if it belongs to none."""
    found = re.fullmatch("[0-9a-f]{21}", str(read_mapping(path / STATE_FILE).get("id")))
    return found[0] if found else ""


def is_in_use(path: Path) -> bool:
    """Return whether a run is under way in a directory, by its record. The lock itself stays untouched."""
    state = read_mapping(path / STATE_FILE)
    return state.get("status") == "running" and not was_killed(state)


def may_be_restarted() -> bool:
    """Return whether torchrun would start this process again if it failed."""
    limit, count = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return limit.isdecimal() and count.isdecimal() and int(limit) > int(count)


class RunDir:
    """An output directory that this process holds until it ends. It writes there from `begin` on.

    UserError if another process uses it (exit 7), or if it holds a run that is not to be resumed or overwritten, or
    somebody's files (exit 2).
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool):
        self.path = Path(path)
        self.warned: set[str] = set()
        is_new_lock = not (self.path / ".lock").exists()
        self._take_lock()
        _open_dirs.add(self)
        try:
            if resume:
                recover(self.path)
            else:
                check_free(self.path, overwrite)
        except UserError:
            self.lock.close()
            if is_new_lock:
                (self.path / ".lock").unlink()  # a refused directory stays as it was
            raise
        # Whether the run that is there will be replaced, when this one begins.
        self.replaces = overwrite and not resume and _has_begun(self.path, own_entries(self.path))
        earlier = read_mapping(self.path / STATE_FILE) if resume else {}
        self.state = {
            "id": (resume and _id_of(self.path)) or uuid.uuid4().hex[:21],  # for trackers; swanlab wants 21 characters
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

    def begin(self) -> None:
        """Move the run that is overwritten, if there is one, to old-run/; record this one from now on."""
        if not self.replaces:
            return
        old = self.path / OLD_RUN
        entries = sorted(
            own_entries(self.path), key=lambda entry: entry.name != STATE_FILE
        )  # it shows whose old-run is
        for entry in entries:
            old.mkdir(exist_ok=True)
            if not (old / entry.name).exists():
                entry.rename(old / entry.name)
            else:  # a kill has left a part of an earlier run there
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            failpoint("replace-moving")
        self.replaces = False
        self.update()

    def drop_old_run(self) -> None:
        """Remove the run in old-run/, now that its successor has made a step. A folder of the user's stays."""
        if _id_of(self.path / OLD_RUN):
            shutil.rmtree(self.path / OLD_RUN, ignore_errors=True)

    def update(self, **changes) -> None:
        """Change run_state.json atomically, but for that of a run which is still to be overwritten."""
        self.state.update(changes, updated=now())
        if self.replaces:
            return
        with tolerated(STATE_FILE, self.warned):
            write_json(self.path / STATE_FILE, self.state)

    def close(self, exit_code: int, reason: str) -> None:
        """Record how the run ended, and let others use its directory."""
        status = "interrupted" if exit_code > 128 else "failed" if exit_code else "done"
        with suppress(OSError):
            self.update(status=status, exit_code=exit_code, reason=reason)
        if self.replaces:
            tell(f"note: the run that was to be overwritten is in {self.path}, unchanged")
        elif _id_of(self.path / OLD_RUN):
            tell(f"note: the run that was to be overwritten is in {self.path / OLD_RUN}")
        self.lock.close()


def _close_locks_in_child() -> None:
    """Close the locks in a forked child, such as a user's data loader, which may live longer than its parent."""
    for run_dir in list(_open_dirs):
        run_dir.lock.close()


if hasattr(os, "register_at_fork"):  # not on Windows, where processes cannot fork
    os.register_at_fork(after_in_child=_close_locks_in_child)
