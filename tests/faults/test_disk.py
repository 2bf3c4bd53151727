"""Full disks (a limit on the size of files, which the kernel enforces) and damaged checkpoints."""

import json
import random
import shutil
import signal

import pytest
import torch
from making import TEMPLATE
from running import is_message, lines, same_weights, state, write_config
from safetensors.torch import load_file, save_file

from grpo.base import folders
from grpo.run import checkpoint, resume


@pytest.fixture(scope="module")
def finished(processes, chat_checkpoint, tmp_path_factory):
    """A run with all its checkpoints."""
    folder = tmp_path_factory.mktemp("finished")
    assert processes.train(write_config(folder, chat_checkpoint, save_total_limit=0)).code == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """(config, run directory) of a copy that may be damaged."""
    shutil.copytree(finished / "run", tmp_path / "run")
    text = (finished / "run.yaml").read_text().replace(str(finished / "run"), str(tmp_path / "run"))
    (tmp_path / "run.yaml").write_text(text)
    return tmp_path / "run.yaml", tmp_path / "run"


def size_of(folder, name):
    return (folder / name).stat().st_size


@pytest.mark.parametrize(
    "part", ["state.safetensors", "adapter_model.safetensors", "tokenizer.json", "trainer_state.json"]
)
def test_a_full_disk_during_a_save(processes, chat_checkpoint, finished, tmp_path, part):
    """The first save passes; the second meets the limit somewhere within one of its files."""
    config, room = write_config(tmp_path, chat_checkpoint), size_of(finished / "run" / "checkpoint-2", part) - 100
    assert processes.train(config, "max_steps=1").code == 0
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    full = processes.train(config, "resume_from_checkpoint=true", limit_bytes=room)
    assert full.code == 6 and is_message(full.stderr), full.stderr
    assert "GB free" in full.stderr and "needs" in full.stderr and "checkpoint-2" in full.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    assert not checkpoint.problem_with(tmp_path / "run" / "checkpoint-1")
    assert state(tmp_path / "run")["exit_code"] == 6 and state(tmp_path / "run")["last_checkpoint"] == "checkpoint-1"
    assert processes.train(config, "resume_from_checkpoint=true").code == 0
    assert same_weights(tmp_path / "run", finished / "run")


def test_a_full_disk_under_the_tokenizer(processes, chat_checkpoint, tmp_path):
    """Its library is written in Rust and raises a bare Exception. First a checkpoint, then final/ meets the limit."""
    config = write_config(tmp_path, chat_checkpoint, max_steps=2)
    full = processes.train(config, setup="full_disk_under_the_tokenizer")
    assert full.code == 6 and is_message(full.stderr) and "checkpoint-2" in full.stderr, full.stderr
    assert [folder.name for folder in checkpoint.checkpoints(tmp_path / "run")] == ["checkpoint-1"]
    config = write_config(tmp_path, chat_checkpoint, "once", max_steps=1, save_steps=0)
    full = processes.train(config, setup="full_disk_under_the_tokenizer")
    assert full.code == 6 and is_message(full.stderr) and state(tmp_path / "once")["exit_code"] == 6
    assert sorted(path.name for path in (tmp_path / "once").glob("final*")) == []


