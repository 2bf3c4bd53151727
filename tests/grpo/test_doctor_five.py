"""The doctor names any five faults of a configuration, each under its own name, whichever five they are."""

import itertools
import json
import random

import pytest
from making import write_rows
from test_doctor_services import CONVERSATIONS, knowrl_keys

from grpo.doctor.__main__ import main


@pytest.fixture
def keys(tmp_path, chat_checkpoint, monkeypatch):
    """Of a config of both stages, with a reward of its own."""
    for name in ("WANDB_API_KEY", "OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE", "FACTSCORE_DB_PATH"):
        monkeypatch.delenv(name, raising=False)
    rows = write_rows(tmp_path / "rows.jsonl", CONVERSATIONS)
    cold = {"dataset_id_or_path": str(rows), "output_dir": str(tmp_path / "cold"), "max_length": 64}
    (tmp_path / "cold.yaml").write_text(json.dumps(cold | {"per_device_train_batch_size": 2}))
    (tmp_path / "mine.py").write_text("def brief(completions, **columns):\n    return [0.0 for _ in completions]\n")
    rewards = ["knowrl", f"{tmp_path}/mine.py:brief"]
    changes = {"cold_start": str(tmp_path / "cold.yaml"), "reward_funcs": rewards, "max_steps": 2}
    return knowrl_keys(tmp_path, chat_checkpoint) | changes


def sets(**changes):
    return lambda keys, folder: keys.update(changes)


def writes(name, text):
    return lambda keys, folder: (folder / name).write_text(text)


def sets_stage1(**changes):
    def change(keys, folder):
        path = folder / "cold.yaml"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


FAULTS = {  # what it is -> (the change, the name of its finding, words of its text)
    "unknown key": (sets(learning_rat=1), "config", "learning_rat"),
    "wrong type": (sets(temperature="warm"), "config", "temperature"),
    "out of bounds": (sets(top_p=2), "config", "top_p"),
    "no whole groups": (sets(gradient_accumulation_steps=1, num_generations=3), "config", "split into groups"),
    "prompt template": (sets(prompt_template="Answer!"), "config", "prompt_template"),
    "weights of rewards": (sets(reward_weights=[0, 0, 0]), "config", "reward_weights"),
    "no data": (lambda keys, folder: keys.pop("dataset_id_or_path"), "config", "dataset_id_or_path is not set"),
    "no output": (lambda keys, folder: keys.pop("output_dir"), "config", "output_dir is not set"),
    "data without questions": (writes("data.jsonl", '{"title": "Velda", "answer": "x"}\n'), "data", "question"),
    "no held-out data": (sets(eval_dataset_id_or_path="none.jsonl"), "held-out data", "none.jsonl"),
    "output is in use": (writes("run", "a file"), "output", "not a folder"),
    "no checkpoint": (sets(resume_from_checkpoint="nowhere"), "resume", "nowhere"),
    "tracker": (sets(report_to=["trackio"]), "trackers", "trackio"),
    "stage 1's key": (sets_stage1(learning_rat=1), "stage 1", "learning_rat"),
    "stage 1's data": (writes("rows.jsonl", '{"question": "1?"}\n'), "stage 1 data", "conversation"),
    "chat template": (sets(chat_template="none.jinja"), "tokenizer", "none.jinja"),
    "judge": (sets(judge="api", judge_base_url="http://example.com/v1"), "judge", "judge_base_url"),
    "judge's key": (sets(judge="api"), "judge", "OPENAI_API_KEY_JUDGE"),
    "decomposer": (sets(decomposer="api", decomposer_base_url="ftp://host"), "decomposer", "decomposer_base_url"),
    "knowledge base": (sets(knowledge_base="none.db"), "knowledge base", "none.db"),
    "verifier": (sets(verifier="nli", nli_model="none/model"), "verifier", "none"),
    "custom reward": (writes("mine.py", "import nothing_of_this_name\n"), "brief", "nothing_of_this_name"),
}
APART = [{"no data", "data without questions"}, {"no output", "output is in use"}]


def may_be_together(names):
    return all(len(group.intersection(names)) < 2 for group in APART)


def fives():
    """Draw 25 of all possible fives, such that each fault is among them."""
    possible = [five for five in itertools.combinations(FAULTS, 5) if may_be_together(five)]
    drawn = random.Random(0).sample(possible, 25)
    assert {name for five in drawn for name in five} == set(FAULTS)
    return drawn


@pytest.mark.parametrize("five", fives(), ids=", ".join)
def test_five_faults_are_five_findings(keys, five, tmp_path, capsys):
    for name in five:
        FAULTS[name][0](keys, tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(keys))
    code = main([str(path), "--json"])
    findings = json.loads(capsys.readouterr().out)
    failed = [finding for finding in findings if finding["ok"] is False]
    for name in five:
        _, place, words = FAULTS[name]
        assert any(found["name"].endswith(place) and words in found["text"] for found in failed), (name, failed)
    assert len(failed) == 5 - ({"judge", "judge's key"} <= set(five)), failed
    assert code == failed[0]["exit_code"] != 0
    assert not any("Error:" in found["text"].partition("\n")[0] for found in failed), failed


def test_a_config_without_faults_has_none(keys, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(keys))
    assert main([str(path)]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "FAIL" not in said and "s a step: generating" in said and "2 steps take" in said
