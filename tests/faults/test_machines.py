"""Several machines: two torchrun agents on this one, each with its own path to the storage that they share."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from commands import python
from making import free_port
from running import SHARED, TIMEOUT_S

from grpo.run import checkpoint


@pytest.fixture
def views(tmp_path):
    """The output directory as each of two machines sees it: links to the same folder."""
    (tmp_path / "storage").mkdir()
    paths = [tmp_path / f"machine{number}" for number in range(2)]
    for path in paths:
        path.symlink_to(tmp_path / "storage")
    return [path / "run" for path in paths]


def run_agents(config, views, folder, max_restarts, **environment):
    """Run one torchrun per machine, with one process each, that find each other by a c10d rendezvous. Return what each
    has said; both end well."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test"]
    command += ["--local-addr", "127.0.0.1", "--max-restarts", str(max_restarts), "-m", "grpo.train", str(config)]
    environment, agents, logs = os.environ | SHARED | environment, [], []
    for number, view in enumerate(views):
        logs.append(folder / f"agent{number}.log")
        with open(logs[-1], "w") as log:
            options = {"env": environment, "stdout": log, "stderr": log, "start_new_session": True}
            agents.append(subprocess.Popen([*command, f"output_dir={view}"], **options))
    try:
        for agent, log in zip(agents, logs, strict=True):
            assert agent.wait(TIMEOUT_S) == 0, log.read_text()[-3000:]
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
    return [log.read_text() for log in logs]


def test_two_machines_train_what_one_process_trains_though_a_rank_is_killed(make_run, tmp_path, views):
    """Rank 1 is killed in its second step. Both agents start their process again, and the run goes on by itself."""
    keys = {"save_steps": 1, "max_steps": 3, "save_total_limit": 0}
    one = make_run("one", reward_funcs=["fakes:mixed"], per_device_train_batch_size=16, **keys)
    one.train()
    two = replace(make_run("two", reward_funcs=["fakes:dies_once"], **keys), folder=tmp_path / "storage" / "run")
    said = run_agents(two.config, views, tmp_path, max_restarts=1, DIED=str(tmp_path / "died"))
    assert (tmp_path / "died").exists()
    assert sum(text.count("resuming from") for text in said) == 1
    assert one.differs_by_rounding(two)
    for a, b in zip(one.lines, two.lines, strict=True):
        for name in ("step", "loss", "grad_norm", "reward", "kl", "num_tokens"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
    assert two.state["exit_code"] == 0
    assert two.state["step"] == 3


@pytest.mark.parametrize(
    ("end", "code", "out", "error"),
    [("raise UserError('a', 'b', 'c', 3)", 3, "", "error: a"), ("print('done')", 0, "done\n", "")],
)
def test_a_rank_ends_without_pythons_own_end(end, code, out, error):
    """There a thread of gloo that still holds a tensor may abort the process; os.abort stands for it."""
    set_up = "import atexit, os\nfrom grpo.base.errors import UserError, run_main\natexit.register(os.abort)"
    ended = python("-c", f"{set_up}\ndef main(argv): {end}\nrun_main(main)", **SHARED, WORLD_SIZE="2")
    assert (ended.returncode, ended.stdout) == (code, out)
    assert ended.stderr.startswith(error)


# --- machines that are not alike -----------------------------------------------------------------------------------

UNLIKE = {  # what rank 1 has: overrides, or a setup; and what is told
    "configuration": (["beta=0.5"], "", "beta: 0.01 on rank 0"),
    "shards": (["tensor_parallel_size=2"], "", "tensor_parallel_size: 1 on rank 0"),
    "data": (["dataset_id_or_path={}/other.jsonl"], "", "dataset: "),
    "base weights": (["model_name_or_path={}/model"], "", "base_weights: "),
    "torch": ([], "another_torch@1", "torch: "),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_machines_that_do_not_agree_are_told_before_the_first_step(make_run, chat_checkpoint, tmp_path, kind):
    """Each names what differs, and on which rank of which host; all end with exit 2."""
    run = make_run()
    shutil.copytree(chat_checkpoint, tmp_path / "model")
    with open(tmp_path / "model" / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    rows = (tmp_path / "questions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(rows[1:]))
    overrides, setup, told = UNLIKE[kind]
    own = [override.format(tmp_path) for override in overrides]
    for child in run.train_ranks(of_rank_1=own, setup=setup, code=2):
        assert told in child.stderr
        assert child.stderr.count("on rank 1") == 1
        assert f"on rank 1 ({socket.gethostname()})" in child.stderr
    assert not run.lines


def test_a_machine_that_does_not_see_the_checkpoint_is_told(make_run, tmp_path):
    """Its output directory is not on the storage of rank 0; or it is, and holds another checkpoint of that name."""
    run, local = make_run(max_steps=2), tmp_path / "local"
    run.train_ranks()
    resume = ["resume_from_checkpoint=true", "max_steps=3"]
    for _ in range(2):
        first, second = run.start_ranks(*resume, of_rank_1=[f"output_dir={local}"])
        second.ends(6)
        assert "to a folder of storage that all machines share" in second.stderr
        first.ends(1)
        (local / "checkpoint-2").mkdir(parents=True, exist_ok=True)
        (local / "checkpoint-2" / "manifest.json").write_text("{}")
    assert not checkpoint.problem_with(run.checkpoint(2))
    run.train_ranks(*resume)