def test_a_full_disk_under_the_logs_warns_once_and_training_goes_on(processes, chat_checkpoint, finished, tmp_path):
    """metrics.jsonl, debug.log, completions/ and TensorBoard are all full; every step is trained."""
    keys = {"report_to": ["tensorboard"], "save_steps": 0, "max_steps": 4}
    config = write_config(tmp_path, chat_checkpoint, **keys)
    assert processes.train(config, "max_steps=1").code == 0
    for name in ("metrics.jsonl", "debug.log"):
        with open(tmp_path / "run" / name, "ab") as file:
            file.write(b"\n" * 20_000_000)
    size = size_of(tmp_path / "run", "debug.log")
    for path in (tmp_path / "run" / "completions").iterdir():
        path.unlink()
    (tmp_path / "run" / "completions").rmdir()
    (tmp_path / "run" / "completions").write_text("a file is in the way")
    child = processes.train(config, "resume_from_checkpoint=true", setup="full_logs", limit_bytes=20_000_000)
    assert child.code == 0, child.stderr
    assert state(tmp_path / "run")["step"] == 4 and size_of(tmp_path / "run", "debug.log") == size
    warnings = [line for line in child.stderr.splitlines() if line.startswith("warning:")]
    for name in ("metrics.jsonl", "debug.log", "completions/", "tensorboard"):
        assert sum(name in line for line in warnings) == 1, (name, child.stderr)
    assert "Traceback" not in child.stderr
    assert same_weights(tmp_path / "run", finished / "run")
    assert [line["step"] for line in lines(tmp_path / "run")] == [1]  # whole lines or none


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_full_disk_under_what_is_printed(processes, chat_checkpoint, tmp_path, name):
    """Every step is trained. The results on stdout are missed at the end, with exit 6; messages are not."""
    config = write_config(tmp_path, chat_checkpoint, logging_steps=2)
    child = processes.train(config, setup=f"full_disk_under_{name}")
    assert child.code == (6 if name == "stdout" else 0), child.stderr
    assert is_message(child.stderr) == (name == "stdout")
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4] and (tmp_path / "run" / "final").exists()


