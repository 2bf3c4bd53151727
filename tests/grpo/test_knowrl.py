"""KnowRL on real data: stage 1 on its cold-start conversations, stage 2 on its questions, with a knowledge base and two
chat endpoints."""

import pytest
from api_server import ApiServer, fails, says
from making import build_base, read_lines, real_data, refused

from grpo.base.storage import read_json, write_json
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.policy import Policy
from grpo.sft import sft
from grpo.train import train

QUIET = {"report_to": ["none"], "disable_tqdm": True, "lora_r": 4, "save_steps": 0}


@pytest.fixture(scope="module")
def xquad_base(tmp_path_factory):
    """XQuAD's paragraphs as a knowledge base."""
    articles = read_json(real_data("xquad/xquad.en.json"))["data"]
    texts = {article["title"]: [paragraph["context"] for paragraph in article["paragraphs"]] for article in articles}
    return build_base(tmp_path_factory.mktemp("xquad"), texts)


FACTS = "- The city of Paris is the capital of France.\n- Paris has three stations in the north."


@pytest.fixture
def endpoints(monkeypatch):
    """A judge that says right, wrong and not attempted in turn, and a decomposer."""
    turns = iter("ABC" * 10000)
    monkeypatch.setenv("OPENAI_API_KEY_JUDGE", "word")
    monkeypatch.setenv("OPENAI_API_KEY_FACTSCORE", "word")
    with (
        ApiServer(says("A"), default=says(lambda _: next(turns))) as judge,
        ApiServer(default=says(FACTS)) as decomposer,
    ):
        monkeypatch.setenv("OPENAI_API_BASE_JUDGE", judge.url)
        monkeypatch.setenv("LLM_EVAL_MODEL", "judge-model")
        monkeypatch.setenv("OPENAI_BASE_URL_FACTSCORE", decomposer.url)
        monkeypatch.setenv("FACTSCORE_MODEL", "facts-model")
        yield judge, decomposer


@pytest.fixture
def talkative(monkeypatch):
    """Completions of a random model, framed as a trained one would: otherwise there is nothing to judge."""
    decode = Policy.decode
    monkeypatch.setattr(
        Policy,
        "decode",
        lambda self, ids: f"<think>Paris. {decode(self, ids)}</think><answer>{ids[0]}</answer>".replace("\x00", ""),
    )


def stage2(tmp_path, chat_checkpoint, base, **keys):
    keys = {
        **QUIET,
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(real_data("knowrl/knowrl_RLdata.json")),
        "max_samples": 40,
        "reward_funcs": ["knowrl_v2"],
        "knowledge_base": str(base),
        "verifier": "lexical",
        "missing_title_policy": "search",
        "max_prompt_length": 600,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 12,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "output_dir": f"{tmp_path}/rl",
        **keys,
    }
    write_json(tmp_path / "rl.yaml", keys)
    train(*load_config(tmp_path / "rl.yaml"))
    return read_lines(tmp_path / "rl/metrics.jsonl")


def test_both_stages_on_real_data_with_every_reward_explained(
    tmp_path, chat_checkpoint, xquad_base, endpoints, talkative
):
    cold = {
        **QUIET,
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(real_data("knowrl/knowrl_coldstart.json")),
        "max_samples": 40,
        "max_length": 1500,
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "lora_target_modules": ["q_proj", "v_proj"],
        "output_dir": f"{tmp_path}/cold",
    }
    write_json(tmp_path / "cold.yaml", cold)
    sft(*load_config(tmp_path / "cold.yaml", kind=SftConfig))
    lines = stage2(tmp_path, chat_checkpoint, xquad_base, cold_start=f"{tmp_path}/cold.yaml")
    assert len(lines) == 3 and all(line["judge/calls"] > 0 and line["decomposer/calls"] > 0 for line in lines)
    rows = [row for path in sorted((tmp_path / "rl/completions").glob("*.jsonl")) for row in read_lines(path)]
    assert len(rows) == 24 and all(row["reasons"]["format"] for row in rows)
    assert all("the judge says" in row["reasons"]["knowrl_v2"] for row in rows)
    wrong = [row for row in rows if row["rewards"]["knowrl_v2"] is not None and row["rewards"]["knowrl_v2"] <= 0]
    assert wrong and all("facts" in row["details"]["knowrl_v2"] for row in wrong)
    judge, _ = endpoints
    asked = [request.text for request in judge.requests]
    assert not any("<|im_start|>" in text for text in asked)  # the question, never the rendered prompt


def test_a_judge_that_loses_its_quota_stops_the_run_with_a_checkpoint(
    tmp_path, chat_checkpoint, xquad_base, endpoints, talkative, monkeypatch
):
    with ApiServer(says("A"), *[says("B")] * 8, default=fails(429, "insufficient_quota")) as spent:
        monkeypatch.setenv("OPENAI_API_BASE_JUDGE", spent.url)
        refused(lambda: stage2(tmp_path, chat_checkpoint, xquad_base), "quota", exit_code=4)
    state = read_json(tmp_path / "rl/run_state.json")
    assert state["exit_code"] == 4 and (tmp_path / "rl" / state["last_checkpoint"]).is_dir()
