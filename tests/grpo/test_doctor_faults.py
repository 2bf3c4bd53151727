"""The doctor names every fault by itself: of the config, both stages' data, each reward and each service."""

import itertools
import json
import random
import time
from dataclasses import asdict

import pytest
import test_doctor
from api_server import ApiServer, says
from making import build_base, cases, write_rows

from grpo.base.errors import STORAGE, UserError
from grpo.base.storage import read_json, write_json
from grpo.config.load import load_config
from grpo.doctor.__main__ import main
from grpo.doctor.trial import AUDIT_CALLS
from grpo.train import train
from rewards.services import SERVICES as CHECKS

FACTS = "- Paris is the capital of France.\n- Paris lies on the Seine."
QUESTIONS = [
    {"question": "Where is Velda?", "answer": "Orun", "title": "Velda;Orun"},
    {"question": "Where is Tane?", "answer": "Kesh", "title": "Tane"},
    {"question": "where is  tane?", "answer": "Marrin", "title": "Tane;Nowhere"},
    {"question": "Where is Velda?", "answer": "Orun", "title": "Velda;Orun"},
]


def knowrl_keys(folder, checkpoint):
    """Of a healthy config of KnowRL, whose services are offline; its data and its knowledge base are written here."""
    return {
        "model_name_or_path": str(checkpoint),
        "dataset_id_or_path": str(write_rows(folder / "data.jsonl", QUESTIONS)),
        "output_dir": f"{folder}/run",
        "report_to": ["none"],
        "reward_funcs": ["knowrl"],
        "knowledge_base": str(build_base(folder, {town: f"{town} is a town." for town in ("Velda", "Orun")})),
        "verifier": "lexical",
        "judge": "offline",
        "decomposer": "rules",
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_completion_length": 16,
        "max_steps": 10,
    }


@pytest.fixture
def keys(tmp_path, chat_checkpoint, monkeypatch):
    for name in ("OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE"):
        monkeypatch.setenv(name, "canary-key")
    return knowrl_keys(tmp_path, chat_checkpoint)


SERVICES = {"judge": "api", "judge_model": "judge-model", "decomposer": "api", "decomposer_model": "facts-model"}


@pytest.fixture
def examine(tmp_path, capsys):
    """Let the doctor look at a configuration of these keys."""

    def look(keys):
        write_json(tmp_path / "run.yaml", keys)
        return test_doctor.examine(capsys, tmp_path / "run.yaml")

    return look


def test_a_healthy_config_tells_what_its_services_said(keys, tmp_path, examine):
    with ApiServer(default=says("A")) as judge, ApiServer(default=says(FACTS)) as decomposer:
        urls = {"judge_base_url": judge.url, "decomposer_base_url": decomposer.url}
        seen = examine(keys | SERVICES | urls | {"api_cache": f"{tmp_path}/replies.db"})
        assert seen.code == 0 and not seen.failed and judge.requests and decomposer.requests
        asked = len(judge.requests) + len(decomposer.requests) - 2
    text = seen.text
    assert 0 < asked <= AUDIT_CALLS
    assert f"were asked {asked} of at most {AUDIT_CALLS} questions" in text["audit"]
    assert text["audit"].startswith("warning: ")  # the judge says A of a wrong answer
    assert not list(tmp_path.glob("replies.db*"))  # the run would make it
    assert "judge-model" in text["judge"] and "grades a right answer as correct" in text["judge"]
    assert "Paris lies on the Seine" in text["decomposer"] and "facts-model" in text["decomposer"]
    assert "2 documents" in text["knowledge base"] and "sound" in text["knowledge base"]
    assert "; 2 single titles missing, such as Tane, Nowhere" in text["titles"]
    assert text["prompt"].endswith("<|im_start|>user\nWhere is Velda?<|im_end|>\n<|im_start|>assistant\n")
    assert "10 steps of 4 completions" in text["steps"]
    assert "judge: 40 calls at most, 400 tokens of prompts and 80 of replies" in text["cost"]
    assert "api_deadline_s = 120 s" in text["cost"]


def test_a_reply_cache_that_cannot_be_made_is_a_fault_of_the_output(keys, tmp_path, examine):
    (tmp_path / "file").write_text("")
    seen = examine(keys | {"api_cache": f"{tmp_path}/file/replies.db"})
    assert seen.code == STORAGE and seen.failed == ["output"] and "set api_cache" in seen.text["output"]


def test_the_audit_is_no_fault_where_the_data_has_no_answers(keys, tmp_path, examine):
    data = write_rows(tmp_path / "bare.jsonl", [{"question": "Where is Velda?"}] * 4)
    seen = examine(keys | {"dataset_id_or_path": str(data), "reward_funcs": ["format"]})
    assert seen.code == 0 and seen.text["audit"] == "not checked: no row of the data has an answer"


def test_a_damaged_knowledge_base_is_found(keys, tmp_path, examine):
    base = tmp_path / "base.db"
    base.write_bytes(base.read_bytes()[:-4096])
    seen = examine(keys)
    assert seen.failed == ["knowledge base"] and seen.text["titles"].startswith("not checked")


