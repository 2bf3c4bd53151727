"""Two processes on this machine: the same training as one, one end for both, and no waiting for the dead."""

import json
import re
import sys
from signal import SIGKILL, SIGTERM

import pytest
import torch
from asking import until
from making import build_base, free_port
from running import TIMEOUT_S
from safetensors.torch import load_file

METRICS = ("loss", "grad_norm", "reward", "reward_std", "entropy", "kl", "num_tokens", "completions/mean_length")
SENTENCES = {
    "credit": "sentence",
    "reward_funcs": ["fakes:mixed", "factuality"],
    "reward_weights": [1, 0],
    "decomposer": "rules",
    "verifier": "lexical",
}


@pytest.mark.parametrize(
    ("keys", "setup"),
    [
        ({}, ""),
        ({"loss_type": "grpo", "scale_rewards": "batch"}, ""),
        ({"reward_funcs": ["fakes:tied"], "beta": 0.0}, ""),
        (SENTENCES, "judged"),
    ],
    ids=["dapo", "grpo", "tied", "credit"],
)
def test_two_ranks_train_what_one_trains(make_run, tmp_path, keys, setup):
    """The same global batch gives the same completions, and weights that differ by rounding: the order of the sums is
    another."""
    keys = {"reward_funcs": ["fakes:mixed"], "save_steps": 0, "max_steps": 3, **keys}
    if setup:
        keys["knowledge_base"] = str(build_base(tmp_path, {"Velda": "Velda is a city."}))
    one, two = (make_run(f"batch_{size}", per_device_train_batch_size=size, **keys) for size in (16, 8))
    one.train(setup=setup)
    two.train_ranks(setup=setup)
    assert one.differs_by_rounding(two)
    for a, b in zip(one.lines, two.lines, strict=True):
        measured = [*(name for name in METRICS if name in a), *(["credit/changed_frac"] if setup else [])]
        assert len(measured) >= len(METRICS) - (keys.get("beta") == 0)  # without a KL
        for key in measured:
            assert a[key] == pytest.approx(b[key], rel=1e-4, abs=1e-6), key
    first, second = (sorted(row["completion"] for row in run.rows(3)) for run in (one, two))
    assert first == second


