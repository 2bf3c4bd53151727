"""Whole runs of stage 2: they learn, they resume bit for bit, they write what they promise."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial

import pytest
import reward_functions
from making import flip_last_bit, read_lines, refused, run_state, same_tensors, write_rows

import grpo.engine.model.memory
from grpo.algorithm.optimizer import Optimizer
from grpo.base.errors import Interrupted, UserError
from grpo.config.load import load_config
from grpo.engine.device import kernel_choice
from grpo.run.saved import find_saved
from grpo.train import train

QUESTIONS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(8) for b in range(4)]
EASY = {
    "reward_funcs": ["reward_functions:early_letters"],
    "num_generations": 4,
    "per_device_train_batch_size": 16,
    "max_completion_length": 12,
    "lora_r": 8,
    "lora_alpha": 16,
    "learning_rate": 5e-3,
    "max_steps": 3,
    "save_steps": 0,
    "lr_scheduler_type": "constant",
    "beta": 0.01,
    "report_to": ["none"],
    "disable_tqdm": True,
}


def configured(folder, checkpoint, name="run", **keys):
    """The configuration of a run with EASY and the given keys, and its notices."""
    keys = {
        **EASY,
        "model_name_or_path": str(checkpoint),
        "dataset_id_or_path": str(write_rows(folder / "questions.jsonl", QUESTIONS)),
        "output_dir": str(folder / name),
        **keys,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(keys))
    return load_config(folder / f"{name}.yaml")


def run(folder, checkpoint, name="run", **keys):
    """Trains; returns the lines of metrics.jsonl."""
    train(*configured(folder, checkpoint, name, **keys))
    return metrics(folder / name)


def metrics(folder):
    return read_lines(folder / "metrics.jsonl")


def completions(folder, step):
    """The rows of the completions that a step has logged."""
    return read_lines(folder / "completions" / f"step-{step:06d}.jsonl")


@pytest.fixture
def trained(tmp_path, chat_checkpoint):
    """Trains the chat checkpoint with these keys; returns the lines of metrics.jsonl."""
    return partial(run, tmp_path, chat_checkpoint)


ADAPTER = "final/adapter_model.safetensors"


@pytest.mark.parametrize("keys", [
    {"lora_dropout": 0.1, "temperature": 0.8, "top_p": 0.9},
    {"lora_r": 0, "learning_rate": 1e-3, "num_iterations": 2},
    {"base_weights": "int8"},
], ids=["lora", "full", "int8"])  # fmt: skip
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path, trained, monkeypatch, keys):
    keys = keys | {"reward_funcs": ["reward_functions:stops_the_run"], "max_steps": 6}
    keys |= {"lr_scheduler_type": "cosine", "warmup_steps": 2}
    whole = trained("whole", **keys)
    monkeypatch.setenv("STOP_AFTER_GROUPS", "11")  # within step 3 of 4 groups each
    reward_functions.stops_the_run.calls = 0
    with pytest.raises(Interrupted) as stopped:
        trained("parts", **keys)
    assert stopped.value.exit_code == 143
    state = run_state(tmp_path / "parts")
    assert (state["status"], state["exit_code"], state["last_checkpoint"]) == ("interrupted", 143, "checkpoint-3")
    resumed = trained("parts", **keys, resume_from_checkpoint=True)
    assert same_tensors(*(next((tmp_path / name / "final").glob("*.safetensors")) for name in ("whole", "parts")))
    for a, b in zip(whole, resumed, strict=True):
        differ = {name for name in a | b if a.get(name) != b.get(name)}
        assert all(re.search("time|tokens_per_second|peak_memory", name) for name in differ), differ


def test_a_run_goes_on_from_any_checkpoint_in_a_directory_of_its_own(tmp_path, trained):
    """From its newest one it goes on where it is. A directory that holds another run is refused, or overwritten."""
    keys = {"save_steps": 1, "save_total_limit": 0}
    trained(**keys, max_steps=3)
    out, other = tmp_path / "run", {"name": "other", **keys, "learning_rate": 1e-2, "max_steps": 2}
    trained(**keys, max_steps=4, resume_from_checkpoint=str(out / "checkpoint-3"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.parent != out}
    older = str(out / "checkpoint-1")
    again = {**keys, "max_steps": 2, "resume_from_checkpoint": older}
    refused(lambda: trained(**again), "not the newest checkpoint", exit_code=2)
    assert {path: path.read_bytes() for path in before} == before
    trained(**other, resume_from_checkpoint=older)
    trained(**other, resume_from_checkpoint=older, overwrite_output_dir=True)
    found = sorted(path.name for path in (tmp_path / "other").glob("*-*"))
    assert found == ["checkpoint-1", "checkpoint-2"] and [line["step"] for line in metrics(tmp_path / "other")] == [2]


def test_a_resumed_run_keeps_its_micro_batches(tmp_path, trained, monkeypatch):
    """However much memory is free then: dropout's masks go by them."""
    keys = {"lora_dropout": 0.3, "save_steps": 1}
    tokens = iter((70, 70, 10_000))
    choose = grpo.engine.model.memory.choose_budget
    monkeypatch.setattr(
        grpo.engine.model.memory, "choose_budget", lambda *a, **k: replace(choose(*a, **k), tokens=next(tokens))
    )
    whole = trained("whole", **keys)
    trained(max_steps=2, **keys)
    resumed = trained(resume_from_checkpoint=True, **keys)
    assert [line["micro_batches"] for line in resumed] == [line["micro_batches"] for line in whole]
    assert same_tensors(*(tmp_path / name / ADAPTER for name in ("whole", "run")))


