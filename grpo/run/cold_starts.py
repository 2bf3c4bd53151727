"""Keep the finished cold starts of toy worlds, so that the next run with the same one begins with GRPO at once.

In a toy world stage 1 belongs to the run, and each new output_dir would train it again. Its final/ is kept in
~/.cache/grpo/cold_starts (or below $XDG_CACHE_HOME), under a hash of everything its bits depend on. The newest KEPT
stay. GRPO_CACHE names another folder than ~/.cache/grpo; GRPO_CACHE=off keeps and takes nothing.
"""

import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path

import torch

from grpo.base.errors import UserError
from grpo.base.folders import MANIFEST_FILE, UNFINISHED, problem_with, remove, write_folder
from grpo.base.storage import try_to_lock
from grpo.config.options import SftConfig
from grpo.data.rows import digest
from grpo.engine.device.distributed import Ranks
from grpo.run.provenance import origin_of, program

KEPT = 8


def place_of(config: SftConfig, ranks: Ranks, device: torch.device) -> Path | None:
    """Return the folder that keeps this stage 1; None if it is kept nowhere."""
    wanted = os.environ.get("GRPO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo"
    if not config.toy_world or wanted == "off":
        return None
    kind = torch.cuda.get_device_name() if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    machine = [platform.machine(), device.type, kind, torch.get_num_threads(), ranks.world]
    base = config.model_name_or_path if config.lora_r else None  # the adapter names it
    return Path(wanted) / "cold_starts" / digest([origin_of(config), program(), machine, base])[:32]


def take(kept: Path | None, final: Path) -> bool:
    """Copy a kept stage 1 to `final`; return False if there is none, or if it is damaged."""
    if kept is None or problem_with(kept):
        return False
    try:
        os.utime(kept)  # it is the newest now
        with write_folder(final) as folder:
            shutil.copytree(kept, folder, dirs_exist_ok=True)
            if problem_with(folder):  # it was replaced meanwhile
                raise FileNotFoundError(problem_with(folder))
            (folder / MANIFEST_FILE).unlink()  # the copy gets its own
    except OSError:
        return False
    return True


def keep(final: Path, kept: Path | None) -> None:
    """Keep a finished stage 1, and remove the oldest ones. On a full disk, or while another run does so, do nothing."""
    if kept is None:
        return
    with suppress(OSError, UserError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept.parent / "lock", "w", encoding="utf-8") as lock:
            if not try_to_lock(lock.fileno()):
                return
            for unfinished in kept.parent.glob(f"*{UNFINISHED}"):  # of a process that was killed
                shutil.rmtree(unfinished)
            with write_folder(kept) as folder:
                shutil.copytree(final, folder, ignore=shutil.ignore_patterns(MANIFEST_FILE), dirs_exist_ok=True)
            folders = sorted((path for path in kept.parent.iterdir() if path.is_dir()), key=os.path.getmtime)
            for old in folders[:-KEPT]:
                remove(old)
