"""SIGTERM and SIGINT at bad moments, and two runs in one directory."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from api_server import ApiServer, hangs, says
from asking import until
from making import refused
from running import JUDGED, ROOT, TIMEOUT_S

from grpo.base.errors import BUSY
from grpo.run import checkpoint
from grpo.run.run_dir import RunDir

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


def stop(child, number, condition):
    """Send a signal once something is so; the run ends with the signal's exit code."""
    child.until(condition)
    child.signal(number)
    child.ends(CODES[number])
    assert "Traceback" not in child.stderr
    assert "stopped by" in child.stderr


@pytest.mark.parametrize("number", CODES, ids=str)
@pytest.mark.parametrize(
    ("setup", "sign", "keys", "step"),
    [
        ("endless_generation", "generating", {"save_steps": 0}, 3),  # the sampler would take an hour over its 4th batch
        ("slow_save", "run/saving", {}, 1),  # the save is finished
    ],
)
def test_a_run_that_is_stopped_is_saved_and_resumed(make_run, undisturbed, tmp_path, number, setup, sign, keys, step):
    run = make_run(**keys)
    child = run.start(setup=setup, GENERATING=str(tmp_path / "generating"))
    stop(child, number, (tmp_path / sign).exists)
    told = {"status": "interrupted", "exit_code": CODES[number], "host": socket.gethostname(), "pid": child.pid}
    assert run.saved_step(**told) == step
    assert "stopped by" in run.state["reason"]
    assert checkpoint.checkpoints(run.folder) == [run.checkpoint(step)]
    run.resume()
    assert run.equals(undisturbed)


@pytest.mark.parametrize("number", CODES, ids=str)
@pytest.mark.parametrize(("num_replies", "step"), [(17, 2), (0, None)])
def test_during_a_judge_call_that_hangs(judged_run, number, num_replies, step):
    """In the third step; or while the judge is asked whether it works, when there is nothing to save."""
    with ApiServer(*[says("A")] * num_replies, default=hangs) as server:
        run = judged_run(server, save_steps=0)
        child = run.start(**JUDGED)
        stop(child, number, lambda: len(server.requests) > num_replies + 3 * bool(num_replies))
    found = checkpoint.checkpoints(run.folder)
    assert found == ([run.checkpoint(step)] if step else [])
    assert not any(map(checkpoint.problem_with, found))
    assert run.state["exit_code"] == CODES[number]


@pytest.mark.parametrize("reward", ["hanging", "alarming"])
def test_a_users_reward_that_never_returns_does_not_hold_the_process(make_run, reward):
    run = make_run(reward_funcs=[f"fakes:{reward}"], save_steps=0)
    stop(run.start(setup="short_grace"), signal.SIGTERM, lambda: run.lines)
    assert run.saved_step(exit_code=143) == 1


def test_a_second_sigint_does_not_wait_for_the_save(make_run, undisturbed):
    run = make_run()
    child = run.start(setup="slow_save", SAVE_TAKES_S="7200")
    for sign in ("saving", "signalled"):  # two signals that are pending together are one
        child.until((run.folder / sign).exists)
        child.signal(signal.SIGINT)
    child.ends(130)  # the save would take two hours
    assert not checkpoint.checkpoints(run.folder)
    assert run.state["exit_code"] == 130
    run.resume()
    assert run.equals(undisturbed)


def test_the_command_itself_ignores_sighup_under_nohup_and_stops_on_sigterm(make_run):
    """The true command, without the shared parent."""
    run = make_run(max_steps=100_000, save_steps=0)
    child, stderr = run.start_alone("nohup", sys.executable, "-m", "grpo.train")
    until(lambda: run.lines or child.poll() is not None)
    child.send_signal(signal.SIGHUP)
    step = len(run.lines) + 3
    until(lambda: len(run.lines) >= step or child.poll() is not None)
    child.terminate()
    assert child.wait(TIMEOUT_S) == 143, stderr.read_text()
    assert run.saved_step(exit_code=143) > 3
    assert f"continue with python -m grpo.train {run.config} resume_from_checkpoint=true" in stderr.read_text()


# --- two runs in one directory -------------------------------------------------------------------------------------


def test_the_second_run_in_a_directory_is_told_who_has_it(make_run):
    run = make_run(max_steps=100_000)
    first = run.start()
    first.until((run.folder / "metrics.jsonl").exists)
    for override in ("resume_from_checkpoint=true", "overwrite_output_dir=true", "seed=42"):
        second = run.train(override, code=7)
        told = rf"pid {first.pid} on {re.escape(socket.gethostname())}, started \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d"
        assert re.search(told, second.stderr)
    assert run.state["pid"] == first.pid
    assert first.is_running()
    first.signal(signal.SIGKILL)
    first.ends(-signal.SIGKILL)
    assert run.start("resume_from_checkpoint=true", "max_steps=1").wait() in (0, 2)


def test_metrics_that_are_deleted_in_mid_run_are_noticed(make_run, undisturbed):
    """The metrics, in the second step: it is told once, and the run goes on."""
    run = make_run(reward_funcs=["fakes:loses_files"])
    child = run.train(LOST=str(run.folder / "metrics.jsonl"))
    assert sum("metrics.jsonl was deleted" in line for line in child.stderr.splitlines()) == 1, child.stderr
    assert run.steps == [2, 3, 4] and run.equals(undisturbed)


FORKING = """
import os, sys, time
from grpo.run.run_dir import RunDir
held = RunDir(sys.argv[1], resume=False, overwrite=False)
if os.fork() == 0:
    print(os.getpid(), flush=True)  # it is past what it does at a fork
time.sleep(300)
"""


def test_a_child_does_not_inherit_the_lock(tmp_path):
    """A forked child that outlives its parent (a data loader's worker) holds nothing."""
    command = [sys.executable, "-c", FORKING, tmp_path / "run"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        refused(lambda: RunDir(tmp_path / "run", resume=True, overwrite=False), exit_code=BUSY)
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        RunDir(tmp_path / "run", resume=True, overwrite=False).close(0, "")
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("place", ["/proc/run", __file__])
def test_a_directory_that_cannot_be_written_is_exit_6(make_run, place):
    make_run().train(f"output_dir={place}", code=6)
