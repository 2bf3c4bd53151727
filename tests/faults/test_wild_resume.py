"""A run's own folder in which anything may stand: resuming goes on to the right weights, or ends with a clear message.

Checkpoints survive whatever the other files hold.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from running import is_message, same_weights, write_config

from grpo.base.errors import UserError
from grpo.run import checkpoint, provenance

sys.path.append(str(Path(__file__).resolve().parents[1] / "grpo"))
from test_wild import as_text, spoil

RECORDS = ("run_state.json", "metrics.jsonl", "config.resolved.yaml", "best/best.json")
RECORDS += ("best/manifest.json",)


@pytest.fixture(scope="module")
def finished(processes, chat_checkpoint, tmp_path_factory):
    """A run of four steps, with all its checkpoints, and the best policy."""
    folder = tmp_path_factory.mktemp("finished")
    keys = {"eval_size": 2, "eval_steps": 1, "keep_best": "eval/reward", "save_total_limit": 0}
    assert processes.train(write_config(folder, chat_checkpoint, **keys)).code == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """Return a function that copies the run as it was after step `last`, and gives its config and its directory."""

    def make(name: str, last: int = 3) -> tuple[Path, Path]:
        config, run_dir = tmp_path / f"{name}.yaml", tmp_path / name
        shutil.copytree(finished / "run", run_dir)
        for number in range(last + 1, 5):
            shutil.rmtree(run_dir / f"checkpoint-{number}")
        if last < 4:
            shutil.rmtree(run_dir / "final")
        config.write_text((finished / "run.yaml").read_text().replace(str(finished / "run"), str(run_dir)))
        return config, run_dir

    return make


def damage(path: Path, rng: random.Random) -> None:
    """Make wild values of a file's content, or of its bytes; or remove it."""
    kind = rng.choice(["values"] * 6 + ["cut", "bytes", "gone"])
    text = path.read_text()
    if kind == "values":
        contents = [
            json.loads(line)
            for line in (text.splitlines() if path.suffix == ".jsonl" else [json.dumps(yaml.safe_load(text))])
        ]
        for _ in range(rng.choice([1, 3])):
            place = rng.randrange(len(contents))
            contents[place] = spoil(contents[place], rng)
        path.write_text("".join(as_text(content) + "\n" for content in contents))
        return
    path.unlink()
    if kind != "gone":
        path.write_bytes(text[: rng.randrange(len(text))].encode() if kind == "cut" else rng.randbytes(99))


def valid(run_dir: Path) -> dict[str, bytes]:
    """The valid checkpoints, and what they hold."""
    return {
        folder.name: (folder / "manifest.json").read_bytes()
        for folder in checkpoint.checkpoints(run_dir)
        if not checkpoint.problem_with(folder)
    }


@pytest.mark.parametrize("seed", range(8))
def test_wild_records_of_a_run_lose_nothing(processes, copy, finished, seed):
    """Of those, none decides how the run goes on: it ends in the same weights, and in its old checkpoints."""
    rng = random.Random(seed)
    config, run_dir = copy(f"run{seed}")
    for name in rng.sample(RECORDS, rng.choice([1, 3, 5])):
        damage(run_dir / name, rng)
    before = valid(run_dir)
    child = processes.train(config, "resume_from_checkpoint=true")
    assert child.code == 0, child.stderr
    assert before.items() <= valid(run_dir).items() and len(before) == 3
    assert same_weights(run_dir, finished / "run")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_result_without_checkpoints_is_not_replaced(processes, copy, is_damaged):
    config, run_dir = copy("run", last=4)
    for folder in checkpoint.checkpoints(run_dir):
        (folder / "manifest.json").unlink() if is_damaged else shutil.rmtree(folder)
    before = {path: path.read_bytes() for path in (run_dir / "final").iterdir()}
    child = processes.train(config, "resume_from_checkpoint=true")
    assert child.code == 6 and is_message(child.stderr) and "no checkpoint to continue from" in child.stderr
    assert ("checkpoint-4 is not used: manifest.json is missing" in child.stderr) == is_damaged
    assert {path: path.read_bytes() for path in (run_dir / "final").iterdir()} == before


@pytest.mark.parametrize(
    "change",
    [{key: value} for key in checkpoint.COUNTED for value in (None, -1, 1.5, True, 10**310)] + [{"inputs": []}],
    ids=str,
)
def test_counters_that_no_run_writes_are_named(tmp_path, change):
    with pytest.raises(UserError) as error:
        checkpoint.check_counters(tmp_path, dict.fromkeys(checkpoint.COUNTED, 1) | {"inputs": {}} | change)
    assert error.value.exit_code == 6 and next(iter(change)) in error.value.why


@pytest.mark.parametrize("made", [{}, {"data": []}, {"seed": 1, "data": 1e308, "base model": [[]]}])
def test_a_stage_1_of_wild_origin_is_not_reused(tmp_path, monkeypatch, made):
    monkeypatch.setattr(provenance, "origin_of", lambda config: {"seed": 1, "data": "d", "base model": "b"})
    (tmp_path / "origin.json").write_text(json.dumps(made))
    with pytest.raises(UserError, match="is not what c.yaml makes now") as error:
        provenance.check_origin(tmp_path, None, "c.yaml")
    assert error.value.exit_code == 2
