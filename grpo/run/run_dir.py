"""The output directory: one run at a time, and a record of how it stands.

config.resolved.yaml  run_state.json  metrics.jsonl  tb/  completions/  debug.log  checkpoint-N/  final/
"""

import fcntl
import json
import logging
import os
import shutil
import socket
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

from grpo.errors import BUSY, CONFIG, STORAGE, UserError, redact
from grpo.storage import write_atomically

OWN_FILES = ("config.resolved.yaml", "run_state.json", "metrics.jsonl", "debug.log", "loss.png", "evaluation.json")
OWN_FOLDERS = ("tb", "completions", "final", "world", "cold_start")
_locks: "weakref.WeakSet[RunDir]" = weakref.WeakSet()


class RunDir:
    """An output directory held by this process until it ends.

    Refuses a directory in use by another process (exit 7), and one that holds a run already unless that is to be
    resumed or overwritten (exit 2).
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool):
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.path / ".lock", "a+")
        except OSError as error:
            raise UserError(
                f"cannot use the output directory {path}",
                str(error),
                "set output_dir to a folder that can be written",
                STORAGE,
            ) from None
        _locks.add(self)
        try:
            self._take_lock()
            if not resume:
                self._make_room(overwrite)
        except UserError:
            self.lock.close()
            raise
        self.is_warned = False
        self.state = {
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

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the kernel however the process ends
        except OSError:
            self.lock.seek(0)
            raise UserError(
                f"the output directory {self.path} is in use",
                f"by {self.lock.read().strip() or 'another process'}",
                "wait for that run, stop it, or set another output_dir",
                BUSY,
            ) from None
        self.lock.truncate(0)
        self.lock.write(f"pid {os.getpid()} on {socket.gethostname()}, started {_now()}\n")
        self.lock.flush()

    def _make_room(self, overwrite: bool) -> None:
        found = [p for p in self.path.iterdir() if p.name != ".lock"]
        if not found:
            return
        if not overwrite:
            raise UserError(
                f"the output directory {self.path} is not empty",
                f"it holds {', '.join(sorted(p.name for p in found)[:6])}",
                "resume_from_checkpoint=true goes on with that run, overwrite_output_dir=true starts anew, or set another output_dir",
                CONFIG,
            )
        for path in found:
            if (
                path.is_dir()
                and not path.is_symlink()
                and (path.name in OWN_FOLDERS or path.name.startswith("checkpoint-"))
            ):
                shutil.rmtree(path)
            elif path.name in OWN_FILES or path.name.startswith("run_state."):
                path.unlink()

    def update(self, **changes) -> None:
        """Changes run_state.json, atomically. A full disk leaves it as it was: the run matters more than its record."""
        self.state.update(changes, updated=_now())
        try:
            write_atomically(self.path / "run_state.json", json.dumps(self.state, indent=2) + "\n")
        except OSError as error:
            if not self.is_warned:
                self.is_warned = True
                print(f"warning: run_state.json cannot be written ({error}); the run goes on", file=sys.stderr)

    def close(self, exit_code: int, reason: str) -> None:
        self.update(status="done" if exit_code == 0 else "failed", exit_code=exit_code, reason=reason)
        self.lock.close()


def _close_locks_in_child() -> None:
    """A forked child (a user's data loader) must not hold the lock on after its parent has been killed."""
    for run_dir in list(_locks):
        run_dir.lock.close()


os.register_at_fork(after_in_child=_close_locks_in_child)


def open_debug_log(logger: logging.Logger, path: Path) -> None:
    """Sends a logger's records, tracebacks among them, to debug.log and nowhere else; secrets are left out."""
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_DebugLog(path, encoding="utf-8", errors="backslashreplace"))


def close_debug_log(logger: logging.Logger) -> None:
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


class _DebugLog(logging.FileHandler):
    """A full disk under it is told once and stops nothing."""

    is_warned = False

    def format(self, record: logging.LogRecord) -> str:
        return f"{_now()} {record.levelname} {redact(record.getMessage())}"

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.is_warned:
            self.is_warned = True
            print(f"warning: debug.log cannot be written ({sys.exception()}); the run goes on", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):  # what it could not write has been told
            super().close()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
