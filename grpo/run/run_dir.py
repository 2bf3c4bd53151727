"""The output directory: it belongs to one run at a time, and records the state of that run."""

import os
import re
import shutil
import socket
import sys
import time
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from grpo.base.errors import BUSY, CONFIG, STORAGE, UserError, explained, redact
from grpo.base.folders import UNFINISHED
from grpo.base.storage import failpoint, is_at, read_mapping, run_in_forked_children, try_to_lock, write_json
from grpo.diagnosis.record import CONFIG_FILE, DATA_FILE, METRICS_FILE, STATE_FILE
from grpo.run.checkpoint import checkpoints, recover

OLD_RUN, MOVING = "old-run", "old-run.moving"  # see RunDir._set_aside
OWN_FILES = (CONFIG_FILE, METRICS_FILE, DATA_FILE, "loss.png", "evaluation.json", "report.html")
OWN_FOLDERS = ("tb", "completions", "evaluation", "final", "best", "world", "cold_start")
BEFORE_FIRST_STEP = {CONFIG_FILE, DATA_FILE, METRICS_FILE, "debug.log", "evaluation", "evaluation.json", "tb", "world"}
_open_dirs: "weakref.WeakSet[RunDir]" = weakref.WeakSet()


def holds_a_run(path: Path) -> bool:
    """Return whether a directory holds a run. A run that ended before its first step does not count: it is replaced."""
    if not path.is_dir():
        return False
    found = {entry.name for entry in path.iterdir() if not entry.name.startswith((".lock", "run_state."))}
    return bool(found - BEFORE_FIRST_STEP) or (METRICS_FILE in found and (path / METRICS_FILE).stat().st_size > 0)


def own_entries(path: Path) -> list[Path]:
    """Return what a run has written into its directory, and nothing else."""

    def is_own(entry: Path) -> bool:
        name = re.split(rf"\.aside-|{re.escape(UNFINISHED)}", entry.name)[0]
        if name in OWN_FOLDERS or name.startswith("checkpoint-"):
            return entry.is_dir() and not entry.is_symlink()
        return entry.name in OWN_FILES or entry.name.startswith("run_state.")

    return [entry for entry in path.iterdir() if is_own(entry)]


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


class RunDir:
    """An output directory that this process holds until it ends.

    UserError if another process uses it (exit 7), or if it holds a run that is not to be resumed or overwritten
    (exit 2).

    A run that is overwritten is set aside, in old-run/, and removed once its successor has a checkpoint.
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool):
        self.path, self.is_held, self.is_warned = Path(path), False, False
        is_new_lock = not (self.path / ".lock").exists()
        self._take_lock()
        _open_dirs.add(self)
        try:
            if not resume:
                self._make_room(overwrite)
            recover(self.path)
        except UserError:
            self.lock.close()
            if is_new_lock:
                (self.path / ".lock").unlink()  # a refused directory stays as it was
            raise
        earlier = read_mapping(self.path / STATE_FILE) if resume else {}
        is_id = re.fullmatch("[0-9a-f]{21}", str(earlier.get("id")))
        self.state = {
            "id": earlier["id"] if is_id else uuid.uuid4().hex[:21],  # for trackers; swanlab wants 21 characters
            "status": "running",
            "exit_code": None,
            "reason": "",
            "step": earlier.get("step", 0),
            "last_checkpoint": earlier.get("last_checkpoint"),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": _now(),
            "updated": _now(),
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
        self.lock.write(f"pid {os.getpid()} on {socket.gethostname()}, started {_now()}\n")
        self.lock.flush()
        self.is_held = True

    def keep_lock(self) -> None:
        """Take the lock again if somebody has deleted its file; UserError (exit 7) if another run has it by now."""
        if is_at(self.lock.fileno(), self.path / ".lock"):
            return
        print(f"warning: {self.path / '.lock'} was deleted; without it two runs may share a directory", file=sys.stderr)
        self.is_held = False
        self.lock.close()
        self._take_lock()

    def _make_room(self, overwrite: bool) -> None:
        """Set aside what a run has written; refuse a directory that is not empty without `overwrite`."""
        if not overwrite:
            refuse_a_run(self.path)
            return
        entries = own_entries(self.path)
        if entries and not any((self.path / file).exists() for file in (CONFIG_FILE, STATE_FILE)):
            raise UserError(
                f"the output directory {self.path} holds no run, and cannot be overwritten",
                f"it holds {', '.join(entry.name for entry in entries[:6])}, and a run uses the same names",
                "set another output_dir, or move them elsewhere",
                CONFIG,
            )
        if entries:
            self._set_aside(entries)

    def _set_aside(self, entries: Sequence[Path]) -> None:
        """Move the run that is here to old-run/, which has another name until everything is there.

        A run without a checkpoint is removed if old-run/ holds the one that it was to replace.
        """
        old, moving = self.path / OLD_RUN, self.path / MOVING
        if old.is_dir() and not checkpoints(self.path):
            for entry in entries:
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            return
        self.drop_old_run()
        moving.mkdir(exist_ok=True)  # a kill may have left a part of the run there
        for entry in entries:
            entry.rename(moving / entry.name)
            failpoint("replace-moving")
        moving.rename(old)

    def drop_old_run(self) -> None:
        """Remove the run that was set aside, now that its successor has a checkpoint."""
        shutil.rmtree(self.path / OLD_RUN, ignore_errors=True)

    def update(self, **changes) -> None:
        """Change run_state.json atomically; UserError (exit 7) if another run has the directory by now.

        If the file cannot be written, warn once and continue.
        """
        self.keep_lock()
        self.state.update(changes, updated=_now())
        try:
            write_json(self.path / STATE_FILE, self.state)
        except OSError as error:
            if not self.is_warned:
                self.is_warned = True
                print(f"warning: run_state.json cannot be written ({error}); the run continues", file=sys.stderr)

    def close(self, exit_code: int, reason: str) -> None:
        """Record how the run ended, unless another run has the directory by now, and let others use it."""
        status = "interrupted" if exit_code > 128 else "failed" if exit_code else "done"
        if self.is_held:
            with suppress(UserError, OSError):
                self.update(status=status, exit_code=exit_code, reason=reason)
        if (self.path / OLD_RUN).is_dir():
            print(f"note: the run that was to be overwritten is in {self.path / OLD_RUN}", file=sys.stderr)
        self.lock.close()


def _close_locks_in_child() -> None:
    """Close the locks in a forked child, such as a user's data loader, which may live longer than its parent."""
    for run_dir in list(_open_dirs):
        run_dir.lock.close()


run_in_forked_children(_close_locks_in_child)


class DebugLog:
    """Appends to debug.log, without secrets. If the disk is full, it warns once and the run continues."""

    def __init__(self, path: Path):
        self.path, self.is_warned = path, False

    def write(self, level: str, text: str) -> None:
        """Write a line, or a traceback. level: INFO or ERROR."""
        try:
            with open(self.path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{_now()} {level} {redact(text)}\n")
        except OSError as error:
            if not self.is_warned:
                self.is_warned = True
                print(f"warning: debug.log cannot be written ({error}); the run continues", file=sys.stderr)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