def test_a_full_disk_under_run_state_does_not_stop_training(processes, chat_checkpoint, tmp_path):
    config = write_config(tmp_path, chat_checkpoint, save_steps=0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run_state.json.tmp").mkdir()  # cannot be written
    child = processes.train(config, "resume_from_checkpoint=true")
    assert child.code == 0 and (tmp_path / "run" / "final").exists()
    assert child.stderr.count("warning: writing to run_state.json") == 1


# --- damaged checkpoints -------------------------------------------------------------------------------------------


def damages(rng: random.Random, data: bytes):
    """(kind, damaged bytes): 20 truncations, 20 flipped bits, 5 zeroed tails."""
    for number in range(20):
        yield "cut", data[: len(data) * number // 20]
    for _ in range(20):
        place = rng.randrange(len(data))
        yield "flip", data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    for number in range(1, 6):
        yield "zeros", data[: -(len(data) * number // 6)] + bytes(len(data) * number // 6)


@pytest.mark.parametrize(
    "name",
    ["state.safetensors", "adapter_model.safetensors", "trainer_state.json", "config.resolved.yaml", "tokenizer.json"],
)
def test_every_damage_to_a_real_checkpoint_is_named(copy, name):
    """45 damages to each file; each is rejected by file and reason, and the next older checkpoint is taken."""
    _, run_dir = copy
    path, rng, tried = run_dir / "checkpoint-4" / name, random.Random(name), 0
    original = path.read_bytes()
    for _, damaged in damages(rng, original):
        if damaged == original:
            continue
        path.write_bytes(damaged)
        found, notices = resume.find_checkpoint(run_dir, True)
        assert found.name == "checkpoint-3" and notices[0].startswith(f"checkpoint-4 is not used: {name} ")
        tried += 1
    assert tried >= 44


def test_automatic_resume_falls_back_says_so_and_ends_in_the_same_weights(processes, copy, finished):
    config, run_dir = copy
    shutil.rmtree(run_dir / "final")
    (run_dir / "checkpoint-4" / "state.safetensors").write_bytes(b"")
    (run_dir / "checkpoint-3" / "manifest.json").unlink()
    child = processes.train(config, "resume_from_checkpoint=true", "save_total_limit=1")
    assert child.code == 0, child.stderr
    assert "checkpoint-4 is not used: state.safetensors has 0 bytes" in child.stderr
    assert "checkpoint-3 is not used: manifest.json is missing" in child.stderr
    assert "resuming from" in child.stderr and "checkpoint-2 at step 2" in child.stderr
    assert same_weights(run_dir, finished / "run")
    found = checkpoint.checkpoints(run_dir)
    assert [folder.name for folder in found] == ["checkpoint-4"]
    assert not checkpoint.problem_with(found[0])  # the damaged one was replaced


def test_a_run_that_begins_with_anothers_checkpoint_has_one_of_its_own_at_once(processes, copy, finished, tmp_path):
    config, run_dir = copy
    place, start = f"output_dir={tmp_path / 'new'}", f"resume_from_checkpoint={run_dir / 'checkpoint-3'}"
    killed = processes.train(config, place, start, FAILPOINT="step-sampled:1")
    assert killed.code == -signal.SIGKILL, killed.stderr
    assert [folder.name for folder in checkpoint.checkpoints(tmp_path / "new")] == ["checkpoint-3"]
    child = processes.train(config, place, "resume_from_checkpoint=true")
    assert child.code == 0 and "checkpoint-3 at step 3" in child.stderr, child.stderr
    assert same_weights(tmp_path / "new", finished / "run")


OTHER = {"optimizer.master": torch.zeros(7)}
FOREIGN = {
    "tensors of another model": lambda folder: save_file(OTHER, folder / "state.safetensors"),
    "a pickle by that name": lambda folder: torch.save(OTHER, folder / "state.safetensors"),
    "no counters": lambda folder: (folder / "trainer_state.json").write_text("[]"),
    "counters without generators": lambda folder: (folder / "trainer_state.json").write_text('{"step": 4, "rng": []}'),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_checkpoint_with_a_manifest_that_fits_is_an_error_and_not_a_crash(processes, copy, kind):
    """Its sha256 are right, its content is not: exit 6, or the checkpoint before it where there are no weights."""
    config, run_dir = copy
    folder = run_dir / "checkpoint-4"
    FOREIGN[kind](folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {
        path.name: {"bytes": path.stat().st_size, "sha256": folders.sha256(path)}
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not folders.problem_with(folder)
    has_weights = not checkpoint.problem_with(folder)
    child = processes.train(config, "resume_from_checkpoint=true")
    assert child.code == (6 if has_weights else 0) and "checkpoint-4" in child.stderr, child.stderr
    assert is_message(child.stderr) if has_weights else "checkpoint-3 at step 3" in child.stderr


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "sub/file", "./state.safetensors"])
def test_a_manifest_cannot_name_files_elsewhere(copy, name):
    _, run_dir = copy
    path = run_dir / "checkpoint-4" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    path.write_text(json.dumps(manifest))
    assert checkpoint.problem_with(path.parent) == f"{name} is not a plain file of this folder"


# --- inputs that have changed ---------------------------------------------------------------------------------------


def write_other_weights(folder, model):
    path = model / "model.safetensors"
    tensors = {name: value * 1.5 if "norm" in name else value for name, value in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})


OTHER_TEMPLATE = TEMPLATE.replace("assistant", "helper")
CHANGED_INPUTS = {
    "base_weights": write_other_weights,
    "chat_template": lambda folder, model: (model / "chat_template.jinja").write_text(OTHER_TEMPLATE),
    "dataset": lambda folder, model: (folder / "questions.jsonl").write_text('{"question": "x", "answer": "y"}\n'),
}


@pytest.mark.parametrize("name", CHANGED_INPUTS)
def test_an_input_that_has_changed_stops_the_resume_unless_it_is_allowed(processes, chat_checkpoint, tmp_path, name):
    shutil.copytree(chat_checkpoint, tmp_path / "model")
    config = write_config(tmp_path, tmp_path / "model", max_steps=3)
    assert processes.train(config, "max_steps=1").code == 0
    CHANGED_INPUTS[name](tmp_path, tmp_path / "model")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    child = processes.train(config, "resume_from_checkpoint=true")
    assert child.code == 2 and is_message(child.stderr), child.stderr
    assert f"another {name.replace('_', ' ')}" in child.stderr and f"allow_changes={name}" in child.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before and state(tmp_path / "run")["exit_code"] == 2
    other = [input for input in CHANGED_INPUTS if input != name]
    assert processes.train(config, "resume_from_checkpoint=true", f"allow_changes={','.join(other)}").code == 2
    assert processes.train(config, "resume_from_checkpoint=true", f"allow_changes={name}").code == 0
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3]
    assert processes.train(config, "resume_from_checkpoint=true", "max_steps=4").code == 0  # it is the run's own now
