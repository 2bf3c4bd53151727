"""SIGTERM and SIGINT at bad moments, and two runs in one directory."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from api_server import ApiServer, hangs, says
from running import ROOT, TIMEOUT_S, is_message, lines, same_weights, state, write_config

from grpo.base.errors import UserError
from grpo.run import checkpoint
from grpo.run.run_dir import RunDir

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture(scope="module")
def undisturbed(processes, chat_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert processes.train(write_config(folder, chat_checkpoint)).code == 0
    return folder / "run"


def stop(child, number: int, condition) -> None:
    """Send a signal once something is so; the run ends with the signal's exit code."""
    child.until(condition)
    child.signal(number)
    assert child.wait() == CODES[number], child.stderr
    assert "Traceback" not in child.stderr and "stopped by" in child.stderr


@pytest.mark.parametrize("number", CODES, ids=str)
@pytest.mark.parametrize(("setup", "sign", "keys", "step"), [
    ("endless_generation", "generating", {"save_steps": 0}, 3),  # the sampler would take an hour over its 4th batch
    ("slow_save", "run/saving", {}, 1),  # the save is finished
])  # fmt: skip
def test_a_run_that_is_stopped_is_saved_and_resumed(
    processes, chat_checkpoint, undisturbed, tmp_path, number, setup, sign, keys, step
):
    config = write_config(tmp_path, chat_checkpoint, **keys)
    child = processes.start("grpo.train", config, setup=setup, GENERATING=str(tmp_path / "generating"))
    stop(child, number, (tmp_path / sign).exists)
    told = {"status": "interrupted", "exit_code": CODES[number], "last_checkpoint": f"checkpoint-{step}", "step": step}
    found = state(tmp_path / "run")
    assert found | told | {"host": socket.gethostname(), "pid": child.pid} == found and "stopped by" in found["reason"]
    (saved,) = checkpoint.checkpoints(tmp_path / "run")
    assert saved.name == f"checkpoint-{step}" and not checkpoint.problem_with(saved)
    assert processes.train(config, "resume_from_checkpoint=true").code == 0
    assert same_weights(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("number", CODES, ids=str)
@pytest.mark.parametrize(("num_replies", "step"), [(17, 2), (0, None)], ids=["training", "preflight"])
def test_during_a_judge_call_that_hangs(processes, chat_checkpoint, tmp_path, number, num_replies, step):
    """In the third step; or while the judge is asked whether it works, when there is nothing to save."""
    with ApiServer(*[says("A")] * num_replies, default=hangs) as server:
        keys = {"reward_funcs": ["correctness"], "judge_model": "m", "judge_base_url": server.url, "save_steps": 0}
        config = write_config(tmp_path, chat_checkpoint, **keys)
        child = processes.start("grpo.train", config, setup="talkative", OPENAI_API_KEY_JUDGE="canary-key")
        stop(child, number, lambda: len(server.requests) > num_replies + 3 * bool(num_replies))
    found = checkpoint.checkpoints(tmp_path / "run")
    assert [folder.name for folder in found] == ([f"checkpoint-{step}"] if step else [])
    assert not any(map(checkpoint.problem_with, found)) and state(tmp_path / "run")["exit_code"] == CODES[number]


def test_a_users_reward_that_never_returns_does_not_hold_the_process(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, reward_funcs=["fakes:hanging"], save_steps=0)
    child = processes.start("grpo.train", config, setup="short_grace")
    log = tmp_path / "run" / "metrics.jsonl"
    stop(child, signal.SIGTERM, lambda: log.exists() and lines(tmp_path / "run"))
    assert state(tmp_path / "run")["last_checkpoint"] == "checkpoint-1"


def test_a_second_sigint_does_not_wait_for_the_save(processes, chat_checkpoint, undisturbed, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, max_steps=4)
    child = processes.start("grpo.train", config, setup="slow_save", SAVE_TAKES_S="7200")
    for sign in ("saving", "signalled"):  # two signals that are pending together are one
        child.until((tmp_path / "run" / sign).exists)
        child.signal(signal.SIGINT)
    assert child.wait() == 130  # the save would take two hours
    assert not list((tmp_path / "run").glob("checkpoint-*")) and state(tmp_path / "run")["exit_code"] == 130
    assert processes.train(config, "resume_from_checkpoint=true").code == 0
    assert same_weights(tmp_path / "run", undisturbed)


def test_the_command_itself_ignores_sighup_under_nohup_and_stops_on_sigterm(chat_checkpoint, tmp_path):
    """The true command, without the shared parent."""
    config = write_config(tmp_path, chat_checkpoint, max_steps=100_000, save_steps=0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "faults")])}
    log = tmp_path / "run" / "metrics.jsonl"

    def wait_for(num_steps: int) -> None:
        while child.poll() is None and not (log.exists() and len(lines(tmp_path / "run")) >= num_steps):
            time.sleep(0.05)

    with open(tmp_path / "stderr", "w+") as stderr:
        command = ["nohup", sys.executable, "-m", "grpo.train", config]
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
        wait_for(1)
        child.send_signal(signal.SIGHUP)
        wait_for(len(lines(tmp_path / "run")) + 3)
        child.terminate()
        assert child.wait(TIMEOUT_S) == 143, (tmp_path / "stderr").read_text()
    found = state(tmp_path / "run")
    assert found["last_checkpoint"] == f"checkpoint-{found['step']}" and found["step"] > 3


