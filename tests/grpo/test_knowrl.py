"""KnowRL on real data: stage 1 on its cold-start conversations, stage 2 on its questions, with a knowledge base and two
chat endpoints."""

from api_server import ApiServer, says
from making import build_base, read_lines, real_data

from grpo.base.storage import read_json, write_json
from grpo.config.load import load_config
from grpo.policy import Policy
from grpo.train import train

FACTS = "- The city of Paris is the capital of France.\n- Paris has three stations in the north."
BOTH = {"report_to": ["none"], "disable_tqdm": True, "lora_r": 4, "save_steps": 0, "max_samples": 40}


def test_both_stages_on_real_data_with_every_reward_explained(tmp_path, chat_checkpoint, monkeypatch):
    """Completions of a random model are framed as a trained one would: otherwise there is nothing to judge."""
    articles = read_json(real_data("xquad/xquad.en.json"))["data"]
    texts = {article["title"]: [paragraph["context"] for paragraph in article["paragraphs"]] for article in articles}
    decode, framed = Policy.decode, "<think>Paris. {}</think><answer>{}</answer>"
    monkeypatch.setattr(Policy, "decode", lambda self, ids: framed.format(decode(self, ids), ids[0]).replace("\0", ""))
    for name in ("OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE"):
        monkeypatch.setenv(name, "word")
    stage1 = BOTH | {
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(real_data("knowrl/knowrl_coldstart.json")),
        "max_length": 1500,
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "lora_target_modules": ["q_proj", "v_proj"],
        "output_dir": f"{tmp_path}/cold",
    }
    write_json(tmp_path / "cold.yaml", stage1)
    stage2 = BOTH | {
        "cold_start": f"{tmp_path}/cold.yaml",
        "dataset_id_or_path": str(real_data("knowrl/knowrl_RLdata.json")),
        "reward_funcs": ["knowrl_v2"],
        "knowledge_base": str(build_base(tmp_path, texts)),
        "verifier": "lexical",
        "missing_title_policy": "search",
        "max_prompt_length": 600,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 12,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "output_dir": f"{tmp_path}/rl",
    }
    turns = iter("ABC" * 10000)  # right, wrong and not attempted
    with (
        ApiServer(says("A"), default=says(lambda _: next(turns))) as judge,
        ApiServer(default=says(FACTS)) as decomposer,
    ):
        stage2 |= {"judge_base_url": judge.url, "judge_model": "judge-model"}
        stage2 |= {"decomposer_base_url": decomposer.url, "decomposer_model": "facts-model"}
        write_json(tmp_path / "rl.yaml", stage2)
        train(*load_config(tmp_path / "rl.yaml"))
    lines = read_lines(tmp_path / "rl/metrics.jsonl")
    assert len(lines) == 3 and all(line["judge/calls"] > 0 and line["decomposer/calls"] > 0 for line in lines)
    rows = [row for path in sorted((tmp_path / "rl/completions").glob("*.jsonl")) for row in read_lines(path)]
    assert len(rows) == 24 and all(row["reasons"]["format"] for row in rows)
    assert all("the judge says" in row["reasons"]["knowrl_v2"] for row in rows)
    wrong = [row for row in rows if row["rewards"]["knowrl_v2"] is not None and row["rewards"]["knowrl_v2"] <= 0]
    assert wrong and all("facts" in row["details"]["knowrl_v2"] for row in wrong)
    asked = [request.text for request in judge.requests]
    assert not any("<|im_start|>" in text for text in asked)  # the question, never the rendered prompt