@pytest.mark.parametrize("keys", [
    {"mask_truncated_completions": True},
    {"torch_dtype": "bfloat16"},
    {"lora_target_modules": ["q_proj", "v_proj"], "gradient_checkpointing": True},
    {"delta": 1.5, "sampler_importance_sampling_correction": True, "num_iterations": 3},
], ids=str)  # fmt: skip
def test_options_that_no_twin_has_train(trained, keys):
    """What minimal.py has is compared with it."""
    lines = trained(**keys)
    assert len(lines) == 3 and lines[-1]["skipped_steps"] == 0
    assert all(line["grad_norm"] > 0 or line["completions/clipped_ratio"] == 1 for line in lines)


def test_clipping_is_seen_where_it_happens(trained):
    """A first pass has ratio 1; those after it are in the means, too."""
    once, often = (trained(f"{n}", num_iterations=n, learning_rate=2e-2, max_steps=2) for n in (1, 3))
    assert once[0]["clip_ratio/region_mean"] == 0 and often[0]["clip_ratio/region_mean"] > 0.05
    assert often[0]["kl"] > 1e-4 > abs(once[0]["kl"]) and often[0]["sampler/logp_diff_max"] <= 1e-5


def test_dynamic_sampling_keeps_groups_that_differ_and_moves_nothing_for_none(tmp_path, trained, monkeypatch):
    """By the outcome where a reward tells one; else by the rewards. A step that keeps nothing leaves the weights alone,
    momentum or not."""
    keys = {"reward_funcs": ["reward_functions:first_batch_only"], "save_steps": 1, "save_total_limit": 0}
    keys |= {"dynamic_sampling": True, "dynamic_sampling_max_rollouts": 1}
    monkeypatch.setattr(reward_functions.first_batch_only, "calls", 0)
    lines = trained(**keys)
    assert [line["sampling/kept_frac"] for line in lines] == [1.0, 0.0, 0.0]
    assert lines[0]["grad_norm"] > 0 and lines[1]["grad_norm"] == lines[2]["grad_norm"] == 0
    assert same_tensors(*(tmp_path / "run" / f"checkpoint-{step}" / "state.safetensors" for step in (1, 3)))


def test_the_output_directory(tmp_path, trained):
    """Its files, of which others may read what they may read of any."""
    keys = {"save_steps": 1, "save_total_limit": 2, "report_to": ["tensorboard"], "eval_steps": 2}
    held_out = str(write_rows(tmp_path / "held_out.jsonl", QUESTIONS[:6]))
    lines, folder = trained(**keys, eval_dataset_id_or_path=held_out), tmp_path / "run"
    promised = "config.resolved.yaml run_state.json metrics.jsonl tb completions debug.log final report.html evaluation"
    found = {path.name for path in folder.iterdir()}
    assert found >= {*promised.split(), "checkpoint-2", "checkpoint-3"} and "checkpoint-1" not in found
    state = run_state(folder)
    assert (state["status"], state["exit_code"], state["step"]) == ("done", 0, 3)
    assert [line["step"] for line in lines] == [0, 1, 2, 2, 3, 3] and "eval/mean_length" in lines[3]
    (row, *_) = completions(folder, 3)
    assert row["prompt"].endswith("<|im_start|>assistant\n") and list(folder.glob("tb/events*"))
    (tmp_path / "plain").touch()
    modes = {path.relative_to(folder): path.stat().st_mode for path in folder.rglob("*") if path.is_file()}
    assert set(modes.values()) == {(tmp_path / "plain").stat().st_mode}, modes


