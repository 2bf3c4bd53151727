"""Full disks (a limit on the size of files, which the kernel enforces) and damaged checkpoints."""

import json
import random
import shutil
from dataclasses import replace
from signal import SIGKILL

import pytest
import torch
from making import TEMPLATE, write_rows
from running import QUESTIONS
from safetensors.torch import load_file, save_file

from grpo.base import folders
from grpo.run import checkpoint


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A copy of a finished run that may be damaged."""
    return undisturbed.copy(tmp_path)


@pytest.mark.parametrize(
    "part", ["state.safetensors", "adapter_model.safetensors", "tokenizer.json", "trainer_state.json"]
)
def test_a_full_disk_during_a_save(make_run, undisturbed, part):
    """The first save passes; the second meets the limit somewhere within one of its files. The tokenizer's library is
    written in Rust and raises a bare Exception; it writes into final/, too."""
    run, room = make_run(), (undisturbed.checkpoint(2) / part).stat().st_size - 100
    run.train("max_steps=1")
    before = sorted(run.folder.iterdir())
    full = run.resume(limit_bytes=room, code=6)
    for word in ("GB free", "needs", "checkpoint-2"):
        assert word in full.stderr
    assert sorted(run.folder.iterdir()) == before
    assert not checkpoint.problem_with(run.checkpoint(1))
    assert run.state | {"exit_code": 6, "last_checkpoint": "checkpoint-1"} == run.state
    run.resume()
    assert run.equals(undisturbed)
    if part == "tokenizer.json":
        once = make_run("once", max_steps=1, save_steps=0)
        once.train(limit_bytes=room, code=6)
        assert once.state["exit_code"] == 6 and not list(once.folder.glob("final*"))


def test_a_full_disk_under_the_logs_warns_once_and_training_goes_on(make_run, undisturbed):
    """metrics.jsonl, debug.log, completions/, TensorBoard and run_state.json are all full; every step is trained."""
    run = make_run(report_to=["tensorboard"], save_steps=0)
    run.train("max_steps=1")
    for name in ("metrics.jsonl", "debug.log"):
        with open(run.folder / name, "ab") as file:
            file.write(b"\n" * 20_000_000)
    size = (run.folder / "debug.log").stat().st_size
    shutil.rmtree(run.folder / "completions")
    (run.folder / "completions").write_text("a file is in the way")
    (run.folder / "run_state.json.tmp").mkdir()  # so that it cannot be written
    child = run.resume(setup="full_logs", limit_bytes=20_000_000)
    assert (run.folder / "debug.log").stat().st_size == size
    warnings = [line for line in child.stderr.splitlines() if line.startswith("warning:")]
    for name in ("metrics.jsonl", "debug.log", "completions/", "tensorboard", "run_state.json"):
        assert sum(name in line for line in warnings) == 1, (name, child.stderr)
    assert "Traceback" not in child.stderr
    assert run.equals(undisturbed)
    assert run.steps == [1]  # whole lines or none


@pytest.mark.parametrize(("name", "code"), [("stdout", 6), ("stderr", 0)])
def test_a_full_disk_under_what_is_printed(make_run, name, code):
    """Every step is trained. The results on stdout are missed at the end, with exit 6; messages are not."""
    run = make_run(logging_steps=2)
    run.train(setup=f"full_disk_under_{name}", code=code)
    assert run.steps == [1, 2, 3, 4]
    assert (run.folder / "final").exists()


# --- damaged checkpoints -------------------------------------------------------------------------------------------


def damages(rng, data):
    """Damaged bytes: 20 truncations, 20 flipped bits."""
    for number in range(20):
        yield data[: len(data) * number // 20]
    for _ in range(20):
        place = rng.randrange(len(data))
        yield data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


@pytest.mark.parametrize(
    "name",
    ["state.safetensors", "adapter_model.safetensors", "trainer_state.json", "config.resolved.yaml", "tokenizer.json"],
)
def test_every_damage_to_a_real_checkpoint_is_named(copy, name):
    """40 damages to each file; each is rejected by file and reason, and the next older checkpoint is taken."""
    path = copy.checkpoint(4) / name
    original = path.read_bytes()
    for damaged in damages(random.Random(name), original):
        path.write_bytes(damaged)
        found, notices = checkpoint.find_checkpoint(copy.folder, True)
        assert found.name == "checkpoint-3"
        assert notices[0].startswith(f"checkpoint-4 is not used: {name} ")


def test_automatic_resume_falls_back_says_so_and_ends_in_the_same_weights(copy, undisturbed):
    shutil.rmtree(copy.folder / "final")
    (copy.checkpoint(4) / "state.safetensors").write_bytes(b"")
    (copy.checkpoint(3) / "manifest.json").unlink()
    child = copy.resume("save_total_limit=1")
    assert "checkpoint-4 is not used: state.safetensors has 0 bytes" in child.stderr
    assert "checkpoint-3 is not used: manifest.json is missing" in child.stderr
    assert "resuming from" in child.stderr
    assert "checkpoint-2 at step 2" in child.stderr
    assert copy.equals(undisturbed)
    assert checkpoint.checkpoints(copy.folder) == [copy.checkpoint(4)]
    assert not checkpoint.problem_with(copy.checkpoint(4))  # the damaged one was replaced


def test_a_run_that_begins_with_anothers_checkpoint_has_one_of_its_own_at_once(copy, undisturbed, tmp_path):
    new = replace(copy, folder=tmp_path / "new")
    place, start = f"output_dir={new.folder}", f"resume_from_checkpoint={copy.checkpoint(3)}"
    new.train(place, start, FAILPOINT="step-sampled:1", code=-SIGKILL)
    assert checkpoint.checkpoints(new.folder) == [new.checkpoint(3)]
    assert "checkpoint-3 at step 3" in new.resume(place).stderr
    assert new.equals(undisturbed)


OTHER = {"optimizer.master": torch.zeros(7)}
FOREIGN = {  # what is done to the checkpoint, and the exit code
    "tensors of another model": (6, lambda folder: save_file(OTHER, folder / "state.safetensors")),
    "a pickle by that name": (0, lambda folder: torch.save(OTHER, folder / "state.safetensors")),
    "counters alone": (6, lambda folder: (folder / "trainer_state.json").write_text('{"step": 4, "rng": []}')),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_checkpoint_with_a_manifest_that_fits_is_an_error_and_not_a_crash(copy, kind):
    """Its sha256 are right, its content is not: exit 6, or the checkpoint before it where there are no weights."""
    code, spoil = FOREIGN[kind]
    folder = copy.checkpoint(4)
    spoil(folder)
    about = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    folders._write_manifest(folder, about)
    assert not folders.problem_with(folder)
    child = copy.resume(code=code)
    assert "checkpoint-4" in child.stderr
    assert ("checkpoint-3 at step 3" in child.stderr) == (code == 0)


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "sub/../file", "./state.safetensors"])
def test_a_manifest_cannot_name_files_elsewhere(copy, name):
    path = copy.checkpoint(4) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    path.write_text(json.dumps(manifest))
    assert checkpoint.problem_with(path.parent) == f"{name} is not a plain file of this folder"


# --- inputs that have changed ---------------------------------------------------------------------------------------


def write_other_weights(folder, model):
    path = model / "model.safetensors"
    save_file({name: value * 1.5 for name, value in load_file(path).items()}, path, {"format": "pt"})


OTHER_TEMPLATE = TEMPLATE.replace("assistant", "helper")
CHANGED_INPUTS = {
    "base_weights": write_other_weights,
    "chat_template": lambda folder, model: (model / "chat_template.jinja").write_text(OTHER_TEMPLATE),
    "dataset": lambda folder, model: write_rows(folder / "questions.jsonl", QUESTIONS[::-1]),
    "reward_funcs": lambda folder, model: (folder / "mine.py").write_text(REWARD.replace("150", "140")),
}
REWARD = "def few(completion_ids, **columns):\n    return [sum(i < 150 for i in ids) / 9 for ids in completion_ids]\n"


@pytest.mark.parametrize("name", CHANGED_INPUTS)
def test_an_input_that_has_changed_stops_the_resume_unless_it_is_allowed(make_run, chat_checkpoint, tmp_path, name):
    model = tmp_path / "model"
    shutil.copytree(chat_checkpoint, model)
    (tmp_path / "mine.py").write_text(REWARD)
    run = make_run(model=model, max_steps=3, reward_funcs=[f"{tmp_path}/mine.py:few"])
    run.train("max_steps=1")
    CHANGED_INPUTS[name](tmp_path, model)
    child = run.resume(code=2)
    assert f"another {name.replace('_', ' ')}" in child.stderr
    assert f"allow_changes={name}" in child.stderr
    assert run.steps == [1]
    assert run.state["exit_code"] == 2
    others = [other for other in CHANGED_INPUTS if other != name]
    run.resume(f"allow_changes={','.join(others)}", code=2)
    run.resume(f"allow_changes={name}")
    assert run.steps == [1, 2, 3]
    run.resume("max_steps=4")  # it is the run's own now