def test_one_process_makes_a_step_of_two_ranks_again(make_run):
    """All answers, token by token; metrics differ by rounding at most, which is told."""
    run = make_run(reward_funcs=["fakes:mixed"], save_steps=2, logging_steps=1)
    run.train_ranks()
    replay = run.processes.start("grpo.replay", run.folder, 4, "--json")
    assert replay.wait() in (0, 1), replay.stderr  # 1: a sum in another order differs in its last bits
    found = json.loads(replay.stdout)
    assert found["start"] == 2 and found["num_same"] == found["num_recorded"] == 16
    assert found["grad_norm"] == pytest.approx(run.lines[3]["grad_norm"], rel=1e-5)
    assert found["num_equal"] >= found["num_compared"] - len(found["notes"]) > 0
    assert all(re.match("(loss|grad_norm|kl|entropy|sampler/[a-z_]+) was ", note) for note in found["notes"])
    assert sum(answer["share"] for answer in found["answers"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("rank", "keys"), [
    ("0", {"scale_rewards": "batch", "dynamic_sampling": True, "dynamic_sampling_max_rollouts": 1}),
    ("1", {"beta": 0.0}),
])  # fmt: skip
def test_a_rank_that_has_nothing_to_train_does_not_hold_up_the_other(make_run, rank, keys):
    """It keeps no group, and takes part in the scale of the batch; or computes no log-prob, in both iterations."""
    run = make_run(reward_funcs=["fakes:mixed_on_one_rank"], num_iterations=2, save_steps=0, max_steps=2, **keys)
    run.train_ranks(MIXED_ON=rank)
    for line in run.lines:
        assert line["grad_norm"] > 0 and line["micro_batches"] > 0 and line["entropy"] > 0
        if rank == "0":
            assert line["sampling/kept_frac"] == 0.5
        else:
            assert line["completions/trained_frac"] == pytest.approx(0.5, abs=0.2)


def test_a_signal_to_one_rank_stops_both_at_the_same_step(make_run):
    run = make_run(max_steps=100_000, save_steps=0)
    children = run.start_ranks()
    children[0].until(lambda: run.lines)
    children[1].signal(SIGTERM)  # not to rank 0, which owns the checkpoint
    for child in children:
        child.ends(143)
    assert run.saved_step(exit_code=143) > 0


def test_two_ranks_drop_an_endless_rollout_together(make_run, tmp_path):
    """Rank 1 samples for an hour; rank 0 waits for it. Resumed, it ends in the weights of an undisturbed run."""
    run, whole = (make_run(name, save_steps=0) for name in ("run", "whole"))
    children = run.start_ranks(setup="short_grace endless_generation@1", GENERATING=str(tmp_path / "generating"))
    children[0].until((tmp_path / "generating").exists)
    for child in children:
        child.signal(SIGTERM)
    for child in children:
        child.ends(143)
    assert run.saved_step(exit_code=143) == 3
    run.train_ranks("resume_from_checkpoint=true")
    whole.train_ranks()
    assert run.equals(whole)


def test_every_rank_goes_on_with_its_own_generators(make_run):
    keys = {"reward_funcs": ["fakes:drawn"], "per_device_train_batch_size": 4}
    whole, parts = (make_run(name, **keys) for name in ("whole", "parts"))
    whole.train_ranks()
    parts.train_ranks("max_steps=2")
    generators = json.loads((parts.checkpoint(2) / "trainer_state.json").read_text())["rng"]
    assert len(generators) == 2
    for kind in ("python", "numpy", "torch"):  # otherwise rank 0's would do for both
        assert generators[0][kind] != generators[1][kind]
    parts.train_ranks("resume_from_checkpoint=true")
    assert whole.equals(parts)


def test_when_a_rank_is_killed_the_other_ends_and_says_so(make_run):
    run = make_run()
    first, second = run.start_ranks(setup="dies_in_a_step@1")
    second.ends(-SIGKILL)
    first.ends(1, 600)  # and does not wait for the 30 minutes of a process group
    assert "error: another process of this run has ended" in first.stderr
    assert run.saved_step(exit_code=1) == 2
    run.train_ranks("resume_from_checkpoint=true")


def test_a_rank_that_fails_alone_leaves_its_reason(make_run):
    """Here a user's reward raises on rank 1 only: it ends, rank 0 follows, and the reason is in the directory."""
    run = make_run(reward_funcs=["fakes:fails_on_rank_1"])
    run.train_ranks(code=1)
    note = json.loads((run.folder / "run_state.rank1.json").read_text())
    assert note["exit_code"] == 1
    assert "boom on rank 1" in note["reason"]
    assert "another process of this run has ended" in run.state["reason"]


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_both(make_run):
    run = make_run(beta=0.0, max_steps=3, save_total_limit=0)
    run.train_ranks(setup="bad_logits@1")
    assert [row["grad_norm"] is None for row in run.lines] == [False, True, False]
    assert [row["skipped_steps"] for row in run.lines] == [0, 1, 1]
    before, after = (load_file(run.checkpoint(step) / "state.safetensors")["optimizer.master"] for step in (1, 2))
    assert torch.equal(before, after)


def test_torchrun_ends_all_ranks_on_sigterm(make_run):
    """The real launcher."""
    run = make_run(max_steps=100_000, save_steps=0)
    launcher = "-m torch.distributed.run --nproc-per-node 2 --master-addr 127.0.0.1 --master-port"
    child, stderr = run.start_alone(sys.executable, *launcher.split(), free_port(), "-m", "grpo.train")
    assert until(lambda: run.lines or child.poll() is not None) and run.lines, stderr.read_text()[-2000:]
    child.terminate()
    assert child.wait(TIMEOUT_S) != 0
    assert run.saved_step(exit_code=143) > 0
