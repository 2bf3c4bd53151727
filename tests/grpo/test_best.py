"""keep_best: which evaluation counts as the best, and that its policy is what lies in best/."""

import re
from types import SimpleNamespace

import pytest
from test_train import run

from grpo.base.storage import read_json, write_json
from grpo.evaluation.held_out import Best
from grpo.run.saved import find_saved


def best_of(tmp_path, name, before, step=0):
    return Best(name, SimpleNamespace(path=tmp_path, say=lambda text: None), before, step)


@pytest.mark.parametrize(
    "case",
    [  # a measure: its value before, those of later steps; the steps that are kept
        "eval/accuracy: 0.5, 0.4 0.6 0.6 0.5 0.7; 1 4",
        "eval/incorrect: 0.5, 0.6 0.4 0.4 0.3; 1 3",
        "eval/reward: -, -1 -2; 0",
        "eval/accuracy: 0.5, - 0.1;",
        "eval/another: 0.5, 0.9;",
    ],
)
def test_only_what_is_better_than_all_before_is_kept(tmp_path, case):
    name, before, later, wanted = re.split("[:,;] ?", case)
    before, *metrics = [{} if value == "-" else {name: float(value)} for value in (before, *later.split())]
    best, kept = best_of(tmp_path, None if "another" in name else name, before), []
    for step, measured in enumerate(metrics):
        best.offer(step, measured, lambda folder, notes: kept.append(str(notes["best.json"]["step"])))
    assert kept == wanted.split()


def test_a_resumed_run_knows_the_best_of_before_unless_it_repeats_it(tmp_path):
    (tmp_path / "best").mkdir()
    note = {"metric": "eval/accuracy", "step": 6, "value": 0.8}
    write_json(tmp_path / "best/best.json", note)
    for step, metric, value in ((8, "eval/accuracy", 0.8), (4, "eval/accuracy", 0.1), (8, "eval/reward", 0.1)):
        assert best_of(tmp_path, metric, {metric: 0.1}, step).value == value
    assert best_of(tmp_path, "eval/accuracy", {"eval/accuracy": 0.1}, 0).value == 0.1
    for torn in ("", '{"metric": "eval/re', "[]", "[" * 9999):  # is as good as none
        (tmp_path / "best/best.json").write_text(torn)
        assert best_of(tmp_path, "eval/reward", {"eval/reward": 0.1}, 8).value == 0.1


def test_a_run_keeps_its_best_policy(chat_checkpoint, tmp_path):
    keys = {"eval_size": 4, "eval_steps": 1, "keep_best": "eval/reward", "max_steps": 4, "learning_rate": 0.03}
    lines = run(tmp_path, chat_checkpoint, **keys)
    rewards = {line["step"]: line["eval/reward"] for line in lines if "eval/reward" in line}
    note = read_json(tmp_path / "run/best/best.json")
    assert note["value"] == max(rewards.values()) > rewards[0]
    assert rewards[note["step"]] == note["value"]
    assert find_saved(f"{tmp_path}/run/best").config_path == tmp_path / "run/config.resolved.yaml"
    kept, final = ((tmp_path / "run" / name / "adapter_model.safetensors").read_bytes() for name in ("best", "final"))
    assert (kept == final) == (note["step"] == 4)
