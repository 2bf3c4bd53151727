"""Several machines: two torchrun agents on this one, each with its own path to the storage that they share."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from making import free_port
from running import PATHS, TIMEOUT_S, differ_by_rounding, is_message, lines, state, weights, write_config
from test_ranks import ends, start

from grpo.run import checkpoint


@pytest.fixture
def views(tmp_path):
    """The output directory as each of two machines sees it: links to the same folder."""
    (tmp_path / "storage").mkdir()
    paths = [tmp_path / f"machine{number}" for number in range(2)]
    for path in paths:
        path.symlink_to(tmp_path / "storage")
    return [path / "run" for path in paths]


def start_agents(config, views, folder, max_restarts: int, **environment):
    """Start one torchrun per machine, with one process each, that find each other by a c10d rendezvous."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test"]
    command += ["--local-addr", "127.0.0.1", "--max-restarts", str(max_restarts), "-m", "grpo.train", str(config)]
    shared = {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    agents = []
    for number, view in enumerate(views):
        with open(folder / f"agent{number}.log", "w") as log:
            agents.append(
                subprocess.Popen(
                    [*command, f"output_dir={view}"],
                    env={**os.environ, **shared, **environment},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    return agents


def wait(agents, folder) -> list[int]:
    """Return the exit codes of the agents."""
    ends_at = time.monotonic() + TIMEOUT_S
    try:
        return [agent.wait(max(0.1, ends_at - time.monotonic())) for agent in agents]
    except subprocess.TimeoutExpired:
        logs = [(folder / f"agent{number}.log").read_text()[-3000:] for number in range(len(agents))]
        raise AssertionError("\n".join(logs)) from None
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)


def test_two_machines_train_what_one_process_trains_though_a_rank_is_killed(
    processes, chat_checkpoint, tmp_path, views
):
    """Rank 1 is killed in its second step. Both agents start their process again, and the run goes on by itself."""
    keys = {"save_steps": 1, "max_steps": 3, "save_total_limit": 0}
    one = write_config(
        tmp_path, chat_checkpoint, "one", reward_funcs=["fakes:mixed"], per_device_train_batch_size=16, **keys
    )
    assert processes.train(one).code == 0
    two = write_config(tmp_path, chat_checkpoint, "two", reward_funcs=["fakes:dies_once"], **keys)
    agents = start_agents(two, views, tmp_path, max_restarts=1, DIED=str(tmp_path / "died"))
    codes = wait(agents, tmp_path)
    said = [(tmp_path / f"agent{number}.log").read_text() for number in range(2)]
    assert codes == [0, 0], said
    assert (tmp_path / "died").exists() and sum(text.count("resuming from") for text in said) == 1
    run_dir = tmp_path / "storage" / "run"
    assert differ_by_rounding(tmp_path / "one", run_dir)
    for a, b in zip(lines(tmp_path / "one"), lines(run_dir), strict=True):
        for name in ("step", "loss", "grad_norm", "reward", "kl", "num_tokens"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
    assert state(run_dir)["exit_code"] == 0 and state(run_dir)["step"] == 3


@pytest.mark.parametrize("failing", [False, True])
def test_a_rank_ends_without_pythons_own_end(failing):
    """There a thread of gloo that still holds a tensor may abort the process; os.abort stands for it."""
    end = "raise UserError('a', 'b', 'c', 3)" if failing else "print('done')"
    set_up = "import atexit, os\nfrom grpo.base.errors import UserError, run_main\natexit.register(os.abort)"
    code = f"{set_up}\ndef main(argv): {end}\nrun_main(main)"
    environment = {**os.environ, "WORLD_SIZE": "2", "PYTHONPATH": os.pathsep.join(PATHS)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == ((3, "") if failing else (0, "done\n"))
    assert ("error: a" in ended.stderr) == failing


def test_what_a_step_sends_is_the_gradient_and_the_weights_once_per_update_and_little_else(
    processes, chat_checkpoint, tmp_path
):
    """Two updates per step. Every other thing that is sent is counted, too."""
    keys = {"num_iterations": 2, "max_steps": 3, "save_steps": 0, "max_completion_length": 64, "lora_r": 16}
    config = write_config(tmp_path, chat_checkpoint, reward_funcs=["fakes:mixed"], **keys)
    children = start(processes, config, setup="counts_what_is_sent", SENT=str(tmp_path / "sent"))
    assert ends(children) == [0, 0], children[0].stderr
    steps = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines()]
    adapter = sum(tensor.numel() for tensor in weights(tmp_path / "run").values())
    gradient_bytes = 4 * adapter
    tokens = [8 * line["completions/mean_length"] for line in lines(tmp_path / "run")]  # of a rank's 8 completions
    for sent, num_tokens in zip(steps[1:], tokens[1:], strict=True):  # the first has the set-up, too
        others = [size for size in sent if size != gradient_bytes]
        assert len(sent) - len(others) == 4 and sum(others) < 64 * num_tokens + 10_000 * 8
    # Of two ranks, each sends half of the gradient to be summed, and half of the new weights.
    assert f"2 processes; each sends {gradient_bytes / 1e6:.1f} MB per update to other replicas" in children[0].stderr


# --- machines that are not alike -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["configuration", "shards", "data", "base weights", "torch", "program"])
def test_machines_that_do_not_agree_are_told_before_the_first_step(processes, chat_checkpoint, tmp_path, kind):
    """Each names what differs, and on which rank of which host; all end with exit 2."""
    config = write_config(tmp_path, chat_checkpoint)
    shutil.copytree(chat_checkpoint, tmp_path / "model")
    with open(tmp_path / "model" / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    rows = (tmp_path / "questions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(rows[1:]))
    unlike = {
        "configuration": (["beta=0.5"], "", "beta: 0.01 on rank 0"),
        "shards": (["tensor_parallel_size=2"], "", "tensor_parallel_size: 1 on rank 0"),
        "data": ([f"dataset_id_or_path={tmp_path / 'other.jsonl'}"], "", "dataset: "),
        "base weights": ([f"model_name_or_path={tmp_path / 'model'}"], "", "base_weights: "),
        "torch": ([], "another_torch_on_rank_1", "torch: "),
        "program": ([], "another_program_on_rank_1", "grpo: "),
    }
    overrides, setup, told = unlike[kind]
    children = start(processes, config, of_rank_1=overrides, setup=setup)
    assert ends(children) == [2, 2], children[0].stderr
    for child in children:
        assert is_message(child.stderr) and told in child.stderr, child.stderr
        assert child.stderr.count("on rank 1") == 1 and f"on rank 1 ({socket.gethostname()})" in child.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_machine_that_does_not_see_the_checkpoint_is_told(processes, chat_checkpoint, tmp_path):
    """Its output directory is not on the storage of rank 0; or it is, and holds another checkpoint of that name."""
    config = write_config(tmp_path, chat_checkpoint, max_steps=2)
    assert ends(start(processes, config)) == [0, 0]
    resume = ["resume_from_checkpoint=true", "max_steps=3"]
    for content in ("none", "other"):
        children = start(processes, config, *resume, of_rank_1=[f"output_dir={tmp_path / 'local'}"])
        assert children[1].wait() == 6 and is_message(children[1].stderr), content
        assert "to a folder of storage that all machines share" in children[1].stderr
        assert children[0].wait() == 1
        (tmp_path / "local" / "checkpoint-2").mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / "checkpoint-2" / "manifest.json").write_text("{}")
    assert not checkpoint.problem_with(tmp_path / "run" / "checkpoint-2")
    assert ends(start(processes, config, *resume)) == [0, 0]
