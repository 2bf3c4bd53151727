"""Steps that are not finite, and services that end for good."""

import json
import shutil
import signal

import pytest
import torch
from api_server import ApiServer, fails, says
from running import is_message, lines, state, write_config
from safetensors.torch import load_file, save_file

from grpo.run import checkpoint


def master(run_dir, step):
    return load_file(run_dir / f"checkpoint-{step}" / "state.safetensors")


def rows_of(run_dir, step):
    return [json.loads(line) for line in (run_dir / "completions" / f"step-{step:06d}.jsonl").read_text().splitlines()]


INJECTED = {
    "NaN logits": ({"beta": 0.0}, {"setup": "bad_logits"}),
    "NaN logits while sampling": ({"beta": 0.0}, {"setup": "bad_logits_while_sampling"}),
    "infinite gradient": ({}, {"setup": "bad_gradient"}),
}


@pytest.mark.parametrize("kind", INJECTED)
def test_a_step_that_is_not_finite_is_skipped_whole_and_put_on_record(processes, chat_checkpoint, tmp_path, kind):
    """In step 2 of 4. Its batch is written down although completions are not logged."""
    keys, environment = INJECTED[kind]
    config = write_config(tmp_path, chat_checkpoint, save_total_limit=0, log_completions=False, **keys)
    child = processes.train(config, **environment)
    assert child.code == 0, child.stderr
    found, run_dir = lines(tmp_path / "run"), tmp_path / "run"
    assert [row["skipped_steps"] for row in found] == [0, 1, 1, 1] and found[1]["grad_norm"] is None
    for name, value in master(run_dir, 1).items():  # weights and both moments
        assert torch.equal(value, master(run_dir, 2)[name]), name
    assert not torch.equal(master(run_dir, 2)["optimizer.master"], master(run_dir, 3)["optimizer.master"])
    assert all(bool(value.isfinite().all()) for value in master(run_dir, 4).values())
    assert [path.name for path in (run_dir / "completions").iterdir()] == ["step-000002.jsonl"]
    assert len(rows_of(run_dir, 2)) == 8


def test_three_such_steps_in_a_row_end_the_run_with_exit_5(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, max_steps=8)
    child = processes.train(config, setup="bad_gradient", BAD_STEPS="2,3,5,6,7")
    assert child.code == 5 and is_message(child.stderr) and state(tmp_path / "run")["exit_code"] == 5
    found = lines(tmp_path / "run")
    assert [row["grad_norm"] is None for row in found] == [False, True, True, False, True, True, True]


