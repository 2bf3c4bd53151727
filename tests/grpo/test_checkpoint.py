"""Checkpoints: whole or absent; every damage is noticed and named."""

import math
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from making import edit_json, refused

from grpo.base import folders
from grpo.run import checkpoint


def write(run_dir, step, value=1.0):
    with checkpoint.new_checkpoint(run_dir, step) as folder:
        checkpoint.write_state(folder, {"master": torch.full((1000,), value)}, {"step": step})
        (folder / "extra.txt").write_text("x" * 500)
    return run_dir / f"checkpoint-{step}"


def problems(run_dir):
    """What is wrong with each checkpoint, the newest first."""
    return {path.name: checkpoint.problem_with(path) for path in checkpoint.checkpoints(run_dir)}


def test_a_path_is_that_checkpoint_or_an_error(tmp_path):
    """Where the newest is asked for, an older one takes the place of a damaged one (faults/test_disk.py)."""
    broken = write(tmp_path, 10)
    (broken / checkpoint.STATE_FILE).write_bytes(b"")
    refused(lambda: checkpoint.find_checkpoint(tmp_path, str(broken)), checkpoint.STATE_FILE, exit_code=6)
    found, notices = checkpoint.find_checkpoint(tmp_path / "none", True)
    assert found is None and "no valid checkpoint" in notices[-1]


@pytest.mark.parametrize("name", ["checkpoint-3", "final", "best"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_was_complete_when_a_run_was_killed_takes_its_place(tmp_path, name, is_damaged):
    """Here the old one is half removed. A folder that lost a byte is no better than none."""
    made = write(tmp_path, 1).rename(tmp_path / f"{name}.unfinished")
    if is_damaged:
        (made / "extra.txt").write_text("y")
    (tmp_path / name).mkdir()
    (tmp_path / name / "old").write_text("")
    checkpoint.recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "old").exists() == is_damaged == bool(checkpoint.problem_with(tmp_path / name))


def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path):
    write(tmp_path, 1)
    folder = write(tmp_path, 2, math.inf)
    assert checkpoint.problem_with(folder) == "state.safetensors holds weights that are not finite"
    assert checkpoint.find_checkpoint(tmp_path, True)[0].name == "checkpoint-1"


def test_whatever_keeps_a_checkpoint_from_its_place_ends_the_run(tmp_path):
    """Here, a file of that name. The older checkpoint stays, and the new one takes its place when it can."""
    write(tmp_path, 1)
    (tmp_path / "checkpoint-2").write_text("mine")
    refused(lambda: write(tmp_path, 2), "cannot write", exit_code=6)
    assert problems(tmp_path) == {"checkpoint-1": ""}
    assert (tmp_path / "checkpoint-2").read_text() == "mine"
    (tmp_path / "checkpoint-2").unlink()
    checkpoint.recover(tmp_path)
    assert problems(tmp_path) == {"checkpoint-2": "", "checkpoint-1": ""}


def test_a_run_goes_on_in_its_own_directory_from_its_newest_checkpoint_alone(tmp_path):
    """From an older one, which would leave later models that are not its own, it goes on in another directory."""
    for step in (2, 10):
        write(tmp_path, step)
    older, newest = f"{tmp_path}/checkpoint-2", f"{tmp_path}/checkpoint-10"
    assert checkpoint.find_checkpoint(tmp_path, newest)[0].name == "checkpoint-10"
    assert checkpoint.find_checkpoint(tmp_path / "other", older)[0].name == "checkpoint-2"
    refused(lambda: checkpoint.find_checkpoint(tmp_path, older), "not the newest", "output_dir", exit_code=2)


