"""The output directory: it belongs to one run at a time, and records the state of that run."""

import logging
import os
import re
import shutil
import socket
import sys
import time
import uuid
import weakref
from contextlib import suppress
from pathlib import Path

from grpo.base.errors import BUSY, CONFIG, STORAGE, UserError, explained, redact
from grpo.base.storage import is_at, read_mapping, run_in_forked_children, try_to_lock, write_json
from grpo.diagnosis.record import CONFIG_FILE, DATA_FILE, METRICS_FILE, STATE_FILE

OWN_FILES = (
    CONFIG_FILE,
    STATE_FILE,
    METRICS_FILE,
    DATA_FILE,
    "debug.log",
    "loss.png",
    "evaluation.json",
    "report.html",
)
OWN_FOLDERS = ("tb", "completions", "evaluation", "final", "best", "world", "cold_start")
BEFORE_FIRST_STEP = (  # files that a run writes before its first step
    CONFIG_FILE,
    DATA_FILE,
    "debug.log",
    "evaluation",
    "evaluation.json",
    METRICS_FILE,
    "tb",
    "world",
)
_open_dirs: "weakref.WeakSet[RunDir]" = weakref.WeakSet()


def holds_a_run(path: Path) -> bool:
    """Return whether a directory holds a run. A run that ended before its first step does not count: it is replaced."""
    if not path.is_dir():
        return False
    found = [entry.name for entry in path.iterdir() if not entry.name.startswith((".lock", "run_state."))]
    metrics = path / METRICS_FILE
    return bool(set(found) - set(BEFORE_FIRST_STEP)) or (metrics.exists() and metrics.stat().st_size > 0)


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
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool):
        self.path = Path(path)
        self.is_held, self.is_warned = False, False
        is_new_lock = not (self.path / ".lock").exists()
        self._take_lock()
        _open_dirs.add(self)
        try:
            if not resume:
                self._make_room(overwrite)
        except UserError:
            self.lock.close()
            if is_new_lock:
                (self.path / ".lock").unlink()  # a refused directory stays as it was
            raise
        self.state = {
            "id": self._earlier_id() if resume else _new_id(),
            "status": "running",
            "exit_code": None,
            "reason": "",
            "step": 0,
            "last_checkpoint": None,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": _now(),
            "updated": _now(),
        }
        self.update()

    def _earlier_id(self) -> str:
        """Return the id of the run that is resumed, or a new one if its run_state.json holds none."""
        found = read_mapping(self.path / STATE_FILE).get("id")
        return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{21}", found) else _new_id()

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
        """Remove what a run has written, and nothing else; refuse a directory that is not empty without `overwrite`."""
        if not overwrite:
            refuse_a_run(self.path)
            return
        for path in self.path.iterdir():
            name, _, _ = path.name.partition(".aside-")
            is_own_folder = name in OWN_FOLDERS or name.startswith("checkpoint-")
            is_own_file = path.name in OWN_FILES or path.name.startswith("run_state.")
            if is_own_folder and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif is_own_file:
                path.unlink()

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
        status = "done" if exit_code == 0 else "failed"
        if self.is_held:
            with suppress(UserError):
                self.update(status=status, exit_code=exit_code, reason=reason)
        self.lock.close()


def _close_locks_in_child() -> None:
    """Close the locks in a forked child, such as a user's data loader, which may live longer than its parent."""
    for run_dir in list(_open_dirs):
        run_dir.lock.close()


run_in_forked_children(_close_locks_in_child)


def open_debug_log(logger: logging.Logger, path: Path) -> None:
    """Send the records of a logger, with tracebacks and without secrets, to debug.log and nowhere else."""
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_DebugLog(path, encoding="utf-8", errors="backslashreplace"))


def close_debug_log(logger: logging.Logger) -> None:
    """Close the files of a logger."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


class _DebugLog(logging.FileHandler):
    """Writes debug.log. If the disk is full, it warns once and the run continues."""

    is_warned = False

    def format(self, record: logging.LogRecord) -> str:
        return f"{_now()} {record.levelname} {redact(record.getMessage())}"

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.is_warned:
            self.is_warned = True
            print(f"warning: debug.log cannot be written ({sys.exception()}); the run continues", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):  # closing writes what is left; a failure was reported before
            super().close()


def _new_id() -> str:
    """Return a new id, by which trackers know the run; swanlab wants 21 characters."""
    return uuid.uuid4().hex[:21]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
