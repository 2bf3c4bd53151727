"""Finished cold starts of toy worlds, kept for the next run: what is taken, and that the run is the same then."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from making import ALONE

from grpo.base.folders import write_folder
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.run import cold_starts
from grpo.run.cold_starts import KEPT, keep, place_of, take
from grpo.train import train


@pytest.fixture
def final(tmp_path):
    with write_folder(tmp_path / "run" / "final") as folder:
        (folder / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "run" / "final"


def test_the_newest_stay_and_what_a_killed_run_has_begun_goes(tmp_path, final):
    cache = tmp_path / "cache"
    (cache / "killed.unfinished").mkdir(parents=True)
    for number in range(KEPT + 2):
        keep(final, cache / f"key-{number}")
        os.utime(cache / f"key-{number}", (number, number))
        if number == KEPT - 1:
            assert take(cache / "key-0", tmp_path / "again")  # it is the newest now
    left = {path.name for path in cache.iterdir() if path.is_dir()}
    assert left == {"key-0", *(f"key-{number}" for number in range(3, KEPT + 2))}


def test_a_full_disk_or_another_run_that_keeps_one_costs_nothing(tmp_path, final, monkeypatch):
    kept = tmp_path / "cache" / "key"
    monkeypatch.setattr(cold_starts, "try_to_lock", lambda descriptor: False)
    keep(final, kept)
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    keep(final, tmp_path / "file" / "cache" / "key")
    assert not kept.exists()


def test_only_toy_worlds_are_kept_and_none_if_it_is_off(monkeypatch):
    cpu, ranks = torch.device("cpu"), SimpleNamespace(world=ALONE.world)
    monkeypatch.setenv("GRPO_CACHE", "off")
    assert place_of(SftConfig(toy_world="sums"), ranks, cpu) is None
    monkeypatch.delenv("GRPO_CACHE")
    assert place_of(SftConfig(), ranks, cpu) is None


# --- A run -----------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy_run(tmp_path, monkeypatch, capsys):
    """Runs the encyclopedia for one step after a cold start of two, into the folder of this name."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    stage1 = tmp_path / "cold.yaml"
    stage1.write_text(f"base: {ROOT / 'configs' / 'tiny_sft.yaml'}\nmax_steps: 2\nper_device_train_batch_size: 8\n")

    def run(name, *keys):
        keys = [f"output_dir={tmp_path / name}", f"cold_start={stage1}", "disable_tqdm=true", *keys]
        keys += ["report_to=none", "max_steps=1", "per_device_train_batch_size=16", "eval_max_samples=8"]
        train(*load_config(ROOT / "configs" / "tiny.yaml", keys))
        files = ("cold_start/final/model.safetensors", "final/adapter_model.safetensors")
        return capsys.readouterr(), [(tmp_path / name / file).read_bytes() for file in files]

    return run


def test_a_cold_start_that_was_kept_gives_the_same_run(tmp_path, toy_run):
    """Until it is damaged."""
    said, first = toy_run("one")
    assert "stage 1 took" in said.err

    said, second = toy_run("two")
    assert "is a copy of" in said.err and "GRPO_CACHE=off" in said.err and second == first
    (kept,) = [path for path in (tmp_path / "cache" / "cold_starts").iterdir() if path.is_dir()]
    damaged = bytearray((kept / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (kept / "model.safetensors").write_bytes(damaged)
    said, third = toy_run("three")
    assert "stage 1 took" in said.err and third == first
    assert "is a copy of" not in toy_run("four", "seed=8")[0].err
