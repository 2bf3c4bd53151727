"""Checkpoints: whole or absent; every damage is noticed and named."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from grpo.errors import UserError
from grpo.run import checkpoint


def write(run_dir, step, value=1.0):
    with checkpoint.CheckpointWriter(run_dir, step) as folder:
        checkpoint.write_state(folder, {"master": torch.full((1000,), value)}, {"step": step})
        (folder / "extra.txt").write_text("x" * 500)
    return run_dir / f"checkpoint-{step}"


def test_round_trip_restores_every_random_generator(tmp_path):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    folder = write(tmp_path, 7)
    wanted = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    tensors, counters = checkpoint.read_state(folder)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == wanted
    assert counters == {"step": 7} and torch.equal(tensors["master"], torch.ones(1000))
    assert checkpoint.problem_with(folder) == ""


def test_every_truncation_and_bit_flip_is_noticed(tmp_path):
    """20 truncations and 40 flipped bits, over all files, and a zeroed tail, which safetensors itself loads without
    complaint."""
    folder, rng = write(tmp_path, 1), random.Random(0)
    files = [p for p in folder.iterdir() if p.name != checkpoint.MANIFEST_FILE]
    tried = 0
    for kind, count in (("cut", 20), ("flip", 40), ("zeros", 10)):
        for _ in range(count):
            path = rng.choice(files)
            original = path.read_bytes()
            place = rng.randrange(len(original))
            damaged = {
                "cut": original[:place],
                "flip": original[:place] + bytes([original[place] ^ (1 << rng.randrange(8))]) + original[place + 1 :],
                "zeros": original[:place] + bytes(len(original) - place),
            }[kind]
            path.write_bytes(damaged)
            if damaged != original:
                assert path.name in checkpoint.problem_with(folder)
                tried += 1
            path.write_bytes(original)
    assert tried > 60 and checkpoint.problem_with(folder) == ""


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 99, "files": {}}',
        '{"format": 1, "files": {"a": 3}}',
        '{"format": 1, "files": {"../../x": {"bytes": 1, "sha256": ""}}}',
    ],
)
def test_broken_manifests_are_no_checkpoints(tmp_path, manifest):
    folder = write(tmp_path, 1)
    (folder / checkpoint.MANIFEST_FILE).write_text(manifest)
    assert checkpoint.problem_with(folder)


def test_automatic_resume_falls_back_and_says_so_but_a_path_never_does(tmp_path):
    write(tmp_path, 2)
    broken = write(tmp_path, 10)
    (broken / checkpoint.STATE_FILE).write_bytes(b"")
    found, notices = checkpoint.find_checkpoint(tmp_path, True)
    assert found.name == "checkpoint-2" and "checkpoint-10 is not used" in notices[0]
    with pytest.raises(UserError) as error:
        checkpoint.find_checkpoint(tmp_path, str(broken))
    assert error.value.exit_code == 6 and checkpoint.STATE_FILE in error.value.why
    found, notices = checkpoint.find_checkpoint(tmp_path / "none", True)
    assert found is None and "no valid checkpoint" in notices[-1]


def test_retention_keeps_the_newest_and_clears_left_overs(tmp_path):
    for step in (1, 2, 10):
        write(tmp_path, step)
    (tmp_path / "checkpoint-11.tmp-123").mkdir()
    checkpoint.clean(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-2"]


def test_a_failure_while_writing_leaves_nothing_behind(tmp_path):
    write(tmp_path, 1)
    with pytest.raises(RuntimeError), checkpoint.CheckpointWriter(tmp_path, 2) as folder:
        (folder / "a").write_text("x")
        raise RuntimeError("boom")
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]


def test_a_full_disk_keeps_old_checkpoints_and_says_how_much_is_missing(tmp_path):
    """A real limit on file size in a process of its own: the write fails as it does on a full disk."""
    write(tmp_path, 1)
    code = f"""
import resource, signal, torch
from pathlib import Path
from grpo.run import checkpoint
from grpo.errors import run_main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
def main(argv):
    with checkpoint.CheckpointWriter(Path({str(tmp_path)!r}), 2) as folder:
        checkpoint.write_state(folder, {{"master": torch.ones(100_000)}}, {{"step": 2}})
run_main(main)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        run.returncode == 6 and "cannot write" in run.stderr and "free" in run.stderr and "Traceback" not in run.stderr
    )
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"] and checkpoint.problem_with(
        tmp_path / "checkpoint-1"
    ) == ""


def test_manifest_lists_every_file(tmp_path):
    folder = write(tmp_path, 3)
    manifest = json.loads((folder / checkpoint.MANIFEST_FILE).read_text())
    assert set(manifest["files"]) == {"state.safetensors", "trainer_state.json", "extra.txt"} and manifest["step"] == 3
