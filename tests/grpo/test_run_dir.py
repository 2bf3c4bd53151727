"""The output directory: one run at a time, what is removed and what never is, and the record of how it stands."""

import json
import os
import signal
from functools import partial

import pytest
from commands import python
from making import refused, run_state

from grpo.base.folders import write_folder
from grpo.base.storage import write_atomically
from grpo.run.run_dir import RunDir, is_in_use

open_run = partial(RunDir, resume=False, overwrite=False)
FOREIGN = ("notes.txt", "checkpoint.py", "data", "final.txt")


def fill(path):
    """A directory with a run in it, and other things that nobody may remove."""
    for name in ("checkpoint-3", "checkpoint-4.unfinished", "final", "completions", "tb", "data"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text(name)
    for name in ("metrics.jsonl", "debug.log", "config.resolved.yaml", "run_state.rank1.json"):
        (path / name).write_text("{}")
    (path / "run_state.json").write_text(json.dumps({"id": "0" * 21}))
    for name in FOREIGN:
        if name != "data":
            (path / name).write_text("mine")
    return path


def test_a_directory_that_holds_something_is_refused_and_left_as_it_was(tmp_path):
    fill(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    refused(lambda: open_run(tmp_path), "is not empty", "checkpoint-3", exit_code=2)
    assert sorted(tmp_path.rglob("*")) == before
    open_run(tmp_path, resume=True).close(0, "")  # the refusal has given the lock back
    gone = {path for path in before if "checkpoint-4.unfinished" in path.parts}
    assert set(before) - gone <= set(tmp_path.rglob("*"))


def test_overwriting_removes_a_runs_own_files_and_nothing_else(tmp_path):
    fill(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights").write_text("precious")
    (tmp_path / "run" / "cold_start").symlink_to(tmp_path / "elsewhere")
    with write_folder(tmp_path / "run" / "best") as folder:  # complete, and killed before it got its name
        (folder / "file").write_text("best")
    (tmp_path / "run" / "best").rename(tmp_path / "run" / "best.unfinished")
    made = open_run(tmp_path / "run", overwrite=True)
    made.begin()
    made.drop_old_run()
    made.close(0, "")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    new = {".lock", "run_state.json", "debug.log"}
    assert left == {*FOREIGN, "cold_start"} | new
    assert (tmp_path / "elsewhere" / "weights").read_text() == "precious"
    assert (tmp_path / "run" / "data" / "file").exists()


def contents(path):
    return {found: found.read_bytes() for found in path.rglob("*") if found.is_file() and found.name != ".lock"}


def test_a_run_that_is_overwritten_stays_in_old_run_until_its_successor_has_made_a_step(tmp_path, capsys):
    """Also if a second successor follows one that ended before that; a kill while it is moved loses nothing."""
    fill(tmp_path)
    code = "import sys; from grpo.run.run_dir import RunDir; RunDir(sys.argv[1], False, overwrite=True).begin()"
    assert python("-c", code, tmp_path, FAILPOINT="replace-moving:4").returncode == -signal.SIGKILL
    for text in ("first", "second"):
        made = open_run(tmp_path, overwrite=True)
        made.begin()
        assert not (tmp_path / "metrics.jsonl").exists()
        (tmp_path / "metrics.jsonl").write_text(text)
        made.close(3, "a service failed in step 1")
        assert "old-run" in capsys.readouterr().err
        assert (tmp_path / "old-run" / "final" / "file").read_text() == "final"
        assert (tmp_path / "old-run" / "metrics.jsonl").read_text() == "{}"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["old-run/a", "evaluation/a", "config.resolved.yaml", "debug.log", "run_state.json"])
def test_files_that_no_run_has_written_are_not_touched(tmp_path, name, overwrite):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"mine": 1}')
    before = contents(tmp_path)
    refused(lambda: open_run(tmp_path, overwrite=overwrite), exit_code=2)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_named_old_run_in_a_run_is_the_users(tmp_path, overwrite):
    """A run that goes on there leaves it, and one that would put the old run there is refused."""
    fill(tmp_path)
    (tmp_path / "old-run").mkdir()
    (tmp_path / "old-run" / "notes.txt").write_text("mine")
    if overwrite:
        refused(lambda: open_run(tmp_path, overwrite=True), "no run has written", exit_code=2)
    else:
        made = open_run(tmp_path, resume=True)
        made.begin()
        made.drop_old_run()
        made.close(0, "")
    assert (tmp_path / "old-run" / "notes.txt").read_text() == "mine"


def test_what_a_rank_has_left_whose_rank_0_did_not_begin_blocks_nothing(tmp_path):
    (tmp_path / "run_state.rank1.json").write_text("{}")
    open_run(tmp_path).close(0, "")


def test_to_ask_whether_a_run_is_under_way_takes_no_lock(tmp_path, monkeypatch):
    """Not for a moment: a run that starts just then would find it taken."""
    held = open_run(tmp_path)
    monkeypatch.setattr("grpo.run.run_dir.try_to_lock", None)
    assert is_in_use(tmp_path) and not is_in_use(tmp_path / "elsewhere")
    held.close(0, "")
    assert not is_in_use(tmp_path)


def test_the_record_says_how_the_run_stands_and_ended(tmp_path, monkeypatch):
    def record(*names):
        return [run_state(tmp_path)[name] for name in names]

    made = open_run(tmp_path)
    assert record("status", "exit_code", "step", "last_checkpoint", "pid") == ["running", None, 0, None, os.getpid()]
    started = record("started")
    monkeypatch.setattr("grpo.run.run_dir.now", lambda: "later")
    made.update(step=7, last_checkpoint="checkpoint-5")
    assert record("started", "updated", "step", "last_checkpoint") == [*started, "later", 7, "checkpoint-5"]
    made.close(143, "a signal")
    assert record("status", "exit_code", "reason", "step") == ["interrupted", 143, "a signal", 7]
    open_run(tmp_path, resume=True).close(
        2, "the data has changed"
    )  # before it has loaded anything: what was reached stays on record
    assert record("status", "exit_code", "step", "last_checkpoint") == ["failed", 2, 7, "checkpoint-5"]
    open_run(tmp_path, resume=True).close(0, "")
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
