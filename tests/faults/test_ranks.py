"""Two processes on this machine: the same training as one, one end for both, and no waiting for the dead."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from making import build_base, free_port
from running import PATHS, TIMEOUT_S, differ_by_rounding, lines, same_weights, state, write_config
from safetensors.torch import load_file

from grpo.run import checkpoint

METRICS = ("loss", "grad_norm", "reward", "reward_std", "entropy", "kl", "num_tokens", "completions/mean_length")


def start(processes, config, *overrides, of_rank_1=(), **more):
    """Both ranks of a run. of_rank_1: overrides of the second alone."""
    more |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        processes.start("grpo.train", config, *overrides, *own, RANK=str(rank), LOCAL_RANK=str(rank), **more)
        for rank, own in enumerate(((), of_rank_1))
    ]


def ends(children) -> list[int]:
    return [child.wait() for child in children]


def test_two_ranks_train_what_one_trains(processes, chat_checkpoint, tmp_path):
    """The same global batch gives the same completions, and weights that differ by rounding: the order of the sums is
    another."""
    sentences = {
        "credit": "sentence",
        "reward_funcs": ["fakes:mixed", "factuality"],
        "reward_weights": [1, 0],
        "knowledge_base": str(build_base(tmp_path, {"Velda": "Velda is a city."})),
        "decomposer": "rules",
        "verifier": "lexical",
    }
    variants = {"dapo": {}, "grpo": {"loss_type": "grpo", "scale_rewards": "batch"}, "credit": sentences}
    for name, keys in variants.items():
        keys = {"reward_funcs": ["fakes:mixed"], "save_steps": 0, "max_steps": 3, **keys}
        one = write_config(tmp_path, chat_checkpoint, f"one_{name}", **{**keys, "per_device_train_batch_size": 16})
        two = write_config(tmp_path, chat_checkpoint, f"two_{name}", **{**keys, "per_device_train_batch_size": 8})
        setup = "judged" if name == "credit" else ""
        assert processes.train(one, setup=setup).code == 0
        children = start(processes, two, setup=setup)
        assert ends(children) == [0, 0], children[1].stderr
        assert differ_by_rounding(tmp_path / f"one_{name}", tmp_path / f"two_{name}")
        for a, b in zip(lines(tmp_path / f"one_{name}"), lines(tmp_path / f"two_{name}"), strict=True):
            for key in (*METRICS, *(["credit/changed_frac"] if name == "credit" else [])):
                assert a[key] == pytest.approx(b[key], rel=1e-4, abs=1e-6), key
        rows = [
            sorted((tmp_path / f"{kind}_{name}" / "completions" / "step-000003.jsonl").read_text().splitlines())
            for kind in ("one", "two")
        ]
        assert [json.loads(row)["completion"] for row in rows[0]] == [json.loads(row)["completion"] for row in rows[1]]


def test_a_rank_without_groups_does_not_hold_up_the_other(processes, chat_checkpoint, tmp_path):
    """Dynamic sampling keeps nothing of rank 1, whose rewards the scale of the whole batch waits for all the same."""
    keys = {"scale_rewards": "batch", "dynamic_sampling": True, "dynamic_sampling_max_rollouts": 1, "num_iterations": 2}
    config = write_config(
        tmp_path, chat_checkpoint, reward_funcs=["fakes:mixed_on_rank_0"], save_steps=0, max_steps=2, **keys
    )
    assert ends(start(processes, config)) == [0, 0]
    assert [line["sampling/kept_frac"] for line in lines(tmp_path / "run")] == [0.5, 0.5]
    assert all(line["grad_norm"] > 0 for line in lines(tmp_path / "run"))


def test_a_signal_to_one_rank_stops_both_at_the_same_step(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, max_steps=100_000, save_steps=0)
    children = start(processes, config)
    children[0].until(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and lines(tmp_path / "run"))
    children[1].signal(signal.SIGTERM)  # not to rank 0, which owns the checkpoint
    assert ends(children) == [143, 143]
    found = state(tmp_path / "run")
    assert found["exit_code"] == 143 and found["last_checkpoint"] == f"checkpoint-{found['step']}" and found["step"] > 0
    assert not checkpoint.problem_with(tmp_path / "run" / found["last_checkpoint"])


def test_two_ranks_drop_an_endless_rollout_together(processes, chat_checkpoint, tmp_path):
    """Rank 1 samples for an hour; rank 0 waits for it. Resumed, it ends in the weights of an undisturbed run."""
    keys = {"save_steps": 0, "max_steps": 4}
    config = write_config(tmp_path, chat_checkpoint, **keys)
    children = start(processes, config, setup="endless_generation_on_rank_1", GENERATING=str(tmp_path / "generating"))
    children[0].until((tmp_path / "generating").exists)
    for child in children:
        child.signal(signal.SIGTERM)
    assert ends(children) == [143, 143]
    assert state(tmp_path / "run")["last_checkpoint"] == "checkpoint-3"
    children = start(processes, config, "resume_from_checkpoint=true")
    assert ends(children) == [0, 0], children[0].stderr
    children = start(processes, write_config(tmp_path, chat_checkpoint, "whole", **keys))
    assert ends(children) == [0, 0]
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_every_rank_goes_on_with_its_own_generators(processes, chat_checkpoint, tmp_path):
    keys = {"reward_funcs": ["fakes:drawn"], "per_device_train_batch_size": 4}
    assert ends(start(processes, write_config(tmp_path, chat_checkpoint, "whole", **keys))) == [0, 0]
    config = write_config(tmp_path, chat_checkpoint, "parts", **keys)
    assert ends(start(processes, config, "max_steps=2")) == [0, 0]
    generators = json.loads((tmp_path / "parts" / "checkpoint-2" / "trainer_state.json").read_text())["rng"]
    assert len(generators) == 2
    for kind in ("python", "numpy", "torch"):  # otherwise rank 0's would do for both
        assert generators[0][kind] != generators[1][kind]
    assert ends(start(processes, config, "resume_from_checkpoint=true")) == [0, 0]
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_when_a_rank_is_killed_the_other_ends_and_says_so(processes, chat_checkpoint, tmp_path):
    children = start(processes, write_config(tmp_path, chat_checkpoint), setup="dies_in_a_step")
    assert children[1].wait() == -signal.SIGKILL
    assert children[0].wait(600) == 1  # and does not wait for the 30 minutes of a process group
    assert "error: another process of this run has ended" in children[0].stderr
    assert "Traceback" not in children[0].stderr
    found = state(tmp_path / "run")
    assert found["exit_code"] == 1 and found["last_checkpoint"] == "checkpoint-2"
    assert not checkpoint.problem_with(tmp_path / "run" / "checkpoint-2")
    children = start(processes, tmp_path / "run.yaml", "resume_from_checkpoint=true")
    assert ends(children) == [0, 0]


def test_a_rank_that_fails_alone_leaves_its_reason(processes, chat_checkpoint, tmp_path):
    """Here a user's reward raises on rank 1 only: it ends, rank 0 follows, and the reason is in the directory."""
    children = start(processes, write_config(tmp_path, chat_checkpoint, reward_funcs=["fakes:fails_on_rank_1"]))
    assert ends(children) == [1, 1]
    note = json.loads((tmp_path / "run" / "run_state.rank1.json").read_text())
    assert note["exit_code"] == 1 and "boom on rank 1" in note["reason"]
    assert "another process of this run has ended" in state(tmp_path / "run")["reason"]


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_both(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, beta=0.0, max_steps=3, save_total_limit=0)
    assert ends(start(processes, config, setup="bad_logits_on_rank_1")) == [0, 0]
    rows = lines(tmp_path / "run")
    assert [row["grad_norm"] is None for row in rows] == [False, True, False]
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1]
    before, after = (
        load_file(tmp_path / "run" / f"checkpoint-{n}" / "state.safetensors")["optimizer.master"] for n in (1, 2)
    )
    assert torch.equal(before, after)


def test_torchrun_ends_all_ranks_on_sigterm(processes, chat_checkpoint, tmp_path):
    """The real launcher."""
    config = write_config(tmp_path, chat_checkpoint, max_steps=100_000, save_steps=0)
    shared = {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launcher = "-m torch.distributed.run --nproc-per-node 2 --master-addr 127.0.0.1 --master-port"
    command = [sys.executable, *launcher.split(), free_port(), "-m", "grpo.train", config]
    with open(tmp_path / "stderr", "w") as stderr:
        child = subprocess.Popen(command, env=os.environ | shared, stdout=stderr, stderr=stderr)
    deadline = time.monotonic() + TIMEOUT_S
    while not ((tmp_path / "run" / "metrics.jsonl").exists() and lines(tmp_path / "run")):
        assert child.poll() is None and time.monotonic() < deadline, (tmp_path / "stderr").read_text()[-2000:]
        time.sleep(0.1)
    child.terminate()
    assert child.wait(TIMEOUT_S) != 0
    found = state(tmp_path / "run")
    assert found["exit_code"] == 143 and found["last_checkpoint"] == f"checkpoint-{found['step']}"
