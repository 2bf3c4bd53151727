"""A run's own folder whose files are damaged: resuming goes on to the right weights, or ends with a clear message.

Checkpoints survive whatever the other files hold.
"""

import random
import shutil

import pytest

from grpo.run import checkpoint

RECORDS = ("run_state.json", "metrics.jsonl", "config.resolved.yaml", "best/best.json", "best/manifest.json")


@pytest.fixture(scope="module")
def finished(processes, chat_checkpoint, tmp_path_factory):
    """A run of four steps, with all its checkpoints, and the best policy."""
    keys = {"eval_size": 2, "eval_steps": 1, "keep_best": "eval/reward", "save_total_limit": 0}
    run = processes.run(tmp_path_factory.mktemp("finished"), chat_checkpoint, **keys)
    run.train()
    return run


def damage(path, rng):
    """Cut a file off, write something else into it, or remove it."""
    kind, content = rng.choice(["cut", "bytes", "gone"]), path.read_bytes()
    path.unlink()
    if kind != "gone":
        path.write_bytes(content[: rng.randrange(len(content))] if kind == "cut" else rng.randbytes(99))


def valid(run):
    """The valid checkpoints, and what they hold."""
    found = [folder for folder in checkpoint.checkpoints(run.folder) if not checkpoint.problem_with(folder)]
    return {folder.name: (folder / "manifest.json").read_bytes() for folder in found}


@pytest.mark.parametrize("seed", range(8))
def test_damaged_records_of_a_run_lose_nothing(finished, tmp_path, seed):
    """Of those, none decides how the run goes on: it ends in the same weights, and in its old checkpoints."""
    rng, run = random.Random(seed), finished.copy(tmp_path)
    shutil.rmtree(run.checkpoint(4))
    shutil.rmtree(run.folder / "final")
    for name in rng.sample(RECORDS, rng.choice([1, 3, 5])):
        damage(run.folder / name, rng)
    before = valid(run)
    run.resume()
    assert before.items() <= valid(run).items()
    assert len(before) == 3
    assert run.equals(finished)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_result_without_checkpoints_is_not_replaced(undisturbed, tmp_path, is_damaged):
    run = undisturbed.copy(tmp_path)
    for folder in checkpoint.checkpoints(run.folder):
        (folder / "manifest.json").unlink() if is_damaged else shutil.rmtree(folder)
    before = {path: path.read_bytes() for path in (run.folder / "final").iterdir()}
    child = run.resume(code=6)
    assert "no checkpoint to continue from" in child.stderr
    assert ("checkpoint-4 is not used: manifest.json is missing" in child.stderr) == is_damaged
    assert {path: path.read_bytes() for path in (run.folder / "final").iterdir()} == before