@pytest.mark.parametrize("name, reply", [("judge", "A"), ("decomposer", FACTS)])
def test_a_question_that_had_to_be_asked_twice_is_told_and_counted_as_one(keys, tmp_path, name, reply):
    for _ in range(2):  # the first time the SDK is imported, which takes longer than any question
        with ApiServer(says("Hm.", after_s=0.2), says(reply, after_s=0.2)) as server:
            write_json(tmp_path / "run.yaml", keys | SERVICES | {f"{name}_base_url": server.url})
            options = asdict(load_config(tmp_path / "run.yaml")[0])
            started = time.perf_counter()
            found = CHECKS[name](options)
            spent = time.perf_counter() - started
        assert len(server.requests) == 2
        assert found.tokens == (10, 2)
        assert 0.2 <= found.seconds <= spent / 2


def test_held_out_questions_that_are_trained_on(keys, tmp_path, examine):
    held = write_rows(tmp_path / "held.jsonl", [QUESTIONS[0], {"question": "New?", "answer": "a", "title": "b"}])
    seen = examine(keys | {"eval_dataset_id_or_path": str(held)})
    assert seen.code == 0 and "1 of them are trained on as well" in seen.text["held-out data"]


CONVERSATIONS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."}]}
    for n in (1, 2, 3, 3)
]


@pytest.fixture
def stage1(tmp_path, chat_checkpoint):
    return {
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(write_rows(tmp_path / "rows.jsonl", CONVERSATIONS)),
        "output_dir": f"{tmp_path}/cold",
        "report_to": ["none"],
        "max_length": 64,
        "per_device_train_batch_size": 2,
    }


def test_a_config_of_stage_1_alone(stage1, examine):
    seen = examine(stage1)
    text = seen.text
    assert seen.code == 0 and "(stage 1)" in text["config"]
    names = "config machine output trackers model tokenizer data prompt memory weights sample steps time"
    assert list(text) == names.split()
    assert "s a step: training" in text["time"]
    assert "4 answers" in text["data"] and "1 are repetitions" in text["data"]
    assert text["steps"].startswith("6 steps of 2 answers") and "1?" in text["prompt"]


def test_the_exit_code_is_that_of_the_first_failure_and_what_was_not_checked_has_none(keys, tmp_path, examine, capsys):
    seen = examine(keys | {"model_name_or_path": f"{tmp_path}/none"})
    assert seen.code == 3 and seen.failed == ["model"]
    assert all(finding["exit_code"] == 0 for finding in seen.findings if finding["ok"] is None)
    assert main([f"{tmp_path}/run.yaml"]) == 3
    said = capsys.readouterr().out
    assert said.count("FAIL") == 1
    assert "--    memory" in said
    assert "not checked: this needs the model" in said


# --- any five faults -------------------------------------------------------------------------------------------------


@pytest.fixture
def of_both_stages(tmp_path, chat_checkpoint, stage1, monkeypatch):
    """The keys of a config of both stages, with a reward of its own, and no secrets."""
    for name in ("WANDB_API_KEY", "OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE", "FACTSCORE_DB_PATH"):
        monkeypatch.delenv(name, raising=False)
    write_json(tmp_path / "cold.yaml", stage1)
    (tmp_path / "mine.py").write_text("def brief(completions, **columns):\n    return [0.0 for _ in completions]\n")
    changes = {"cold_start": f"{tmp_path}/cold.yaml", "max_steps": 2}
    changes["reward_funcs"] = ["knowrl", f"{tmp_path}/mine.py:brief"]
    return knowrl_keys(tmp_path, chat_checkpoint) | changes


FAULTS = {name: fault for name, *fault in cases(__file__, "faults")}


def add_fault(name, keys, folder):
    where, change, *_ = FAULTS[name]
    if where == "keys":
        keys |= json.loads(change)
    elif where == "cold.yaml":
        write_json(folder / where, read_json(folder / where) | json.loads(change))
    else:
        (folder / where).write_text(change)


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
def test_five_faults_are_five_findings_under_their_names(of_both_stages, examine, five, tmp_path):
    """A run names those of its start in one message, too; mistakes of keys come before, all together."""
    of_start = [name for name in five if FAULTS[name][2] != "config"]
    for name in of_start:
        add_fault(name, of_both_stages, tmp_path)
    write_json(tmp_path / "run.yaml", of_both_stages)
    with pytest.raises(UserError) as error:
        train(*load_config(tmp_path / "run.yaml"))
    for name in of_start:
        assert FAULTS[name][3] in str(error.value), (name, error.value)
    assert "Error: " not in error.value.what and "grpo.doctor" in error.value.fix

    for name in {*five}.difference(of_start):
        add_fault(name, of_both_stages, tmp_path)
    seen = examine(of_both_stages)
    failed = [finding for finding in seen.findings if finding["ok"] is False]
    for name in five:
        *_, place, words = FAULTS[name]
        assert any(found["name"].endswith(place) and words in found["text"] for found in failed), (name, failed)
    names = [finding["name"] for finding in failed]
    assert len(names) == 5 - ({"judge", "judge's key"} <= {*five}), names
    assert seen.code == failed[0]["exit_code"] != 0
    assert not any("Error:" in found["text"].partition("\n")[0] for found in failed), failed


def test_a_config_without_faults_has_none_in_either_stage(of_both_stages, examine):
    del of_both_stages["model_name_or_path"]  # stage 1 names it
    seen = examine(of_both_stages)
    assert seen.code == 0 and not seen.failed and "runs first" in seen.text["stage 1"]
    assert "4 answers" in seen.text["stage 1 data"]
    assert "s a step; 6 steps take" in seen.text["stage 1 time"]
    assert "s a step: generating" in seen.text["time"] and "2 steps take" in seen.text["time"]
