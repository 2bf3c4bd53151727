"""Finished cold starts: what they were made from, and those of toy worlds kept for the next run.

A finished stage 1 is used again only if it would be made the same (`check_origin`).

In a toy world stage 1 belongs to the run, and each new output_dir would train it again. Its final/ is kept in
~/.cache/grpo/cold_starts (or below $XDG_CACHE_HOME), under a hash of everything its bits depend on. The newest KEPT
stay. GRPO_CACHE names another folder than ~/.cache/grpo; GRPO_CACHE=off keeps and takes nothing.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from grpo.base.errors import CONFIG, UserError
from grpo.base.folders import MANIFEST_FILE, UNFINISHED, cache_folder, problem_with, remove, write_folder
from grpo.base.storage import Json, read_mapping, try_to_lock
from grpo.config.options import SftConfig, keys_that
from grpo.data.files import files_of
from grpo.data.registry import find_sources
from grpo.data.rows import digest
from grpo.engine.device.distributed import Ranks
from grpo.policy import find_parts
from grpo.run.provenance import differences, file_hash, machine, program

ORIGIN_FILE = "origin.json"  # in the final/ of a stage 1
LENGTH = {"max_steps", "num_train_epochs"}  # free for a resumed run, but they decide what a finished one has learned
KEPT = 8


def origin_of(config: SftConfig) -> Json:
    """Return what a stage 1 is made from, as JSON: its keys, and hashes of its data and of its base model."""
    parts = find_parts(config)
    places = (parts.model, parts.adapter, parts.tokenizer)
    base = [path for place in places if place for path in sorted(place.glob("*.*"))]
    base += [Path(config.chat_template)] if config.chat_template else []
    sources = find_sources(config.dataset_id_or_path, config.dataset_split, config.dataset_dir)
    data = []
    for source in sources:
        layout = dict(source.layout)
        data += [(hashlib.sha256(file.read_bytes()).hexdigest(), layout) for file in files_of(source.path)]
    left_out = {*keys_that("free"), *keys_that("local")} - LENGTH
    origin = {name: value for name, value in asdict(config).items() if name not in left_out}
    origin["data"] = digest(data)
    origin["base model"] = digest([path.name, file_hash(path)] for path in base if path.is_file())
    return json.loads(json.dumps(origin))


def check_origin(final: Path, config: SftConfig, config_path: str) -> None:
    """Check that the finished stage 1 in `final` is what `config` would make; UserError (exit 2) says what differs."""
    made, wanted = read_mapping(final / ORIGIN_FILE), origin_of(config)
    changes = [f"{name}: {before} -> {now}" for name, (before, now) in differences(made, wanted).items()]
    if "data" not in made:
        changes = [f"it does not say what it was made from ({ORIGIN_FILE})"]
    if changes:
        raise UserError(
            f"the finished stage 1 in {final} is not what {config_path} makes now",
            "; ".join(changes),
            f"to make it again, remove {final.parent}, or set another output_dir in {config_path}; "
            f"to use it nevertheless, set cold_start=null model_name_or_path={final}",
            CONFIG,
        )


def place_of(config: SftConfig, ranks: Ranks, device: torch.device) -> Path | None:
    """Return the folder that keeps this stage 1; None if it is kept nowhere."""
    folder = cache_folder()
    if not config.toy_world or folder is None or os.environ.get("GRPO_CACHE") == "off":
        return None
    base = config.model_name_or_path if config.lora_r else None  # the adapter names it
    return folder / "cold_starts" / digest([origin_of(config), program(), machine(device), ranks.world, base])[:32]


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