TYPOS = [
    {"tokenizer_name_or_path": "none"},
    {"lora_target_modules": ["q_prj"]},
    {"max_completion_length": 100_000},
    {"cold_start": "none.yaml"},
    {"toy_world": "arithmetic", "reward_funcs": ["none"]},
]


def test_a_typo_moves_no_run(tmp_path, trained):
    """What a start finds leaves the old run where it is, as it is; what ends step 1 leaves it in old-run/."""

    def found():
        files = (path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock")
        return {path: path.read_bytes() for path in files if path.name != "debug.log"}

    trained(max_steps=1)
    before = found()
    for typo in TYPOS:
        with pytest.raises(UserError):
            trained(overwrite_output_dir=True, **typo)
        assert found() == before, typo
    assert find_saved(str(tmp_path / "run")).name == str(tmp_path / "run" / "final")
    with pytest.raises(UserError):
        trained(overwrite_output_dir=True, reward_funcs=["reward_functions:raises"])
    assert find_saved(str(tmp_path / "run" / "old-run")).name == str(tmp_path / "run" / "old-run" / "final")
    trained(overwrite_output_dir=True, max_steps=1)
    assert not (tmp_path / "run" / "old-run").exists()


def test_weights_that_are_not_finite_are_never_saved(tmp_path, trained, monkeypatch):
    """An update that makes one of them NaN, though the gradient was finite."""
    step = Optimizer.step

    def poisoned(optimizer, *arguments):
        norm = step(optimizer, *arguments)
        optimizer.flat.values[-1] = float("nan")
        return norm

    monkeypatch.setattr(Optimizer, "step", poisoned)
    refused(lambda: trained(max_steps=2, save_steps=1), "weights are not finite", exit_code=5)
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_a_run_that_trains_nothing_says_so(tmp_path, trained, capsys):
    """All completions are cut off, and masked."""
    trained(mask_truncated_completions=True, max_completion_length=2, max_steps=2)
    shown = capsys.readouterr().err
    assert "step 1: 100% of the completions are cut off" in shown and "; nothing is trained on" in shown
    state = run_state(tmp_path / "run")
    assert state["exit_code"] == 0 and "no step has changed a weight" in state["reason"] and state["reason"] in shown


@pytest.mark.parametrize("keys", [{}, {"lora_r": 0}], ids=["lora", "full"])
def test_a_run_serves_as_a_model(tmp_path, trained, capsys, keys):
    """Its final/, of which an adapter is merged, and said; or its newest checkpoint, unless that holds no model."""
    trained("first", max_steps=1, **keys)
    run(tmp_path, tmp_path / "first", "second", max_steps=1)
    assert ("a new adapter of rank 8" in capsys.readouterr().err) == (not keys)
    weights = next((tmp_path / "first" / "final").glob("*.safetensors"))
    flip_last_bit(weights)

    def start_from_it():
        run(tmp_path, tmp_path / "first", "third", max_steps=1)

    refused(start_from_it, "is damaged", weights.name, exit_code=6)
    shutil.rmtree(tmp_path / "first" / "final")
    if keys:
        refused(start_from_it, "is a checkpoint of full fine-tuning")
    else:
        start_from_it()


def test_a_run_that_torchrun_restarts_goes_on_from_its_own_newest_checkpoint(tmp_path, trained, monkeypatch, capsys):
    """And only while it has none of its own, from the one that its configuration names."""
    keys = {"save_steps": 1, "max_completion_length": 4}
    trained("first", max_steps=1, **keys)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    other = tmp_path / "first" / "checkpoint-1"
    for max_steps, start, step in ((2, other, 1), (3, tmp_path / "second" / "checkpoint-2", 2)):
        capsys.readouterr()
        trained("second", max_steps=max_steps, resume_from_checkpoint=str(other), **keys)
        assert f"resuming from {start} at step {step}\n" in capsys.readouterr().err


def test_a_run_that_resumes_on_another_machine_says_so(trained, monkeypatch, capsys):
    """The kernels in C may be gone with their compiler, and bits with them. On the same machine nothing is said."""
    keys = {"max_completion_length": 4, "resume_from_checkpoint": True}
    trained("one", max_steps=1, max_completion_length=4)
    trained("one", max_steps=2, **keys)
    assert "note: kernels" not in capsys.readouterr().err
    before = kernel_choice.describe("cpu")
    monkeypatch.setattr(kernel_choice, "describe", lambda device: "none of them")
    trained("one", max_steps=3, **keys)
    assert f"note: kernels was {before}, is now none of them\n" in capsys.readouterr().err
