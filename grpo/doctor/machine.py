"""Checks of the machine: a device, an output directory, room on the disk, trackers."""

import os
import shutil
import sys
from pathlib import Path

import torch

from grpo.base.errors import STORAGE, UserError
from grpo.config.load import replicas_of
from grpo.doctor.case import Case, need
from grpo.engine.device import ops
from grpo.run.checkpoint import continues_a_run, existing_part, find_checkpoint
from grpo.run.provenance import check_changes
from grpo.run.run_dir import refuse_a_run


def machine(case: Case) -> str:
    if case.device.type == "cuda" and not case.memory_gb:
        device = ops.describe(case.device)
    else:
        device = f"{torch.get_num_threads()} CPU threads"
    return f"Python {sys.version.split()[0]}, torch {torch.__version__}, {device}"


def output(case: Case) -> str:
    path = Path(need(case.config.output_dir, "output_dir"))
    if not (continues_a_run(case.config) or case.config.overwrite_output_dir):
        refuse_a_run(path)
    existing = existing_part(path)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(
            f"cannot use the output directory {path}",
            f"{existing} is {'not writable' if existing.is_dir() else 'not a folder'}",
            "set output_dir to a folder that can be written",
            STORAGE,
        )
    return f"{path}: {shutil.disk_usage(existing).free / 1e9:.1f} GB free"


def resume(case: Case) -> str:
    """Find the checkpoint to resume from, and compare its run with this one."""
    config, wanted = case.config, case.config.resume_from_checkpoint
    if wanted is True:
        need(config.output_dir, "output_dir")
    folder, notices = find_checkpoint(Path(config.output_dir or ""), wanted)
    if folder is None:
        return "; ".join(notices)
    now = case.start if isinstance(case.start, type(config)) else config  # what the run itself compares
    changes = check_changes(folder, now, replicas_of(config))
    return "; ".join([f"resumes from {folder}", *notices, *changes])
