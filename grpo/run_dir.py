"""The output directory: one run at a time, and a record of how it stands.

    config.resolved.yaml  run_state.json  metrics.jsonl  tb/  completions/  debug.log  checkpoint-N/  final/
"""

import fcntl
import json
import logging
import os
import shutil
import socket
import time
from pathlib import Path

from grpo.errors import BUSY, CONFIG, UserError

OWN_FILES = ("config.resolved.yaml", "run_state.json", "metrics.jsonl", "debug.log", "loss.png")
OWN_FOLDERS = ("tb", "completions", "final", "world", "cold_start")


class RunDir:
    """An output directory held by this process until it ends.

    Refuses a directory in use by another process (exit 7), and one that holds a run already unless that is to be resumed or
    overwritten (exit 2).
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.path / ".lock", "a+")
        try:
            self._take_lock()
            if not resume:
                self._make_room(overwrite)
        except UserError:
            self.lock.close()
            raise
        self.state = {"status": "running", "exit_code": None, "reason": "", "step": 0, "last_checkpoint": None, "pid": os.getpid(),
                      "host": socket.gethostname(), "started": _now(), "updated": _now()}
        self.update()

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)        # freed by the kernel however the process ends
        except OSError:
            self.lock.seek(0)
            raise UserError(f"the output directory {self.path} is in use", f"by {self.lock.read().strip() or 'another process'}",
                            "wait for that run, stop it, or set another output_dir", BUSY) from None
        self.lock.truncate(0)
        self.lock.write(f"pid {os.getpid()} on {socket.gethostname()}, started {_now()}\n")
        self.lock.flush()

    def _make_room(self, overwrite: bool) -> None:
        found = [p for p in self.path.iterdir() if p.name != ".lock"]
        if not found:
            return
        if not overwrite:
            raise UserError(f"the output directory {self.path} is not empty", f"it holds {', '.join(sorted(p.name for p in found)[:6])}",
                            "resume_from_checkpoint=true goes on with that run, overwrite_output_dir=true starts anew, or set another output_dir", CONFIG)
        for path in found:
            if path.is_dir() and (path.name in OWN_FOLDERS or path.name.startswith("checkpoint-")):
                shutil.rmtree(path)
            elif path.name in OWN_FILES:
                path.unlink()

    def update(self, **changes) -> None:
        """Changes run_state.json, atomically."""
        self.state.update(changes, updated=_now())
        write_atomically(self.path / "run_state.json", json.dumps(self.state, indent=2) + "\n")

    def close(self, exit_code: int, reason: str) -> None:
        self.update(status="done" if exit_code == 0 else "failed", exit_code=exit_code, reason=reason)
        self.lock.close()


def write_atomically(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def open_debug_log(logger: logging.Logger, path: Path) -> None:
    """Sends a logger's records, tracebacks among them, to debug.log and nowhere else."""
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
