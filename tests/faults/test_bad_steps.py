"""Steps that are not finite, and services that end for good."""

import shutil

import pytest
import torch
from api_server import ApiServer, fails, says
from running import JUDGED
from safetensors.torch import load_file, save_file


def master(run, step):
    return load_file(run.checkpoint(step) / "state.safetensors")


@pytest.mark.parametrize(
    ("setup", "beta"), [("bad_logits", 0.0), ("bad_logits_while_sampling", 0.0), ("bad_gradient", 0.01)]
)
def test_a_step_that_is_not_finite_is_skipped_whole_and_put_on_record(make_run, setup, beta):
    """In step 2 of 4. Its batch is written down although completions are not logged."""
    run = make_run(save_total_limit=0, log_completions=False, beta=beta)
    run.train(setup=setup)
    assert [row["skipped_steps"] for row in run.lines] == [0, 1, 1, 1]
    assert run.lines[1]["grad_norm"] is None
    for name, value in master(run, 1).items():  # weights and both moments
        assert torch.equal(value, master(run, 2)[name]), name
    assert not torch.equal(master(run, 2)["optimizer.master"], master(run, 3)["optimizer.master"])
    assert all(bool(value.isfinite().all()) for value in master(run, 4).values())
    assert [path.name for path in (run.folder / "completions").iterdir()] == ["step-000002.jsonl"]
    assert len(run.rows(2)) == 8


@pytest.mark.parametrize(
    ("setup", "dtype", "bad"), [("bad_gradient", "float32", [2, 3, 5, 6, 7]), ("bad_logits", "float16", [3, 4, 5])]
)
def test_three_such_steps_in_a_row_end_the_run_with_exit_5(make_run, setup, dtype, bad):
    """In float16, too, where no loss scale would help and every update would be skipped until the end."""
    run = make_run(max_steps=9, torch_dtype=dtype, beta=0.0)
    run.train(setup=setup, BAD_STEPS=",".join(map(str, bad)), code=5)
    assert [row["step"] for row in run.lines if row["grad_norm"] is None] == bad


@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_of_a_model_whose_logits_are_not_finite_are_no_result(make_run, chat_checkpoint, tmp_path, temperature):
    """All its weights are finite. Without a sign, it would look like a model that answers all questions wrong."""
    model = tmp_path / "model"
    shutil.copytree(chat_checkpoint, model)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"].fill_(3e38)
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    run = make_run(model=model)
    sampling = ["--temperature", temperature]
    commands = [
        ("grpo.evaluate", model, "--data", tmp_path / "questions.jsonl", "--reward", "math", *sampling),
        ("grpo.generate", model, "--prompt", "x", *sampling),
    ]
    commands += [("grpo.train", run.config, "eval_size=4")] if temperature == 0 else []
    for command in commands:
        child = run.processes.start(*command).ends(5)
        assert "the model's logits are not finite" in child.stderr
        assert "accuracy" not in child.stdout
    child = run.processes.start("grpo.doctor", run.config)
    assert child.wait()
    assert "the model's logits are not finite" in child.stdout + child.stderr


# --- services ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure, word", [(fails(401), "401"), (fails(429, code="insufficient_quota"), "quota")])
def test_what_only_the_user_can_mend_saves_and_ends_with_exit_4(judged_run, failure, word):
    """In the third step, after the preflight and 20 good replies; mended, the run goes on from where it was. (What else
    is like 401: rewards/test_providers.py.)"""
    with ApiServer(*[says("A")] * 5, *[says("B")] * 15, default=failure) as server:
        run = judged_run(server, save_steps=0)
        child = run.train(code=4, **JUDGED)
    assert word in child.stderr
    assert 1 <= run.saved_step(exit_code=4) < 4
    with ApiServer(default=says("A")) as server:
        run.resume(f"judge_base_url={server.url}", **JUDGED)
    assert run.steps == [1, 2, 3, 4]
    epochs = [row["epoch"] for row in run.lines]
    assert epochs == pytest.approx([epochs[0] * step for step in (1, 2, 3, 4)])


def good_until_step_1_is_on_record(log):
    """However many requests that takes: completions that are the same are asked about once."""

    async def behave(server, request, writer):
        await (fails(400) if log.exists() and log.stat().st_size else says("A"))(server, request, writer)

    return behave


def test_an_outage_is_no_reward_and_ends_the_run_after_three_steps_unless_it_shall_go_on(judged_run, tmp_path):
    """The service fails for good after step 1: every later row is unscorable with the reason, has advantage 0, and is
    in no mean. With max_unscored: 1 the run goes on through it."""
    with ApiServer(default=good_until_step_1_is_on_record(tmp_path / "run" / "metrics.jsonl")) as server:
        run = judged_run(server, max_steps=9, save_steps=0, beta=0.0)
        child = run.train(code=4, **JUDGED)
        assert run.saved_step(exit_code=4) == 4
        server.script.append(says("A"))  # before the first step
        run.resume("max_unscored=1", **JUDGED)
    assert "unscored_frac was above 20%" in child.stderr
    rows = [row for step in (2, 3, 4) for row in run.rows(step)]
    assert len(rows) == 24
    for row in rows:
        assert "400" in row["reasons"]["correctness"]
        assert row["reward"] is None
        assert row["advantage"] == 0
    assert run.steps == [*range(1, 10)]
    for row in run.lines[1:]:
        assert row["grad_norm"] == row["advantage_abs_mean"] == 0
        assert not {"reward", "rewards/correctness/mean"} & set(row)
