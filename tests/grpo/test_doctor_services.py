"""The doctor names every fault by itself: of the config, both stages' data, each reward and each service."""

import json
import time
from dataclasses import asdict

import pytest
from api_server import ApiServer, says
from making import write_rows

from grpo.config.load import load_config
from grpo.doctor.__main__ import main
from knowledge.build import build
from rewards.services import SERVICES as CHECKS

FACTS = "- Paris is the capital of France.\n- Paris lies on the Seine."
QUESTIONS = [
    {"question": "Where is Velda?", "answer": "Orun", "title": "Velda;Orun"},
    {"question": "Where is Tane?", "answer": "Kesh", "title": "Tane"},
    {"question": "where is  tane?", "answer": "Marrin", "title": "Tane;Nowhere"},
    {"question": "Where is Velda?", "answer": "Orun", "title": "Velda;Orun"},
]


def knowrl_keys(folder, checkpoint) -> dict:
    """Of a healthy config of KnowRL, whose services are offline; its data and its knowledge base are written here."""
    source = write_rows(folder / "source.jsonl", [{"title": t, "text": f"{t} is a town."} for t in ("Velda", "Orun")])
    build(source, folder / "kb.db")
    return {
        "model_name_or_path": str(checkpoint),
        "dataset_id_or_path": str(write_rows(folder / "data.jsonl", QUESTIONS)),
        "output_dir": str(folder / "run"),
        "report_to": ["none"],
        "reward_funcs": ["knowrl"],
        "knowledge_base": str(folder / "kb.db"),
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


def examine(capsys, tmp_path, keys, *argv):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(keys))
    code = main([str(path), *map(str, argv), "--json"])
    findings = json.loads(capsys.readouterr().out)
    return code, {finding["name"]: finding for finding in findings}, findings


def failed(findings) -> list[str]:
    return [finding["name"] for finding in findings if finding["ok"] is False]


def test_a_healthy_config_tells_what_its_services_said(keys, tmp_path, capsys):
    with ApiServer(default=says("A")) as judge, ApiServer(default=says(FACTS)) as decomposer:
        urls = {"judge_base_url": judge.url, "decomposer_base_url": decomposer.url}
        keys |= SERVICES | urls
        code, found, findings = examine(capsys, tmp_path, keys)
        assert code == 0 and not failed(findings) and len(judge.requests) == len(decomposer.requests) == 1
    text = {name: finding["text"] for name, finding in found.items()}
    assert "judge-model" in text["judge"] and "grades a right answer as correct" in text["judge"]
    assert "Paris lies on the Seine" in text["decomposer"] and "facts-model" in text["decomposer"]
    assert "2 documents" in text["knowledge base"] and "sound" in text["knowledge base"]
    assert "1 of 4" not in text["titles"] and "; 2 single titles missing, such as Tane, Nowhere" in text["titles"]
    assert "1 are repetitions" not in text["data"] and "2 are repetitions" in text["data"]
    assert text["prompt"].endswith("<|im_start|>user\nWhere is Velda?<|im_end|>\n<|im_start|>assistant\n")
    assert text["sample"].startswith("8 tokens: ")
    assert "10 steps of 4 completions" in text["steps"] and "the largest has" in text["steps"]
    assert "judge: 40 calls at most, 400 tokens of prompts and 80 of replies" in text["cost"]
    assert "api_deadline_s = 120 s" in text["cost"]


def test_a_damaged_knowledge_base_is_found(keys, tmp_path, capsys):
    base = tmp_path / "kb.db"
    base.write_bytes(base.read_bytes()[:-4096])
    _, found, _ = examine(capsys, tmp_path, keys)
    assert found["knowledge base"]["ok"] is False
    assert found["titles"]["ok"] is None and found["judge"]["ok"] and found["decomposer"]["ok"]


def options_of(keys, folder):
    """What the rewards get of a config."""
    (folder / "options.yaml").write_text(json.dumps(keys))
    return asdict(load_config(folder / "options.yaml", [])[0])


@pytest.mark.parametrize(("name", "reply"), [("judge", "A"), ("decomposer", FACTS)])
def test_a_question_that_had_to_be_asked_twice_is_told_and_counted_as_one(keys, tmp_path, name, reply):
    for _ in range(2):  # the first time the SDK is imported, which takes longer than any question
        with ApiServer(says("Hm.", after_s=0.2), says(reply, after_s=0.2)) as server:
            options = options_of(keys | SERVICES | {f"{name}_base_url": server.url}, tmp_path)
            started = time.perf_counter()
            found = CHECKS[name](options)
            spent = time.perf_counter() - started
        assert len(server.requests) == 2 and found.tokens == (10, 2) and 0.2 <= found.seconds <= spent / 2


def test_held_out_questions_that_are_trained_on(keys, tmp_path, capsys):
    held = write_rows(tmp_path / "held.jsonl", [QUESTIONS[0], {"question": "New?", "answer": "a", "title": "b"}])
    keys |= {"eval_dataset_id_or_path": str(held)}
    code, found, _ = examine(capsys, tmp_path, keys)
    assert code == 0 and "1 of them are trained on as well" in found["held-out data"]["text"]


CONVERSATIONS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."}]}
    for n in (1, 2, 3, 3)
]


@pytest.fixture
def stage1(tmp_path, chat_checkpoint):
    return {
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(write_rows(tmp_path / "rows.jsonl", CONVERSATIONS)),
        "output_dir": str(tmp_path / "cold"),
        "report_to": ["none"],
        "max_length": 64,
        "per_device_train_batch_size": 2,
    }


def test_a_config_of_stage_1_alone(stage1, tmp_path, capsys):
    code, found, _ = examine(capsys, tmp_path, stage1)
    assert code == 0 and "(stage 1)" in found["config"]["text"]
    assert list(found) == [
        *("config", "machine", "output", "trackers", "model", "tokenizer", "data", "prompt", "memory", "sample"),
        *("steps", "time"),
    ]
    assert "s a step: training" in found["time"]["text"]
    assert "4 answers" in found["data"]["text"] and "1 are repetitions" in found["data"]["text"]
    assert found["steps"]["text"].startswith("6 steps of 2 answers") and "1?" in found["prompt"]["text"]


def test_stage_1_before_stage_2_is_examined_too(keys, stage1, tmp_path, capsys):
    (tmp_path / "cold.yaml").write_text(json.dumps(stage1))
    keys |= {"cold_start": str(tmp_path / "cold.yaml")}
    del keys["model_name_or_path"]
    code, found, _ = examine(capsys, tmp_path, keys)
    assert code == 0 and "runs first" in found["stage 1"]["text"] and "4 answers" in found["stage 1 data"]["text"]
    assert "s a step; 6 steps take" in found["stage 1 time"]["text"]
    write_rows(tmp_path / "rows.jsonl", [{"question": "1?"}])
    code, found, findings = examine(capsys, tmp_path, keys)
    assert failed(findings) == ["stage 1 data"] and found["sample"]["ok"] and code == 3


def test_the_exit_code_is_that_of_the_first_failure_and_what_was_not_checked_has_none(keys, tmp_path, capsys):
    keys |= {"model_name_or_path": str(tmp_path / "none")}
    code, _, findings = examine(capsys, tmp_path, keys)
    assert code == 3 and failed(findings) == ["model"]
    assert all(finding["exit_code"] == 0 for finding in findings if finding["ok"] is None)
    assert main([str(tmp_path / "run.yaml")]) == 3
    said = capsys.readouterr().out
    assert said.count("FAIL") == 1 and "--    memory" in said and "not checked: this needs the model" in said
