"""The files and commands of the three guides, with their keys and values, run here: only paths are replaced, and a few
overrides make them small. The guides are KnowRL's reproduction guide, KnowRL's README with its train.sh, and the guide
to GRPO for Qwen2.5-Math-1.5B.
"""

import json
from pathlib import Path

import pytest
from making import read_lines, unused, write_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.export import main as export
from grpo.sft import main as sft
from grpo.train import main as train

SMALL = ["max_completion_length=8", "report_to=none", "disable_tqdm=true", "torch_dtype=float32", "lora_r=4"]


@pytest.fixture
def written(tmp_path, chat_checkpoint):
    """Write a guide's file, with paths."""

    def write(name, data):
        text = (Path(__file__).parent / "guides" / f"{name}.yaml").read_text(encoding="utf-8")
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.format(model=chat_checkpoint, data=data, output=tmp_path / "run"))
        return str(path)

    return write


@pytest.fixture
def conversations(tmp_path):
    """ShareGPT, as knowrl_coldstart.json."""
    answer = "<think>It lies on the Seine.</think>\n<answer>Paris</answer>"
    turns = [{"from": "human", "value": "What is the capital of France?"}, {"from": "gpt", "value": answer}]
    (tmp_path / "coldstart.json").write_text(json.dumps([{"id": str(n), "conversations": turns} for n in range(3)]))
    return tmp_path / "coldstart.json"


@pytest.fixture
def sums(tmp_path):
    """As the mathematics guide's rows."""
    columns = {"predicted_answer": "1", "correct": True}
    rows = [{"question": f"{n} + 1?", "ground_truth": str(n + 1), **columns} for n in range(12)]
    return write_rows(tmp_path / "sums.jsonl", rows)


def test_stage_1(tmp_path, written, conversations, capsys):
    """Precision and ranks as printed; the notices name what has no meaning here."""
    sft([written("knowrl_sft", conversations), "report_to=none", "disable_tqdm=true"])
    said = capsys.readouterr().err
    steps = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert steps[-1]["step"] == 6 and (tmp_path / "run" / "loss.png").exists(), "3 conversations, 4 epochs, 2 at a time"
    adapter = json.loads((tmp_path / "run" / "final" / "adapter_config.json").read_text())
    assert adapter["r"] == 256 and len(adapter["target_modules"]) == 2
    assert set(unused(said.splitlines())) >= {"template", "save_strategy", "ddp_timeout"}


@pytest.mark.parametrize(("name", "group_size"), [("math", 2), ("math_nested", 8)])
def test_the_mathematics(tmp_path, written, sums, name, group_size):
    """One step of its block: 16 completions, 2 answers each to 8 questions, rewarded 1, -1 or -0.5."""
    train([written(name, sums), *SMALL, "max_steps=1"])
    (step,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert -1 <= step["reward"] <= 1 and step["rewards/math/unscored_frac"] == 0
    (path,) = (tmp_path / "run" / "completions").glob("*.jsonl")
    answers = read_lines(path)
    assert len(answers) == 16 and len({answer["row"] for answer in answers}) == 16 // group_size
    assert {answer["rewards"]["math"] for answer in answers} <= {1, -1, -0.5}
    if name == "math":  # a merged checkpoint for OpenCompass: transformers finds the end of a turn among its end tokens
        export([str(tmp_path / "run" / "final"), str(tmp_path / "merged"), "--merge"])
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
        assert tokenizer.convert_tokens_to_ids("<|im_end|>") in model.generation_config.eos_token_id
