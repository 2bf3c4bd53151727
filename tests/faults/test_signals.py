"""SIGTERM and SIGINT at bad moments, and two runs in one directory."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from api_server import ApiServer, hangs, says
from running import ROOT, TIMEOUT_S, is_message, lines, state, weights, write_config

from grpo.base.errors import UserError
from grpo.run import checkpoint
from grpo.run.run_dir import RunDir

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture(scope="module")
def undisturbed(processes, chat_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert processes.train(write_config(folder, chat_checkpoint)).code == 0
    return weights(folder / "run")


def resumed_equals(processes, config, undisturbed, **more) -> bool:
    run_dir = config.with_suffix("")
    assert processes.train(config, "resume_from_checkpoint=true", **more).code == 0
    return all(torch.equal(weights(run_dir)[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.parametrize("number", CODES, ids=str)
def test_during_generation_the_rollout_is_dropped_and_the_run_saved(
    processes, chat_checkpoint, undisturbed, tmp_path, number, monkeypatch
):
    """The sampler would take an hour over its 4th batch."""
    config = write_config(tmp_path, chat_checkpoint, save_steps=0)
    child = processes.start("grpo.train", config, setup="endless_generation", GENERATING=str(tmp_path / "generating"))
    child.until((tmp_path / "generating").exists)
    child.signal(number)
    assert child.wait() == CODES[number]
    assert "Traceback" not in child.stderr and "stopped by" in child.stderr
    found = state(tmp_path / "run")
    assert (found["status"], found["exit_code"], found["last_checkpoint"], found["step"]) == (
        "interrupted",
        CODES[number],
        "checkpoint-3",
        3,
    )
    assert "stopped by" in found["reason"] and found["host"] == socket.gethostname() and found["pid"] == child.pid
    assert resumed_equals(processes, config, undisturbed)


@pytest.mark.parametrize("number", CODES, ids=str)
def test_during_a_judge_call_that_hangs(processes, chat_checkpoint, tmp_path, number):
    with ApiServer(*[says("A")] * 17, default=hangs) as server:
        config = write_config(
            tmp_path,
            chat_checkpoint,
            reward_funcs=["correctness"],
            judge_model="m",
            judge_base_url=server.url,
            save_steps=0,
        )
        child = processes.start("grpo.train", config, setup="talkative", OPENAI_API_KEY_JUDGE="canary-key")
        child.until(lambda: len(server.requests) > 20)
        child.signal(number)
        assert child.wait() == CODES[number]
    assert state(tmp_path / "run")["last_checkpoint"] == "checkpoint-2" and not checkpoint.problem_with(
        tmp_path / "run" / "checkpoint-2"
    )


def test_a_users_reward_that_never_returns_does_not_hold_the_process(processes, chat_checkpoint, undisturbed, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, reward_funcs=["fakes:hanging"], save_steps=0)
    child = processes.start("grpo.train", config, setup="short_grace")
    child.until(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and lines(tmp_path / "run"))
    child.signal(signal.SIGTERM)
    assert child.wait() == 143 and state(tmp_path / "run")["last_checkpoint"] == "checkpoint-1"


@pytest.mark.parametrize("number", CODES, ids=str)
def test_during_a_save_the_save_is_finished(processes, chat_checkpoint, undisturbed, tmp_path, number):
    config = write_config(tmp_path, chat_checkpoint)
    child = processes.start("grpo.train", config, setup="slow_save")
    child.until((tmp_path / "run" / "saving").exists)
    child.signal(number)
    assert child.wait() == CODES[number]
    found = checkpoint.checkpoints(tmp_path / "run")
    assert [folder.name for folder in found] == ["checkpoint-1"] and not checkpoint.problem_with(found[0])
    assert resumed_equals(processes, config, undisturbed)


def test_a_second_sigint_does_not_wait_for_the_save(processes, chat_checkpoint, undisturbed, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, max_steps=4)
    child = processes.start("grpo.train", config, setup="slow_save", SAVE_TAKES_S="7200")
    child.until((tmp_path / "run" / "saving").exists)
    child.signal(signal.SIGINT)
    child.until((tmp_path / "run" / "signalled").exists)  # two signals that are pending together are one
    child.signal(signal.SIGINT)
    assert child.wait() == 130  # the save would take two hours
    assert not list((tmp_path / "run").glob("checkpoint-*")) and state(tmp_path / "run")["exit_code"] == 130
    assert resumed_equals(processes, config, undisturbed)


@pytest.mark.parametrize("number", CODES, ids=str)
def test_before_the_first_step_a_signal_ends_the_run_at_once(processes, chat_checkpoint, tmp_path, number):
    """While the judge is asked whether it works, which it does not answer."""
    with ApiServer(default=hangs) as server:
        config = write_config(
            tmp_path, chat_checkpoint, reward_funcs=["correctness"], judge_model="m", judge_base_url=server.url
        )
        child = processes.start("grpo.train", config, OPENAI_API_KEY_JUDGE="canary-key")
        child.until(lambda: server.requests)
        child.signal(number)
        assert child.wait() == CODES[number]
    assert state(tmp_path / "run")["exit_code"] == CODES[number] and not list((tmp_path / "run").glob("checkpoint-*"))


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
        assert re.search(
            rf"pid {first.pid} on {re.escape(socket.gethostname())}, started \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d",
            second.stderr,
        )
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
    assert [line["step"] for line in lines(run_dir)] == [2, 3, 4] and f"pid {child.pid}" in (
        run_dir / ".lock"
    ).read_text()
    assert all(torch.equal(weights(run_dir)[name], undisturbed[name]) for name in undisturbed)


def test_a_run_whose_lock_was_deleted_leaves_the_directory_to_the_next_one(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, max_steps=100_000)
    first = processes.start("grpo.train", config)
    first.until(lambda: (tmp_path / "run" / "checkpoint-1").exists())
    first.signal(signal.SIGSTOP)
    (tmp_path / "run" / ".lock").unlink()
    second = processes.start("grpo.train", config, "resume_from_checkpoint=true")
    second.until(lambda: state(tmp_path / "run")["pid"] == second.pid)  # it has the lock, and has said so
    first.signal(signal.SIGCONT)
    assert first.wait() == 7 and "is in use" in first.stderr and f"pid {second.pid}" in first.stderr
    second.until(lambda: state(tmp_path / "run")["pid"] == second.pid)  # the first may have been stopped before a write
    second.signal(signal.SIGTERM)
    assert second.wait() == 143


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
    child = processes.train(write_config(tmp_path, chat_checkpoint), f"output_dir={tmp_path / 'file'}")
    assert child.code == 6 and is_message(child.stderr)
    child = processes.train(write_config(tmp_path, chat_checkpoint), "output_dir=/proc/run")
    assert child.code == 6 and is_message(child.stderr)


def test_every_error_is_three_lines_and_its_traceback_in_debug_log(processes, chat_checkpoint, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.txt").write_text("")
    late = processes.train(write_config(tmp_path, chat_checkpoint, "late"), "api_deadline_s=1800")
    assert late.code == 2 and is_message(late.stderr) and "api_deadline_s" in late.stderr
    cases = {2: ["learning_rate=x"], 3: ["dataset_id_or_path=/none.jsonl"], 1: ["reward_funcs=fakes:forgetful"]}
    for code, overrides in cases.items():
        child = processes.train(
            write_config(tmp_path, chat_checkpoint, f"case{code}"), *overrides, SOME_API_KEY="canary-1f9c"
        )
        assert child.code == code and is_message(child.stderr), child.stderr
        if code != 2:
            assert (
                "Traceback" in (tmp_path / f"case{code}" / "debug.log").read_text()
                and state(tmp_path / f"case{code}")["exit_code"] == code
            )
    child = processes.train(write_config(tmp_path, chat_checkpoint, "kept"))
    assert (
        child.code == 2 and "overwrite_output_dir=true" in child.stderr and (tmp_path / "kept" / "thesis.txt").exists()
    )
    assert json.dumps(sorted(path.name for path in (tmp_path / "kept").iterdir())) == '["thesis.txt"]'