@pytest.mark.parametrize("value", ["nan", "inf", "1e308"])
def test_a_reward_that_is_not_finite_is_unscorable_and_no_step_is_lost(processes, chat_checkpoint, tmp_path, value):
    """Of one group in step 2, and of both in step 3, which then has no mean reward."""
    config = write_config(tmp_path, chat_checkpoint, reward_funcs=["fakes:not_finite"], beta=0.0)
    child = processes.train(config, BAD_GROUPS="3,5,6", BAD_VALUE=value)
    assert child.code == 0 and child.stderr.count("warning: the reward fakes:not_finite returned") == 1, child.stderr
    found = lines(tmp_path / "run")
    assert [row["rewards/fakes:not_finite/unscored_frac"] for row in found] == [0, 0.5, 1, 0]
    assert [row["skipped_steps"] for row in found] == [0] * 4 and found[1]["grad_norm"] > 0 == found[2]["grad_norm"]
    assert [("reward" in row, "rewards/fakes:not_finite/mean" in row) for row in found] == [
        (step != 2, step != 2) for step in range(4)
    ]
    bad = [row for row in rows_of(tmp_path / "run", 2) if row["reward"] is None]
    assert len(bad) == 4 and all(row["advantage"] == 0 for row in bad)
    assert f"the reward returned {float(value)}" in bad[0]["reasons"]["fakes:not_finite"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_of_a_model_whose_logits_are_not_finite_are_no_result(
    processes, chat_checkpoint, tmp_path, temperature
):
    """All its weights are finite. Without a sign, it would look like a model that answers all questions wrong."""
    shutil.copytree(chat_checkpoint, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.weight"].fill_(3e38)
    save_file(tensors, path, {"format": "pt"})
    config = write_config(tmp_path, tmp_path / "model")
    data, sampling = tmp_path / "questions.jsonl", ["--temperature", temperature]
    commands = [
        ("grpo.evaluate", tmp_path / "model", "--data", data, "--reward", "math", *sampling),
        ("grpo.generate", tmp_path / "model", "--prompt", "x", *sampling),
        ("grpo.generate", tmp_path / "model", "--prompt", "x", "--n", 2, *sampling),
    ]
    commands += [("grpo.train", config, "eval_size=4")] if temperature == 0 else []
    for command in commands:
        child = processes.start(*command)
        assert child.wait() == 5 and is_message(child.stderr), command
        assert "the model's logits are not finite" in child.stderr and "accuracy" not in child.stdout
    child = processes.start("grpo.doctor", config)
    assert child.wait() and "the model's logits are not finite" in child.stdout + child.stderr


def framed(server, chat_checkpoint, tmp_path, **keys):
    judged = {"reward_funcs": ["correctness"], "judge_model": "m", "judge_base_url": server.url, "save_steps": 0}
    return write_config(tmp_path, chat_checkpoint, **judged | keys)


QUOTA = fails(429, code="insufficient_quota")


@pytest.mark.parametrize(
    ("failure", "word"),
    [(fails(401), "401"), (fails(403), "403"), (fails(404), "404"), (QUOTA, "quota")],
    ids=["401", "403", "404", "quota"],
)
def test_what_only_the_user_can_mend_saves_and_ends_with_exit_4(processes, chat_checkpoint, tmp_path, failure, word):
    """In the third step, after the preflight and 20 good replies; mended, the run goes on from where it was."""
    key = {"OPENAI_API_KEY_JUDGE": "canary-key", "setup": "talkative"}
    with ApiServer(*[says("A")] * 5, *[says("B")] * 15, default=failure) as server:
        child = processes.train(framed(server, chat_checkpoint, tmp_path), **key)
    assert child.code == 4 and is_message(child.stderr) and word in child.stderr, child.stderr
    found = state(tmp_path / "run")
    assert found["last_checkpoint"] == f"checkpoint-{found['step']}" and 1 <= found["step"] < 4
    assert not checkpoint.problem_with(tmp_path / "run" / found["last_checkpoint"])
    with ApiServer(default=says("A")) as server:
        where = f"judge_base_url={server.url}"
        assert processes.train(tmp_path / "run.yaml", "resume_from_checkpoint=true", where, **key).code == 0
    told = lines(tmp_path / "run")
    assert [row["step"] for row in told] == [1, 2, 3, 4]
    assert [row["epoch"] for row in told] == pytest.approx([told[0]["epoch"] * step for step in (1, 2, 3, 4)])


def good_until_step_1_is_on_record(run_dir):
    """However many requests that takes: completions that are the same are asked about once."""

    async def behave(server, request, writer):
        log = run_dir / "metrics.jsonl"
        await (fails(400) if log.exists() and log.stat().st_size else says("A"))(server, request, writer)

    return behave


def test_an_outage_is_no_reward_and_ends_the_run_after_three_steps(processes, chat_checkpoint, tmp_path):
    """The service fails for good after step 1: every later row is unscorable with the reason, has advantage 0, and is
    in no mean."""
    with ApiServer(default=good_until_step_1_is_on_record(tmp_path / "run")) as server:
        config = framed(server, chat_checkpoint, tmp_path, max_steps=9, beta=0.0)
        child = processes.train(config, OPENAI_API_KEY_JUDGE="canary-key", setup="talkative")
    assert child.code == 4 and is_message(child.stderr) and "unscored_frac was above 20%" in child.stderr
    rows = [row for step in (2, 3, 4) for row in rows_of(tmp_path / "run", step)]
    assert len(rows) == 24 and all("400" in row["reasons"]["correctness"] for row in rows)
    assert all(row["reward"] is None and row["advantage"] == 0 for row in rows)
    found = lines(tmp_path / "run")
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    assert all(row["grad_norm"] == row["advantage_abs_mean"] == 0 for row in found[1:])
    assert all(not {"reward", "rewards/correctness/mean"} & set(row) for row in found[1:])
    assert state(tmp_path / "run")["last_checkpoint"] == "checkpoint-4"


def test_wait_policy(processes, chat_checkpoint, tmp_path):
    """max_unscored: 1 goes on through an outage instead of stopping; what is killed meanwhile resumes."""
    with ApiServer(default=good_until_step_1_is_on_record(tmp_path / "run")) as server:
        config = framed(server, chat_checkpoint, tmp_path, max_steps=6, max_unscored=1.0, save_steps=1)
        key = {"OPENAI_API_KEY_JUDGE": "canary-key", "setup": "talkative"}
        assert processes.train(config, FAILPOINT="step-graded:5", **key).code == -signal.SIGKILL
        server.default = says("A")
        assert processes.train(config, "resume_from_checkpoint=true", **key).code == 0
    assert state(tmp_path / "run")["step"] == 6
