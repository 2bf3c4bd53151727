"""The output directory: one run at a time, what is removed and what never is, and the record of how it stands."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo.base.errors import UserError
from grpo.base.folders import write_folder
from grpo.base.storage import write_atomically
from grpo.run import checkpoint
from grpo.run.run_dir import RunDir

ROOT = Path(__file__).parents[2]
FOREIGN = ("notes.txt", "checkpoint.py", "data", "final.txt")


def state(path) -> dict:
    return json.loads((path / "run_state.json").read_text())


def fill(path):
    """A directory with a run in it, and other things that nobody may remove."""
    for name in ("checkpoint-3", "checkpoint-4.unfinished", "final", "completions", "tb", "data"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text(name)
    for name in ("metrics.jsonl", "debug.log", "config.resolved.yaml", "run_state.json", "run_state.rank1.json"):
        (path / name).write_text("{}")
    for name in FOREIGN:
        if name != "data":
            (path / name).write_text("mine")
    return path


def test_a_deleted_lock_is_noticed_and_taken_again(tmp_path, capsys):
    held = RunDir(tmp_path / "run", resume=False, overwrite=False)
    held.keep_lock()
    assert capsys.readouterr().err == ""
    (tmp_path / "run" / ".lock").unlink()
    held.keep_lock()
    assert capsys.readouterr().err.count("was deleted") == 1
    with pytest.raises(UserError, match="is in use"):
        RunDir(tmp_path / "run", resume=True, overwrite=False)
    held.keep_lock()
    assert capsys.readouterr().err == ""
    shutil.rmtree(tmp_path / "run")  # the whole directory
    held.keep_lock()
    held.close(0, "")
    assert state(tmp_path / "run")["status"] == "done"


def test_a_run_that_has_lost_its_directory_ends_and_leaves_the_others_record_alone(tmp_path):
    first = RunDir(tmp_path, resume=False, overwrite=False)
    (tmp_path / ".lock").unlink()
    second = RunDir(tmp_path, resume=True, overwrite=False)
    second.update(step=7)
    with pytest.raises(UserError, match="is in use") as error:
        first.keep_lock()
    assert error.value.exit_code == 7
    first.close(7, "lost")
    assert state(tmp_path)["step"] == 7 and state(tmp_path)["status"] == "running"
    second.keep_lock()
    second.close(0, "")


def test_a_directory_that_holds_something_is_refused_and_left_as_it_was(tmp_path):
    fill(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="is not empty") as error:
        RunDir(tmp_path, resume=False, overwrite=False)
    assert error.value.exit_code == 2 and "checkpoint-3" in error.value.why
    assert sorted(tmp_path.rglob("*")) == before
    RunDir(tmp_path, resume=True, overwrite=False).close(0, "")  # the refusal has given the lock back
    gone = {path for path in before if "checkpoint-4.unfinished" in path.parts}
    assert set(before) - gone <= set(tmp_path.rglob("*"))


def saved(run_dir):
    """The run has its first checkpoint."""
    with checkpoint.new_checkpoint(run_dir.path, 1) as folder:
        checkpoint.write_state(folder, {"master": torch.ones(2)}, {"step": 1})
    run_dir.drop_old_run()


def test_overwriting_removes_a_runs_own_files_and_nothing_else(tmp_path):
    fill(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights").write_text("precious")
    (tmp_path / "run" / "cold_start").symlink_to(tmp_path / "elsewhere")
    with write_folder(tmp_path / "run" / "best") as folder:  # complete, and killed before it got its name
        (folder / "file").write_text("best")
    (tmp_path / "run" / "best").rename(tmp_path / "run" / "best.unfinished")
    made = RunDir(tmp_path / "run", resume=False, overwrite=True)
    made.begin()
    saved(made)
    made.close(0, "")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    new = {".lock", "run_state.json", "checkpoint-1", "debug.log"}
    assert left == {*FOREIGN, "cold_start"} | new
    assert (tmp_path / "elsewhere" / "weights").read_text() == "precious"
    assert (tmp_path / "run" / "data" / "file").exists()


def contents(path) -> dict:
    """All files but debug.log, which tells of every attempt."""
    return {found: found.read_text() for found in path.rglob("*") if found.is_file() and found.name != "debug.log"}


def test_a_run_that_is_overwritten_stays_in_old_run_until_its_successor_has_a_checkpoint(tmp_path, capsys):
    """Also if a second successor follows one that ended before that; a kill while it is moved loses nothing."""
    fill(tmp_path)
    code = "import sys; from grpo.run.run_dir import RunDir; RunDir(sys.argv[1], False, overwrite=True).begin()"
    keys = {"env": {**os.environ, "FAILPOINT": "replace-moving:4"}, "cwd": ROOT}
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], **keys).returncode == -signal.SIGKILL
    for text in ("first", "second"):
        made = RunDir(tmp_path, resume=False, overwrite=True)
        made.begin()
        assert not (tmp_path / "metrics.jsonl").exists()
        (tmp_path / "metrics.jsonl").write_text(text)
        made.close(3, "a service failed in step 2")
        assert "old-run" in capsys.readouterr().err
        assert (tmp_path / "old-run" / "final" / "file").read_text() == "final"
        assert (tmp_path / "old-run" / "metrics.jsonl").read_text() == "{}"
    made = RunDir(tmp_path, resume=True, overwrite=False)
    saved(made)
    made.close(0, "")
    assert not list(tmp_path.glob("old-run*"))


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_run_that_was_to_be_overwritten_comes_back_if_its_successor_fails_before_its_first_step(
    tmp_path, capsys, has_begun
):
    before = contents(fill(tmp_path))
    made = RunDir(tmp_path, resume=False, overwrite=True)
    made.update(data={"training data": "3 rows"})
    if has_begun:
        made.begin()
        assert (tmp_path / "old-run" / "final").exists() and state(tmp_path)["status"] == "running"
        (tmp_path / "world").mkdir()
        (tmp_path / "metrics.jsonl").touch()
    made.close(3, "a typo")
    assert "unchanged" in capsys.readouterr().err and contents(tmp_path).items() >= before.items()
    assert contents(tmp_path).keys() - before.keys() == {tmp_path / ".lock"} and not (tmp_path / "old-run").exists()


def test_a_run_that_torchrun_will_start_again_leaves_the_old_one_in_old_run(tmp_path, monkeypatch):
    """The next attempt looks for checkpoints in the directory, and must not find those of the old run."""
    fill(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    made = RunDir(tmp_path, resume=False, overwrite=True)
    made.begin()
    made.close(1, "a rank died")
    assert (tmp_path / "old-run" / "final").exists()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    RunDir(tmp_path, resume=True, overwrite=True).close(1, "a rank died")
    assert (tmp_path / "final").exists()


def test_a_folder_that_holds_no_run_is_not_overwritten(tmp_path):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "mine").write_text("precious")
    with pytest.raises(UserError, match="holds no run") as error:
        RunDir(tmp_path, resume=False, overwrite=True)
    assert error.value.exit_code == 2 and (tmp_path / "evaluation" / "mine").exists()


def test_the_record_says_how_the_run_stands_and_ended(tmp_path, monkeypatch):
    def record(*names):
        return [state(tmp_path)[name] for name in names]

    made = RunDir(tmp_path, resume=False, overwrite=False)
    assert record("status", "exit_code", "step", "last_checkpoint", "pid") == ["running", None, 0, None, os.getpid()]
    started = record("started")
    monkeypatch.setattr("grpo.run.run_dir.now", lambda: "later")
    made.update(step=7, last_checkpoint="checkpoint-5")
    assert record("started", "updated", "step", "last_checkpoint") == [*started, "later", 7, "checkpoint-5"]
    made.close(143, "a signal")
    assert record("status", "exit_code", "reason", "step") == ["interrupted", 143, "a signal", 7]
    refused = RunDir(tmp_path, resume=True, overwrite=False)
    refused.close(2, "the data has changed")  # before it has loaded anything: what was reached stays on record
    assert record("status", "exit_code", "step", "last_checkpoint") == ["failed", 2, 7, "checkpoint-5"]
    RunDir(tmp_path, resume=True, overwrite=False).close(0, "")
    assert record("status", "exit_code", "reason") == ["done", 0, ""]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """At the moment before the exchange the old text is still there; if the exchange fails, it stays."""
    path, seen = tmp_path / "a.json", []
    write_atomically(path, "old")
    monkeypatch.setattr("grpo.base.storage.failpoint", lambda name: seen.append((name, path.read_text())))
    write_atomically(path, "new \ud800")
    assert seen == [("write-a.json", "old")] and path.read_text() == "new \\ud800"

    for error in (OSError("no space"), KeyboardInterrupt()):

        def fails(source, target, error=error):
            raise error

        monkeypatch.setattr(os, "replace", fails)
        with pytest.raises(type(error)):
            write_atomically(path, "newer")
        assert [found.name for found in tmp_path.iterdir()] == ["a.json"] and path.read_text() == "new \\ud800"
