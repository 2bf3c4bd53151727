"""What is measured of runs in the worlds of sums and of facts, with a tiny model."""

import json
from importlib.util import find_spec

import pytest
from commands import run_command

from bench import curves, real_model
from grpo.config.load import load_config
from grpo.train import train


def finished_run(folder, checkpoint, world, reward):
    quiet = {"toy_world": world, "report_to": ["none"], "disable_tqdm": True, "lora_r": 2}
    quiet["model_name_or_path"] = str(checkpoint)
    cold = quiet | {"output_dir": "unused", "max_steps": 1, "per_device_train_batch_size": 2, "max_length": 512}
    (folder / "cold.yaml").write_text(json.dumps(cold))
    keys = quiet | {
        "cold_start": str(folder / "cold.yaml"),
        "output_dir": str(folder / "run"),
        "reward_funcs": [reward],
        "system_prompt": "Answer.",
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_completion_length": 6,
        "eval_max_samples": 2,
        "max_steps": 1,
    }
    (folder / "run.yaml").write_text(json.dumps(keys))
    train(*load_config(str(folder / "run.yaml")))
    return folder / "run"


@pytest.fixture(scope="module")
def run(chat_checkpoint, tmp_path_factory):
    """A finished run of the world of sums."""
    return finished_run(tmp_path_factory.mktemp("curves"), chat_checkpoint, "sums", "math")


def test_curves_have_a_reward_and_a_time_for_each_step(run, capsys):
    sides = ["trl"] if find_spec("trl") else []
    rows = curves.main([str(run), "--steps", "2", "--seeds", "1", "2", "--peer", *sides])
    assert [(row["side"], row["seed"]) for row in rows] == [(side, n) for n in (1, 2) for side in ("ours", *sides)]
    for row in rows:
        assert len(row["reward"]) == len(row["seconds"]) == len(row["tokens"]) == 2
        assert min(row["seconds"]) > 0
        assert 4 <= min(row["tokens"]) <= max(row["tokens"]) <= 4 * 6, "four completions of one to six"
        assert all(-1 <= reward <= 1 for reward in row["reward"])
    assert (run / "curves" / "curves.png").exists()
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == rows


def test_rows_that_were_stored_without_tokens_have_a_table():
    row = {"side": "ours", "seed": 1, "reward": [0.5, 0.25], "seconds": [2.0, 4.0, 9.0]}
    assert curves.table([row, row | {"tokens": [4, 16, 9]}]).splitlines()[2:] == [
        "| ours | 1 | 4.0 | – | +0.38 |",
        "| ours | 1 | 4.0 | 2 | +0.38 |",
    ]


def test_the_reward_is_ours():
    assert curves.paid([r"It is \boxed{7}.", r"\boxed{8}", "7"], ["7"] * 3) == [1, -1, -0.5]


@pytest.mark.parametrize("model", ["", "cold_start"])
def test_a_run_and_its_cold_start_are_asked_for_the_held_out_sums(run, model):
    """With the command of bench/README.md."""
    data, keys = run / "world" / "held_out.jsonl", ["max_completion_length=6", "max_samples=3"]
    asked = run_command("grpo.evaluate", run / model, "--data", data, "--reward", "math", "--temperature", 1, *keys)
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert found["num_questions"] == 3 and found["accuracy"] == 0, "random weights cannot add"


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_every_arm_is_asked_for_the_facts_that_the_run_was_asked_for(chat_checkpoint, tmp_path):
    run = finished_run(tmp_path, chat_checkpoint, "almanac", "exact")
    row = real_model.main([str(run)])
    assert row["facts"] == 2
    assert list(row["arms"]) == ["prompt", "cold start", "GRPO", "R-Tuning", "sequence"]
    asked = {"prompt.jsonl", "cold_start.jsonl", "GRPO.jsonl", "R-Tuning.jsonl"}
    assert {path.name for path in (run / "exam").iterdir()} == asked | {"seed-42.jsonl", "risk.png"}