# --- two runs in one directory -------------------------------------------------------------------------------------


def test_the_second_run_in_a_directory_is_told_who_has_it(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, max_steps=100_000)
    first = processes.start("grpo.train", config)
    first.until((tmp_path / "run" / "metrics.jsonl").exists)
    for override in ("resume_from_checkpoint=true", "overwrite_output_dir=true", "seed=42"):
        second = processes.train(config, override)
        assert second.code == 7 and is_message(second.stderr)
        told = rf"pid {first.pid} on {re.escape(socket.gethostname())}, started \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d"
        assert re.search(told, second.stderr)
    assert state(tmp_path / "run")["pid"] == first.pid and first.is_running()
    first.signal(signal.SIGKILL)
    first.wait()
    assert processes.train(config, "resume_from_checkpoint=true", "max_steps=1").code in (0, 2)


def test_files_that_are_deleted_in_mid_run_are_noticed(processes, chat_checkpoint, undisturbed, tmp_path):
    """The lock and the metrics, in the second step: both are told once, and the run goes on under a lock of its own."""
    config = write_config(tmp_path, chat_checkpoint, reward_funcs=["fakes:loses_files"])
    run_dir = tmp_path / "run"
    child = processes.train(config, LOST=".lock,metrics.jsonl", RUN_DIR=str(run_dir))
    assert child.code == 0, child.stderr
    for name in (".lock", "metrics.jsonl"):
        assert sum(name in line and "deleted" in line for line in child.stderr.splitlines()) == 1, child.stderr
    assert [line["step"] for line in lines(run_dir)] == [2, 3, 4]
    assert f"pid {child.pid}" in (run_dir / ".lock").read_text()
    assert same_weights(run_dir, undisturbed)


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
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING, tmp_path / "run"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(UserError):
            RunDir(tmp_path / "run", resume=True, overwrite=False)
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        RunDir(tmp_path / "run", resume=True, overwrite=False).close(0, "")
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_output_directory_that_cannot_be_used(processes, chat_checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", "/proc/run"):
        child = processes.train(write_config(tmp_path, chat_checkpoint), f"output_dir={path}")
        assert child.code == 6 and is_message(child.stderr)


@pytest.mark.parametrize(("code", "override"), [
    (2, "api_deadline_s=1800"), (2, "learning_rate=x"), (3, "dataset_id_or_path=/none.jsonl"),
    (1, "reward_funcs=fakes:forgetful"),
])  # fmt: skip
def test_every_error_is_three_lines_and_its_traceback_in_debug_log(
    processes, chat_checkpoint, tmp_path, code, override
):
    child = processes.train(write_config(tmp_path, chat_checkpoint), override, SOME_API_KEY="canary-1f9c")
    assert child.code == code and is_message(child.stderr), child.stderr
    if code != 2:
        assert "Traceback" in (tmp_path / "run" / "debug.log").read_text()
        assert state(tmp_path / "run")["exit_code"] == code


def test_a_directory_with_files_is_refused_and_left_as_it_was(processes, chat_checkpoint, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("")
    child = processes.train(write_config(tmp_path, chat_checkpoint))
    assert child.code == 2 and "overwrite_output_dir=true" in child.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]