def test_every_file_is_on_disk_before_the_manifest_and_all_before_the_rename(tmp_path, monkeypatch):
    """The order that a power failure cannot break: files, manifest, folder, rename, parent folder."""
    events, sync, replace = [], os.fsync, os.replace

    def watched_sync(descriptor):
        has_manifest = any(tmp_path.glob("checkpoint-5*/manifest.json"))
        events.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, has_manifest))
        sync(descriptor)

    def watched_replace(source, target):
        events.append((Path(source).name, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    with checkpoint.new_checkpoint(tmp_path, 5) as folder:
        aside = folder.name
        checkpoint.write_state(folder, {"master": torch.ones(3)}, {"step": 5})
    files, rest = events[:2], events[2:]
    assert sorted(files) == [("state.safetensors", False), ("trainer_state.json", False)]
    assert rest == [("manifest.json", True), (aside, True), (aside, "checkpoint-5"), (tmp_path.name, True)]


def test_a_checkpoint_of_the_same_step_is_replaced_as_a_whole(tmp_path):
    (write(tmp_path, 4, 1.0) / "left over").write_text("x")
    folder = write(tmp_path, 4, 2.0)
    assert checkpoint.problem_with(folder) == "" and not (folder / "left over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_what_retention_removes_loses_its_manifest_first(tmp_path, monkeypatch):
    """If the removal is cut short, here before its first file, nothing that is left looks whole."""
    for step in (1, 2, 3):
        write(tmp_path, step)
    monkeypatch.setattr(folders.shutil, "rmtree", lambda *arguments, **options: None)
    checkpoint.remove_old(tmp_path, keep=1)
    lacking = "manifest.json is missing"
    assert problems(tmp_path) == {"checkpoint-3": "", "checkpoint-2": lacking, "checkpoint-1": lacking}
    assert (tmp_path / "checkpoint-1" / checkpoint.STATE_FILE).exists()


@pytest.mark.parametrize(
    "keep, newest, left",
    [(1, None, "30"), (0, None, "30 20 9 1"), (1, 20, "30 20"), (2, 20, "30 20 9"), (2, 15, "30 20 9 1")],
)
def test_retention_counts_from_the_newest_that_is_valid(tmp_path, keep, newest, left):
    """Later ones are damaged and do not count; they are left alone."""
    for step in (1, 9, 20, 30):
        write(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    checkpoint.remove_old(tmp_path, keep, newest)
    assert list(problems(tmp_path)) == [f"checkpoint-{step}" for step in left.split()]
    assert (tmp_path / "checkpoint-x").exists() and (tmp_path / "checkpoint-7").exists()


@pytest.mark.parametrize("version", [checkpoint.FORMAT - 1, str(checkpoint.FORMAT), None])
def test_a_checkpoint_of_another_format_is_refused_by_its_number(tmp_path, version):
    folder = write(tmp_path, 1)
    edit_json(folder / checkpoint.MANIFEST_FILE, format=version)
    assert checkpoint.problem_with(folder) == f"its format is {version}, this program reads {checkpoint.FORMAT}"


def test_a_link_is_no_file_of_a_checkpoint(tmp_path):
    """Though what it points at has the right bytes: it may change or vanish."""
    folder = write(tmp_path, 1)
    path = folder / checkpoint.STATE_FILE
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert checkpoint.problem_with(folder) == f"{path.name} is not a plain file of this folder"


def test_every_rank_gets_its_own_generators_back(tmp_path):
    """Also in the middle of a pair of normal numbers: random and numpy keep the second one for the next call."""

    def draw():
        return random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), torch.rand(1).item()

    states, wanted = [], []
    for seed in range(3):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        random.gauss(0, 1), np.random.randn()
        states.append(checkpoint.random_state())
        wanted.append(draw())
    with checkpoint.new_checkpoint(tmp_path, 1) as folder:
        checkpoint.write_state(folder, {}, {"step": 1}, states)
    for rank in (2, 0, 1, 5):  # the last one of a run that goes on with more replicas
        checkpoint.read_state(tmp_path / "checkpoint-1", rank)
        assert draw() == wanted[rank % 3]


def test_tensors_come_back_as_they_were(tmp_path):
    """Views with gaps, other dtypes, and a name that begins like the prefix."""
    tensors = {"master": torch.arange(12.0).view(3, 4).T, "half": torch.ones(2, dtype=torch.bfloat16)}
    tensors["optimizer.step"] = torch.tensor([3])
    with checkpoint.new_checkpoint(tmp_path, 1) as folder:
        checkpoint.write_state(folder, tensors, {"step": 1, "rows": [4, 5]})
    found, counters = checkpoint.read_state(tmp_path / "checkpoint-1")
    assert counters == {"step": 1, "rows": [4, 5]}
    torch.testing.assert_close(found, tensors, rtol=0, atol=0)
